//! The name of the host in the first bytes that a client sends: the server name of TLS or QUIC, or
//! HTTP's Host.
//!
//! All lengths must agree and nothing may be left over: what two readers could understand
//! differently has no name. Nothing here keeps state. The caller passes all bytes from the
//! beginning, until they suffice.

mod http;
pub mod quic;
mod tls;

use crate::egress::name::Name;

pub use tls::{read_again, rest};

/// Most bytes of a greeting. A client's hello with a post-quantum key share has 2,000 bytes; HTTP
/// servers take heads of 8 or 16 KiB.
pub const GREETING_MAX: usize = 16 << 10;

/// What a greeting says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// More bytes are needed.
    Partial,
    /// The client means this host.
    Name(Name),
    /// It names no host, or is not understood.
    Unnamed,
    /// It has an encrypted part, which may have another name (Encrypted Client Hello).
    Hidden,
}

/// Reads the greeting at the beginning of a TCP connection.
pub fn read(bytes: &[u8]) -> Greeting {
    let greeting = match bytes.first() {
        None => Greeting::Partial,
        Some(&tls::HANDSHAKE) => tls::read(bytes),
        Some(b'A'..=b'Z') => http::read(bytes),
        Some(_) => Greeting::Unnamed,
    };
    match greeting {
        Greeting::Partial if bytes.len() >= GREETING_MAX => Greeting::Unnamed,
        greeting => greeting,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_protocols_have_no_name() {
        for bytes in [&b"SSH-2.0-x\r\n"[..], b"\0\0\0\x08", b"\x80\x2e\x01\x03\x01", b"get / "] {
            assert_ne!(read(bytes), Greeting::Partial, "{bytes:?}");
            assert!(!matches!(read(bytes), Greeting::Name(_)), "{bytes:?}");
        }
        assert_eq!(read(b""), Greeting::Partial);
    }

    /// Bad input: greetings that never end.
    #[test]
    fn greetings_are_bounded() {
        let mut endless = b"GET / HTTP/1.1\r\nA: ".to_vec();
        endless.resize(GREETING_MAX - 1, b'a');
        assert_eq!(read(&endless), Greeting::Partial);
        endless.push(b'a');
        assert_eq!(read(&endless), Greeting::Unnamed);
        let mut hello = vec![0x16, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc];
        hello.resize(GREETING_MAX, 0);
        assert_eq!(read(&hello), Greeting::Unnamed);
    }

    proptest::proptest! {
        /// Any bytes are read without a panic.
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            read(&bytes);
            read_again(&bytes);
        }
    }
}
