//! A guest behind a vhost-user socket: its memory, its rings and its front end, in this process.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::fs::MemfdFlags;
use towpath_io::vhost_user::driver::{DriverQueue, FrontEnd, GuestRam, RECEIVE, TRANSMIT};
use towpath_io::vhost_user::virtq::Segment;

pub(super) const BASE: u64 = 0x1_0000;
const REGION: u64 = 0x10_0000;
const SIZE: u16 = 64;
/// Address of the receive buffers.
pub(super) const BUFFERS: u64 = BASE + 0x8_0000;
/// Address of the transmit buffer.
pub(super) const SENT: u64 = BASE + 0xc_0000;
const BUFFER: u32 = 2048;
const HEADER: usize = 12;

/// A guest with its front end.
pub(super) struct Guest {
    ram: GuestRam,
    queues: [DriverQueue; 2],
    pub(super) front_end: FrontEnd,
    /// Bytes in the transmit buffer.
    sent: usize,
}

impl Guest {
    /// Makes a guest over a socket that is connected to a port, with its memory in `file`; returns
    /// `None` if the port has another guest.
    pub(super) fn over(socket: UnixStream, file: OwnedFd) -> Option<Self> {
        let ram = GuestRam::in_file(file, BASE, &[REGION]).unwrap();
        let queue = |at| DriverQueue::new(&ram, BASE + at, SIZE, 0).unwrap();
        let mut queues = [queue(0), queue(0x2_0000)];
        for number in 0..u64::from(SIZE) / 2 {
            let address = BUFFERS + number * u64::from(BUFFER);
            assert!(queues[RECEIVE].add(&[], &[Segment { address, bytes: BUFFER }], number));
        }
        queues[RECEIVE].publish();
        let both = [&queues[RECEIVE], &queues[TRANSMIT]];
        let front_end = FrontEnd::over(socket, &ram, 0, both).ok()?;
        Some(Self { ram, queues, front_end, sent: 0 })
    }

    /// Sends a frame, if the ring has room.
    pub(super) fn send(&mut self, frame: &[u8]) {
        let bytes = [&[0; HEADER], frame].concat();
        self.ram.memory().write(SENT, &bytes).unwrap();
        self.sent = bytes.len();
        self.send_again();
    }

    /// Sends the transmit buffer again, without touching it, if the ring has room.
    pub(super) fn send_again(&mut self) {
        while self.queues[TRANSMIT].used().is_some() {}
        let segment = Segment { address: SENT, bytes: self.sent as u32 };
        if self.queues[TRANSMIT].add(&[segment], &[], 0) {
            self.queues[TRANSMIT].publish();
        }
        self.front_end.kick(TRANSMIT);
    }

    /// Returns true if a frame for which `is_such` holds has arrived since the last call.
    pub(super) fn has_received(&mut self, is_such: impl Fn(&[u8]) -> bool) -> bool {
        let mut found = false;
        while let Some((buffer, bytes)) = self.queues[RECEIVE].used() {
            let address = BUFFERS + buffer * u64::from(BUFFER);
            let mut content = vec![0; bytes as usize];
            self.ram.memory().read(address, &mut content).unwrap();
            found |= is_such(&content[HEADER..]);
            let segment = Segment { address, bytes: BUFFER };
            assert!(self.queues[RECEIVE].add(&[], &[segment], buffer));
            self.queues[RECEIVE].publish();
            self.front_end.kick(RECEIVE);
        }
        found
    }
}

/// Makes a file for a guest's memory, which cannot be sealed.
pub(super) fn memory() -> OwnedFd {
    rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap()
}
