//! The language of the test scripts.
//!
//! A segment is written as words: flags (`S F R P U E W`, `.` for ACK, or `-` for none), the range
//! of sequence numbers of its data as `start:end` or just `start`, then in any order `ack N`, `win
//! N`, `mss N`, `ws N`, `sackOK`, `ts VALUE ECHO`, `sack A-B,C-D`, `gso N` and `urg N`. The words
//! `nomss`, `nows`, `nosackOK`, `nots`, `nosack` and `nogso` say that an option must be absent. Of
//! an expected segment only the words that it has are compared, and always flags and range. Windows
//! are those on the wire, unscaled.

use crate::tcp::{
    Connection, ConnectionError, Egress, Events, Opening, Pressure, Segment, SegmentSizes,
    Settings, State, Verdict,
};
use crate::time::{Duration, Instant};
use crate::wire::tcp::{Flags, HEADER_LEN, Header, Options};
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use core::net::SocketAddr;
use core::num::NonZeroU16;
use towpath_packet::{Frame, Gso, GsoKind, Memory, MemoryConfig, Offload, Packet};

/// Initial sequence numbers: close to the wrap, so that every script crosses it.
pub(super) const ISS: u32 = u32::MAX - 99;
pub(super) const IRS: u32 = u32::MAX - 49;

/// Data of up to this length is in small frames, like that of real small segments.
const SMALL_MAX: u32 = 20_000;

/// Our window when a connection is open.
const OPEN_WINDOW: u32 = 30_000;

/// One connection, its memory and its time.
pub(super) struct Script {
    pub(super) c: Connection,
    pub(super) memory: Memory,
    pub(super) now: Instant,
    pub(super) pressure: Pressure,
    /// The device accepts no packets.
    pub(super) stopped: bool,
    sent: VecDeque<(Segment, Packet)>,
    queued: u32,
    last: Verdict,
}

pub(super) fn settings() -> Settings {
    let congestion = crate::tcp::congestion::Kind::Reno;
    let receive = 128 << 10;
    Settings {
        receive_buffer: receive,
        receive_buffer_max: receive,
        congestion,
        ..Settings::default()
    }
}

/// Settings without options: plain numbers on the wire.
pub(super) fn plain() -> Settings {
    Settings { sack: false, timestamps: false, window_scaling: false, ..settings() }
}

fn opening() -> Opening {
    Opening {
        local: SocketAddr::from(([10, 0, 0, 1], 1000)),
        remote: SocketAddr::from(([10, 0, 0, 2], 80)),
        iss: ISS,
        timestamp_offset: 0,
        sizes: SegmentSizes::of_link(1460),
    }
}

impl Script {
    fn with(c: Connection, memory: Memory, now: Instant) -> Self {
        let (pressure, sent) = (Pressure::None, VecDeque::new());
        Self { c, memory, now, pressure, stopped: false, sent, queued: 0, last: Verdict::Done }
    }

    fn memory() -> Memory {
        Memory::new(MemoryConfig { packets: 512, small_frames: 512, large_frames: 64 })
    }

    /// A connection that has begun to connect; the script must expect its SYN.
    pub(super) fn connect(settings: Settings) -> Self {
        let now = Instant::from_micros(1_000_000);
        Self::with(Connection::connect(opening(), &settings, now), Self::memory(), now)
    }

    /// A connection created by this SYN, and accepted.
    pub(super) fn incoming(settings: Settings, syn: &str) -> Self {
        let mut script = Self::incoming_held(settings, syn);
        script.c.accept();
        script.pump();
        script
    }

    /// A connection created by this SYN; its answer is held.
    pub(super) fn incoming_held(settings: Settings, syn: &str) -> Self {
        let now = Instant::from_micros(1_000_000);
        let syn = parse(syn).segment();
        Self::with(Connection::incoming(opening(), &syn, &settings, now), Self::memory(), now)
    }

    /// An open connection: both sides are at 1, and the peer has sent `syn` and a window of 65,535.
    /// The initial quick ACKs are used up.
    pub(super) fn open(settings: Settings, syn: &str) -> Self {
        let ts = parse(syn).timestamps.flatten().map(|(value, _)| value);
        let mut script = Self::incoming(settings, syn);
        script.expect("S. 0 ack 1");
        let mut ack = String::from(". 1 ack 1 win 65535");
        if let Some(value) = ts {
            let _ = write!(ack, " ts {value} 1000");
        }
        script.recv(&ack);
        script.c.take_events();
        // A window that advances with the data, however much memory the first segments take.
        let window = script.c.receive.offered().min(OPEN_WINDOW);
        script.c.receive.settle();
        script.c.receive.offer(window);
        script.quiet();
        script
    }

    /// An open connection without options; segments of 1000 bytes.
    pub(super) fn plain() -> Self {
        Self::open(plain(), "S 0 win 65535 mss 1000")
    }

    /// An open connection with SACK only; segments of 1000 bytes.
    pub(super) fn sack() -> Self {
        Self::open(Settings { sack: true, ..plain() }, "S 0 win 65535 mss 1000 sackOK")
    }

    /// An open connection with segments of 1000 bytes and a round trip of 100 ms, which the script
    /// must wait for itself. `settings` apply.
    pub(super) fn distant(settings: Settings) -> Self {
        Self::distant_from(settings, "S 0 win 65535 mss 1000 sackOK")
    }

    /// An open connection with a round trip of 100 ms and its own `syn`.
    pub(super) fn distant_from(settings: Settings, syn: &str) -> Self {
        let mut script = Self::open(settings, syn);
        let rtt = Duration::from_millis(100);
        script.c.send.set_round_trip(rtt, script.now);
        script
    }

    /// Takes a segment.
    #[track_caller]
    pub(super) fn recv(&mut self, text: &str) -> &mut Self {
        self.arrive(text);
        self.pump();
        self
    }

    /// Takes a segment; the owner acts before anything is sent.
    #[track_caller]
    pub(super) fn recv_and(&mut self, text: &str, act: impl FnOnce(&mut Connection)) -> &mut Self {
        self.arrive(text);
        act(&mut self.c);
        self.pump();
        self
    }

    #[track_caller]
    fn arrive(&mut self, text: &str) {
        let wanted = parse(text);
        let segment = wanted.segment();
        let mut packet = self.memory.packet().expect("enough packets");
        // Data of a SYN follows its number.
        let syn = u32::from(segment.header.flags.contains(Flags::SYN));
        let mut at = wanted.start + syn;
        let len = wanted.end - wanted.start;
        while at < wanted.end + syn {
            let mut frame = self.frame(len);
            let count = ((wanted.end + syn - at) as usize).min(frame.len());
            for (index, byte) in frame[..count].iter_mut().enumerate() {
                *byte = stream_byte(at.wrapping_add(index as u32));
            }
            packet.push_piece(frame.freeze(count)).expect("few pieces");
            at += count as u32;
        }
        if let Some(size) = wanted.gso.flatten().and_then(NonZeroU16::new) {
            let gso = Gso { kind: GsoKind::Tcp4, size, ecn: false, tunnel: None };
            packet.set_offload(Offload { gso: Some(gso), ..Offload::default() });
        }
        self.last = self.c.input(&segment, &mut packet, self.now);
        if self.last == Verdict::Challenge {
            // Answer challenges like a stack with an unlimited budget.
            self.c.challenge();
            self.last = Verdict::Unacceptable;
        }
    }

    /// Checks the verdict on the last segment.
    #[track_caller]
    pub(super) fn verdict(&mut self, verdict: Verdict) -> &mut Self {
        assert_eq!(self.last, verdict);
        self
    }

    /// Checks the next segment sent.
    #[track_caller]
    pub(super) fn expect(&mut self, text: &str) -> &mut Self {
        let wanted = parse(text);
        let Some((mut segment, packet)) = self.sent.pop_front() else {
            panic!("expected {text:?}, nothing was sent; state {:?}", self.c.state());
        };
        let mut packets = Vec::from([packet]);
        // Data sent at once may be any number of packets, unless sizes are compared.
        while wanted.gso.is_none()
            && segment.len < wanted.end.wrapping_sub(wanted.start)
            && let Some((next, _)) = self.sent.front()
            && next.header.sequence == segment.header.sequence.wrapping_add(segment.len)
        {
            let (next, packet) = self.sent.pop_front().expect("there is one");
            segment.len += next.len;
            segment.header.flags = next.header.flags;
            packets.push(packet);
        }
        let packet = &packets[0];
        let actual = render(&segment, packet);
        if let Some(difference) = wanted.differs(&segment, packet) {
            panic!("expected {text:?}, was {actual:?}: {difference}");
        }
        let syn = u32::from(segment.header.flags.contains(Flags::SYN));
        let mut at = segment.header.sequence.wrapping_sub(ISS).wrapping_add(syn);
        for piece in packets.iter().flat_map(|packet| packet.pieces()) {
            for byte in piece.bytes().expect("private") {
                assert_eq!(*byte, stream_byte(at), "wrong byte sent at {at}");
                at = at.wrapping_add(1);
            }
        }
        self
    }

    /// Checks that all segments sent were expected.
    #[track_caller]
    pub(super) fn quiet(&mut self) -> &mut Self {
        if let Some((segment, packet)) = self.sent.front() {
            panic!("nothing expected, was {:?}", render(segment, packet));
        }
        self
    }

    /// Ignores all segments sent so far.
    pub(super) fn forget_sent(&mut self) -> &mut Self {
        self.sent.clear();
        self
    }

    /// Lets time pass; timers run when they are due.
    pub(super) fn wait(&mut self, millis: u64) -> &mut Self {
        let end = self.now + Duration::from_millis(millis);
        while let Some(deadline) = self.c.deadline()
            && deadline <= end
        {
            self.now = self.now.max(deadline);
            self.c.on_deadline(self.now);
            self.pump();
            let next = self.c.deadline();
            assert!(next.is_none_or(|at| at > self.now), "a timer that ran is over");
        }
        self.now = end;
        self
    }

    /// Lets time pass until the next timer has run.
    #[track_caller]
    pub(super) fn next_timer(&mut self) -> &mut Self {
        let deadline = self.c.deadline().expect("a timer runs");
        self.wait(deadline.since(self.now).as_micros().div_ceil(1000) as u64)
    }

    /// The owner writes.
    pub(super) fn write(&mut self, bytes: u32) -> &mut Self {
        self.write_and(bytes, false, false)
    }

    /// The owner writes; the last byte is urgent.
    pub(super) fn urgent(&mut self, bytes: u32) -> &mut Self {
        self.append(bytes);
        self.c.end_write(false, false);
        self.c.mark_urgent();
        self.pump();
        self
    }

    /// The owner lends as much as there is room for, in pieces of up to 16 KiB, as the gateway
    /// does. Returns the number of bytes.
    pub(super) fn supply(&mut self) -> u32 {
        let mut given = 0;
        loop {
            let mut left = self.c.send_room();
            if left == 0 || self.memory.large.free_count() == 0 {
                break;
            }
            while left > 0
                && let Some(frame) = self.memory.large.take()
            {
                let count = left.min(frame.len());
                self.c.send(frame.freeze(count));
                left -= count;
                given += count as u32;
            }
        }
        self.pump();
        given
    }

    /// Takes the oldest segment sent. Returns the number after its last byte, and its length.
    pub(super) fn take_sent(&mut self) -> Option<(u32, u32)> {
        let (segment, _) = self.sent.pop_front()?;
        Some((segment.end().0.wrapping_sub(ISS), segment.len))
    }

    /// The owner writes and announces that more follows.
    pub(super) fn more(&mut self, bytes: u32) -> &mut Self {
        self.write_and(bytes, true, false)
    }

    /// The owner writes the end of a record.
    pub(super) fn record(&mut self, bytes: u32) -> &mut Self {
        self.write_and(bytes, false, true)
    }

    fn write_and(&mut self, bytes: u32, more: bool, record: bool) -> &mut Self {
        self.append(bytes);
        self.c.end_write(more, record);
        self.pump();
        self
    }

    fn append(&mut self, bytes: u32) {
        let mut left = bytes;
        while left > 0 {
            let mut frame = self.frame(bytes);
            let count = (left as usize).min(frame.len());
            for (index, byte) in frame[..count].iter_mut().enumerate() {
                *byte = stream_byte((1 + self.queued).wrapping_add(index as u32));
            }
            self.c.append(frame.freeze(count), left == bytes);
            self.queued += count as u32;
            left -= count as u32;
        }
    }

    /// A frame of the suitable size.
    fn frame(&mut self, len: u32) -> Frame {
        let pool = &mut self.memory;
        let pool = if len <= SMALL_MAX { &mut pool.small } else { &mut pool.large };
        pool.take().expect("enough frames")
    }

    /// The owner writes and closes before anything is sent.
    pub(super) fn write_and_close(&mut self, bytes: u32) -> &mut Self {
        let wnd = self.c.send.window();
        self.c.send.set_window(0);
        self.write(bytes);
        self.c.send.set_window(wnd);
        self.close()
    }

    /// The owner reads, and the bytes are compared.
    #[track_caller]
    pub(super) fn read(&mut self, from: u32, bytes: u32) -> &mut Self {
        let mut at = from;
        let received = self.c.received().flat_map(|piece| piece.bytes().expect("private"));
        for byte in received.take(bytes as usize) {
            assert_eq!(*byte, stream_byte(at), "wrong byte received at {at}");
            at += 1;
        }
        assert_eq!(at, from + bytes, "only {} bytes there", at - from);
        self.c.consume(bytes as usize);
        self.pump();
        self
    }

    /// The owner closes its direction.
    pub(super) fn close(&mut self) -> &mut Self {
        self.c.close_send();
        self.pump();
        self
    }

    /// The owner acts.
    pub(super) fn act<R>(&mut self, act: impl FnOnce(&mut Connection, Instant) -> R) -> &mut Self {
        act(&mut self.c, self.now);
        self.pump();
        self
    }

    #[track_caller]
    pub(super) fn state(&mut self, state: State) -> &mut Self {
        assert_eq!(self.c.state(), state);
        self
    }

    /// Checks that exactly these events happened.
    #[track_caller]
    pub(super) fn events(&mut self, events: Events) -> &mut Self {
        assert_eq!(self.c.take_events(), events);
        self
    }

    #[track_caller]
    pub(super) fn ended(&mut self, error: Option<ConnectionError>) -> &mut Self {
        assert!(self.c.take_events().contains(Events::CLOSED), "the end was reported");
        assert_eq!(self.c.error(), error);
        self
    }

    /// Takes all segments to be sent, as the driver does after each burst.
    fn pump(&mut self) {
        let egress = Egress { ip_header_len: 20, pressure: self.pressure, stopped: self.stopped };
        while let Some(packet) = self.c.output(&egress, &mut self.memory, self.now) {
            let (header, options) = Header::parse(packet.headers()).expect("a valid header");
            let len = packet.payload_len() as u32;
            self.sent.push_back((Segment { header, options, len, ecn: 0 }, packet));
            assert!(self.sent.len() < 200, "output does not end");
        }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        extern crate std;
        if std::thread::panicking() {
            return;
        }
        self.quiet();
        self.c.give_up();
        self.c.consume(self.c.received_len());
        assert_eq!(self.memory.packets.out_count(), 0, "packets kept");
        assert_eq!(self.memory.small.out_count(), 0, "small frames kept");
        assert_eq!(self.memory.large.out_count(), 0, "large frames kept");
    }
}

/// Byte `at` of either stream.
fn stream_byte(at: u32) -> u8 {
    (at ^ (at >> 8)).wrapping_mul(167) as u8
}

/// A segment as written in a script.
#[derive(Default)]
struct Text {
    flags: u8,
    start: u32,
    end: u32,
    ack: Option<u32>,
    window: Option<u16>,
    urgent: Option<u16>,
    gso: Option<Option<u16>>,
    mss: Option<Option<u16>>,
    scale: Option<Option<u8>>,
    sack_permitted: Option<bool>,
    timestamps: Option<Option<(u32, u32)>>,
    sack: Option<Vec<(u32, u32)>>,
}

fn number<T: core::str::FromStr>(word: Option<&str>) -> T {
    let number = word.and_then(|word| word.parse().ok());
    number.unwrap_or_else(|| panic!("a number, not {word:?}"))
}

fn parse(text: &str) -> Text {
    let mut parsed = Text::default();
    let mut words = text.split_whitespace();
    for flag in words.next().expect("flags").chars() {
        parsed.flags |= match flag {
            'S' => Flags::SYN.0,
            'F' => Flags::FIN.0,
            'R' => Flags::RST.0,
            'P' => Flags::PSH.0,
            'E' => Flags::ECE.0,
            'W' => Flags::CWR.0,
            'U' => Flags::URG.0,
            '.' => Flags::ACK.0,
            '-' => 0,
            other => panic!("flag {other}"),
        };
    }
    let range = words.next().expect("a range");
    let (start, end) = range.split_once(':').unwrap_or((range, range));
    (parsed.start, parsed.end) = (number(Some(start)), number(Some(end)));
    while let Some(word) = words.next() {
        match word {
            "ack" => parsed.ack = Some(number(words.next())),
            "win" => parsed.window = Some(number(words.next())),
            "urg" => parsed.urgent = Some(number(words.next())),
            "gso" => parsed.gso = Some(Some(number(words.next()))),
            "nogso" => parsed.gso = Some(None),
            "mss" => parsed.mss = Some(Some(number(words.next()))),
            "nomss" => parsed.mss = Some(None),
            "ws" => parsed.scale = Some(Some(number(words.next()))),
            "nows" => parsed.scale = Some(None),
            "sackOK" => parsed.sack_permitted = Some(true),
            "nosackOK" => parsed.sack_permitted = Some(false),
            "ts" => {
                parsed.timestamps = Some(Some((number(words.next()), number(words.next()))));
            }
            "nots" => parsed.timestamps = Some(None),
            "nosack" => parsed.sack = Some(Vec::new()),
            "sack" => {
                let blocks = words.next().expect("blocks").split(',');
                let block = |block: &str| {
                    let (from, to) = block.split_once('-').expect("A-B");
                    (number(Some(from)), number(Some(to)))
                };
                parsed.sack = Some(blocks.map(block).collect());
            }
            other => panic!("word {other:?} in {text:?}"),
        }
    }
    parsed
}

impl Text {
    /// The text as a segment of the peer.
    fn segment(&self) -> Segment {
        let mut options = Options {
            mss: self.mss.flatten(),
            window_scale: self.scale.flatten(),
            sack_permitted: self.sack_permitted == Some(true),
            timestamps: self.timestamps.flatten(),
            ..Options::default()
        };
        for (block, to) in self.sack.iter().flatten().zip(&mut options.sack) {
            *to = (block.0.wrapping_add(ISS), block.1.wrapping_add(ISS));
            options.sack_count += 1;
        }
        let header = Header {
            source_port: 80,
            destination_port: 1000,
            sequence: self.start.wrapping_add(IRS),
            acknowledgment: self.ack.map_or(0, |ack| ack.wrapping_add(ISS)),
            flags: Flags(self.flags),
            window: self.window.unwrap_or(65_535),
            checksum: 0,
            urgent: self.urgent.unwrap_or(0),
            header_len: (HEADER_LEN + options.emitted_len(self.flags & Flags::SYN.0 != 0)) as u8,
        };
        Segment { header, options, len: self.end - self.start, ecn: 0 }
    }

    /// How a segment of ours differs from the text.
    fn differs(&self, segment: &Segment, packet: &Packet) -> Option<&'static str> {
        let (header, options) = (&segment.header, &segment.options);
        let start = header.sequence.wrapping_sub(ISS);
        let mut blocks = options.sack_blocks().iter();
        let wanted = |(from, to): &(u32, u32)| (from.wrapping_add(IRS), to.wrapping_add(IRS));
        // PSH is a hint: it is compared only if the text has it.
        let flags = header.flags.0 & !(Flags::PSH.0 & !self.flags);
        let differences = [
            ("flags", flags == self.flags),
            ("range", start == self.start && segment.len == self.end.wrapping_sub(self.start)),
            ("ack", self.ack.is_none_or(|ack| ack.wrapping_add(IRS) == header.acknowledgment)),
            ("urg", self.urgent.is_none_or(|urgent| urgent == header.urgent)),
            ("win", self.window.is_none_or(|window| window == header.window)),
            ("gso", self.gso.is_none_or(|g| g == packet.offload().gso.map(|g| g.size.get()))),
            ("mss", self.mss.is_none_or(|mss| mss == options.mss)),
            ("ws", self.scale.is_none_or(|scale| scale == options.window_scale)),
            ("sackOK", self.sack_permitted.is_none_or(|sack| sack == options.sack_permitted)),
            ("ts", self.timestamps.is_none_or(|ts| ts == options.timestamps)),
            (
                "sack",
                self.sack
                    .as_ref()
                    .is_none_or(|s| blocks.by_ref().copied().eq(s.iter().map(wanted))),
            ),
        ];
        differences.into_iter().find(|(_, same)| !same).map(|(name, _)| name)
    }
}

fn render(segment: &Segment, packet: &Packet) -> String {
    let (header, options) = (&segment.header, &segment.options);
    let mut text = String::new();
    for (flag, letter) in [
        (Flags::SYN, 'S'),
        (Flags::FIN, 'F'),
        (Flags::RST, 'R'),
        (Flags::PSH, 'P'),
        (Flags::ECE, 'E'),
        (Flags::CWR, 'W'),
        (Flags::URG, 'U'),
        (Flags::ACK, '.'),
    ] {
        if header.flags.contains(flag) {
            text.push(letter);
        }
    }
    let start = header.sequence.wrapping_sub(ISS);
    let ack = header.acknowledgment.wrapping_sub(IRS);
    let mut put = |part: String| text.push_str(&part);
    put(format!(" {start}:{} ack {ack} win {}", start.wrapping_add(segment.len), header.window));
    if header.urgent > 0 {
        put(format!(" urg {}", header.urgent));
    }
    if let Some(mss) = options.mss {
        put(format!(" mss {mss}"));
    }
    if let Some(scale) = options.window_scale {
        put(format!(" ws {scale}"));
    }
    if options.sack_permitted {
        put(" sackOK".into());
    }
    if let Some((value, echo)) = options.timestamps {
        put(format!(" ts {value} {echo}"));
    }
    for (from, to) in options.sack_blocks() {
        put(format!(" sack {}-{}", from.wrapping_sub(IRS), to.wrapping_sub(IRS)));
    }
    if let Some(gso) = packet.offload().gso {
        let _ = write!(text, " gso {}", gso.size);
    }
    text
}
