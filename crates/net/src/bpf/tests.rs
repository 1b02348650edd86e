//! Rejected programs, effects of instructions, and invalid expressions.

use super::*;
use alloc::string::{String, ToString};
use alloc::vec;
use proptest::prelude::*;

fn instruction(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

fn run(code: &[(u16, u8, u8, u32)], bytes: &[u8]) -> u32 {
    let code = code.iter().map(|&(code, jt, jf, k)| Instruction { code, jt, jf, k });
    Program::new(code.collect()).expect("a program").run(bytes, 1000)
}

#[test]
fn what_could_do_harm_is_refused() {
    let end = instruction(RET | K, 1);
    let refused = |first: Instruction| Program::new(vec![first, end]).expect_err("an invalid one");
    assert_eq!(Program::new(vec![]), Err(Invalid::Length));
    assert_eq!(Program::new(vec![end; INSTRUCTIONS_MAX + 1]), Err(Invalid::Length));
    assert!(Program::new(vec![end; INSTRUCTIONS_MAX]).is_ok());
    assert_eq!(Program::new(vec![instruction(LD | IMM, 0)]), Err(Invalid::NoReturn));
    for k in [1, 2, u32::MAX] {
        assert_eq!(refused(instruction(JMP | JA, k)), Invalid::Jump(0), "{k}");
    }
    for (jt, jf) in [(1, 0), (0, 1), (255, 255)] {
        let branch = Instruction { code: JMP | JEQ, jt, jf, k: 0 };
        assert_eq!(refused(branch), Invalid::Jump(0));
    }
    for (code, k) in [
        (ALU | DIV, 0),
        (ALU | MOD, 0),
        (ALU | LSH, 32),
        (ALU | RSH, u32::MAX),
        (LD | MEM, 16),
        (LDX | MEM, u32::MAX),
        (ST, 16),
        (STX, 16),
        (LD | ABS | W, 0xffff_f000),
        (LD | IND | B, NEGATIVE),
        (LDX | MSH | B, NEGATIVE),
    ] {
        assert_eq!(refused(instruction(code, k)), Invalid::Operand(0), "{code:#x} {k}");
    }
    for code in [
        0x18,
        0xff,
        0x100,
        LDX | ABS,
        LDX | B | IMM,
        LD | MSH | B,
        LD | 0xc0,
        ALU | 0xb0,
        JMP | 0x50,
        RET | 0x08,
        RET | 0x18,
        MISC | 0x40,
        ST | 0x20,
        LD | H | IMM,
        0xffff,
    ] {
        assert_eq!(refused(instruction(code, 0)), Invalid::Unknown(0), "{code:#x}");
    }
}

/// Goal: each instruction does what the paper specifies, also at its limits.
#[test]
fn instructions_do_what_they_should() {
    let bytes = [0x45, 0x02, 0x03, 0x04, 0x05];
    let ret_a = (RET | A, 0, 0, 0);
    let load = |code, k| run(&[(code, 0, 0, k), ret_a], &bytes);
    assert_eq!(load(LD | W | ABS, 0), 0x4502_0304);
    assert_eq!(load(LD | W | ABS, 1), 0x0203_0405);
    assert_eq!(load(LD | W | ABS, 2), 0, "not completely within");
    assert_eq!((load(LD | H | ABS, 3), load(LD | H | ABS, 4)), (0x0405, 0));
    assert_eq!((load(LD | B | ABS, 4), load(LD | B | ABS, 5)), (0x05, 0));
    assert_eq!((load(LD | LEN, 0), load(LD | IMM, 7)), (1000, 7));
    let txa = (MISC | TXA, 0, 0, 0);
    let index = |code, k| run(&[(code, 0, 0, k), txa, ret_a], &bytes);
    assert_eq!((index(LDX | MSH | B, 0), index(LDX | MSH | B, 5)), (20, 0));
    assert_eq!((index(LDX | IMM, 9), index(LDX | LEN, 0)), (9, 1000));
    let indirect = |x, k| run(&[(LDX | IMM, 0, 0, x), (LD | B | IND, 0, 0, k), ret_a], &bytes);
    assert_eq!((indirect(1, 2), indirect(u32::MAX, 1), indirect(2, 3)), (4, 0, 0));

    let alu = |code, a, k| run(&[(LD | IMM, 0, 0, a), (ALU | code, 0, 0, k), ret_a], &bytes);
    let alu_x = |code, a, x| {
        let code = ALU | code | X;
        run(&[(LD | IMM, 0, 0, a), (LDX | IMM, 0, 0, x), (code, 0, 0, 0), ret_a], &bytes)
    };
    for (code, a, b, expected) in [
        (ADD, u32::MAX, 2, 1),
        (SUB, 1, 2, u32::MAX),
        (MUL, 1 << 31, 3, 1 << 31),
        (DIV, 7, 2, 3),
        (MOD, 7, 4, 3),
        (OR, 5, 2, 7),
        (AND, 7, 5, 5),
        (XOR, 7, 5, 2),
        (LSH, 1, 31, 1 << 31),
        (RSH, 1 << 31, 31, 1),
    ] {
        assert_eq!((alu(code, a, b), alu_x(code, a, b)), (expected, expected), "{code:#x}");
    }
    assert_eq!((alu_x(DIV, 7, 0), alu_x(MOD, 7, 0)), (0, 0));
    assert_eq!((alu_x(LSH, 7, 32), alu_x(RSH, 7, 99)), (0, 0));
    assert_eq!(alu(NEG, 1, 0), u32::MAX);

    let stored = [(LD | IMM, 0, 0, 5), (ST, 0, 0, 15), (LDX | MEM, 0, 0, 15), txa, ret_a];
    assert_eq!(run(&stored, &bytes), 5);
    let stored = [(LDX | IMM, 0, 0, 6), (STX, 0, 0, 0), (LD | MEM, 0, 0, 0), ret_a];
    assert_eq!(run(&stored, &bytes), 6);
    let tax = [(LD | IMM, 0, 0, 8), (MISC | TAX, 0, 0, 0), (LD | IMM, 0, 0, 1), txa, ret_a];
    assert_eq!(run(&tax, &bytes), 8);

    let branch = |code, a, k| {
        let (yes, no) = ((RET | K, 0, 0, 1), (RET | K, 0, 0, 2));
        run(&[(LD | IMM, 0, 0, a), (JMP | code, 0, 1, k), yes, no], &bytes)
    };
    assert_eq!((branch(JEQ, 3, 3), branch(JEQ, 3, 4)), (1, 2));
    assert_eq!((branch(JGT, 4, 3), branch(JGT, 3, 3)), (1, 2));
    assert_eq!((branch(JGE, 3, 3), branch(JGE, 2, 3)), (1, 2));
    assert_eq!((branch(JSET, 6, 4), branch(JSET, 6, 9)), (1, 2));
    let jump = [(JMP | JA, 0, 0, 1), (RET | K, 0, 0, 1), (RET | K, 0, 0, 2)];
    assert_eq!(run(&jump, &bytes), 2);
}

#[test]
fn expressions_that_are_none_say_where() {
    let error = |text: &str| compile(text).expect_err(text).to_string();
    for (text, expected) in [
        ("hosts 1.2.3.4", "at character 1: expected a primitive"),
        ("1.2.3.4", "at character 1: expected a primitive"),
        ("host", "at character 5: expected an IP address"),
        ("host example.org", "at character 6: expected an IP address (names"),
        ("host 1.2.3", "at character 6: expected an IP address (names"),
        ("net 10.0.0.0", "at character 5: expected a network ADDRESS/LENGTH"),
        ("net 10.0.0.0/33", "at character 5: expected a network ADDRESS/LENGTH"),
        ("net 10.0.0.1/8", "address bits beyond the prefix are set"),
        ("net fe80::1/64", "address bits beyond the prefix are set"),
        ("port 65536", "at character 6: expected a port number from 0 to 65535"),
        ("port http", "at character 6: expected a port number from 0 to 65535"),
        ("tcp host 1.2.3.4", "at character 9: the words before this position cannot be"),
        ("ip host ::1", "the words before this position cannot be"),
        ("ip6 host 1.2.3.4", "the words before this position cannot be"),
        ("icmp src", "the words before this position cannot be"),
        ("ether host 1.2.3.4", "at character 12: expected a MAC address such as"),
        ("ip or", "at character 6: expected a primitive"),
        ("and ip", "at character 1: expected a primitive"),
        ("ip ip6", "at character 4: expected 'and', 'or' or the end"),
        ("(ip", "at character 4: expected ')'"),
        ("ip)", "at character 3: expected 'and', 'or' or the end"),
        ("()", "at character 2: expected a primitive"),
        ("ip & tcp", "at character 4: expected 'and', 'or' or the end"),
        ("vlan 4096", "at character 6: expected a VLAN ID from 0 to 4095"),
        ("vlan and vlan and vlan", "the expression is too large"),
        ("less -1", "at character 6: expected a number of bytes"),
        ("port 80 or 443", "at character 12: expected a primitive"),
        ("tcp[13] & 2 != 0", "expected a primitive: ip, ip6, arp"),
        ("höst", "at character 1: expected a primitive"),
    ] {
        assert!(error(text).contains(expected), "{text}: {}", error(text));
    }
}

#[test]
fn expressions_are_bounded() {
    let too_large = |text: &str| compile(text).expect_err("too large").problem == Problem::TooLarge;
    let nested = |depth: usize| "(".repeat(depth) + "ip" + &")".repeat(depth);
    assert!(compile(&nested(DEPTH_MAX - 1)).is_ok() && too_large(&nested(DEPTH_MAX)));
    assert!(too_large(&"not ".repeat(EXPRESSION_BYTES_MAX / 4)));
    let many = |count: usize| vec!["ip"; count].join(" or ");
    assert!(compile(&many(TERMS_MAX)).is_ok() && too_large(&many(TERMS_MAX + 1)));
    assert!(too_large(&" ".repeat(EXPRESSION_BYTES_MAX + 1)));
}

/// Goal: targets beyond the reach of a conditional jump are reached, from both sides.
#[test]
fn jumps_reach_far() {
    let frame = {
        let mut frame = [0; 60];
        frame[12..14].copy_from_slice(&[0x08, 0x06]);
        frame
    };
    let alternatives: Vec<String> =
        (1..TERMS_MAX - 1).map(|n| alloc::format!("port {n}")).collect();
    let alternatives = alternatives.join(" or ");
    let accepts = |text: &str| compile(text).expect("it fits").accepts(&frame, 60);
    assert!(accepts(&alloc::format!("arp or ({alternatives})")));
    assert!(accepts(&alloc::format!("({alternatives}) or arp")));
    assert!(!accepts(&alloc::format!("ip6 and ({alternatives})")));
    assert!(accepts(&alloc::format!("arp and not ({alternatives})")));
}

#[test]
fn nothing_asked_for_is_everything() {
    for text in ["", "  ", "greater 0", "not less 0 and greater 0"] {
        assert!(compile(text).expect("an expression").accepts(&[], 1), "{text}");
    }
}

proptest! {
    /// Goal: every accepted program terminates and stays within the packet.
    #[test]
    fn any_program_that_is_taken_ends(
        code in proptest::collection::vec((any::<u16>(), 0..8_u8, 0..8_u8, 0..80_u32), 1..40),
        bytes in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut code: Vec<_> = code
            .into_iter()
            .map(|(code, jt, jf, k)| Instruction { code: code & 0xff, jt, jf, k })
            .filter(|first| first.decode(0, INSTRUCTIONS_MAX).is_ok())
            .collect();
        code.extend([instruction(RET | A, 0); 90]);
        let program = Program::new(code).expect("checked one by one");
        program.run(&bytes, bytes.len() as u32);
    }

    /// Goal: any text is an expression, or an error with a position within it.
    #[test]
    fn any_text_is_taken_or_refused(
        words in proptest::collection::vec(proptest::sample::select(vec![
            "ip", "ip6", "tcp", "udp", "arp", "and", "or", "not", "(", ")", "!", "&&", "||", "src",
            "dst", "host", "net", "port", "vlan", "less", "greater", "ether", "1", "10.0.0.0/8",
            "::/0", "1.2.3.4", "fe80::1", "02:00:00:00:00:01", "é", "&",
        ]), 0..12),
    ) {
        let text = words.join(" ");
        if let Err(error) = compile(&text) {
            prop_assert!(error.at <= text.len());
        }
    }
}
