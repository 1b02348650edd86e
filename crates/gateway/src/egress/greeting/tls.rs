//! The server name in a client's hello (RFC 8446 §4.1.2, RFC 6066 §3).

use crate::egress::greeting::{GREETING_MAX, Greeting};
use crate::egress::name::Name;

/// Type of records with handshake messages (RFC 8446 §5.1).
pub(super) const HANDSHAKE: u8 = 22;
const CHANGE_CIPHER_SPEC: u8 = 20;
/// Longest record without protection.
const RECORD_MAX: usize = 1 << 14;
/// Type of a client's hello (RFC 8446 §4).
pub(super) const CLIENT_HELLO: u8 = 1;
/// Extensions: server name (RFC 6066), encrypted client hello (RFC 9849).
const SERVER_NAME: u16 = 0;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;
/// Type of a name in the server name extension.
const HOST_NAME: u8 = 0;

/// Bytes to be parsed. Each method returns `None` if they do not suffice.
pub(super) struct Parser<'a>(pub(super) &'a [u8]);

impl<'a> Parser<'a> {
    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// Returns the number in the next `bytes` bytes.
    pub(super) fn number(&mut self, bytes: usize) -> Option<usize> {
        Some(self.take(bytes)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    /// Returns a vector whose length is in its first `bytes` bytes.
    pub(super) fn vector(&mut self, bytes: usize) -> Option<Parser<'a>> {
        let len = self.number(bytes)?;
        self.take(len).map(Parser)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Reads the hello with which a connection begins.
pub(super) fn read(bytes: &[u8]) -> Greeting {
    match message(&mut Parser(bytes)) {
        Message::Partial => Greeting::Partial,
        Message::Invalid => Greeting::Unnamed,
        Message::Whole(CLIENT_HELLO, body) => name_of(&body),
        Message::Whole(..) => Greeting::Unnamed,
    }
}

/// Returns what follows the whole hello at the beginning of `bytes`; `None` if it is no hello, and
/// nothing has to be read after it.
pub fn rest(bytes: &[u8]) -> Option<&[u8]> {
    let mut parser = Parser(bytes);
    matches!(message(&mut parser), Message::Whole(CLIENT_HELLO, _)).then_some(parser.0)
}

/// Reads what a client sends after its hello. If the server has asked for another hello (RFC 8446
/// §4.1.4), that one has the name; otherwise this returns `None`.
pub fn read_again(bytes: &[u8]) -> Option<Greeting> {
    let mut parser = Parser(bytes);
    // A client that passes for an older version sends this record before its second hello (RFC 8446
    // §D.4).
    if parser.0.first() == Some(&CHANGE_CIPHER_SPEC) {
        match record(&mut parser) {
            Ok(_) => {}
            Err(Message::Partial) => return Some(Greeting::Partial),
            Err(_) => return Some(Greeting::Unnamed),
        }
    }
    match parser.0.first() {
        None => Some(Greeting::Partial),
        Some(&HANDSHAKE) => match message(&mut parser) {
            Message::Partial if bytes.len() < GREETING_MAX => Some(Greeting::Partial),
            Message::Partial | Message::Invalid => Some(Greeting::Unnamed),
            Message::Whole(CLIENT_HELLO, body) => Some(name_of(&body)),
            Message::Whole(..) => None,
        },
        Some(_) => None,
    }
}

enum Message {
    Partial,
    Invalid,
    /// Its type and its body.
    Whole(u8, Vec<u8>),
}

/// Takes the next record; returns its type and its fragment.
fn record<'a>(parser: &mut Parser<'a>) -> Result<(u8, &'a [u8]), Message> {
    let header = parser.take(5).ok_or(Message::Partial)?;
    let len = usize::from(header[3]) << 8 | usize::from(header[4]);
    if header[1] != 3 || len == 0 || len > RECORD_MAX {
        return Err(Message::Invalid);
    }
    Ok((header[0], parser.take(len).ok_or(Message::Partial)?))
}

/// Takes the next handshake message, which may be spread over records (RFC 8446 §5.1). A message
/// that is no hello may have been encrypted, so only its first record is looked at.
fn message(parser: &mut Parser<'_>) -> Message {
    let mut bytes = Vec::new();
    loop {
        let fragment = match record(parser) {
            Ok((HANDSHAKE, fragment)) => fragment,
            Ok(_) => return Message::Invalid,
            Err(why) => return why,
        };
        bytes.extend_from_slice(fragment);
        let mut parser = Parser(&bytes);
        if bytes[0] != CLIENT_HELLO {
            return Message::Whole(bytes[0], Vec::new());
        }
        let Some(len) = parser.number(4).map(|header| header & 0xff_ffff) else { continue };
        if len > GREETING_MAX {
            return Message::Invalid;
        }
        match parser.take(len) {
            // What follows a hello in its record would be a second message.
            Some(_) if !parser.is_empty() => return Message::Invalid,
            Some(body) => return Message::Whole(bytes[0], body.to_vec()),
            None => {}
        }
    }
}

/// Returns the name in the body of a hello.
pub(super) fn name_of(body: &[u8]) -> Greeting {
    parse(body).unwrap_or(Greeting::Unnamed)
}

fn parse(body: &[u8]) -> Option<Greeting> {
    let mut parser = Parser(body);
    // Version and random.
    parser.take(2 + 32)?;
    let session = parser.vector(1)?;
    let suites = parser.vector(2)?;
    let compressions = parser.vector(1)?;
    let mut extensions = parser.vector(2)?;
    let is_valid = session.0.len() <= 32
        && suites.0.len().is_multiple_of(2)
        && !suites.is_empty()
        && !compressions.is_empty()
        && parser.is_empty();
    if !is_valid {
        return None;
    }
    let (mut name, mut is_hidden) = (None, false);
    while !extensions.is_empty() {
        let kind = extensions.number(2)? as u16;
        let data = extensions.vector(2)?;
        match kind {
            SERVER_NAME if name.is_some() => return None,
            SERVER_NAME => name = Some(server_name(data)?),
            ENCRYPTED_CLIENT_HELLO => is_hidden = true,
            _ => {}
        }
    }
    Some(if is_hidden { Greeting::Hidden } else { Greeting::Name(name?) })
}

/// Returns the only name of a server name extension.
fn server_name(mut data: Parser<'_>) -> Option<Name> {
    let mut list = data.vector(2)?;
    let kind = list.number(1)? as u8;
    let name = list.vector(2)?;
    let is_only = kind == HOST_NAME && list.is_empty() && data.is_empty();
    is_only.then(|| Name::from_bytes(name.0)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_len(bytes: usize, content: &[u8]) -> Vec<u8> {
        let mut vector = content.len().to_be_bytes()[8 - bytes..].to_vec();
        vector.extend(content);
        vector
    }

    fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &with_len(2, data)].concat()
    }

    fn sni(name: &str) -> Vec<u8> {
        let entry = [&[HOST_NAME][..], &with_len(2, name.as_bytes())].concat();
        extension(SERVER_NAME, &with_len(2, &entry))
    }

    fn body(extensions: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend(with_len(1, &[9; 32]));
        body.extend(with_len(2, &[0x13, 1, 0x13, 2]));
        body.extend(with_len(1, &[0]));
        body.extend(with_len(2, &extensions.concat()));
        body
    }

    fn message_of(body: &[u8]) -> Vec<u8> {
        [&[CLIENT_HELLO][..], &with_len(3, body)].concat()
    }

    fn record_of(kind: u8, fragment: &[u8]) -> Vec<u8> {
        [&[kind, 3, 1][..], &with_len(2, fragment)].concat()
    }

    fn hello(extensions: &[Vec<u8>]) -> Vec<u8> {
        record_of(HANDSHAKE, &message_of(&body(extensions)))
    }

    fn named(text: &str) -> Greeting {
        Greeting::Name(text.parse().unwrap())
    }

    #[test]
    fn the_name_of_a_hello_is_read() {
        let others = [extension(43, &[2, 3, 4]), sni("A.Example"), extension(0x0a0a, &[])];
        let hello = hello(&others);
        assert_eq!(read(&hello), named("a.example"));
        for len in 0..hello.len() {
            assert_eq!(read(&hello[..len]), Greeting::Partial, "{len} bytes");
        }
        let more = [&hello[..], b"early data"].concat();
        assert_eq!(read(&more), named("a.example"));
    }

    #[test]
    fn a_hello_may_be_spread_over_records() {
        let message = message_of(&body(&[sni("a.example")]));
        for size in [1, 2, 3, 5, 40, 100] {
            let records: Vec<u8> =
                message.chunks(size).flat_map(|part| record_of(HANDSHAKE, part)).collect();
            assert_eq!(read(&records), named("a.example"));
            for len in 0..records.len() {
                assert_eq!(read(&records[..len]), Greeting::Partial, "{len} bytes of {size}");
            }
        }
    }

    /// Bad input: no name, two names, two extensions, other types of names, names with other
    /// characters, lengths that do not agree, other messages and records in between.
    #[test]
    fn hellos_without_one_clear_name_have_none() {
        let entry = |name: &str| [&[HOST_NAME][..], &with_len(2, name.as_bytes())].concat();
        let two = extension(SERVER_NAME, &with_len(2, &[entry("a"), entry("b")].concat()));
        let other = extension(SERVER_NAME, &with_len(2, &[&[1, 0, 1][..], b"a"].concat()));
        let behind = extension(SERVER_NAME, &[&with_len(2, &entry("a"))[..], &[0]].concat());
        let short = extension(SERVER_NAME, &[0, 9, 0, 0, 1, b'a']);
        for extensions in [
            vec![],
            vec![sni("")],
            vec![sni("a b")],
            vec![sni("b\u{fc}cher")],
            vec![sni("a\0.example")],
            vec![two],
            vec![other],
            vec![behind],
            vec![short],
            vec![extension(SERVER_NAME, &[])],
            vec![sni("a"), sni("a")],
            vec![sni("a"), vec![0]],
        ] {
            assert_eq!(read(&hello(&extensions)), Greeting::Unnamed, "{extensions:?}");
        }
        let good = body(&[sni("a")]);
        let longer = [&good[..], &[0]].concat();
        let two_messages = [message_of(&good), message_of(&good)].concat();
        let halves: Vec<_> = message_of(&good).chunks(50).map(<[u8]>::to_vec).collect();
        let alert_between = [record_of(HANDSHAKE, &halves[0]), record_of(21, &[1, 0])].concat();
        for records in [
            record_of(HANDSHAKE, &message_of(&longer)),
            record_of(HANDSHAKE, &two_messages),
            record_of(HANDSHAKE, &[2, 0, 0, 0]),
            record_of(HANDSHAKE, &[1, 0xff, 0xff, 0xff]),
            [&[HANDSHAKE, 3, 1, 0, 0][..], &hello(&[sni("a")])].concat(),
            vec![HANDSHAKE, 3, 1, 0x40, 1],
            vec![HANDSHAKE, 2, 0, 0, 1],
            alert_between,
        ] {
            assert_eq!(read(&records), Greeting::Unnamed, "{records:?}");
        }
        let without_extensions = &good[..good.len() - 2 - sni("a").len()];
        let without = record_of(HANDSHAKE, &message_of(without_extensions));
        assert_eq!(read(&without), Greeting::Unnamed);
    }

    #[test]
    fn encrypted_hellos_hide_their_names() {
        let hidden = extension(ENCRYPTED_CLIENT_HELLO, &[0, 0, 1]);
        assert_eq!(read(&hello(&[sni("a"), hidden.clone()])), Greeting::Hidden);
        assert_eq!(read(&hello(&[hidden])), Greeting::Hidden);
    }

    /// Goal: the name of a hello that the server asked for is read, whatever precedes it.
    #[test]
    fn a_second_hello_has_a_name() {
        let second = hello(&[sni("b.example")]);
        let compatible = record_of(CHANGE_CIPHER_SPEC, &[1]);
        assert_eq!(read_again(&second), Some(named("b.example")));
        let both = [&compatible[..], &second].concat();
        assert_eq!(read_again(&both), Some(named("b.example")));
        for len in 0..both.len() {
            assert_eq!(read_again(&both[..len]), Some(Greeting::Partial), "{len} bytes");
        }
        let data = record_of(23, &[0; 40]);
        assert_eq!(read_again(&data), None);
        assert_eq!(read_again(&[&compatible[..], &data].concat()), None);
        let key_exchange = record_of(HANDSHAKE, &[16, 0, 0, 2, 1, 2]);
        assert_eq!(read_again(&key_exchange), None, "TLS 1.2");
        assert_eq!(read_again(&hello(&[])), Some(Greeting::Unnamed));
    }
}
