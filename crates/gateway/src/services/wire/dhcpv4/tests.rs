//! Tests of DHCP for IPv4 against an independent parser.

use dhcproto::v4 as oracle;
use dhcproto::{Decodable, Encodable};
use proptest::prelude::*;

use super::super::domain;
use super::*;

const CLIENT: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);

fn message(kind: MessageType) -> Message {
    let mut options = Options::default();
    options.set(option::MESSAGE_TYPE, &[kind as u8]);
    let mut message = Message {
        is_reply: false,
        hops: 0,
        transaction_id: 0x1234_5678,
        elapsed_s: 3,
        broadcast: true,
        client_address: Ipv4Addr::UNSPECIFIED,
        your_address: Ipv4Addr::UNSPECIFIED,
        next_server: Ipv4Addr::UNSPECIFIED,
        relay: Ipv4Addr::UNSPECIFIED,
        client_mac: CLIENT,
        options: Options::default(),
    };
    message.options = options;
    message
}

/// Goal: an independent parser reads an acknowledgement with every option that a server sends.
#[test]
fn others_read_what_we_write() {
    use oracle::{DhcpOption as O, OptionCode as C};
    let mut ack = Message::reply_to(&message(MessageType::Request));
    ack.your_address = [10, 0, 2, 15].into();
    let domains: Vec<_> =
        ["lan.example", "example"].iter().map(|text| text.parse().unwrap()).collect();
    let options = &mut ack.options;
    options.set(option::MESSAGE_TYPE, &[MessageType::Ack as u8]);
    options.set(option::SERVER_ID, &[10, 0, 2, 2]);
    options.set(option::LEASE_TIME, &3600u32.to_be_bytes());
    options.set(option::RENEWAL_TIME, &1800u32.to_be_bytes());
    options.set(option::REBINDING_TIME, &3150u32.to_be_bytes());
    options.set(option::SUBNET_MASK, &[255, 255, 255, 0]);
    options.set(option::ROUTERS, &[10, 0, 2, 2]);
    options.set(option::DNS_SERVERS, &[10, 0, 2, 3, 10, 0, 2, 4]);
    options.set(option::DOMAIN_NAME, b"lan.example");
    options.set(option::MTU, &1400u16.to_be_bytes());
    options.set(option::SEARCH_LIST, &domain::emit_compressed_list(&domains));
    options.set(option::RAPID_COMMIT, &[]);
    let bytes = ack.emit(MESSAGE_LEN_ANY_CLIENT);
    let theirs = oracle::Message::from_bytes(&bytes).unwrap();
    assert_eq!(theirs.opcode(), oracle::Opcode::BootReply);
    assert_eq!((theirs.xid(), theirs.yiaddr()), (0x1234_5678, ack.your_address));
    assert_eq!((theirs.chaddr(), theirs.flags().broadcast()), (&CLIENT.0[..], true));
    for expected in [
        O::MessageType(oracle::MessageType::Ack),
        O::ServerIdentifier([10, 0, 2, 2].into()),
        O::AddressLeaseTime(3600),
        O::Renewal(1800),
        O::Rebinding(3150),
        O::SubnetMask([255, 255, 255, 0].into()),
        O::Router(vec![[10, 0, 2, 2].into()]),
        O::DomainNameServer(vec![[10, 0, 2, 3].into(), [10, 0, 2, 4].into()]),
        O::DomainName("lan.example".into()),
        O::InterfaceMtu(1400),
        O::RapidCommit,
    ] {
        assert_eq!(theirs.opts().get(C::from(&expected)), Some(&expected));
    }
    let Some(O::DomainSearch(theirs)) = theirs.opts().get(C::DomainSearch) else {
        panic!("no search list")
    };
    let theirs: Vec<_> = theirs.iter().map(std::string::ToString::to_string).collect();
    assert_eq!(theirs, ["lan.example.", "example."]);
    assert_eq!(Message::parse(&bytes), Ok(ack));
}

/// Goal: messages of an independent implementation are parsed.
#[test]
fn we_read_what_others_write() {
    use oracle::{DhcpOption as O, OptionCode as C};
    let none = Ipv4Addr::UNSPECIFIED;
    let mut theirs = oracle::Message::new_with_id(7, none, none, none, none, &CLIENT.0);
    theirs.set_secs(9).set_flags(oracle::Flags::default().set_broadcast());
    for option in [
        O::MessageType(oracle::MessageType::Discover),
        O::RequestedIpAddress([10, 0, 2, 99].into()),
        O::ClientIdentifier(vec![1, 2, 3]),
        O::ParameterRequestList(vec![C::SubnetMask, C::Router, C::InterfaceMtu]),
        O::MaxMessageSize(1500),
        O::Hostname("vm1".into()),
    ] {
        theirs.opts_mut().insert(option);
    }
    let ours = Message::parse(&theirs.to_vec().unwrap()).unwrap();
    assert!(!ours.is_reply && ours.broadcast);
    assert_eq!((ours.transaction_id, ours.elapsed_s, ours.client_mac), (7, 9, CLIENT));
    let options = &ours.options;
    assert_eq!(MessageType::of(options), Some(MessageType::Discover));
    assert_eq!(options.address(option::REQUESTED_ADDRESS), Some([10, 0, 2, 99].into()));
    assert_eq!(options.get(option::CLIENT_ID), Some(&[1, 2, 3][..]));
    assert_eq!(options.get(option::PARAMETER_LIST), Some(&[1, 3, 26][..]));
    assert_eq!(options.u16(option::MAX_MESSAGE_LEN), Some(1500));
    assert_eq!(options.get(option::HOST_NAME), Some(&b"vm1"[..]));
}

/// Bad input: truncated anywhere, another operation, hardware, address length, cookie; lengths
/// beyond the end; an invalid overload value.
#[test]
fn what_contradicts_itself_is_refused() {
    let good = message(MessageType::Discover).emit(MESSAGE_LEN_ANY_CLIENT);
    assert!(Message::parse(&good).is_ok());
    for len in 0..FIXED_LEN {
        assert_eq!(Message::parse(&good[..len]), Err(ParseError::Truncated), "{len} bytes");
    }
    for (offset, value) in [
        (at::OP, 0),
        (at::OP, 3),
        (at::HARDWARE_TYPE, 6),
        (at::HARDWARE_LEN, 0),
        (at::HARDWARE_LEN, 16),
        (at::HARDWARE_LEN, 255),
        (at::COOKIE, 0),
        (at::COOKIE + 3, 98),
    ] {
        let mut bad = good.clone();
        bad[offset] = value;
        assert_eq!(Message::parse(&bad), Err(ParseError::Unsupported), "{value} at {offset}");
    }
    for options in [
        &[53][..],
        &[53, 2, 1],
        &[61, 255, 1, 2, 3],
        &[52, 1, 0, 255],
        &[52, 1, 4, 255],
        &[52, 2, 1, 1, 255],
        &[52, 0, 255],
        // In two parts, which together are not one byte.
        &[52, 1, 1, 52, 1, 1, 255],
    ] {
        let bad = [&good[..FIXED_LEN], options].concat();
        assert_eq!(Message::parse(&bad), Err(ParseError::BadOption), "{options:?}");
    }
}

/// RFC 3396 §7: parts of one option are joined, in the order options, file, server name.
#[test]
fn parts_are_joined_in_the_order_of_fields() {
    let mut bytes = message(MessageType::Discover).emit(MESSAGE_LEN_ANY_CLIENT);
    bytes.truncate(FIXED_LEN);
    bytes.extend([61, 2, 1, 2, 0, 0, 61, 1, 3, 52, 1, 3, 255, 61, 1, 99]);
    write(&mut bytes, at::FILE, &[61, 1, 4, 255, 61, 1, 98]);
    write(&mut bytes, at::SERVER_NAME, &[61, 1, 5, 255]);
    let parsed = Message::parse(&bytes).unwrap();
    assert_eq!(parsed.options.get(option::CLIENT_ID), Some(&[1, 2, 3, 4, 5][..]));
    assert_eq!(parsed.options.get(option::OVERLOAD), None, "removed");
}

/// RFC 2132 §9.3: an overload option inside an overloaded field is ignored.
#[test]
fn overload_does_not_go_round() {
    let mut bytes = message(MessageType::Discover).emit(MESSAGE_LEN_ANY_CLIENT);
    bytes.truncate(FIXED_LEN);
    bytes.extend([52, 1, 1, 255]);
    write(&mut bytes, at::FILE, &[52, 1, 3, 53, 1, 1, 255]);
    write(&mut bytes, at::SERVER_NAME, &[61, 200]);
    let parsed = Message::parse(&bytes).unwrap();
    assert_eq!(parsed.options.iter().collect::<Vec<_>>(), [(53, &[1][..])]);
}

/// A message type of two bytes, or two of them, is invalid.
#[test]
fn two_message_types_are_none() {
    let mut bytes = message(MessageType::Discover).emit(MESSAGE_LEN_ANY_CLIENT);
    bytes.truncate(FIXED_LEN);
    bytes.extend([53, 1, 1, 53, 1, 3, 255]);
    assert_eq!(MessageType::of(&Message::parse(&bytes).unwrap().options), None);
}

/// An option that does not fit is omitted, and later options that fit are kept.
#[test]
fn options_that_do_not_fit_are_left_out() {
    let mut long = message(MessageType::Inform);
    long.options.set(option::SEARCH_LIST, &[1; 400]);
    long.options.set(option::MTU, &[5, 0]);
    let bytes = long.emit(MESSAGE_LEN_ANY_CLIENT);
    let read = Message::parse(&bytes).unwrap();
    assert_eq!(read.options.get(option::SEARCH_LIST), None);
    assert_eq!(read.options.u16(option::MTU), Some(1280));
    assert_eq!(bytes.len(), MESSAGE_LEN_MIN);
    // RFC 3396 §5: with enough room it is split in two parts.
    let bytes = long.emit(1000);
    assert_eq!(bytes[FIXED_LEN + 3..FIXED_LEN + 5], [119, 255]);
    assert_eq!(Message::parse(&bytes), Ok(long));
}

proptest! {
    /// Built messages are parsed here and by an independent parser. Codes are for private use (RFC
    /// 3942), so that the other parser accepts any value.
    #[test]
    fn round_trip(
        fields in any::<(bool, u8, u32, u16, bool)>(),
        addresses in any::<[[u8; 4]; 4]>(),
        mac in any::<[u8; 6]>(),
        options in proptest::collection::vec(
            (224u8..255, proptest::collection::vec(any::<u8>(), 0..300)), 0..8),
    ) {
        let (is_reply, hops, transaction_id, elapsed_s, broadcast) = fields;
        let [client, your, server, relay] = addresses.map(Ipv4Addr::from);
        let mut ours = Message {
            is_reply, hops, transaction_id, elapsed_s, broadcast,
            client_address: client, your_address: your, next_server: server, relay,
            client_mac: MacAddr(mac), options: Options::default(),
        };
        options.iter().for_each(|(code, value)| ours.options.set(*code, value));
        let bytes = ours.emit(usize::from(u16::MAX));
        prop_assert_eq!(Message::parse(&bytes), Ok(ours));
        let theirs = oracle::Message::from_bytes(&bytes).unwrap();
        prop_assert_eq!((theirs.xid(), theirs.chaddr()), (transaction_id, &mac[..]));
        prop_assert_eq!(
            [theirs.ciaddr(), theirs.yiaddr(), theirs.siaddr(), theirs.giaddr()],
            [client, your, server, relay]);
    }

    /// Any bytes behind a valid beginning are parsed without a panic; parsed messages are rebuilt.
    #[test]
    fn any_options(tail in proptest::collection::vec(any::<u8>(), 0..80), cut in 0usize..400) {
        let mut bytes = message(MessageType::Request).emit(MESSAGE_LEN_ANY_CLIENT);
        bytes.truncate(FIXED_LEN);
        bytes.extend(&tail);
        bytes.truncate(cut);
        if let Ok(read) = Message::parse(&bytes) {
            prop_assert_eq!(Message::parse(&read.emit(usize::from(u16::MAX))), Ok(read));
        }
    }
}
