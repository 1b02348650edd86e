//! Feeds arbitrary bytes to the parsers of socket addresses and control messages.

use super::error_queue;
use super::message::{AddressBytes, control_messages, decode_address};
use super::ping::{PingKind, parse_reply};
use super::udp::Datagram;
use crate::receive::Pieces;

/// Parses a socket address. If it is valid, encoding and parsing it again must yield the same
/// address.
pub fn address(bytes: &[u8]) {
    if let Some(address) = decode_address(bytes) {
        let encoded = AddressBytes::encode(Some(address));
        assert_eq!(decode_address(encoded.as_bytes()), Some(address));
    }
}

/// Parses the control messages of a received datagram and of an error queue entry. They must lie in
/// `bytes` one after the other, and a segment size must be smaller than the datagram.
pub fn control(bytes: &[u8], datagram_len: usize) {
    let from = ([127, 0, 0, 1], 1).into();
    let mut datagram = Datagram {
        from,
        pieces: Pieces::default(),
        len: datagram_len,
        gro_size: None,
        truncated: false,
        tos: None,
        to: None,
    };
    let mut taken = 0;
    for message in control_messages(bytes) {
        taken += message.data.len();
        assert!(taken <= bytes.len());
        datagram.note(&message);
    }
    assert!(datagram.gro_size.is_none_or(|size| usize::from(size.get()) < datagram_len));
    let event = error_queue::event(Some(from), bytes);
    assert_eq!(event.to, Some(from));
}

/// Parses an echo reply. Its headers must lie in `bytes`.
pub fn echo_reply(bytes: &[u8]) {
    for kind in [PingKind::Raw, PingKind::Datagram] {
        for v6 in [false, true] {
            if let Some(reply) = parse_reply(bytes, kind, v6) {
                assert!(reply.header_bytes <= bytes.len());
                let ident = &bytes[reply.header_bytes - 4..reply.header_bytes - 2];
                assert_eq!(reply.ident.to_be_bytes(), ident);
            }
        }
    }
}
