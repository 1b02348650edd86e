//! Invalid expressions, and their bounds.

use super::*;
use proptest::prelude::*;

fn checked(text: &str) -> Result<Vec<u16>, FilterError> {
    compile(text, |code, _, _, _| code)
}

#[test]
fn expressions_that_are_none_say_where() {
    let error = |text: &str| checked(text).expect_err(text).to_string();
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
    let too_large = |text: &str| checked(text).expect_err("too large").problem == Problem::TooLarge;
    let nested = |depth: usize| "(".repeat(depth) + "ip" + &")".repeat(depth);
    assert!(checked(&nested(DEPTH_MAX - 1)).is_ok() && too_large(&nested(DEPTH_MAX)));
    assert!(too_large(&"not ".repeat(EXPRESSION_BYTES_MAX / 4)));
    let many = |count: usize| vec!["ip"; count].join(" or ");
    assert!(checked(&many(TERMS_MAX)).is_ok() && too_large(&many(TERMS_MAX + 1)));
    assert!(too_large(&" ".repeat(EXPRESSION_BYTES_MAX + 1)));
}

proptest! {
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
        if let Err(error) = checked(&text) {
            prop_assert!(error.at <= text.len());
        }
    }
}
