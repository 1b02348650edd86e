//! What a connection reports of itself (`TCP_INFO`).

use super::{Connection, Info, State};
use crate::time::Instant;

/// Segments of one connection; all wrap.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) segs_out: u32,
    pub(super) segs_in: u32,
    pub(super) data_segs_in: u32,
}

impl Counters {
    /// Counts a received segment or super-packet of `len` bytes in segments of `size`.
    #[inline]
    pub(super) fn received(&mut self, len: u32, size: u32) {
        let segments = len.div_ceil(size.max(1));
        self.segs_in = self.segs_in.wrapping_add(segments.max(1));
        self.data_segs_in = self.data_segs_in.wrapping_add(segments);
    }

    /// Counts a packet that was sent, with this many segments of data.
    #[inline]
    pub(super) fn sent(&mut self, segments: u32) {
        self.segs_out = self.segs_out.wrapping_add(segments.max(1));
    }
}

impl Connection {
    /// State of the connection at `now` (`TCP_INFO`).
    pub fn info(&self, now: Instant) -> Info {
        let scaled = self.handshake.agreed().scale.is_some();
        let passive = u32::from(self.handshake.is_passive());
        let mut info = Info {
            state: state_number(self.state),
            retransmits: self.handshake.timeouts(),
            probes: self.keepalive.unanswered(),
            options: self.agreed(),
            fastopen_client_fail: self.handshake.fast_open().fail(),
            pmtu: self.path_mtu(),
            segs_out: self.counters.segs_out,
            segs_in: self.counters.segs_in.wrapping_add(passive),
            data_segs_in: self.counters.data_segs_in,
            ..Info::default()
        };
        self.send.fill(&mut info, now);
        self.receive.fill(&mut info, now);
        if !scaled {
            (info.snd_wscale, info.rcv_wscale) = (0, 0);
        }
        info
    }

    /// Options in use, as Linux's bits.
    fn agreed(&self) -> u8 {
        let (agreed, ecn) = (self.handshake.agreed(), self.receive.ecn());
        let fast_open = self.handshake.fast_open();
        u8::from(self.timestamps.enabled())
            | u8::from(agreed.sack) << 1
            | u8::from(agreed.scale.is_some()) << 2
            | u8::from(ecn.enabled()) << 3
            | u8::from(ecn.seen()) << 4
            | u8::from(fast_open.had_data()) << 5
            | u8::from(fast_open.is_accepted()) << 7
    }
}

/// Linux's number of a state.
fn state_number(state: State) -> u8 {
    match state {
        State::Established => 1,
        State::SynSent => 2,
        State::SynReceived => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        State::TimeWait => 6,
        State::Closed => 7,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Closing => 11,
    }
}
