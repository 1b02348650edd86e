//! Buffers that are lent as datagrams: one, or as many as the buffer has segments, with one call.
//!
//! A buffer that is cut into segments may be longer than a super-packet. It is then sent as
//! several, which leave as fast as there is room for them. Together they are one send, whose buffer
//! comes back when the last one is gone.
//!
//! A socket that lends little hands its datagrams to the stack with the call. A socket that has
//! more out leaves this to the worker ([`SendQueue`]): the call then costs its thread about the
//! same whatever it sends, and the worker takes many calls at once.

use crate::driver::SocketEngine;
use crate::host::core::{State, send_over_link};
use crate::host::lending::queue::{LOAN_BYTES_MAX, LentOp, Op, SendQueue};
use crate::host::lending::stretch::{Drained, LOANS_MAX, lend};
use towpath_net::socket::{Error, LentCall, SendTo, SocketId};
use towpath_net::time::Instant;
use towpath_packet::Loans;
use towpath_packet::pool::LARGE_FRAME_BYTES;

impl State {
    /// Lends the rest of a buffer as datagrams. Fails, or ends early, if nothing more can be sent
    /// now.
    pub(in crate::host) fn send_lent_datagrams(
        &mut self,
        id: SocketId,
        lent: &mut LentOp,
        send: &SendTo,
        now: Instant,
    ) -> Result<(), Error> {
        let loans = self.loans.get_or_insert_with(|| Loans::new(LOANS_MAX));
        send_lent((&mut self.engine, loans), id, lent, send, now)
    }

    /// Lets the stack accept what is queued on a socket before anything newer.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if the stack has no room for all: the socket's writers are woken
    /// later.
    pub(in crate::host) fn drain_datagrams(
        &mut self,
        queue: &SendQueue,
        now: Instant,
    ) -> Result<(), Error> {
        if queue.room.used() == 0 {
            return Ok(());
        }
        self.take_queued(queue);
        self.drain(queue.id, now);
        match self.entry(queue.id).pending.is_empty() {
            true => Ok(()),
            false => Err(Error::WouldBlock),
        }
    }

    /// Closes a datagram socket. Queued datagrams are sent first, now or when there is room.
    pub(in crate::host) fn close_datagrams(&mut self, queue: &SendQueue, now: Instant) {
        match self.drain_datagrams(queue, now) {
            Ok(()) => self.close(queue.id, now),
            Err(_) => self.entry(queue.id).pending.push_back(Op::Close),
        }
    }

    /// Allows calls to queue datagrams like one of `len` bytes that the stack has just accepted,
    /// unless the stack waits for more of it.
    pub(in crate::host) fn open(&self, queue: &SendQueue, asked: &SendTo, len: usize) {
        let Ok(options) = self.engine.protocols.options(queue.id) else { return };
        if asked.more || options.datagram.cork {
            return queue.shut();
        }
        // The values of now: both may change before queued datagrams are sent.
        let segment_size = self.engine.protocols.segment_size(queue.id, asked).ok();
        let to = asked.to.or(self.engine.protocols.remote(queue.id).ok());
        queue.open(asked, &SendTo { to, segment_size, ..*asked }, len);
    }
}

/// Gives the stack as much of a queued buffer as it accepts. An error, also a pending one of the
/// network that would stop the send, is put into `late` for the next call.
pub(in crate::host) fn drain_datagrams(
    engine: &mut SocketEngine,
    queue: &SendQueue,
    (lent, late): (&mut LentOp, &mut Option<Error>),
    loans: &mut Loans,
    now: Instant,
) -> Drained {
    let (id, send) = (queue.id, queue.sent_as());
    let send = SendTo { term: lent.due.map(|due| due.since(now)), ..send };
    if engine.protocols.has_error(id) {
        *late = engine.protocols.take_error(id).unwrap_or(*late);
    }
    match send_lent((engine, loans), id, lent, &send, now) {
        Ok(()) => Drained::All,
        Err(Error::WouldBlock) => Drained::Full,
        Err(Error::NoBuffers) => Drained::Starved,
        Err(error) => {
            *late = Some(error);
            Drained::All
        }
    }
}

/// Lends the rest of a buffer, in loans of a super-packet. A datagram that is not cut is lent in
/// loans of a frame's size, because a receiver that reassembles its fragments is charged the whole
/// loan for each.
fn send_lent(
    (engine, loans): (&mut SocketEngine, &mut Loans),
    id: SocketId,
    lent: &mut LentOp,
    send: &SendTo,
    now: Instant,
) -> Result<(), Error> {
    let LentOp { source, ticket, call, done, .. } = lent;
    let cuts = engine.protocols.segment_size(id, send)? > 0;
    let bytes_max = if cuts { LOAN_BYTES_MAX } else { LARGE_FRAME_BYTES };
    loop {
        let (sockets, mut cx) = engine.parts(now);
        let (number, from) = (sockets.next_lent(id)?, *done);
        let lend = |at, most: usize, borrower| {
            lend(source, ticket, (from + at, most.min(bytes_max)), loans, borrower)
        };
        let left = source.len() - from;
        let sent = sockets.send_lent_datagrams(id, call, left, send, lend, &mut cx)?;
        if from == 0 {
            ticket.begun(number);
        }
        *done += sent;
        if sent == 0 || sent == left {
            // For the stack the call is over; the core's lock is held.
            *call = LentCall::default();
            return Ok(());
        }
        send_over_link(engine, now);
    }
}

#[cfg(test)]
mod tests {
    use crate::host::lending::queue::{DATAGRAMS_QUEUED_MAX, work_of};
    use crate::host::{Config, Host, ReceivedPiece, Sending, UdpSocket};
    use std::io::ErrorKind;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Wake, Waker};
    use std::thread;
    use std::time::Duration;
    use towpath_io::events::Interest;
    use towpath_net::socket::Options;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Creates two hosts with connected sockets.
    fn sockets() -> [(Host, UdpSocket); 2] {
        let config =
            |last| Config { default_term: None, ..Config::with_address([10, 0, 0, last], 24) };
        let (a, b) = Host::pair(&config(1), &config(2)).expect("two hosts");
        let [own, other] = ["10.0.0.1:7", "10.0.0.2:80"];
        let socket = UdpSocket::bind(&a, own).expect("bound");
        let peer = UdpSocket::bind(&b, other).expect("bound");
        socket.connect(other).expect("connected");
        peer.connect(own).expect("connected");
        peer.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        // Resolves the link-layer addresses of both hosts.
        socket.send(&[]).expect("sends");
        assert_eq!(peer.recv(&mut []).expect("receives"), 0);
        [(a, socket), (b, peer)]
    }

    fn assert_all_back(hosts: &[&Host]) {
        for _ in 0..20_000 {
            if hosts.iter().all(|host| host.in_use() == 0 && host.lent() == 0) {
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        let left: Vec<_> = hosts.iter().map(|host| (host.in_use(), host.lent())).collect();
        panic!("in use and lent: {left:?}");
    }

    /// Sends numbers until the queue is full; the peer's worker is stopped.
    fn fill(socket: &UdpSocket) -> Vec<Sending<Vec<u8>>> {
        socket.set_nonblocking(true).expect("a mode");
        let mut sent = Vec::new();
        loop {
            assert!(sent.len() < 100_000, "the queue never fills up");
            match socket.send_zc((sent.len() as u32).to_ne_bytes().to_vec()) {
                Ok(sending) => sent.push(sending),
                Err(full) => {
                    assert_eq!(full.error.kind(), ErrorKind::WouldBlock);
                    assert_eq!(full.buffer, (sent.len() as u32).to_ne_bytes());
                    return sent;
                }
            }
        }
    }

    /// Receives numbers until none arrive; checks that they arrive in order and at most once.
    fn take(peer: &UdpSocket) -> Vec<u32> {
        peer.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
        let (mut into, mut taken) = ([0; 4], Vec::new());
        while peer.recv(&mut into).is_ok() {
            taken.push(u32::from_ne_bytes(into));
        }
        assert!(taken.is_sorted_by(|one, next| one < next), "{taken:?}");
        taken
    }

    /// Goal: what the device does not accept is queued up to a bound, beyond which non-blocking
    /// calls fail. A recall, or the end of a term, returns buffers from the queue, and their bytes
    /// are still sent. Method: the peer's worker waits for a lock of its host.
    #[test]
    fn queued_datagrams_come_back_by_terms_and_recalls() {
        let [(a, socket), (b, peer)] = sockets();
        let stopped = b.owner.core.lock();
        socket.set_term(Some(Duration::from_secs(3600)));
        let mut sent = fill(&socket);
        assert!(sent.len() > DATAGRAMS_QUEUED_MAX / work_of(4), "{}", sent.len());
        let last = sent.pop().expect("many");
        last.recall();
        let back = last.returned_within(PATIENCE).expect("back");
        assert!(back.copied && back.buffer == (sent.len() as u32).to_ne_bytes());
        assert!(!sent[sent.len() - 1].is_returned());
        sent.iter().for_each(Sending::recall);
        for (number, sending) in sent.into_iter().enumerate() {
            let back = sending.returned_within(PATIENCE).expect("back");
            assert!(back.copied && back.buffer == (number as u32).to_ne_bytes());
        }
        drop(stopped);
        assert!(!take(&peer).is_empty());
        drop((socket, peer));
        assert_all_back(&[&a, &b]);

        let [(a, socket), (b, peer)] = sockets();
        let stopped = b.owner.core.lock();
        socket.set_term(Some(Duration::from_millis(20)));
        for sending in fill(&socket) {
            assert!(sending.returned_within(PATIENCE).expect("back").copied);
        }
        drop(stopped);
        drop((socket, peer));
        assert_all_back(&[&a, &b]);
    }

    /// Goal: a socket whose queue is full is not writable, and its waiters are woken when it is.
    #[test]
    fn a_full_queue_is_not_writable_until_there_is_room() {
        struct Woken(AtomicBool);
        impl Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let [(a, socket), (b, peer)] = sockets();
        let stopped = b.owner.core.lock();
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let waker = Waker::from(woken.clone());
        let is_writable = || socket.poll_ready(Interest::WRITE, &waker).writable;
        assert!(is_writable());
        let sent = fill(&socket);
        assert!(!is_writable());
        drop(stopped);
        peer.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
        let read = || peer.recv_lent(&mut Vec::new());
        let is_heard = (0..100_000).any(|_| {
            // Room appears as the peer receives.
            let _ = read();
            woken.0.swap(false, Ordering::SeqCst) && is_writable()
        });
        assert!(is_heard);
        while sent.iter().any(|sending| !sending.is_returned()) {
            let _ = read();
        }
        drop((socket, peer));
        assert_all_back(&[&a, &b]);
    }

    /// Goal: buffers longer than a loan are also left to the worker once much is out. Partly sent
    /// ones come back by a recall, by a term and from a closed socket, and later writes to them are
    /// not visible to the peer. Method: the peer's worker is stopped.
    #[test]
    fn long_buffers_are_queued_and_come_back() {
        const LEN: usize = 1_000_000;
        const PART: u16 = 1000;
        enum End {
            Recall,
            Term,
            Close,
        }
        for end in [End::Recall, End::Term, End::Close] {
            let [(a, socket), (b, peer)] = sockets();
            let cut = |options: &mut Options| options.datagram.segment_size = PART;
            socket.set_options(cut).expect("a size");
            // A buffer that the stack accepts with its call lets later ones be queued.
            let first = socket.send_zc(vec![0; LEN]).expect("sends");
            if let End::Term = end {
                socket.set_term(Some(Duration::from_millis(20)));
            }
            let stopped = b.owner.core.lock();
            socket.set_nonblocking(true).expect("a mode");
            let mut sent = Vec::new();
            while let Ok(sending) = socket.send_zc(vec![sent.len() as u8; LEN]) {
                assert_eq!(sending.accepted(), LEN, "of buffer {}", sent.len());
                sent.push(sending);
                assert!(sent.len() < 200, "the queue never fills up");
            }
            assert!(sent.len() >= DATAGRAMS_QUEUED_MAX / work_of(LEN) - 1, "{}", sent.len());
            match end {
                End::Recall => sent.iter().for_each(Sending::recall),
                End::Term => {}
                End::Close => {
                    drop(socket);
                    assert!(!sent[sent.len() - 1].is_returned());
                    drop(stopped);
                    drop(peer);
                    for sending in sent {
                        sending.returned_within(PATIENCE).expect("back");
                    }
                    first.returned_within(PATIENCE).expect("back");
                    assert_all_back(&[&a, &b]);
                    continue;
                }
            }
            for (number, sending) in sent.into_iter().enumerate() {
                let mut back = sending.returned_within(PATIENCE).expect("back");
                assert!(back.copied && back.buffer.iter().all(|&byte| byte == number as u8));
                back.buffer.fill(0xff);
            }
            drop(stopped);
            peer.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
            let (mut into, mut last) = ([0; 2000], 0);
            while let Ok(count) = peer.recv(&mut into) {
                assert_eq!(count, usize::from(PART));
                assert!(into[0] >= last && into[0] != 0xff && into[..count] == [into[0]; 1000]);
                last = into[0];
            }
            drop((socket, peer));
            first.returned_within(PATIENCE).expect("back");
            assert_all_back(&[&a, &b]);
        }
    }

    /// Goal: datagrams that were queued when a socket is closed are sent, and their buffers come
    /// back; then its address is free.
    #[test]
    fn queued_datagrams_outlive_their_socket() {
        let [(a, socket), (b, peer)] = sockets();
        let stopped = b.owner.core.lock();
        let sent = fill(&socket);
        drop(socket);
        assert!(!sent[sent.len() - 1].is_returned());
        drop(stopped);
        // Datagrams without room at the receiver are dropped, and their buffers also come back.
        peer.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
        let mut pieces: Vec<ReceivedPiece> = Vec::new();
        let mut received = 0;
        for _ in 0..100_000 {
            received += usize::from(peer.recv_lent(&mut pieces).is_ok());
            pieces.clear();
            if sent.iter().all(Sending::is_returned) {
                break;
            }
        }
        assert!(received > 0);
        for sending in sent {
            assert!(!sending.returned_within(PATIENCE).expect("back").copied);
        }
        let own = "10.0.0.1:7";
        drop(UdpSocket::bind(&a, own).expect("free again"));
        drop(peer);
        assert_all_back(&[&a, &b]);
    }
}
