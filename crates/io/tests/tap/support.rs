//! Helpers that the tests share.

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use towpath_io::reactor::{Events, Interest, Reactor};
use towpath_io::tap::{Features, Tap};
use towpath_packet::pool::LARGE_FRAME_BYTES;
use towpath_packet::{Burst, Context, Device, Ledger, Memory, MemoryConfig, Packet, Piece, time};

/// Longest time that a test waits for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "tests bound how long they wait")]
    Instant::now()
}

/// A context for TAP devices, which copy nothing and need no time.
pub(crate) fn cx(memory: &mut Memory) -> Context<'_> {
    static LEDGER: LazyLock<Ledger> = LazyLock::new(Ledger::new);
    Context { memory, ledger: &LEDGER, now: time::Instant::START }
}

pub(crate) fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect()
}

pub(crate) fn retry<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = now() + PATIENCE;
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(now() < end, "gave up after {PATIENCE:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn ready(fd: BorrowedFd<'_>) {
    assert!(is_ready(fd, PATIENCE), "nothing to read");
}

/// Waits until `fd` is readable. Returns false if it is not within `patience`.
pub(crate) fn is_ready(fd: BorrowedFd<'_>, patience: Duration) -> bool {
    let mut reactor = Reactor::new().expect("epoll");
    reactor.add(fd, 0, Interest::READ, false).expect("add");
    let mut events = Events::new();
    reactor.wait(Some(patience), &mut events).expect("wait");
    !events.is_empty()
}

pub(crate) fn pieces(memory: &mut Memory, bytes: &[u8]) -> Vec<Piece> {
    let piece = |part: &[u8]| {
        let mut frame = memory.large.take().expect("free");
        frame[..part.len()].copy_from_slice(part);
        frame.freeze(part.len())
    };
    bytes.chunks(LARGE_FRAME_BYTES).map(piece).collect()
}

pub(crate) fn memory(packets: usize, small_frames: usize, large_frames: usize) -> Memory {
    Memory::new(MemoryConfig { packets, small_frames, large_frames })
}

/// Broadcasts a datagram in the namespace of this thread, which needs no neighbour entry.
pub(crate) fn broadcast(socket: &std::net::UdpSocket, payload: &[u8]) {
    // An address instead of a text, because resolving a text allocates.
    let everybody = SocketAddr::from(([10, 9, 8, 255], 4000));
    socket.send_to(payload, everybody).expect("sent");
}

pub(crate) fn broadcaster() -> std::net::UdpSocket {
    broadcaster_at(4000)
}

pub(crate) fn broadcaster_at(port: u16) -> std::net::UdpSocket {
    let socket = std::net::UdpSocket::bind(("10.9.8.1", port)).expect("bound");
    socket.set_broadcast(true).expect("a datagram socket");
    socket
}

/// Receives until a UDP packet to port 4000 arrives; drops other packets.
pub(crate) fn receive_datagram(tap: &mut Tap, memory: &mut Memory) -> Option<Packet> {
    let mut burst = Burst::new();
    tap.receive(&mut burst, &mut cx(memory)).expect("received");
    let mut found = None;
    while let Some(mut packet) = burst.pop() {
        if packet.peek_headers().get(36..38) == Some(&4000u16.to_be_bytes()) {
            found = Some(packet);
        }
    }
    found
}

/// A device whose other side is a socket of the test, which can read and write anything.
pub(crate) fn scripted() -> (Tap, OwnedFd) {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (device, peer) = socketpair(family, kind, flags, None).expect("a pair of sockets");
    (Tap::from_fd(device, Features::ALL, 1500), peer)
}
