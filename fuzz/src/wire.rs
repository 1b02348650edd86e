//! Target: all wire formats. Each parsed header is emitted and parsed again, and must mean the
//! same.

use towpath_gateway::services::wire::advertisement::RouterAdvertisement;
use towpath_net::wire::headers::{Headers, Part, Version};
use towpath_net::wire::ipv6::{Extensions, emit_fragment_header};
use towpath_net::wire::{Protocol, arp, ethernet, icmpv4, icmpv6, ipv4, ipv6, tcp, udp};
use towpath_packet::{VirtioHeader, VirtioTunnelHeader};

use crate::input::Input;

/// Room for the longest header of any format.
const ROOM: usize = 512;

/// Reads two bytes of packet length, then the bytes that every parser gets.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let len = usize::from(input.u16());
    let bytes = input.bytes(data.len());
    links(bytes);
    internet(bytes, len);
    located(bytes, len);
    transports(bytes, len);
    messages(bytes);
    virtio(bytes);
}

fn links(bytes: &[u8]) {
    let mut room = [0xee; ROOM];
    if let Ok(header) = ethernet::Header::parse(bytes) {
        let len = header.emit(&mut room);
        assert_eq!(room[..len], bytes[..len]);
    }
    if let Ok(packet) = arp::Packet::parse(bytes) {
        let len = packet.emit(&mut room);
        assert_eq!(room[..len], bytes[..len]);
    }
}

fn internet(bytes: &[u8], len: usize) {
    let mut room = [0xee; ROOM];
    if let Ok(header) = ipv4::Header::parse(bytes, len) {
        assert!(usize::from(header.header_len) + header.payload_len() <= len);
        let without_options = ipv4::Header {
            header_len: ipv4::HEADER_LEN as u8,
            has_source_route: false,
            total_len: header.total_len,
            ..header
        };
        let written = header.emit(&mut room);
        assert_eq!(ipv4::Header::parse(&room[..written], len), Ok(without_options));
    }
    if let Ok(header) = ipv6::Header::parse(bytes, len) {
        let written = header.emit(&mut room);
        assert_eq!(ipv6::Header::parse(&room[..written], len), Ok(header));
        let rest = &bytes[ipv6::HEADER_LEN..];
        extensions(header.next_header, rest, usize::from(header.payload_len));
    }
    // Also without a fixed header before them, so that shorter inputs reach further.
    if let Some((&first, rest)) = bytes.split_first() {
        extensions(Protocol(first), rest, len);
    }
}

/// Finds headers at any place, and compares them with those of the parsers.
fn located(bytes: &[u8], len: usize) {
    let at = len % (bytes.len() + 1);
    let Some(headers) = Headers::read_ip(bytes, at) else { return };
    assert!(at == headers.ip_at && at < headers.transport_at);
    assert!(headers.transport_at == headers.end && headers.end <= bytes.len());
    let ip = &bytes[at..];
    if let Ok(header) = ipv4::Header::parse(ip, ip.len()) {
        assert_eq!((headers.version, headers.protocol), (Version::V4, header.protocol));
        assert_eq!(headers.transport_at - at, usize::from(header.header_len));
        assert_eq!(headers.part != Part::Whole, header.is_fragment());
    }
    if let Ok(header) = ipv6::Header::parse(ip, ip.len()) {
        assert_eq!(headers.version, Version::V6);
        let (chain, payload_len) = (&ip[ipv6::HEADER_LEN..], usize::from(header.payload_len));
        let walked = Extensions::walk(header.next_header, chain, payload_len).expect("walked");
        assert_eq!(headers.transport_at - at, ipv6::HEADER_LEN + walked.len);
        assert_eq!(headers.part != Part::Whole, walked.fragment.is_some());
    }
    if let Some(whole) = Headers::read(bytes, at) {
        assert!(whole.end <= bytes.len() && whole.transport_at == headers.transport_at);
        assert!(whole.transport.is_none() || whole.part == Part::Whole);
    }
}

fn extensions(first: Protocol, bytes: &[u8], payload_len: usize) {
    let Ok(walked) = Extensions::walk(first, bytes, payload_len) else { return };
    let Some(fragment) = walked.fragment else {
        assert!(walked.len <= bytes.len() && walked.len <= payload_len);
        return;
    };
    assert!(fragment.header_at + ipv6::FRAGMENT_HEADER_LEN <= walked.len);
    assert!(fragment.offset_bytes.is_multiple_of(8));
    let (offset, more, ident) = (fragment.offset_bytes, fragment.more, fragment.ident);
    // The payload does not exceed the longest packet. It has no next header, because any other
    // header would have to be complete in a first fragment.
    let payload = if u32::from(offset) + 8 > 0xffff { 0 } else { 8 };
    let mut room = [0xee; ipv6::FRAGMENT_HEADER_LEN + 8];
    let room = &mut room[..ipv6::FRAGMENT_HEADER_LEN + payload];
    let next = Protocol::NO_NEXT_HEADER;
    let written = emit_fragment_header(room, next, offset, more, ident);
    let again = Extensions::walk(Protocol::IPV6_FRAGMENT, room, room.len());
    let again = again.expect("a fragment header alone is a chain");
    assert_eq!(again.len, written);
    let again = again.fragment.expect("it is a fragment header");
    assert_eq!((again.offset_bytes, again.more, again.ident), (offset, more, ident));
}

fn transports(bytes: &[u8], len: usize) {
    let mut room = [0xee; ROOM];
    if let Ok(header) = udp::Header::parse(bytes, len) {
        assert!(udp::HEADER_LEN + header.payload_len() <= len);
        let written = header.emit(&mut room);
        assert_eq!(room[..written], bytes[..written]);
    }
    if let Ok((header, options)) = tcp::Header::parse(bytes) {
        let syn = header.flags.contains(tcp::Flags::SYN);
        assert!(options.emitted_len(syn) <= tcp::OPTIONS_LEN_MAX);
        let written = header.emit(&options, &mut room);
        assert_eq!(written, tcp::HEADER_LEN + options.emitted_len(syn));
        let (header_again, again) =
            tcp::Header::parse(&room[..written]).expect("what was written parses");
        let header_len = written as u8;
        assert_eq!(header_again, tcp::Header { header_len, ..header });
        // Timestamps leave no room for a fourth SACK block.
        let blocks = again.sack_blocks();
        assert_eq!(blocks, &options.sack_blocks()[..blocks.len()]);
        assert_eq!(again.timestamps, options.timestamps);
        assert_eq!((again.mss, again.window_scale), (options.mss, options.window_scale));
        assert_eq!(again.fast_open, options.fast_open);
        assert_eq!(again.sack_permitted, options.sack_permitted);
    }
}

fn messages(bytes: &[u8]) {
    let mut room = [0xee; ROOM];
    if let Ok(message) = icmpv4::Message::parse(bytes) {
        let written = message.emit(&mut room);
        assert_eq!(icmpv4::Message::parse(&room[..written]), Ok(message));
        let _ = message.is_error();
    }
    if let Ok(message) = icmpv6::Message::parse(bytes) {
        let written = message.emit(&mut room);
        assert_eq!(written, message.emitted_len());
        assert_eq!(icmpv6::Message::parse(&room[..written]), Ok(message));
        let _ = message.is_error();
    }
    if let Ok(advertisement) = RouterAdvertisement::parse(bytes) {
        assert_eq!(RouterAdvertisement::parse(&advertisement.emit()), Ok(advertisement));
    }
}

fn virtio(bytes: &[u8]) {
    let Some(header) = bytes.first_chunk::<{ VirtioHeader::LEN }>() else { return };
    if let Ok(offload) = VirtioHeader(*header).decode() {
        assert_eq!(VirtioHeader::encode(&offload, bytes.len()).decode(), Ok(offload));
    }
    let Some(header) = bytes.first_chunk::<{ VirtioTunnelHeader::LEN }>() else { return };
    if let Ok(offload) = VirtioTunnelHeader(*header).decode() {
        assert_eq!(VirtioTunnelHeader::encode(&offload, bytes.len()).decode(), Ok(offload));
    }
}
