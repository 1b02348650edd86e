//! Router advertisements: bytes, bad input, and round trips.

use super::*;
use proptest::prelude::*;

/// An advertisement written by hand from RFC 4861 §4.2, §4.6 and RFC 8106 §5.1: every byte.
#[test]
fn router_advertisement_bytes() {
    let mut advertisement = RouterAdvertisement {
        hop_limit: 64,
        managed: false,
        other: true,
        router_lifetime_s: 1800,
        reachable_time_ms: 30_000,
        retransmit_timer_ms: 1000,
        source_link_layer: Some(MacAddr([2, 0, 0, 0, 0, 1])),
        mtu: Some(65_520),
        prefix_count: 1,
        dns_server_count: 1,
        dns_lifetime_s: 600,
        ..RouterAdvertisement::default()
    };
    advertisement.prefix[0] = PrefixInformation {
        prefix: "2001:db8::".parse().unwrap(),
        prefix_len: 64,
        on_link: true,
        autonomous: true,
        valid_lifetime_s: u32::MAX,
        preferred_lifetime_s: 3600,
    };
    advertisement.dns_server[0] = "2001:db8::53".parse().unwrap();
    let expected = concat!(
        "86000000",
        "40400708",
        "00007530",
        "000003e8",
        "0101020000000001",
        "050100000000fff0",
        "030440c0",
        "ffffffff",
        "00000e10",
        "00000000",
        "20010db8000000000000000000000000",
        "19030000",
        "00000258",
        "20010db8000000000000000000000053",
    );
    let emitted = advertisement.emit();
    let hex: String = emitted.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, expected);
    assert_eq!(RouterAdvertisement::parse(&emitted), Ok(advertisement));
}

/// Excess entries are ignored, of options that may occur once the first is used, and options of
/// wrong size are ignored.
#[test]
fn router_advertisement_with_too_much() {
    let mut bytes = vec![0; 16];
    bytes[0] = ROUTER_ADVERTISEMENT;
    for prefix_len in [129, 10, 20, 30, 40] {
        bytes.extend([3, 4, prefix_len]);
        bytes.extend([0; 29]);
    }
    bytes.extend([3, 1, 64, 0, 0, 0, 0, 0]);
    bytes.extend([5, 1, 0, 0, 0, 0, 5, 0, 5, 1, 0, 0, 0, 0, 6, 0]);
    bytes.extend([25, 2, 0, 0, 0, 0, 0, 9]);
    bytes.extend([9; 8]);
    bytes.extend([25, 9, 0, 0, 0, 0, 0, 7]);
    bytes.extend([7; 64]);
    let advertisement = RouterAdvertisement::parse(&bytes).unwrap();
    let lengths: Vec<u8> =
        advertisement.prefixes().iter().map(|prefix| prefix.prefix_len).collect();
    assert_eq!(lengths, [10, 20, 30]);
    assert_eq!(advertisement.mtu, Some(0x500));
    assert_eq!(advertisement.dns_servers(), [Ipv6Addr::from([7; 16]); DNS_SERVERS_MAX]);
    assert_eq!(advertisement.dns_lifetime_s, 7);
}

/// RFC 8106 §5.2: uncompressed names, padded to a multiple of eight bytes; an advertisement
/// followed by the option is parsed as before. Names that do not fit the largest option are
/// omitted.
#[test]
fn search_list_behind_an_advertisement() {
    let names = ["lan.example".parse().unwrap(), "example".parse().unwrap()];
    let option = search_list_option(&names, 1800);
    let list = b"\x03lan\x07example\x00\x07example\x00";
    assert_eq!(option[..8], [31, 4, 0, 0, 0, 0, 7, 8]);
    assert_eq!(&option[8..8 + list.len()], list);
    assert!(option.len() == 32 && option[8 + list.len()..] == [0, 0]);
    let advertisement = RouterAdvertisement::default();
    let mut bytes = advertisement.emit();
    bytes.extend(&option);
    assert_eq!(RouterAdvertisement::parse(&bytes), Ok(advertisement));
    assert!(search_list_option(&[], 1800).is_empty());
    let many: Vec<_> = (0..300).map(|i| format!("n{i}.example").parse().unwrap()).collect();
    let option = search_list_option(&many, 0);
    assert!(option.len() <= 255 * 8 && option.len() > 255 * 8 - 32);
}

prop_compose! {
    fn any_prefix()(
        prefix in any::<Ipv6Addr>(),
        prefix_len in 0..=128u8,
        (on_link, autonomous) in any::<(bool, bool)>(),
        (valid_lifetime_s, preferred_lifetime_s) in any::<(u32, u32)>(),
    ) -> PrefixInformation {
        PrefixInformation {
            prefix, prefix_len, on_link, autonomous, valid_lifetime_s, preferred_lifetime_s
        }
    }
}

prop_compose! {
    fn any_advertisement()(
        (hop_limit, managed, other, router_lifetime_s) in any::<(u8, bool, bool, u16)>(),
        (reachable_time_ms, retransmit_timer_ms) in any::<(u32, u32)>(),
        (source_link_layer, mtu) in (
            prop::option::of(any::<[u8; 6]>().prop_map(MacAddr)), any::<Option<u32>>()),
        prefixes in prop::collection::vec(any_prefix(), 0..=PREFIXES_MAX),
        servers in prop::collection::vec(any::<Ipv6Addr>(), 0..=DNS_SERVERS_MAX),
        lifetime in any::<u32>(),
    ) -> RouterAdvertisement {
        let mut advertisement = RouterAdvertisement {
            hop_limit, managed, other, router_lifetime_s, reachable_time_ms, retransmit_timer_ms,
            source_link_layer, mtu,
            prefix_count: prefixes.len() as u8,
            dns_server_count: servers.len() as u8,
            dns_lifetime_s: if servers.is_empty() { 0 } else { lifetime },
            ..RouterAdvertisement::default()
        };
        advertisement.prefix[..prefixes.len()].copy_from_slice(&prefixes);
        advertisement.dns_server[..servers.len()].copy_from_slice(&servers);
        advertisement
    }
}

proptest! {
    #[test]
    fn round_trip(advertisement in any_advertisement()) {
        let bytes = advertisement.emit();
        prop_assert_eq!(RouterAdvertisement::parse(&bytes), Ok(advertisement));
        for len in 0..bytes.len() {
            let _ = RouterAdvertisement::parse(&bytes[..len]);
        }
    }

    /// No input makes `parse` panic; options have likely kinds and lengths.
    #[test]
    fn any_bytes(
        fixed in any::<[u8; 16]>(),
        options in prop::collection::vec((0..30u8, 0..6u8, 0..48usize), 0..6),
    ) {
        let mut bytes = [&[ROUTER_ADVERTISEMENT, 0], &fixed[2..]].concat();
        for (kind, units, len) in options {
            bytes.extend([kind, units]);
            bytes.resize(bytes.len() + len, 0x20);
        }
        let _ = RouterAdvertisement::parse(&bytes);
    }
}
