//! Tests of DHCP for IPv6 against an independent parser.

use dhcproto::v6 as oracle;
use dhcproto::{Decodable, Encodable};
use proptest::prelude::*;

use super::super::domain;
use super::*;

const ROOM: usize = 1452;

fn ia(id: u32, last: u16) -> IdentityAssociation {
    let address = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
    IdentityAssociation {
        id,
        renew_s: 1800,
        rebind_s: 2880,
        addresses: vec![AddressLease { address, preferred_s: 3600, valid_s: 7200 }],
        status: None,
    }
}

/// Goal: an independent parser reads a reply with every option that a server sends.
#[test]
fn others_read_what_we_write() {
    use oracle::{DhcpOption as O, OptionCode as C};
    let domains = ["lan.example".parse().unwrap()];
    let server = duid_of(MacAddr([2, 0, 0, 0, 0, 1]));
    let mut options = Options::default();
    options.push(option::SERVER_ID, &server);
    options.push(option::CLIENT_ID, &[0, 1, 2, 3]);
    options.push(option::IA_NA, &ia(5, 9).emit());
    let refused =
        IdentityAssociation { addresses: vec![], status: Some(Status::NO_ADDRESSES), ..ia(6, 0) };
    options.push(option::IA_NA, &refused.emit());
    options.push(option::PREFERENCE, &[255]);
    options.push(option::RAPID_COMMIT, &[]);
    options.push(option::DNS_SERVERS, &ia(0, 3).addresses[0].address.octets());
    options.push(option::DOMAIN_LIST, &domain::emit_list(&domains));
    let ours = Message { kind: MessageType::Reply, transaction_id: 0xabcdef, options };
    let bytes = ours.emit(ROOM);
    let theirs = oracle::Message::from_bytes(&bytes).unwrap();
    assert_eq!(theirs.msg_type(), oracle::MessageType::Reply);
    assert_eq!(theirs.xid_num(), 0xabcdef);
    let opts = theirs.opts();
    assert_eq!(opts.get(C::ServerId), Some(&O::ServerId(server.into())));
    assert_eq!(opts.get(C::ClientId), Some(&O::ClientId(vec![0, 1, 2, 3])));
    assert_eq!(opts.get(C::Preference), Some(&O::Preference(255)));
    assert_eq!(opts.get(C::RapidCommit), Some(&O::RapidCommit));
    let dns = ia(0, 3).addresses[0].address;
    assert_eq!(opts.get(C::DomainNameServers), Some(&O::DomainNameServers(vec![dns])));
    let associations = opts.get_all(C::IANA).unwrap();
    let [O::IANA(first), O::IANA(second)] = associations else { panic!("{associations:?}") };
    assert_eq!((first.id, first.t1, first.t2), (5, 1800, 2880));
    let Some(O::IAAddr(address)) = first.opts.get(C::IAAddr) else { panic!("no address") };
    assert_eq!(address.addr, ia(5, 9).addresses[0].address);
    assert_eq!((address.preferred_life, address.valid_life), (3600, 7200));
    let Some(O::StatusCode(status)) = second.opts.get(C::StatusCode) else { panic!("no status") };
    assert_eq!((second.id, status.status), (6, oracle::Status::NoAddrsAvail));
    assert_eq!(Message::parse(&bytes), Ok(ours.clone()));
    let mut read = ours.options.all(option::IA_NA).map(IdentityAssociation::parse);
    assert_eq!(read.next(), Some(Ok(ia(5, 9))));
    assert_eq!(read.next(), Some(Ok(refused)));
}

/// Goal: messages of an independent implementation are parsed.
#[test]
fn we_read_what_others_write() {
    use oracle::{DhcpOption as O, OptionCode as C};
    let mut theirs = oracle::Message::new_with_id(oracle::MessageType::Solicit, [1, 2, 3]);
    let opts = theirs.opts_mut();
    opts.insert(O::ClientId(vec![0, 4, 9, 9]));
    opts.insert(O::ElapsedTime(12));
    opts.insert(O::ORO(oracle::ORO { opts: vec![C::DomainNameServers, C::DomainSearchList] }));
    opts.insert(O::IANA(oracle::IANA { id: 77, t1: 0, t2: 0, opts: oracle::DhcpOptions::new() }));
    let ours = Message::parse(&theirs.to_vec().unwrap()).unwrap();
    assert_eq!((ours.kind, ours.transaction_id), (MessageType::Solicit, 0x010203));
    let options = &ours.options;
    assert_eq!(options.duid(option::CLIENT_ID), Some(&[0, 4, 9, 9][..]));
    assert_eq!(options.get(option::ELAPSED_TIME), Some(&[0, 12][..]));
    assert!(options.wants(option::DNS_SERVERS) && options.wants(option::DOMAIN_LIST));
    assert!(!options.wants(option::FQDN));
    let asked = IdentityAssociation::parse(options.get(option::IA_NA).unwrap()).unwrap();
    assert_eq!((asked.id, asked.addresses.len(), asked.status), (77, 0, None));
    assert!(Options::default().wants(option::FQDN), "no list asks for all");
}

/// Bad input: truncated anywhere, relay messages and unknown types, lengths beyond the end, outside
/// and nested; identifiers too short and too long.
#[test]
fn what_contradicts_itself_is_refused() {
    let mut options = Options::default();
    options.push(option::IA_NA, &ia(1, 1).emit());
    let good = Message { kind: MessageType::Request, transaction_id: 1, options }.emit(ROOM);
    for len in 0..good.len() {
        let cut = Message::parse(&good[..len]);
        assert_eq!(cut.is_ok(), len == FIXED_LEN, "{len} bytes");
    }
    for kind in [0, 12, 13, 14, 36, 255] {
        let bad = [&[kind], &good[1..]].concat();
        assert_eq!(Message::parse(&bad), Err(ParseError::Unsupported), "kind {kind}");
    }
    let whole = ia(1, 1).emit();
    for len in 0..whole.len() {
        let cut = IdentityAssociation::parse(&whole[..len]);
        assert_eq!(cut.is_ok(), len == IA_LEN, "{len} bytes");
    }
    let mut nested = whole.clone();
    nested[IA_LEN + 3] -= 1;
    assert!(IdentityAssociation::parse(&nested).is_err(), "an address of 15 bytes and a rest");
    for (len, valid) in [(0, false), (2, false), (3, true), (130, true), (131, false)] {
        let mut options = Options::default();
        options.push(option::CLIENT_ID, &vec![1; len]);
        assert_eq!(options.duid(option::CLIENT_ID).is_some(), valid, "{len} bytes");
    }
}

proptest! {
    /// Built messages are parsed here and by an independent parser; with these codes, it accepts
    /// any value.
    #[test]
    fn round_trip(
        id in 0u32..1 << 24,
        options in proptest::collection::vec(
            (0x8000u16.., proptest::collection::vec(any::<u8>(), 0..40)), 0..8),
    ) {
        let mut ours =
            Message { kind: MessageType::Renew, transaction_id: id, options: Options::default() };
        options.iter().for_each(|(code, value)| ours.options.push(*code, value));
        let bytes = ours.emit(usize::from(u16::MAX));
        prop_assert_eq!(Message::parse(&bytes), Ok(ours));
        let theirs = oracle::Message::from_bytes(&bytes).unwrap();
        prop_assert_eq!((theirs.xid_num(), theirs.opts().iter().count()), (id, options.len()));
    }

    /// Any bytes are parsed without a panic; parsed messages are rebuilt byte for byte.
    #[test]
    fn any_bytes(kind in 1u8..12, tail in proptest::collection::vec(0u8..8, 0..80)) {
        let bytes = [&[kind][..], &tail].concat();
        if let Ok(read) = Message::parse(&bytes) {
            prop_assert_eq!(read.emit(usize::from(u16::MAX)), bytes);
            for value in read.options.all(option::IA_NA) {
                if let Ok(ia) = IdentityAssociation::parse(value) {
                    prop_assert_eq!(IdentityAssociation::parse(&ia.emit()), Ok(ia));
                }
            }
        }
    }
}
