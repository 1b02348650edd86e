//! Distinguishes queries from answers of service discovery.
//!
//! Each kind passes the gateway in one direction only, so that no message passes twice.

use crate::config::MulticastService;

/// Longest message (RFC 6762 §17).
pub(super) const MESSAGE_BYTES_MAX: usize = 9000;

/// Offset of the flags and of the number of questions in a DNS message (RFC 1035 §4.1.1).
const DNS_FLAGS_AT: usize = 2;
const DNS_QUESTIONS_AT: usize = 4;
const DNS_HEADER_LEN: usize = 12;
/// The message is a response.
const DNS_RESPONSE: u8 = 0x80;
/// Operation code in the flags; zero for a standard query.
const DNS_OPCODE: u8 = 0x78;
/// The sender of a question prefers a unicast answer (RFC 6762 §5.4).
const UNICAST_RESPONSE: u8 = 0x80;
/// The label is a pointer (RFC 1035 §4.1.4).
const POINTER: u8 = 0xc0;

/// True if a message of the program asks for services.
pub(super) fn is_query(service: MulticastService, message: &[u8]) -> bool {
    match service {
        MulticastService::Mdns => flags(message) == Some(0),
        MulticastService::Ssdp => message.starts_with(b"M-SEARCH * HTTP/1.1\r\n"),
    }
}

/// True if a message from this port of a host announces a service, or answers a query.
pub(super) fn is_answer(service: MulticastService, from: u16, message: &[u8]) -> bool {
    match service {
        // RFC 6762 §6: responses come from the service's port.
        MulticastService::Mdns => from == service.port() && flags(message) == Some(DNS_RESPONSE),
        MulticastService::Ssdp => message.starts_with(b"NOTIFY * HTTP/1.1\r\n"),
    }
}

/// Response bit and operation code of a DNS message; `None` if it has no whole header.
fn flags(message: &[u8]) -> Option<u8> {
    let header = message.first_chunk::<DNS_HEADER_LEN>()?;
    Some(header[DNS_FLAGS_AT] & (DNS_RESPONSE | DNS_OPCODE))
}

/// Asks for answers by multicast in all questions of an mDNS query: unicast answers would go to
/// another program of the host that has the port. Stops at a malformed name.
pub(super) fn ask_for_multicast(query: &mut [u8]) {
    let Some(count) = query.get(DNS_QUESTIONS_AT..).and_then(|rest| rest.first_chunk::<2>()) else {
        return;
    };
    let mut at = DNS_HEADER_LEN;
    for _ in 0..u16::from_be_bytes(*count) {
        let Some(end) = name_end(query, at) else { return };
        // Type, and class, whose first bit is the preference.
        let Some(class) = query.get_mut(end + 2..end + 4) else { return };
        class[0] &= !UNICAST_RESPONSE;
        at = end + 4;
    }
}

/// Offset behind the name at `at`; `None` if it does not end in the message.
fn name_end(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            label if label & POINTER == POINTER => return Some(at + 2),
            label if label & POINTER != 0 => return None,
            label => at += 1 + usize::from(label),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message with these flags and questions for `printer.local`.
    fn dns(flags: u8, classes: &[u16]) -> Vec<u8> {
        let mut message = vec![0, 0, flags, 0, 0, classes.len() as u8, 0, 0, 0, 0, 0, 0];
        for (index, class) in classes.iter().enumerate() {
            let name: &[u8] = if index == 0 { b"\x07printer\x05local\0" } else { &[0xc0, 12] };
            message.extend(name);
            message.extend([0, 1]);
            message.extend(class.to_be_bytes());
        }
        message
    }

    #[test]
    fn queries_and_answers_are_told_apart() {
        use MulticastService::{Mdns, Ssdp};
        let (query, answer) = (dns(0, &[1]), dns(0x84, &[]));
        assert!(is_query(Mdns, &query) && !is_answer(Mdns, 5353, &query));
        assert!(is_answer(Mdns, 5353, &answer) && !is_query(Mdns, &answer));
        assert!(!is_answer(Mdns, 53, &answer), "from another port");
        // Another operation, and messages without a whole header.
        assert!(!is_query(Mdns, &dns(0x28, &[1])) && !is_answer(Mdns, 5353, &dns(0xa8, &[])));
        for len in 0..DNS_HEADER_LEN {
            assert!(!is_query(Mdns, &query[..len]) && !is_answer(Mdns, 5353, &answer[..len]));
        }
        let (search, notify) = (b"M-SEARCH * HTTP/1.1\r\nST: x\r\n", b"NOTIFY * HTTP/1.1\r\n");
        assert!(is_query(Ssdp, search) && !is_answer(Ssdp, 1900, search));
        assert!(is_answer(Ssdp, 50_000, notify) && !is_query(Ssdp, notify));
        for other in [&b""[..], b"M-SEARCH", b"HTTP/1.1 200 OK\r\n", b"GET / HTTP/1.1\r\n"] {
            assert!(!is_query(Ssdp, other) && !is_answer(Ssdp, 1900, other));
        }
    }

    #[test]
    fn answers_are_asked_for_by_multicast() {
        let mut query = dns(0, &[0x8001, 0x8001, 1]);
        ask_for_multicast(&mut query);
        assert_eq!(query, dns(0, &[1, 1, 1]));
        // Bad input: truncated at every length, reserved labels, more questions than there are.
        let whole = dns(0, &[0x8001, 0x8001]);
        for len in 0..whole.len() {
            ask_for_multicast(&mut whole[..len].to_vec());
        }
        let mut reserved = whole.clone();
        reserved[DNS_HEADER_LEN] = 0x47;
        let before = reserved.clone();
        ask_for_multicast(&mut reserved);
        assert_eq!(reserved, before);
        let mut many = whole;
        many[DNS_QUESTIONS_AT] = 0xff;
        ask_for_multicast(&mut many);
    }
}
