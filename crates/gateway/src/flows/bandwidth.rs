//! Streams that wait for a bandwidth.
//!
//! A stream whose bucket has no tokens stands in line for it, once for each direction. Meanwhile
//! its source is not read: the receive window of the program's connection closes, or the host
//! socket fills. There is a line for each bucket, and each line has one deadline, at which the
//! bucket has half of its depth. Then the first streams go on; one that has more stands in line
//! again, at the end. So all streams get their turn, and a stream costs nothing while it waits.
//!
//! Each worker has lines of its own, also for a bucket that workers share.

use super::{Gateway, Io};
use crate::egress::meter::{Direction, Meter};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use towpath_net::time::Instant;

/// Bytes of tokens for each stream that goes on.
const SHARE: u64 = 16 << 10;
/// After so long it shows whether streams that went on have left tokens for others.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The lines of a worker.
pub(super) struct Lines<T> {
    /// By the address of the meter, which the line keeps, and the direction.
    lines: HashMap<(usize, Direction), Line<T>>,
    /// The first deadline, or an earlier time.
    first_at: Option<Instant>,
}

struct Line<T> {
    meter: Arc<Meter>,
    at: Instant,
    waiting: VecDeque<T>,
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Self { lines: HashMap::new(), first_at: None }
    }
}

impl<T> Lines<T> {
    /// Puts a stream at the end of the line for a meter's bandwidth.
    pub(super) fn stand(&mut self, meter: &Arc<Meter>, way: Direction, stream: T) {
        let key = (Arc::as_ptr(meter).addr(), way);
        let line = self.lines.entry(key).or_insert_with(|| Line {
            meter: meter.clone(),
            at: meter.resumes_at(way),
            waiting: VecDeque::new(),
        });
        line.waiting.push_back(stream);
        self.first_at = Some(self.first_at.map_or(line.at, |first| first.min(line.at)));
    }

    /// Returns when streams may go on, or an earlier time.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.first_at
    }

    /// Takes out the streams that may go on.
    fn take_due(&mut self, now: Instant) -> Vec<(T, Direction)> {
        let mut due = Vec::new();
        if self.first_at.is_none_or(|first| first > now) {
            return due;
        }
        self.lines.retain(|(_, way), line| {
            if line.at <= now {
                let tokens = line.meter.resumes(*way, now);
                let count = tokens.div_ceil(SHARE).min(line.waiting.len() as u64) as usize;
                due.extend(line.waiting.drain(..count).map(|stream| (stream, *way)));
                let next = if count == 0 { line.meter.resumes_at(*way) } else { now + LOOK_AGAIN };
                // Another worker may take tokens between the two looks at them.
                line.at = next.max(now + LOOK_AGAIN);
            }
            !line.waiting.is_empty()
        });
        self.first_at = self.lines.values().map(|line| line.at).min();
        due
    }

    /// Takes out all streams.
    fn take_all(&mut self) -> Vec<(T, Direction)> {
        self.first_at = None;
        let lines = self.lines.drain();
        lines
            .flat_map(|((_, way), line)| line.waiting.into_iter().map(move |it| (it, way)))
            .collect()
    }
}

impl Gateway {
    /// Lets streams go on whose bandwidth has tokens.
    pub(super) fn resume_streams(&mut self, io: &mut Io<'_>) {
        for (handle, way) in self.lines.take_due(io.now) {
            self.resume_stream(handle, way, io);
        }
    }

    /// Lets all streams look at their bandwidths again, as those of a new policy differ.
    pub(super) fn resume_all_streams(&mut self, io: &mut Io<'_>) {
        for (handle, way) in self.lines.take_all() {
            self.resume_stream(handle, way, io);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::meter::{Grant, Meters};
    use crate::egress::rule::Limits;

    /// Goal: streams of one bucket go on in turn, whenever the bucket has tokens and not before;
    /// they share its rate, and no line is left when all have ended.
    /// Method: three streams that always have more, and nothing else to wake the worker.
    #[test]
    fn streams_take_turns() {
        const WAY: Direction = Direction::In;
        let limits = Limits { bandwidth_in: Some(8_000_000), ..Limits::default() };
        let meters = Meters::of(limits);
        let mut lines = Lines::default();
        let mut moved = [0; 3];
        let (mut now, mut wakes) = (Instant::START, 0);
        let mut ready: VecDeque<usize> = (0..3).collect();
        while now < Instant::START + Duration::from_secs(10) {
            for stream in ready.drain(..) {
                while let Grant::Bytes(bytes) = meters.grant(WAY, now) {
                    meters.take(WAY, bytes, true, now);
                    moved[stream] += bytes;
                }
                lines.stand(meters.slowest(WAY).unwrap(), WAY, stream);
            }
            let at = lines.deadline().unwrap();
            assert!(at > now, "no turn is for nothing");
            now = at;
            wakes += 1;
            ready.extend(lines.take_due(now).into_iter().map(|(stream, _)| stream));
        }
        let sum: usize = moved.iter().sum();
        assert!((9_900_000..=10_040_000).contains(&sum), "{moved:?}");
        assert!(moved.iter().all(|bytes| bytes.abs_diff(sum / 3) < 50_000), "{moved:?}");
        assert!(wakes < 2500, "a deadline for each share, and one to look again: {wakes}");
        lines.take_all();
        assert_eq!(lines.deadline(), None);
        assert!(lines.lines.is_empty());
    }
}
