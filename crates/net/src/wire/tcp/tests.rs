//! Tests of the TCP header and options.

extern crate std;

use std::string::ToString;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::wire::{captured, ethernet, ipv4, ipv6};

/// The TCP part of a captured IPv4 frame.
fn segment(frame: &str) -> Vec<u8> {
    captured::bytes(frame).split_off(ethernet::HEADER_LEN + ipv4::HEADER_LEN)
}

/// Parses a captured segment and checks that it is rebuilt unchanged.
fn read_and_write(bytes: &[u8]) -> (Header, Options) {
    let (header, options) = Header::parse(bytes).unwrap();
    let mut again = [0xee; HEADER_LEN_MAX];
    let len = header.emit(&options, &mut again);
    assert_eq!(len, usize::from(header.header_len));
    assert_eq!(again[..len], bytes[..len]);
    (header, options)
}

/// A SYN from Linux: MSS, SACK permitted, timestamps and window scale, every field.
#[test]
fn syn_from_linux() {
    let (header, options) = read_and_write(&segment(captured::SYN_V4));
    let expected = Header {
        source_port: 46898,
        destination_port: 80,
        sequence: 0x41e0_1822,
        acknowledgment: 0,
        flags: Flags::SYN,
        window: 64240,
        checksum: 0x506b,
        urgent: 0,
        header_len: 40,
    };
    assert_eq!(header, expected);
    let expected = Options {
        mss: Some(1460),
        window_scale: Some(10),
        sack_permitted: true,
        timestamps: Some((0xb391_b386, 0)),
        ..Options::default()
    };
    assert_eq!(options, expected);
    let v6 = captured::bytes(captured::SYN_V6).split_off(ethernet::HEADER_LEN + ipv6::HEADER_LEN);
    assert_eq!(read_and_write(&v6).1.mss, Some(1440));
}

/// A SYN|ACK from Linux.
#[test]
fn syn_ack_from_linux() {
    let (header, options) = read_and_write(&segment(captured::SYN_ACK));
    assert_eq!(header.flags, Flags::SYN | Flags::ACK);
    assert_eq!(options.timestamps, Some((0x41ef_013c, 100)));
}

/// Linux's request for a Fast Open cookie, followed by two NOPs.
#[test]
fn fast_open_from_linux() {
    let (header, options) = read_and_write(&segment(captured::SYN_FAST_OPEN));
    assert_eq!(options.fast_open, Some(FastOpenCookie::REQUEST));
    assert_eq!(header.header_len, 44);
}

/// Linux's timestamps and SACK blocks, without and with payload.
#[test]
fn sack_from_linux() {
    for (frame, flags, payload) in [
        (captured::ACK_WITH_TWO_SACK_BLOCKS, Flags::ACK, &b""[..]),
        (captured::DATA_V4, Flags::ACK | Flags::PSH, b"hello"),
    ] {
        let bytes = segment(frame);
        let (header, options) = read_and_write(&bytes);
        assert_eq!(header.flags, flags);
        assert_eq!(options.sack_blocks(), [(1031, 1041), (1011, 1021)]);
        assert!(options.timestamps.is_some());
        assert_eq!(bytes[usize::from(header.header_len)..], *payload);
    }
}

/// RFC 9293 §3.1: the data offset is checked against the fixed header and the given bytes.
#[test]
fn lengths() {
    let mut bytes = segment(captured::SYN_V4);
    for len in 0..bytes.len() {
        assert_eq!(Header::parse(&bytes[..len]), Err(ParseError::Truncated), "{len} bytes");
    }
    bytes[at::DATA_OFFSET] = 0x4f;
    assert_eq!(Header::parse(&bytes), Err(ParseError::BadLength));
}

/// As on Linux, options for a SYN are ignored elsewhere; timestamps are not.
#[test]
fn syn_options_elsewhere_are_ignored() {
    let bytes = segment(captured::SYN_FAST_OPEN);
    let options = Options::parse(&bytes[HEADER_LEN..], false);
    let timestamps = Some((0x956e_2bb6, 0));
    assert_eq!(options, Options { timestamps, ..Options::default() });
}

/// A malformed option ends parsing; earlier options are kept.
#[test]
fn malformed_option_ends_the_reading() {
    let mss = Options { mss: Some(1460), ..Options::default() };
    for rest in [&[3][..], &[3, 0, 7], &[3, 1, 7], &[3, 4, 7], &[8, 10, 0, 0], &[0, 3, 3, 7]] {
        let bytes = [&[KIND_MSS, MSS_LEN, 0x05, 0xb4], rest].concat();
        assert_eq!(Options::parse(&bytes, true), mss, "{rest:?}");
    }
}

/// A known option of wrong length and an unknown option are skipped, and the next is parsed.
#[test]
fn odd_options_are_passed_over() {
    let scale = Options { window_scale: Some(7), ..Options::default() };
    for first in [
        &[KIND_MSS, 3, 0][..],
        &[KIND_MSS, 4, 0, 0],
        &[KIND_SACK_PERMITTED, 3, 0],
        &[KIND_SACK, 2],
        &[KIND_SACK, 9, 0, 0, 0, 0, 0, 0, 0],
        &[KIND_TIMESTAMPS, 6, 0, 0, 0, 0],
        &[KIND_FAST_OPEN, 4, 0, 0],
        &[KIND_FAST_OPEN, 7, 0, 0, 0, 0, 0],
        &[253, 2],
    ] {
        let bytes = [first, &[KIND_NOP, 3, 3, 7]].concat();
        assert_eq!(Options::parse(&bytes, true), scale, "{first:?}");
    }
}

/// RFC 7323 §2.3: a shift above 14 is reduced to 14.
#[test]
fn window_scale_is_clamped() {
    assert_eq!(Options::parse(&[3, 3, 14], true).window_scale, Some(14));
    assert_eq!(Options::parse(&[3, 3, 15], true).window_scale, Some(14));
    assert_eq!(Options::parse(&[3, 3, 255], true).window_scale, Some(14));
}

/// The fast path for aligned timestamps agrees with the general case, and does not match a
/// timestamps option with another prefix.
#[test]
fn aligned_timestamps() {
    let mut bytes = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
    assert_eq!(Options::parse(&bytes, false).timestamps, Some((1, 2)));
    assert_eq!(Options::parse(&bytes, false), Options::parse_any(&bytes, false));
    bytes[0] = KIND_END;
    assert_eq!(Options::parse(&bytes, false), Options::default());
}

/// Options that do not fit are omitted, not truncated: the fourth SACK block beside timestamps.
#[test]
fn fourth_sack_block_yields_to_timestamps() {
    let sack = [(1, 2), (3, 4), (5, 6), (7, 8)];
    let mut options = Options { sack, sack_count: 4, ..Options::default() };
    assert_eq!(options.emitted_len(false), 36);
    options.timestamps = Some((1, 2));
    assert_eq!(options.emitted_len(false), OPTIONS_LEN_MAX);
    let mut bytes = [0xee; OPTIONS_LEN_MAX];
    options.emit(false, &mut bytes);
    assert_eq!(Options::parse(&bytes, false).sack_blocks(), &sack[..3]);
}

/// The largest SYN options fill the longest header exactly.
#[test]
fn fullest_syn_fits() {
    let options = Options {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some((1, 2)),
        fast_open: FastOpenCookie::new(&[7; 16]),
        ..Options::default()
    };
    assert_eq!(options.emitted_len(true), OPTIONS_LEN_MAX);
}

/// Flag names, alone and combined, and the set operations.
#[test]
fn flags() {
    let mut flags = Flags::SYN | Flags::ACK;
    assert_eq!(flags.to_string(), "SYN|ACK");
    assert_eq!(Flags::NONE.to_string(), "-");
    assert_eq!(Flags::CWR.to_string(), "CWR");
    assert!(flags.contains(Flags::SYN) && !flags.contains(Flags::SYN | Flags::FIN));
    assert!(flags.intersects(Flags::SYN | Flags::FIN) && !flags.intersects(Flags::FIN));
    flags.insert(Flags::FIN);
    flags.remove(Flags::SYN);
    assert_eq!(flags, Flags::FIN | Flags::ACK);
}

fn any_cookie() -> impl Strategy<Value = FastOpenCookie> {
    let cookie = (0..=7usize, any::<[u8; FAST_OPEN_COOKIE_LEN_MAX]>());
    cookie.prop_map(|(half, bytes)| {
        let len = if half == 0 { 0 } else { 2 + half * 2 };
        FastOpenCookie::new(&bytes[..len]).unwrap()
    })
}

prop_compose! {
    /// Options that may occur on a SYN.
    fn syn_options()(
        mss in prop::option::of(1..=u16::MAX),
        window_scale in prop::option::of(0..=WINDOW_SCALE_MAX),
        sack_permitted in any::<bool>(),
        timestamps in any::<Option<(u32, u32)>>(),
        fast_open in prop::option::of(any_cookie()),
    ) -> Options {
        let sack = Default::default();
        Options {
            mss,
            window_scale,
            sack_permitted,
            sack,
            timestamps,
            fast_open,
            ..Options::default()
        }
    }
}

prop_compose! {
    /// Options of an established connection that all fit.
    fn established_options()(
        mut sack in any::<[(u32, u32); SACK_BLOCKS_MAX]>(),
        count in 0..=SACK_BLOCKS_MAX,
        timestamps in any::<Option<(u32, u32)>>(),
    ) -> Options {
        let count = count - usize::from(count == SACK_BLOCKS_MAX && timestamps.is_some());
        sack[count..].fill((0, 0));
        Options { sack, sack_count: count as u8, timestamps, ..Options::default() }
    }
}

proptest! {
    /// Round trip, with and without SYN; bytes behind are not changed.
    #[test]
    fn round_trip(
        (source_port, destination_port, window) in any::<(u16, u16, u16)>(),
        (sequence, acknowledgment, checksum, urgent) in any::<(u32, u32, u16, u16)>(),
        flags in any::<u8>(),
        syn_options in syn_options(),
        established_options in established_options(),
    ) {
        let flags = Flags(flags);
        let syn = flags.contains(Flags::SYN);
        let options = if syn { syn_options } else { established_options };
        let header_len = (HEADER_LEN + options.emitted_len(syn)) as u8;
        let header = Header {
            source_port, destination_port, sequence, acknowledgment, flags, window, checksum,
            urgent, header_len,
        };
        let mut bytes = [0xee; HEADER_LEN_MAX + 1];
        prop_assert_eq!(header.emit(&options, &mut bytes), usize::from(header_len));
        prop_assert!(bytes[usize::from(header_len)..].iter().all(|&byte| byte == 0xee));
        prop_assert_eq!(Header::parse(&bytes), Ok((header, options)));
    }

    /// No input makes a parser panic, and parsed headers survive a round trip.
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Ok((header, options)) = Header::parse(&bytes) {
            prop_assert!(usize::from(header.header_len) <= bytes.len());
            let mut again = [0; HEADER_LEN_MAX];
            header.emit(&options, &mut again);
        }
    }

    /// Options of likely kinds and lengths: no panic, and the fast path and the general case agree.
    #[test]
    fn any_options(
        options in prop::collection::vec((0..36u8, 0..12u8, any::<[u8; 10]>()), 0..8),
        syn in any::<bool>(),
    ) {
        let mut bytes = Vec::new();
        for (kind, len, value) in options {
            bytes.extend([kind, len]);
            bytes.extend(&value[..usize::from(len).saturating_sub(2).min(10)]);
        }
        let read = Options::parse(&bytes, syn);
        prop_assert_eq!(read, Options::parse_any(&bytes, syn));
        prop_assert!(read.emitted_len(syn) <= OPTIONS_LEN_MAX);
        prop_assert!(read.emitted_len(syn).is_multiple_of(4));
    }
}
