//! Packets of RFC 9001, and others made by the same keys.

use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// RFC 9001, appendix A.2: the CRYPTO frame of the client's first packet.
const FRAME: &str = "
    060040f1010000ed0303ebf8fa56f12939b9584a3896472ec40bb863cfd3e868
    04fe3a47f06a2b69484c00000413011302010000c000000010000e00000b6578
    616d706c652e636f6dff01000100000a00080006001d00170018001000070005
    04616c706e000500050100000000003300260024001d00209370b2c9caa47fba
    baf4559fedba753de171fa71f50f1ce15d43e994ec74d748002b000302030400
    0d0010000e0403050306030203080408050806002d00020101001c0002400100
    3900320408ffffffffffffffff05048000ffff07048000ffff08011001048000
    75300901100f088394c8f03e51570806048000ffff";
const DESTINATION: [u8; 8] = [0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08];

fn example() -> Greeting {
    Greeting::Name("example.com".parse().unwrap())
}

/// Protects a client's Initial packet.
fn protect(
    version: u32,
    destination: &[u8],
    number: u32,
    frames: &[u8],
    keys_of: &[u8],
) -> Vec<u8> {
    let keys = Keys::of(version, keys_of).unwrap();
    let kind = if version == VERSION_1 { 0 } else { 1 };
    let mut packet = vec![0xc3 | kind << 4];
    packet.extend(version.to_be_bytes());
    packet.push(destination.len() as u8);
    packet.extend(destination);
    packet.extend([0, 0]);
    packet.extend((0x4000 | (4 + frames.len() + TAG_LEN) as u16).to_be_bytes());
    let number_at = packet.len();
    packet.extend(number.to_be_bytes());
    let mut nonce = keys.iv;
    for (byte, part) in nonce[8..].iter_mut().zip(number.to_be_bytes()) {
        *byte ^= part;
    }
    let mut payload = frames.to_vec();
    keys.packet.encrypt_in_place(&nonce.into(), &packet, &mut payload).unwrap();
    packet.extend(payload);
    let mut mask = [0; SAMPLE_LEN];
    mask.copy_from_slice(&packet[number_at + SAMPLE_AFTER..][..SAMPLE_LEN]);
    let mut mask = mask.into();
    keys.header.encrypt_block(&mut mask);
    packet[0] ^= mask[0] & 0x0f;
    for (byte, mask) in packet[number_at..number_at + 4].iter_mut().zip(&mask[1..]) {
        *byte ^= mask;
    }
    packet
}

/// Returns an Initial packet with these frames.
pub(crate) fn initial(number: u32, frames: &[u8]) -> Vec<u8> {
    protect(VERSION_1, &DESTINATION, number, frames, &DESTINATION)
}

/// Returns CRYPTO frames of a stream, each of at most `size` bytes.
fn frames(stream: &[u8], size: usize) -> Vec<Vec<u8>> {
    let frame = |(index, part): (usize, &[u8])| {
        let mut frame = vec![CRYPTO as u8];
        frame.extend((0x4000 | (index * size) as u16).to_be_bytes());
        frame.extend((0x4000 | part.len() as u16).to_be_bytes());
        frame.extend(part);
        frame
    };
    stream.chunks(size).enumerate().map(frame).collect()
}

fn hello() -> Vec<u8> {
    bytes(FRAME)[4..].to_vec()
}

#[test]
fn keys_and_packets_are_those_of_rfc_9001() {
    let padded = {
        let mut frames = bytes(FRAME);
        frames.resize(1162, 0);
        frames
    };
    let packet = initial(2, &padded);
    let expected = "
        c000000001088394c8f03e5157080000449e7b9aec34d1b1c98dd7689fb8ec11
        d242b123dc9bd8bab936b47d92ec356c0bab7df5976d27cd449f63300099f399";
    assert_eq!(packet[..64], bytes(expected));
    assert_eq!(packet.len(), 1200);
    assert_eq!(Conversation::default().read(&packet), Reading::Greetings(vec![example()]));
}

#[test]
fn both_versions_are_read() {
    for version in [VERSION_1, VERSION_2] {
        let packet = protect(version, &DESTINATION, 0, &bytes(FRAME), &DESTINATION);
        let read = Conversation::default().read(&packet);
        assert_eq!(read, Reading::Greetings(vec![example()]), "{version:#x}");
    }
}

/// Goal: a hello is found however its frames are spread over packets and datagrams, in any order.
#[test]
fn a_hello_may_be_spread() {
    for size in [20, 60, 100, 241] {
        let mut parts = frames(&hello(), size);
        parts.reverse();
        let mut conversation = Conversation::default();
        for (number, part) in (0..).zip(&parts) {
            let padding = [0; 40];
            let reading = conversation.read(&initial(number, &[&padding[..], part].concat()));
            match number as usize + 1 == parts.len() {
                true => assert_eq!(reading, Reading::Greetings(vec![example()]), "{size}"),
                false => assert_eq!(reading, Reading::Partial, "{size}"),
            }
        }
        let together: Vec<u8> = (0..).zip(&parts).flat_map(|(n, part)| initial(n, part)).collect();
        let read = Conversation::default().read(&together);
        // The datagram begins with a part, and ends with the whole.
        assert!(matches!(read, Reading::Partial | Reading::Greetings(_)), "{size}");
    }
}

#[test]
fn packets_after_the_hello_pass() {
    let mut conversation = Conversation::default();
    conversation.read(&initial(0, &bytes(FRAME)));
    // The client has learned the server's own connection ID; its keys stay.
    let ack = [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let later = protect(VERSION_1, &[9; 20], 1, &ack, &DESTINATION);
    assert_eq!(conversation.read(&later), Reading::Clear);
    assert_eq!(conversation.read(&initial(2, &bytes(FRAME))), Reading::Clear, "sent again");
    assert_eq!(conversation.read(&[0x45, 1, 2, 3]), Reading::Clear, "a short header");
    let mut handshake = vec![0xe0];
    handshake.extend(bytes("00000001 00 00 4020"));
    handshake.extend([7; 32]);
    assert_eq!(conversation.read(&handshake), Reading::Clear);
    assert_eq!(conversation.read(&[&handshake[..], &later].concat()), Reading::Clear);
}

/// Goal: a connection whose version the server has changed goes on, and is read as one: its stream
/// cannot get another beginning (RFC 9368 §2.3).
#[test]
fn the_version_of_a_connection_may_change() {
    let ack = [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut conversation = Conversation::default();
    conversation.read(&initial(0, &bytes(FRAME)));
    let changed = |number, frames: &[u8]| {
        // The destination is the server's own connection ID, the keys are those of the client's.
        protect(VERSION_2, &[9; 8], number, frames, &DESTINATION)
    };
    assert_eq!(conversation.read(&changed(1, &ack)), Reading::Clear);
    assert_eq!(conversation.read(&changed(2, &bytes(FRAME))), Reading::Clear, "sent again");
    assert_eq!(conversation.read(&initial(3, &ack)), Reading::Clear, "a late one");
    let mut other = bytes(FRAME);
    other[20] ^= 1;
    assert_eq!(conversation.read(&changed(4, &other)), Reading::Invalid);
}

/// Goal: a second connection from the same port is read as well, and so is a second hello.
#[test]
fn every_hello_is_read() {
    let other = {
        let mut frame = bytes(FRAME);
        let at = frame.windows(7).position(|part| part == b"example").unwrap();
        frame[at..at + 7].copy_from_slice(b"exfiltr");
        frame
    };
    let named = Greeting::Name("exfiltr.com".parse().unwrap());
    let mut conversation = Conversation::default();
    conversation.read(&initial(0, &bytes(FRAME)));
    let second = protect(VERSION_1, &[5; 8], 0, &other, &[5; 8]);
    assert_eq!(conversation.read(&second), Reading::Greetings(vec![named.clone()]));
    let mut retried = other[4..].to_vec();
    let mut frame = vec![6, 0x40, 0xf1, 0x40, 0xf1];
    frame.append(&mut retried);
    assert_eq!(conversation.read(&initial(1, &frame)), Reading::Greetings(vec![named]));
    // The same place of the stream with other bytes.
    assert_eq!(conversation.read(&initial(2, &other)), Reading::Invalid);
}

/// Bad input: changed and cut packets, other versions, connection IDs that are too long, frames
/// that do not belong there, streams that are too long, other messages, more connections than
/// allowed.
#[test]
fn what_is_not_understood_is_invalid() {
    let good = initial(0, &bytes(FRAME));
    let read = |bytes: &[u8]| Conversation::default().read(bytes);
    for len in 1..good.len() {
        assert_eq!(read(&good[..len]), Reading::Invalid, "{len} bytes");
    }
    for at in 0..good.len() {
        let mut changed = good.clone();
        changed[at] ^= 0x40;
        let is_short = at == 0 && changed[0] & 0x80 == 0;
        assert!(is_short || read(&changed) == Reading::Invalid, "byte {at}");
    }
    let mut version = good.clone();
    version[4] = 9;
    assert_eq!(read(&version), Reading::Invalid);
    let long = protect(VERSION_1, &[1; 21], 0, &bytes(FRAME), &[1; 21]);
    assert_eq!(read(&long), Reading::Invalid);
    for frames in [
        &[8, 0, 0, 0, 0][..],
        &[6, 0x80, 0, 0x40, 0, 1, 7],
        &[6, 0, 0x40, 0xff, 1],
        &[6, 0, 4, 2, 0, 0, 0],
        &[2, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        &[6, 0, 4, 1, 0xff, 0xff, 0xff],
    ] {
        let padded = [frames, &[0; 20]].concat();
        assert_eq!(read(&initial(0, &padded)), Reading::Invalid, "{frames:?}");
    }
    let mut conversation = Conversation::default();
    for number in 0..=CONNECTIONS_MAX {
        let id = [number as u8; 8];
        let reading = conversation.read(&protect(VERSION_1, &id, 0, &bytes(FRAME), &id));
        assert_eq!(reading == Reading::Invalid, number == CONNECTIONS_MAX, "{number}");
    }
}

/// Goal: no hello is forgotten because the datagram around it was held or dropped.
#[test]
fn hellos_are_reported_once_their_datagram_may_pass() {
    let good = initial(0, &bytes(FRAME));
    let greetings = Reading::Greetings(vec![example()]);
    let mut conversation = Conversation::default();
    assert_eq!(conversation.read(&[&good[..], &[0x80]].concat()), Reading::Invalid);
    assert_eq!(conversation.read(&good), greetings);
    assert_eq!(conversation.read(&good), Reading::Clear);
    let mut conversation = Conversation::default();
    let begun = [&bytes(FRAME)[..], &[6, 0x40, 0xf1, 4, 1, 0, 0, 9]].concat();
    assert_eq!(conversation.read(&initial(0, &begun)), Reading::Partial);
    let rest = [&[6, 0x40, 0xf5, 9][..], &[7; 9], &[0; 20]].concat();
    let read = conversation.read(&initial(1, &rest));
    assert_eq!(read, Reading::Greetings(vec![example(), Greeting::Unnamed]));
}

#[test]
fn packet_numbers_are_restored() {
    // RFC 9000, appendix A.3.
    assert_eq!(whole_number(0x9b32, 2, 0xa82f_30ea), 0xa82f_9b32);
    assert_eq!(whole_number(0, 1, 255), 256);
    assert_eq!(whole_number(0xff, 1, 256), 255);
    assert_eq!(whole_number(3, 4, 0), 3);
}

proptest::proptest! {
    /// Any bytes are read without a panic, alone and as the frames of a packet.
    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..100)) {
        Conversation::default().read(&bytes);
        let mut padded = bytes;
        padded.extend([0; 20]);
        Conversation::default().read(&initial(0, &padded));
    }
}
