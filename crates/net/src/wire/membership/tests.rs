//! Messages of both protocols against their bytes in the RFCs; damaged ones are refused.

extern crate std;

use std::string::ToString;
use std::vec;
use std::vec::Vec;

use super::*;

const GROUP_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
const GROUP_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 0x1234));

/// A query with `rest` behind the group.
fn query(group: IpAddr, code: u16, rest: &[u8]) -> Vec<u8> {
    match group {
        IpAddr::V4(v4) => [&[0x11, code as u8, 0, 0], &v4.octets()[..], rest].concat(),
        IpAddr::V6(v6) => {
            let [high, low] = code.to_be_bytes();
            [&[130, 0, 0, 0, high, low, 0, 0], &v6.octets()[..], rest].concat()
        }
    }
}

fn parse(bytes: &[u8], v4: bool) -> Result<Received, ParseError> {
    Received::parse(bytes, bytes.len(), v4)
}

/// RFC 3376 §7.1, RFC 3810 §8.1: length and code tell the versions apart.
#[test]
fn queries_of_all_versions() {
    let any =
        |v4: bool| if v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    for (asked, v4) in [(GROUP_V4, true), (GROUP_V6, false), (any(true), true), (any(false), false)]
    {
        let group = Some(asked).filter(|asked| asked.is_multicast());
        let old = |version, response_max_ms| {
            let (robustness, interval_s) = (0, 0);
            Ok(Received::Query(Query { version, group, response_max_ms, robustness, interval_s }))
        };
        let unit = if v4 { 100 } else { 1 };
        assert_eq!(parse(&query(asked, 25, &[]), v4), old(Version::V2, 25 * unit));
        let zero = if v4 { old(Version::V1, 10_000) } else { old(Version::V2, 0) };
        assert_eq!(parse(&query(asked, 0, &[]), v4), zero);
        let sources = vec![0; if v4 { 8 } else { 32 }];
        let rest = [&[0x0a, 0x8f, 0, 2][..], &sources].concat();
        let expected = Query {
            version: Version::V3,
            group,
            response_max_ms: 100 * unit,
            robustness: 2,
            interval_s: 0x1f << 3,
        };
        let bytes = query(asked, 100, &rest);
        assert_eq!(parse(&bytes, v4), Ok(Received::Query(expected)));
        // The sources are not read.
        let first = &bytes[..if v4 { 12 } else { 28 }];
        assert_eq!(Received::parse(first, bytes.len(), v4), Ok(Received::Query(expected)));
    }
}

#[test]
fn codes_are_floating_point() {
    for (code, value) in [(0, 0), (127, 127), (128, 128), (0x8f, 248), (0xff, 31_744)] {
        assert_eq!(floating(code, CODE_BITS_8), value);
    }
    for (code, value) in [(0x7fff, 32_767), (0x8000, 32_768), (0xffff, 8_387_584)] {
        assert_eq!(floating(code, CODE_BITS_16), value);
    }
}

/// Bad input: every length that no version has, too many sources, addresses that are not groups.
#[test]
fn damaged_queries_are_refused() {
    for (group, v4, fixed) in [(GROUP_V4, true, 8), (GROUP_V6, false, 24)] {
        let whole = query(group, 10, &[0x02, 125, 0, 0]);
        for len in 0..whole.len() {
            let parsed = parse(&whole[..len], v4);
            assert_eq!(parsed.is_ok(), len == fixed, "{len} bytes");
        }
        assert_eq!(parse(&query(group, 10, &[0x02, 125, 0, 1]), v4), Err(ParseError::BadLength));
        let most = query(group, 10, &[0x02, 125, 0xff, 0xff]);
        assert_eq!(parse(&most, v4), Err(ParseError::BadLength));
    }
    let unicast = query(Ipv4Addr::new(10, 0, 0, 1).into(), 10, &[]);
    assert_eq!(parse(&unicast, true), Err(ParseError::BadAddress));
    let unicast = query(Ipv6Addr::LOCALHOST.into(), 10, &[]);
    assert_eq!(parse(&unicast, false), Err(ParseError::BadAddress));
    for v4 in [true, false] {
        assert_eq!(parse(&[9], v4), Ok(Received::Other));
    }
}

#[test]
fn reports_have_the_layout_of_their_version() {
    for (group, v4) in [(GROUP_V4, true), (GROUP_V6, false)] {
        let octets = match group {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let emit = |report: Report<'_>| {
            let mut bytes = [0xaa; REPORT_LEN_MAX];
            let len = report.emit(&mut bytes);
            (bytes[..len].to_vec(), report.destination().expect("a destination").to_string())
        };
        let records = [(RecordKind::ToExclude, group), (RecordKind::ToInclude, group)];
        let (bytes, to) = emit(Report::Records(&records));
        let header = [if v4 { 0x22 } else { 143 }, 0, 0, 0, 0, 0, 0, 2];
        let expected = [&header[..], &[4, 0, 0, 0], &octets, &[3, 0, 0, 0], &octets].concat();
        assert_eq!((bytes, &to[..]), (expected, if v4 { "224.0.0.22" } else { "ff02::16" }));
        let old = |kind: u8| {
            let fixed = if v4 { vec![kind, 0, 0, 0] } else { vec![kind, 0, 0, 0, 0, 0, 0, 0] };
            [fixed, octets.clone()].concat()
        };
        let (bytes, to) = emit(Report::Member(Version::V2, group));
        assert_eq!((&bytes, to), (&old(if v4 { 0x16 } else { 131 }), group.to_string()));
        assert_eq!(parse(&bytes, v4), Ok(Received::Report(group)));
        let (bytes, to) = emit(Report::Leave(group));
        assert_eq!(bytes, old(if v4 { 0x17 } else { 132 }));
        assert_eq!(to, if v4 { "224.0.0.2" } else { "ff02::2" });
    }
    let mut bytes = [0; REPORT_LEN_MAX];
    let report = Report::Member(Version::V1, GROUP_V4);
    assert_eq!((report.emit(&mut bytes), bytes[0]), (8, 0x12));
    let most = [(RecordKind::IsExclude, GROUP_V6); RECORDS_MAX];
    assert_eq!(Report::Records(&most).emit(&mut bytes), REPORT_LEN_MAX);
    assert_eq!(Report::Records(&[]).destination(), None);
}

#[test]
fn router_alerts_are_found() {
    let v4 = |options: &[u8]| [&[0x46][..], &[0; 19], options].concat();
    assert!(has_router_alert(&v4(&ROUTER_ALERT_V4)));
    assert!(has_router_alert(&v4(&[1, 1, 7, 3, 4, 1, 0x94, 4, 0, 0, 0, 0])));
    let v6 = |next: u8, rest: &[u8]| {
        let mut ip = vec![0; 40];
        (ip[0], ip[6]) = (0x60, next);
        [ip, rest.to_vec()].concat()
    };
    assert!(has_router_alert(&v6(0, &ROUTER_ALERT_V6)));
    assert!(has_router_alert(&v6(0, &[58, 0, 1, 0, 5, 2, 0, 0])));
    // Behind the end of the options, in another header, for another protocol, truncated.
    let other = [58, 0, 5, 2, 0, 1, 1, 0];
    for bytes in [
        v4(&[]),
        v4(&[0, 0, 0, 0, 0x94, 4, 0, 0]),
        v4(&[7, 255, 4, 0]),
        v4(&[7]),
        v6(60, &ROUTER_ALERT_V6),
        v6(0, &other),
        v6(0, &[58, 0, 1, 4, 0, 0, 0, 0, 5, 2, 0, 0]),
        v6(0, &[58]),
        v6(0, &[]),
        vec![],
    ] {
        assert!(!has_router_alert(&bytes), "{bytes:?}");
    }
}

#[test]
fn groups_have_addresses_of_the_link() {
    let mac = |group: &str| group_mac(group.parse().expect("an address"));
    assert_eq!(mac("224.0.0.251"), MacAddr([1, 0, 0x5e, 0, 0, 0xfb]));
    assert_eq!(mac("239.255.255.250"), MacAddr([1, 0, 0x5e, 0x7f, 0xff, 0xfa]));
    assert_eq!(mac("ff02::1:ff00:1"), MacAddr([0x33, 0x33, 0xff, 0, 0, 1]));
    for (group, reported) in [
        ("224.0.0.1", false),
        ("224.0.0.251", true),
        ("10.0.0.1", false),
        ("ff02::1", false),
        ("ff01::5", false),
        ("ff02::fb", true),
        ("fe80::1", false),
    ] {
        assert_eq!(is_reported(group.parse().expect("an address")), reported, "{group}");
    }
}
