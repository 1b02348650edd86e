//! A machine that is only a driver: a pair of queues, and buffers that are used in turn.

use std::path::Path;

use anyhow::{Context, ensure};
use towpath_io::vhost_user::driver::{DriverQueue, FrontEnd, GuestRam, RECEIVE, TRANSMIT};
use towpath_io::vhost_user::virtq::Segment;

use super::workload::{HEADERS, RECEIVER_MAC, SENDER_MAC, VIRTIO, Workload, of_pair};

/// As large as VMMs make them.
pub(super) const QUEUE_SIZE: u16 = 1024;
/// Memory for buffers: several times the size of caches.
pub(super) const BUFFER_BYTES: u64 = 128 << 20;

/// Start of the buffers, behind both queues.
const BUFFERS: u64 = 4 << 20;
/// Linux puts payload into fragments of this size.
const FRAGMENT: usize = 32 << 10;
const PAGE: u64 = 4096;
/// Bytes of the frame that introduces a machine, with the virtio-net header.
pub(super) const INTRODUCTION_BYTES: usize = VIRTIO + 60;

/// The machine that sends.
pub(super) struct Sender {
    guest: Guest,
    /// Distance between the memory of successive packets.
    stride: u64,
    /// Offset and length of each buffer of a packet.
    parts: Vec<(u64, u32)>,
    next: u64,
}

/// The machine that receives.
pub(super) struct Receiver {
    guest: Guest,
    buffer: u32,
    next: u64,
    pair: u8,
}

struct Guest {
    ram: GuestRam,
    receive: DriverQueue,
    transmit: DriverQueue,
    front_end: FrontEnd,
}

impl Guest {
    fn connect(path: &Path, features: u64) -> anyhow::Result<Self> {
        let ram = GuestRam::new(0, &[BUFFERS + BUFFER_BYTES]).context("no memory for a guest")?;
        let queue = |at| DriverQueue::new(&ram, at, QUEUE_SIZE, features);
        let receive = queue(0).context("a queue does not fit the guest's memory")?;
        let transmit = queue(receive.end()).context("a queue does not fit the guest's memory")?;
        ensure!(transmit.end() <= BUFFERS, "the queues do not fit the guest's memory");
        let front_end = FrontEnd::connect(path, &ram, features, [&receive, &transmit])?;
        Ok(Self { ram, receive, transmit, front_end })
    }

    fn write(&self, address: u64, bytes: &[u8]) -> anyhow::Result<()> {
        self.ram
            .memory()
            .write(address, bytes)
            .ok()
            .context("the address is outside the guest's memory")
    }
}

impl Sender {
    /// Connects the sender of a pair, with its packets in memory.
    pub(super) fn connect(path: &Path, workload: &Workload, pair: u8) -> anyhow::Result<Self> {
        let guest = Guest::connect(path, workload.sender())?;
        let (headers, payload) = (workload.headers(pair), workload.payload_of(pair));
        // Large payload begins at a page boundary, small payload right after the headers.
        let (offset, parts) = if workload.payload > FRAGMENT {
            let fragments = (0..payload.len()).step_by(FRAGMENT);
            let part = |at| (PAGE + at as u64, FRAGMENT.min(payload.len() - at) as u32);
            let parts = [(0, HEADERS as u32)].into_iter().chain(fragments.map(part));
            (PAGE, parts.collect())
        } else {
            (HEADERS as u64, vec![(0, (HEADERS + payload.len()) as u32)])
        };
        let stride = (offset + payload.len() as u64).next_multiple_of(2048);
        let mut at = BUFFERS;
        while at + stride <= BUFFERS + BUFFER_BYTES {
            guest.write(at, &headers)?;
            guest.write(at + offset, &payload)?;
            at += stride;
        }
        Ok(Self { guest, stride, parts, next: BUFFERS })
    }

    /// Number of packets until memory is used again.
    pub(super) fn round(&self) -> u64 {
        BUFFER_BYTES / self.stride
    }

    /// Sends up to `count` packets, as many as there is room for; returns how many.
    pub(super) fn send(&mut self, count: u64) -> u64 {
        while self.guest.transmit.used().is_some() {}
        let mut sent = 0;
        while sent < count {
            let mut segments = [Segment { address: 0, bytes: 0 }; 4];
            for (segment, (offset, bytes)) in segments.iter_mut().zip(&self.parts) {
                *segment = Segment { address: self.next + offset, bytes: *bytes };
            }
            if !self.guest.transmit.add(&segments[..self.parts.len()], &[], 0) {
                break;
            }
            self.next += self.stride;
            if self.next + self.stride > BUFFERS + BUFFER_BYTES {
                self.next = BUFFERS;
            }
            sent += 1;
        }
        if sent > 0 && self.guest.transmit.publish() {
            self.guest.front_end.kick(TRANSMIT);
        }
        sent
    }
}

impl Receiver {
    /// Connects the receiver of a pair, which has offered all its buffers.
    pub(super) fn connect(path: &Path, workload: &Workload, pair: u8) -> anyhow::Result<Self> {
        let guest = Guest::connect(path, workload.receiver)?;
        let mut receiver = Self { guest, buffer: workload.buffer, next: BUFFERS, pair };
        while receiver.offer() {}
        receiver.publish();
        Ok(receiver)
    }

    /// Sends a frame, so that the switch learns this machine's port.
    pub(super) fn introduce(&mut self) -> anyhow::Result<()> {
        const AT: u64 = BUFFERS - PAGE;
        let mut frame = [0; INTRODUCTION_BYTES];
        frame[VIRTIO..][..6].copy_from_slice(&of_pair(SENDER_MAC, self.pair));
        frame[VIRTIO + 6..][..6].copy_from_slice(&of_pair(RECEIVER_MAC, self.pair));
        // EtherType for local experiments (IEEE Std 802).
        frame[VIRTIO + 12..][..2].copy_from_slice(&[0x88, 0xb5]);
        self.guest.write(AT, &frame)?;
        let segment = Segment { address: AT, bytes: frame.len() as u32 };
        ensure!(self.guest.transmit.add(&[segment], &[], 0), "the queue is full");
        if self.guest.transmit.publish() {
            self.guest.front_end.kick(TRANSMIT);
        }
        Ok(())
    }

    /// Takes all received buffers, and calls `look` with the address of each and the number of
    /// bytes in it. Returns the total number of bytes.
    pub(super) fn receive(&mut self, mut look: impl FnMut(&GuestRam, u64, u32)) -> u64 {
        let mut bytes = 0;
        while let Some((address, written)) = self.guest.receive.used() {
            look(&self.guest.ram, address, written);
            bytes += u64::from(written);
            self.offer();
        }
        if bytes > 0 {
            self.publish();
        }
        bytes
    }

    /// Offers the next buffer, if there is room.
    fn offer(&mut self) -> bool {
        let segment = Segment { address: self.next, bytes: self.buffer };
        let is_room = self.guest.receive.add(&[], &[segment], self.next);
        if is_room {
            self.next += u64::from(self.buffer);
            if self.next + u64::from(self.buffer) > BUFFERS + BUFFER_BYTES {
                self.next = BUFFERS;
            }
        }
        is_room
    }

    fn publish(&mut self) {
        if self.guest.receive.publish() {
            self.guest.front_end.kick(RECEIVE);
        }
    }
}
