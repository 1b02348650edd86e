//! Conversion between the numbers of a script and those on the wire.

use super::frame::{Ends, Live};
use super::packet::{ACK, PSH, SYN, Segment, TcpOption};
use crate::oracle;
use std::net::SocketAddr;

/// Initial sequence number of the script's side, so that data soon crosses the wrap.
const REMOTE_ISN: u32 = u32::MAX - 2000;
/// The subject's number 0 while it has sent no SYN.
const LOCAL_ISN_UNKNOWN: u32 = 0;

/// Number of the stream that the subject's application writes.
pub(super) const WRITES: u64 = 1;
/// Number of the stream that the script sends.
pub(super) const READS: u64 = 2;

/// The known numbers of both sides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub(super) ends: Ends,
    local_isn: Option<u32>,
    /// The subject's timestamp minus the script's.
    timestamp_offset: Option<u32>,
}

impl Numbers {
    pub(super) fn new(ends: Ends) -> Self {
        Self { ends, local_isn: None, timestamp_offset: None }
    }

    /// Starts a new connection: the next SYN of the subject sets its numbers again.
    pub(super) fn renew(&mut self) {
        self.local_isn = None;
        self.timestamp_offset = None;
    }

    /// Converts a segment that the script sends.
    pub(super) fn live(self, segment: &Segment) -> Live {
        let local = self.local_isn.unwrap_or(LOCAL_ISN_UNKNOWN);
        let mut options = segment.options.clone().unwrap_or_default();
        for option in &mut options {
            match option {
                TcpOption::Sack(blocks) => {
                    for (from, to) in blocks {
                        *from = from.wrapping_add(local);
                        *to = to.wrapping_add(local);
                    }
                }
                TcpOption::Timestamps(_, echo) if *echo != 0 => {
                    *echo = echo.wrapping_add(self.timestamp_offset.unwrap_or(0));
                }
                _ => {}
            }
        }
        let mut live = Live {
            ecn: segment.ecn.unwrap_or(0),
            source: self.ends.remote,
            destination: self.ends.local,
            flags: segment.flags,
            seq: segment.seq.wrapping_add(REMOTE_ISN),
            ack: segment.ack.map_or(0, |ack| ack.wrapping_add(local)),
            window: segment.window.unwrap_or(u16::MAX),
            urgent: segment.urgent,
            options,
            payload: vec![segment.fill.unwrap_or(0); segment.len as usize],
        };
        if segment.fill.is_none() {
            let at = live.data_at().wrapping_sub(REMOTE_ISN).wrapping_sub(1);
            oracle::fill(READS, at.into(), &mut live.payload);
        }
        live
    }

    /// Converts a segment of the subject that an ICMP error quotes.
    pub(super) fn quoted(self, seq: u32) -> Live {
        Live {
            ecn: 0,
            source: self.ends.local,
            destination: self.ends.remote,
            flags: ACK,
            seq: seq.wrapping_add(self.local_isn.unwrap_or(LOCAL_ISN_UNKNOWN)),
            ack: REMOTE_ISN.wrapping_add(1),
            window: 0,
            urgent: 0,
            options: Vec::new(),
            payload: Vec::new(),
        }
    }

    /// Records a segment that the subject sent and converts it to the script's numbers. Also
    /// returns an error of its payload or its addresses.
    pub(super) fn observe(
        &mut self,
        live: &Live,
        expected: Option<&Segment>,
    ) -> (Segment, Option<String>) {
        if live.flags & SYN != 0 && self.local_isn.is_none() {
            self.local_isn = Some(live.seq);
            self.ends.local = live.source;
        }
        // Without a SYN, the script's own acknowledgments define the numbers.
        let local = self.local_isn.unwrap_or(LOCAL_ISN_UNKNOWN);
        let mut options = live.options.clone();
        for option in &mut options {
            match option {
                TcpOption::Sack(blocks) => {
                    for (from, to) in blocks {
                        *from = from.wrapping_sub(REMOTE_ISN);
                        *to = to.wrapping_sub(REMOTE_ISN);
                    }
                }
                TcpOption::Timestamps(Some(value), _) => {
                    let offset = *self
                        .timestamp_offset
                        .get_or_insert_with(|| value.wrapping_sub(first_value(expected)));
                    *value = value.wrapping_sub(offset);
                }
                _ => {}
            }
        }
        let seq = live.seq.wrapping_sub(local);
        let segment = Segment {
            ecn: Some(live.ecn),
            flags: live.flags,
            seq,
            len: live.payload.len() as u32,
            ack: (live.flags & ACK != 0).then(|| live.ack.wrapping_sub(REMOTE_ISN)),
            window: Some(live.window),
            urgent: live.urgent,
            options: Some(options),
            fill: None,
            push_optional: false,
        };
        (segment, self.judge(live, local))
    }

    fn judge(&self, live: &Live, local: u32) -> Option<String> {
        let at = live.data_at().wrapping_sub(local).wrapping_sub(1);
        if !oracle::matches(WRITES, at.into(), &live.payload) {
            return Some("its payload is not what was written".into());
        }
        let wanted: (SocketAddr, SocketAddr) = (self.ends.local, self.ends.remote);
        if (live.source, live.destination) != wanted {
            return Some(format!("it goes from {} to {}", live.source, live.destination));
        }
        None
    }
}

/// The timestamp that the script gives for the subject's first one.
fn first_value(expected: Option<&Segment>) -> u32 {
    let options = expected.and_then(|segment| segment.options.as_deref()).unwrap_or_default();
    let value = options.iter().find_map(|option| match option {
        TcpOption::Timestamps(value, _) => *value,
        _ => None,
    });
    value.unwrap_or(FIRST_TIMESTAMP)
}

/// The subject's first timestamp, if the script does not give it.
const FIRST_TIMESTAMP: u32 = 100;

/// The differences between `actual` and `expected`, by field. Empty if there are none.
pub(super) fn differences(
    expected: &Segment,
    actual: &Segment,
    timestamp_tolerance: u32,
) -> Vec<&'static str> {
    let options = match (&expected.options, &actual.options) {
        (Some(expected), Some(actual)) => same_options(expected, actual, timestamp_tolerance),
        _ => true,
    };
    let optional = if expected.push_optional { PSH } else { 0 };
    let fields = [
        ("flags", (expected.flags ^ actual.flags) & !optional == 0),
        ("sequence", expected.seq == actual.seq),
        ("length", expected.len == actual.len),
        ("acknowledgment", expected.ack == actual.ack),
        ("window", expected.window.is_none() || expected.window == actual.window),
        ("urgent pointer", expected.urgent == actual.urgent),
        ("ECN", expected.ecn.is_none() || expected.ecn == actual.ecn),
        ("options", options),
    ];
    fields.iter().filter(|(_, same)| !same).map(|(name, _)| *name).collect()
}

fn same_options(expected: &[TcpOption], actual: &[TcpOption], tolerance: u32) -> bool {
    let same = |(expected, actual): (&TcpOption, &TcpOption)| match (expected, actual) {
        (TcpOption::Timestamps(wanted, echo), TcpOption::Timestamps(value, echoed)) => {
            let near = |wanted: u32| value.is_some_and(|value| wanted.abs_diff(value) <= tolerance);
            echo == echoed && wanted.is_none_or(near)
        }
        _ => expected == actual,
    };
    expected.len() == actual.len() && expected.iter().zip(actual).all(same)
}
