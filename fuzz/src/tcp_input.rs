//! Target: an established connection whose peer sends arbitrary segments in any order.
//!
//! The payload of each segment comes from one stream, by sequence number; all other fields are
//! arbitrary. So received data must be this stream without a gap, sent data must be the stream that
//! was written, and only sent data may be acknowledged.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use towpath_net::stack::{Address, Config, Context, Limits, Stack, TcpHandle};
use towpath_net::tcp::{Connection, Settings, State};
use towpath_net::time::{Duration, Instant};
use towpath_net::wire::ethernet::{self, EtherType};
use towpath_net::wire::tcp::{Flags, Header};
use towpath_net::wire::{MacAddr, Protocol, ipv4, tcp};
use towpath_packet::{Burst, Caps, Checksum, Ledger, Memory, Offload};
use towpath_sim::oracle;

use crate::input::Input;
use crate::packets;

/// Most steps of one input.
const STEPS_MAX: usize = 128;
/// Most bursts in answer to one step.
const BURSTS_MAX: usize = 1000;
/// MTU of the device.
const MTU: u16 = 1500;
/// Longest payload of a segment: larger than the MTU, like a super-packet.
const PAYLOAD_MAX: usize = 4096;
const HEADERS_LEN: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;

const LOCAL: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const REMOTE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const LOCAL_PORT: u16 = 4000;
const REMOTE_PORT: u16 = 80;
const LOCAL_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const REMOTE_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// Numbers of the two streams.
const WRITTEN: u64 = 1;
const READ: u64 = 2;

/// Reads one byte of configuration, then runs steps: a byte selects each, and its arguments follow.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut side = Side::new(input.u8());
    side.open();
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        side.step(&mut input);
        side.transmit();
        side.check();
    }
    side.end();
}

/// A stack with one connection, and the peer's state.
struct Side {
    stack: Stack,
    memory: Memory,
    ledger: Ledger,
    now: Instant,
    handle: TcpHandle,
    /// The stack's initial sequence number.
    iss: u32,
    /// The peer's initial sequence number.
    irs: u32,
    /// Options of the peer's SYN-ACK.
    options: tcp::Options,
    /// Latest acknowledgment of the stack, and the end of the data that it sent.
    acked: u32,
    sent_end: u32,
    /// End of the data that the peer has sent, counted from the first byte of the stream.
    peer_end: u32,
    written: u64,
    read: u64,
    /// Where the peer's stream ended, once it has ended.
    closed_at: Option<u64>,
}

impl Side {
    fn new(configuration: u8) -> Self {
        let now = Instant::from_micros(1_000_000);
        let mut stack = Stack::new(config(configuration), Caps::plain(MTU));
        stack.set_neighbor(REMOTE.into(), REMOTE_MAC);
        let local = SocketAddr::new(LOCAL.into(), LOCAL_PORT);
        let remote = SocketAddr::new(REMOTE.into(), REMOTE_PORT);
        let handle = stack.tcp_connect(local, remote, now).expect("the table is empty");
        let irs = if configuration & 1 == 0 { 1000 } else { u32::MAX - 3000 };
        Self {
            stack,
            memory: packets::memory(),
            ledger: Ledger::new(),
            now,
            handle,
            iss: 0,
            irs,
            options: tcp::Options {
                mss: Some(if configuration & 2 == 0 { 1460 } else { 100 }),
                window_scale: (configuration & 4 == 0).then_some(7),
                sack_permitted: configuration & 8 == 0,
                timestamps: (configuration & 16 == 0).then_some((1, 0)),
                ..tcp::Options::default()
            },
            acked: irs.wrapping_add(1),
            sent_end: 0,
            peer_end: 0,
            written: 0,
            read: 0,
            closed_at: None,
        }
    }

    /// Completes the handshake.
    fn open(&mut self) {
        let frames = self.output();
        let [syn] = &frames[..] else { panic!("{} frames instead of a SYN", frames.len()) };
        self.iss = u32::from_be_bytes(*syn[HEADERS_LEN + 4..].first_chunk().expect("a header"));
        self.sent_end = self.iss.wrapping_add(1);
        let (flags, options) = (Flags::SYN | Flags::ACK, self.options);
        self.receive(flags, self.irs, self.sent_end, 0xffff, &options, &[]);
        self.transmit();
        let state = self.stack.tcp(self.handle).map(Connection::state);
        assert_eq!(state, Some(State::Established));
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 8 {
            0 => self.pass(Duration::from_micros(u64::from(input.u32()))),
            1 => self.write(usize::from(input.u16())),
            2 => self.read(usize::from(input.u16())),
            3 => self.with(Connection::close_send),
            4 => {
                // The next bytes, acknowledging everything, as an honest peer would send them.
                let (flags, len) = (Flags::ACK, usize::from(input.u16()) % PAYLOAD_MAX);
                let options = tcp::Options { timestamps: self.timestamps(), ..Default::default() };
                self.send(flags, self.acked, self.sent_end, 0xffff, &options, len);
            }
            _ => self.send_any(input),
        }
    }

    fn send_any(&mut self, input: &mut Input<'_>) {
        let flags = Flags(input.u8());
        let sequence = self.acked.wrapping_add_signed(i32::from(input.u16() as i16));
        let acknowledgment = self.sent_end.wrapping_add_signed(i32::from(input.u16() as i16));
        let window = input.u16();
        let kind = input.u8();
        let mut options = match kind & 3 {
            0 => tcp::Options::default(),
            _ => tcp::Options::parse(input.bytes(usize::from(kind >> 2).min(40)), kind & 4 != 0),
        };
        if kind & 1 != 0 {
            options.timestamps = self.timestamps();
        }
        let count = options.sack_count.min(3);
        for block in &mut options.sack[..usize::from(count)] {
            // Relative to the sent data, because arbitrary absolute numbers would hardly ever be
            // valid.
            *block = (
                self.sent_end.wrapping_sub(block.0 & 0xffff),
                self.sent_end.wrapping_sub(block.1 & 0xffff),
            );
        }
        let len = usize::from(input.u16()) % PAYLOAD_MAX;
        self.send(flags, sequence, acknowledgment, window, &options, len);
    }

    /// A timestamp that a peer with a millisecond clock would send.
    fn timestamps(&self) -> Option<(u32, u32)> {
        self.options.timestamps.map(|_| (self.now.millis() as u32, 0))
    }

    /// Sends a segment with the stream's bytes for its sequence numbers.
    fn send(
        &mut self,
        flags: Flags,
        sequence: u32,
        acknowledgment: u32,
        window: u16,
        options: &tcp::Options,
        len: usize,
    ) {
        let syn = u32::from(flags.contains(Flags::SYN));
        let fin = u32::from(flags.contains(Flags::FIN));
        let offset = sequence.wrapping_add(syn).wrapping_sub(self.irs.wrapping_add(1));
        let mut payload = vec![0; len];
        for (index, byte) in payload.iter_mut().enumerate() {
            *byte = oracle::stream_byte(READ, offset.wrapping_add(index as u32).into());
        }
        let end = offset.wrapping_add(len as u32).wrapping_add(fin);
        if end as i32 > self.peer_end as i32 {
            self.peer_end = end;
        }
        self.receive(flags, sequence, acknowledgment, window, options, &payload);
    }

    fn receive(
        &mut self,
        flags: Flags,
        sequence: u32,
        acknowledgment: u32,
        window: u16,
        options: &tcp::Options,
        payload: &[u8],
    ) {
        let header = Header {
            source_port: REMOTE_PORT,
            destination_port: LOCAL_PORT,
            sequence,
            acknowledgment,
            flags,
            window,
            checksum: 0,
            urgent: 0,
            header_len: 0,
        };
        let frame = frame(&header, options, payload);
        let Some(mut packet) = packets::received(&mut self.memory, &frame) else { return };
        packet.set_offload(Offload { checksum: Checksum::Unnecessary, gso: None });
        let mut burst = Burst::new();
        burst.push(packet).expect("the burst is empty");
        let mut cx = Context { memory: &mut self.memory, ledger: &self.ledger, now: self.now };
        self.stack.input(&mut burst, &mut cx);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        let mut cx = Context { memory: &mut self.memory, ledger: &self.ledger, now: self.now };
        self.stack.on_deadline(&mut cx);
        let next = self.stack.next_deadline();
        assert!(next.is_none_or(|at| at > self.now), "a deadline was not served");
    }

    fn with(&mut self, act: impl FnOnce(&mut Connection)) {
        self.stack.with_tcp(self.handle, self.now, act);
    }

    fn write(&mut self, len: usize) {
        let room = self.stack.with_tcp(self.handle, self.now, Connection::send_room).unwrap_or(0);
        let mut bytes = vec![0; len.min(room).min(self.memory.large.frame_bytes())];
        oracle::fill(WRITTEN, self.written, &mut bytes);
        let Some(piece) = packets::piece(&mut self.memory, &bytes) else { return };
        self.with(|connection| connection.send(piece));
        self.written += bytes.len() as u64;
    }

    fn read(&mut self, most: usize) {
        let Some(connection) = self.stack.tcp(self.handle) else { return };
        let count = connection.received_len().min(most);
        let bytes: Vec<u8> =
            connection.received().flat_map(|piece| piece.bytes().expect("ours").to_vec()).collect();
        assert!(oracle::matches(READ, self.read, &bytes), "wrong bytes from {}", self.read);
        self.read += count as u64;
        self.with(|connection| connection.consume(count));
    }

    fn output(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut burst = Burst::new();
        for _ in 0..BURSTS_MAX {
            let mut cx = Context { memory: &mut self.memory, ledger: &self.ledger, now: self.now };
            self.stack.output(&mut burst, &mut cx);
            if burst.is_empty() {
                return frames;
            }
            while let Some(packet) = burst.pop() {
                frames.push(oracle::flatten(&packet));
            }
        }
        panic!("the stack sends without end");
    }

    fn transmit(&mut self) {
        for frame in self.output() {
            if let Err(problem) = oracle::check_frame(&frame, MTU.into()) {
                panic!("{problem} in {:02x?}", &frame[..frame.len().min(128)]);
            }
            let (header, _) = Header::parse(&frame[HEADERS_LEN..]).expect("only TCP is sent");
            let payload = &frame[HEADERS_LEN + usize::from(header.header_len)..];
            self.judge(&header, payload);
        }
    }

    fn judge(&mut self, header: &Header, payload: &[u8]) {
        if header.flags.contains(Flags::RST) {
            return;
        }
        let syn = header.flags.contains(Flags::SYN);
        if !payload.is_empty() && !syn {
            let offset = u64::from(header.sequence.wrapping_sub(self.iss.wrapping_add(1)));
            let end = offset + payload.len() as u64;
            assert!(end <= self.written, "sent up to {end} of {}", self.written);
            assert!(oracle::matches(WRITTEN, offset, payload), "wrong bytes at {offset}");
        }
        let fin = u32::from(header.flags.contains(Flags::FIN));
        let end = header.sequence.wrapping_add(payload.len() as u32).wrapping_add(fin);
        if end.wrapping_sub(self.sent_end) as i32 > 0 {
            self.sent_end = end;
        }
        if header.flags.contains(Flags::ACK) {
            let offset = header.acknowledgment.wrapping_sub(self.irs.wrapping_add(1));
            assert!(
                offset as i32 <= self.peer_end as i32,
                "acknowledged {offset}, sent up to {}",
                self.peer_end
            );
            self.acked = header.acknowledgment;
        }
    }

    /// Checks that no data follows the end of the stream.
    fn check(&mut self) {
        let Some(connection) = self.stack.tcp(self.handle) else { return };
        let reached = self.read + connection.received_len() as u64;
        match self.closed_at {
            Some(end) => assert_eq!(reached, end, "data after the end of the stream"),
            None if connection.peer_closed() => self.closed_at = Some(reached),
            None => {}
        }
    }

    fn end(mut self) {
        self.read(usize::MAX);
        self.stack.tcp_release(self.handle, self.now);
        self.transmit();
        drop(self.stack);
        packets::check_returned(self.memory);
    }
}

fn frame(header: &Header, options: &tcp::Options, payload: &[u8]) -> Vec<u8> {
    let mut transport = [0; tcp::HEADER_LEN_MAX];
    let transport_len = header.emit(options, &mut transport);
    let mut bytes = vec![0; HEADERS_LEN];
    let ethertype = EtherType::IPV4;
    ethernet::Header { destination: LOCAL_MAC, source: REMOTE_MAC, ethertype }.emit(&mut bytes);
    let total_len = ipv4::HEADER_LEN + transport_len + payload.len();
    ipv4::Header {
        tos: 0,
        ident: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol: Protocol::TCP,
        source: REMOTE,
        destination: LOCAL,
        total_len: total_len as u16,
        header_len: ipv4::HEADER_LEN as u8,
        has_source_route: false,
    }
    .emit(&mut bytes[ethernet::HEADER_LEN..]);
    bytes.extend_from_slice(&transport[..transport_len]);
    bytes.extend_from_slice(payload);
    bytes
}

fn config(configuration: u8) -> Config {
    // A small buffer fills up quickly.
    let receive_buffer = if configuration & 32 == 0 { 256 << 10 } else { 8 << 10 };
    Config {
        mac: LOCAL_MAC,
        addresses: vec![Address { address: IpAddr::V4(LOCAL), prefix_len: 24 }],
        next_hops: vec![REMOTE.into()],
        transparent: false,
        secret: [1, 2],
        tcp: Settings { receive_buffer, ..Settings::default() },
        limits: Limits::default(),
    }
}
