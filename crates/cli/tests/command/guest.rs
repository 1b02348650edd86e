//! A guest at a stream port of `towpath up`; a test can send arbitrary frames.

use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use towpath_gateway::services::wire::dhcpv4::{self, Message, MessageType, Options};
use towpath_net::wire::MacAddr;

use super::support::*;

/// How long nothing must arrive before a test concludes that nothing will.
const SILENCE: Duration = Duration::from_millis(300);
/// Longest frame that is read.
const FRAME_BYTES_MAX: usize = 1 << 16;
const IPV4: [u8; 2] = [0x08, 0x00];
const ARP: [u8; 2] = [0x08, 0x06];
const TCP: u8 = 6;
const UDP: u8 = 17;

/// A guest. `mac` is the sender of its DHCP messages.
pub(super) struct Guest {
    stream: UnixStream,
    pub(super) mac: [u8; 6],
    /// Received bytes that are not a whole frame yet.
    input: Vec<u8>,
}

impl Guest {
    /// Connects, and waits until the port is connected.
    pub(super) fn connect(path: &Path, last: u8) -> Self {
        let mut stream = None;
        wait_for("the port's socket", || {
            stream = UnixStream::connect(path).ok();
            stream.is_some()
        });
        Self::over(stream.unwrap(), last)
    }

    /// Takes over a connection.
    pub(super) fn over(stream: UnixStream, last: u8) -> Self {
        Self { stream, mac: [2, 0, 0, 0, 0, last], input: Vec::new() }
    }

    pub(super) fn send(&mut self, frame: &[u8]) {
        let mut bytes = (frame.len() as u32).to_be_bytes().to_vec();
        bytes.extend(frame);
        self.stream.write_all(&bytes).unwrap();
    }

    /// Returns the next frame, if one arrives within `patience`.
    pub(super) fn receive(&mut self, patience: Duration) -> Option<Vec<u8>> {
        self.stream.set_read_timeout(Some(patience)).unwrap();
        let mut buffer = vec![0; FRAME_BYTES_MAX];
        loop {
            if let Some((len, rest)) = self.input.split_first_chunk::<4>() {
                let len = u32::from_be_bytes(*len) as usize;
                if rest.len() >= len {
                    let frame = rest[..len].to_vec();
                    self.input.drain(..4 + len);
                    return Some(frame);
                }
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => panic!("the network hung up"),
                Ok(count) => self.input.extend(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                // The signal is one that another test waits for.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Returns the next frame for which `is` returns true, and skips all others before it.
    pub(super) fn expect(&mut self, what: &str, is: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        for _ in 0..10_000 {
            let frame = self.receive(PATIENCE).unwrap_or_else(|| panic!("no {what}"));
            if is(&frame) {
                return frame;
            }
        }
        panic!("other frames, no {what}");
    }

    /// Returns true if no such frame arrives for a while.
    pub(super) fn hears_no(&mut self, is: impl Fn(&[u8]) -> bool) -> bool {
        while let Some(frame) = self.receive(SILENCE) {
            if is(&frame) {
                return false;
            }
        }
        true
    }

    /// Gets a lease by rapid commit (RFC 4039); returns the whole answer.
    pub(super) fn lease(&mut self, options: &[(u8, &[u8])]) -> Option<Message> {
        let short = [(dhcpv4::option::RAPID_COMMIT, &[][..])];
        self.ask(MessageType::Discover, &[&short, options].concat());
        self.answer(PATIENCE)
    }

    /// Sends a DHCP message.
    pub(super) fn ask(&mut self, kind: MessageType, options: &[(u8, &[u8])]) {
        let mut set = Options::default();
        set.set(dhcpv4::option::MESSAGE_TYPE, &[kind as u8]);
        options.iter().for_each(|(code, value)| set.set(*code, value));
        let message = Message {
            is_reply: false,
            hops: 0,
            transaction_id: 7,
            elapsed_s: 0,
            broadcast: false,
            client_address: Ipv4Addr::UNSPECIFIED,
            your_address: Ipv4Addr::UNSPECIFIED,
            next_server: Ipv4Addr::UNSPECIFIED,
            relay: Ipv4Addr::UNSPECIFIED,
            client_mac: MacAddr(self.mac),
            options: set,
        };
        let to = (Ipv4Addr::BROADCAST, 67);
        let datagram = udp((Ipv4Addr::UNSPECIFIED, 68), to, &message.emit(1000));
        self.send(&ethernet([0xff; 6], self.mac, IPV4, &datagram));
    }

    /// Returns the next DHCP answer to this guest, if one arrives within `patience`.
    pub(super) fn answer(&mut self, patience: Duration) -> Option<Message> {
        loop {
            let frame = self.receive(patience)?;
            let is_answer = frame.len() > 42 && frame[12..14] == IPV4 && frame[23] == UDP;
            if is_answer && frame[34..36] == 67_u16.to_be_bytes() {
                let message = Message::parse(&frame[42..]).unwrap();
                if message.client_mac == MacAddr(self.mac) {
                    return Some(message);
                }
            }
        }
    }

    /// Returns the next frame for which `is` returns true, unless nothing arrives for `patience`;
    /// answers ARP requests for `own` meanwhile.
    pub(super) fn receive_at(
        &mut self,
        own: Ipv4Addr,
        patience: Duration,
        is: impl Fn(&[u8]) -> bool,
    ) -> Option<Vec<u8>> {
        self.receive_and_answer(patience, is, |guest, frame| {
            if is_arp(frame) && frame[21] == 1 && frame[38..42] == own.octets() {
                let asker: [u8; 6] = frame[22..28].try_into().unwrap();
                let target = <[u8; 4]>::try_from(&frame[28..32]).unwrap().into();
                let answer = arp(2, guest.mac, own, asker, target);
                guest.send(&ethernet(asker, guest.mac, ARP, &answer));
            }
        })
    }

    /// Returns the next frame for which `is` returns true, unless nothing arrives for `patience`;
    /// calls `answer` for the frames before it.
    pub(super) fn receive_and_answer(
        &mut self,
        patience: Duration,
        is: impl Fn(&[u8]) -> bool,
        answer: impl Fn(&mut Self, &[u8]),
    ) -> Option<Vec<u8>> {
        for _ in 0..10_000 {
            let frame = self.receive(patience)?;
            if is(&frame) {
                return Some(frame);
            }
            answer(self, &frame);
        }
        None
    }

    /// Refuses the connection of a SYN.
    pub(super) fn refuse(&mut self, syn: &[u8]) {
        let (source, destination) = (&syn[26..30], &syn[30..34]);
        let next = u32::from_be_bytes(syn[38..42].try_into().unwrap()).wrapping_add(1);
        let mut segment = [&syn[36..38], &syn[34..36], &[0; 4], &next.to_be_bytes()].concat();
        // A header of five words; RST and ACK.
        segment.extend([0x50, 0x14, 0, 0, 0, 0, 0, 0]);
        let pseudo = [destination, source, &[0, TCP, 0, segment.len() as u8], &segment].concat();
        segment[16..18].copy_from_slice(&checksum(&pseudo).to_be_bytes());
        let mut header =
            [&[0x45, 0, 0, 40, 0, 0, 0, 0, 64, TCP, 0, 0], destination, source].concat();
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        let packet = [header, segment].concat();
        self.send(&ethernet(syn[6..12].try_into().unwrap(), self.mac, IPV4, &packet));
    }

    /// Resolves `target` by ARP from the address `own`; returns the station that answers.
    pub(super) fn resolve(&mut self, own: Ipv4Addr, target: Ipv4Addr) -> [u8; 6] {
        let request = arp(1, self.mac, own, [0; 6], target);
        self.send(&ethernet([0xff; 6], self.mac, ARP, &request));
        let frame = self.expect("answer of ARP", |frame| {
            frame[12..14] == ARP && frame[20..22] == [0, 2] && frame[28..32] == target.octets()
        });
        frame[22..28].try_into().unwrap()
    }
}

/// Returns a frame, padded to the minimum length.
pub(super) fn ethernet(to: [u8; 6], from: [u8; 6], kind: [u8; 2], payload: &[u8]) -> Vec<u8> {
    let mut frame = [&to[..], &from, &kind, payload].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

/// Returns an ARP message for Ethernet and IPv4.
pub(super) fn arp(
    operation: u8,
    from: [u8; 6],
    own: Ipv4Addr,
    to: [u8; 6],
    target: Ipv4Addr,
) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, operation];
    [&head[..], &from, &own.octets(), &to, &target.octets()].concat()
}

pub(super) fn is_arp(frame: &[u8]) -> bool {
    frame[12..14] == ARP
}

/// Returns a frame with an ARP message.
pub(super) fn arp_frame(to: [u8; 6], from: [u8; 6], message: &[u8]) -> Vec<u8> {
    ethernet(to, from, ARP, message)
}

/// Returns a frame with a datagram.
pub(super) fn udp_frame(
    (to_mac, to): ([u8; 6], (Ipv4Addr, u16)),
    (from_mac, from): ([u8; 6], (Ipv4Addr, u16)),
    payload: &[u8],
) -> Vec<u8> {
    ethernet(to_mac, from_mac, IPV4, &udp(from, to, payload))
}

/// Returns the sender and payload of a datagram to `port`.
pub(super) fn datagram(frame: &[u8], port: u16) -> Option<((Ipv4Addr, u16), &[u8])> {
    let is_it = frame.len() >= 42 && frame[12..14] == IPV4 && frame[23] == UDP;
    if !is_it || frame[36..38] != port.to_be_bytes() {
        return None;
    }
    let number = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let from = <[u8; 4]>::try_from(&frame[26..30]).unwrap().into();
    Some(((from, number(34)), &frame[42..34 + usize::from(number(38))]))
}

/// Returns true for a TCP SYN to this port.
pub(super) fn is_syn(frame: &[u8], port: u16) -> bool {
    frame.len() >= 54
        && frame[12..14] == IPV4
        && frame[23] == TCP
        && frame[36..38] == port.to_be_bytes()
        && frame[47] & 0x12 == 0x02
}

/// Returns a packet with a datagram without a checksum, which IPv4 permits.
fn udp(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), payload: &[u8]) -> Vec<u8> {
    let udp_len = 8 + payload.len() as u16;
    let mut header = vec![0x45, 0];
    header.extend((20 + udp_len).to_be_bytes());
    header.extend([0, 0, 0, 0, 64, UDP, 0, 0]);
    header.extend(from.0.octets());
    header.extend(to.0.octets());
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    for number in [from.1, to.1, udp_len, 0] {
        header.extend(number.to_be_bytes());
    }
    header.extend(payload);
    header
}

/// Returns the Internet checksum (RFC 1071) of an even number of bytes.
pub(super) fn checksum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}
