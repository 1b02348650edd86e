//! Datagrams through kernel sockets and towpath's sockets: the parts of a call, the share that
//! arrives, and how a receiver learns that the stream has ended.
//!
//! Datagrams are not retransmitted. A sender that is faster than the receiver loses datagrams, and
//! the receiver's cost for them is missing from the result; so the circumstances report how much
//! arrived.

use std::cell::Cell;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{anyhow, ensure};

use super::cases::Carrier;
use crate::report::short;

/// The parts of a buffer. Each call sends one part, as datagrams of [`DATAGRAM_BYTES`].
pub(super) fn calls(buffer: &'static [u8]) -> impl Iterator<Item = &'static [u8]> {
    buffer.chunks(usize::from(DATAGRAM_BYTES) * DATAGRAMS_PER_CALL)
}

/// Bytes of datagrams over all measurements, by carrier.
#[derive(Debug, Default)]
pub(super) struct Arrivals([Cell<Bytes>; Carrier::ALL.len()]);

#[derive(Clone, Copy, Debug, Default)]
struct Bytes {
    sent: u64,
    received: u64,
}

impl Arrivals {
    /// Adds the counts of a measurement. Fails if nothing arrived, because then the measurement is
    /// useless.
    pub(super) fn add(&self, carrier: Carrier, sent: u64, received: u64) -> anyhow::Result<()> {
        ensure!(received > 0, "{sent} bytes were sent, none received");
        ensure!(received <= sent, "{sent} bytes were sent, {received} received");
        let total = &self.0[carrier as usize];
        let Bytes { sent: before, received: received_before } = total.get();
        total.set(Bytes { sent: before + sent, received: received_before + received });
        Ok(())
    }

    /// The share that arrived, for people; `None` if no datagram was sent.
    pub(super) fn reported(&self) -> Option<String> {
        let share = |carrier: Carrier| {
            let Bytes { sent, received } = self.0[carrier as usize].get();
            let percent = received as f64 / sent as f64 * 100.0;
            (sent > 0).then(|| format!("{} % {}", short(percent), carrier.title()))
        };
        let shares: Vec<_> = Carrier::ALL.into_iter().filter_map(share).collect();
        (!shares.is_empty()).then(|| format!("UDP bytes that arrived: {}", shares.join(", ")))
    }
}

/// Ends a receiver with empty datagrams, repeatedly, because the receiver may be too busy to take
/// the first ones. Returns how many bytes it received.
pub(super) fn end_receiver(
    receiver: JoinHandle<anyhow::Result<u64>>,
    send: impl Fn() -> std::io::Result<usize>,
) -> anyhow::Result<u64> {
    for _ in 0..ENDS_MAX {
        if receiver.is_finished() {
            return joined(receiver)?;
        }
        // Fails if the receiver has just ended. A receiver that does not end is reported below.
        let _ = send();
        thread::sleep(Duration::from_millis(1));
    }
    ensure!(receiver.is_finished(), "the receiver does not stop");
    joined(receiver)?
}

pub(super) fn joined<T>(thread: JoinHandle<T>) -> anyhow::Result<T> {
    thread.join().map_err(|_| anyhow!("the receiver failed"))
}

/// MTU of the links that datagrams use.
pub(super) const MTU: u16 = 1500;
/// Payload that fits a packet of [`MTU`].
pub(super) const DATAGRAM_BYTES: u16 = MTU - 28;
/// As many as fit a packet of IP's maximum size.
const DATAGRAMS_PER_CALL: usize = 40;
const ENDS_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_sent_whole_in_calls_that_fit_a_packet() {
        let buffer: &'static [u8] = vec![0x5a; 1 << 20].leak();
        let calls: Vec<_> = calls(buffer).map(<[u8]>::len).collect();
        assert_eq!(calls.iter().sum::<usize>(), buffer.len());
        assert!(calls.iter().all(|len| *len + 28 <= usize::from(u16::MAX)), "{calls:?}");
    }

    #[test]
    fn arrivals_are_reported_by_carrier_and_are_plausible() {
        let arrivals = Arrivals::default();
        assert_eq!(arrivals.reported(), None);
        arrivals.add(Carrier::Process, 100, 40).unwrap();
        arrivals.add(Carrier::Process, 100, 60).unwrap();
        arrivals.add(Carrier::Kernel, 100, 100).unwrap();
        assert!(arrivals.add(Carrier::Tap, 100, 0).is_err());
        assert!(arrivals.add(Carrier::Tap, 100, 101).is_err());
        let reported = arrivals.reported().unwrap();
        assert!(
            reported.contains("50.0 % in process") && reported.contains("the kernel's"),
            "{reported}"
        );
        assert!(!reported.contains("TAP"), "{reported}");
    }

    #[test]
    fn a_receiver_that_fails_is_reported() {
        let receiver = thread::spawn(|| anyhow::bail!("no room"));
        let error = end_receiver(receiver, || Err(std::io::ErrorKind::ConnectionRefused.into()));
        assert_eq!(error.unwrap_err().to_string(), "no room");
    }
}
