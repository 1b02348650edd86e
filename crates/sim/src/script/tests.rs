//! Parsing scripts: valid texts, and robustness against invalid ones.

use super::{Action, Call, Error, Script, TcpOption, When};
use crate::seed::Rng;

const EXAMPLE: &str = r#"// A comment.
`sysctl -q net.ipv4.tcp_sack=0 net.ipv4.tcp_timestamps=0
sysctl net.ipv4.tcp_ecn=1`
0 socket(..., SOCK_STREAM|SOCK_NONBLOCK, IPPROTO_TCP) = 3
+0 setsockopt(3, SOL_SOCKET, SO_LINGER, {onoff=1, linger=0}, 8) = 0
+0...0.1 connect(3, ..., ...) = -1 EINPROGRESS (Operation now in progress)
+0 > S 0:0(0) win 65535 <mss 1460,sackOK,TS val 100 ecr 0,nop,wscale 7> // another
+.1 < S. 0:0(0) ack 1 win 100 <mss 1000,nop,nop,sackOK>
* > [ect0] P. 1:1001(1000) ack 1 <...>
+0~+.5 > F. 1001:1001(0) ack 1
+0 < . 1:1(0) ack 1 win 100 <nop,nop,sack 1001:2001 3001:4001>
+0 < R 1:1(0) win 0 <hex 0203ff>
+0 < icmp unreachable too_big mtu 1200 [1:1001(1000)]
+0 %{ assert tcpi_snd_cwnd == 10, tcpi_snd_cwnd
      assert tcpi_ca_state != TCP_CA_Loss }%
+1.25 read(3, [65], 10) = 10
"#;

#[test]
fn an_example_is_understood() {
    let script = Script::parse(EXAMPLE).expect("a script");
    let setting = ("net.ipv4.tcp_ecn".to_string(), "1".to_string());
    assert_eq!((script.settings.len(), &script.settings[2]), (3, &setting));
    let lines: Vec<usize> = script.steps.iter().map(|step| step.line).collect();
    assert_eq!(lines, [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16]);
    let whens: Vec<When> = script.steps.iter().map(|step| step.when).collect();
    assert_eq!(whens[2], When::Waiting(0, 100_000));
    assert_eq!(whens[5], When::Any);
    assert_eq!(whens[6], When::Between(0, 500_000));
    assert_eq!(whens[11], When::After(1_250_000));
    let Action::Inject(segment) = &script.steps[7].action else { panic!("it arrives") };
    let sack = TcpOption::Sack(vec![(1001, 2001), (3001, 4001)]);
    assert_eq!(segment.options, Some(vec![TcpOption::Nop, TcpOption::Nop, sack]));
    let Action::Call(Call::Read { fill, .. }, _) = &script.steps[11].action else { panic!() };
    assert_eq!(*fill, Some(65));
}

/// A segment that is formatted is parsed as the same segment.
#[test]
fn segments_are_shown_as_they_are_written() {
    for text in [
        "S 0:0(0) win 65535 <mss 1460,sackOK,TS val 100 ecr 0,nop,wscale 7>",
        "[ce] FP. 1:1001(1000) ack 7 win 0 urg 3 <...>",
        "- 5:5(0)",
        ". 1:1(0) ack 1 <nop,nop,sack 1:2 3:4,FO 0011aabb,hex 0203ff,eol>",
    ] {
        let script = Script::parse(&format!("* > {text}")).expect(text);
        let Action::Expect(segment) = &script.steps[0].action else { panic!("{text}") };
        assert_eq!(segment.to_string(), text);
    }
}

#[track_caller]
fn refuses(text: &str, line: usize, what: &str) {
    let Error { line: at, what: actual } = Script::parse(text).expect_err(text);
    assert!(actual.contains(what), "{text}: {actual}");
    assert_eq!(at, line, "{text}: {actual}");
}

/// Errors name the line and the problem.
#[test]
fn mistakes_are_named() {
    refuses("\n\nhello", 3, "a time in seconds");
    refuses("+0 hello(3) = 0", 1, "`hello` is not known");
    refuses("+0 listen(3, 1 = 0", 1, "`,` expected");
    refuses("+0 listen(3, NO_SUCH) = 0", 1, "`NO_SUCH` is not a known constant");
    refuses("+0 connect(3, ..., ...) = -1 EWHAT", 1, "the name of an error");
    refuses("+0 > Q 0:0(0)", 1, "flags of FSRP.UEW");
    refuses("+0 > S 0:1(0)", 1, "0:1 is not 0 bytes");
    refuses("+0 > . 0:0(0)", 1, "go together");
    refuses("+0 < S 0:0(0) <...>", 1, "its options stated");
    refuses("+0 < S 0:0(0) <mss>", 1, "a number");
    refuses("+0 < S 0:0(0) <mss 70000>", 1, "a number in range");
    refuses("+0 < S 0:0(0) <mss 1460", 1, "`,` expected, not the end of the line");
    refuses("+0 < S 0:0(0) <hex 012>", 1, "an even number");
    refuses("+0 < icmp hello [1:1(0)]", 1, "unreachable");
    refuses("+0 %{ print }%", 1, "is not `assert");
    refuses("+0 %{ assert tcpi_x == 1", 1, "`}%` is missing");
    refuses("* listen(3, 1) = 0", 1, "cannot have such a time");
    refuses("+0 listen(3, 1) = 0 +0", 1, "a line's end");
    refuses("+1.1234567 listen(3, 1) = 0", 1, "to the microsecond");
    refuses("--no_such=1", 1, "not an option");
    refuses("`reboot`", 1, "not sysctl");
    refuses("/* for ever", 1, "does not end");
    refuses("+0 poll([[[[[[[[1]]]]]]]], 1, 0) = 0", 1, "nested too deeply");
}

/// No text makes the parser panic: the example, with parts removed, repeated and overwritten.
#[test]
fn any_text_may_be_parsed() {
    let mut rng = Rng::new(7);
    let example: Vec<char> = EXAMPLE.chars().collect();
    let odd: Vec<char> = "<>{}[]()`\"%.,:;~+*-=|0129 \n\té€\0".chars().collect();
    for _ in 0..20_000 {
        let mut text = example.clone();
        for _ in 0..rng.between(1, 6) {
            if text.is_empty() {
                break;
            }
            let at = rng.below(text.len() as u64) as usize;
            let end = (at + rng.below(20) as usize).min(text.len());
            match rng.below(4) {
                0 => drop(text.drain(at..end)),
                1 => text.insert(at, rng.pick(&odd)),
                2 => text[at] = rng.pick(&odd),
                _ => {
                    let piece: Vec<char> = text[at..end].to_vec();
                    text.splice(at..at, piece);
                }
            }
        }
        let text: String = text.into_iter().collect();
        if let Err(error) = Script::parse(&text) {
            assert!(error.line <= text.lines().count() + 1 && !error.what.is_empty());
        }
    }
    for text in ["+", "+0", "+0 <", "+0 >", "+0 > .", "+0 f(", "`", "+0 %{", "-", "+0 f() ="] {
        Script::parse(text).expect_err(text);
    }
    let deep = format!("+0 f({}", "[".repeat(100_000));
    Script::parse(&deep).expect_err("too deep");
    let long = format!("+0 < S 0:0(0) <{}>", "nop,".repeat(10_000));
    Script::parse(&long).expect_err("too long");
}
