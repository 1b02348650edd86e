//! Terms: lent memory is returned on time although pieces are held, and holders keep the bytes.

use super::bench::*;
use crate::socket::{
    Borrower, DEFAULT_TERM, Error, Family, LentCall, Notice, SendFlags, SendTo, SocketId,
};
use crate::time::Duration;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use towpath_packet::{Burst, Caps, Ledger, Loans, Piece, Recall, Site};

/// Bytes of each call.
const LEN: usize = 3000;

/// Two connected hosts; the client lends recallable memory to a device with checksum offload.
struct Bound {
    b: Bench,
    loans: Loans,
    server: SocketId,
    client: SocketId,
    memory: Arc<Vec<u8>>,
    /// Lends the memory as if others could write it.
    foreign: bool,
}

impl Bound {
    fn new() -> Self {
        let mut b = Bench::new();
        let (server, client) = b.connected();
        b.hosts[CLIENT].stack_mut().set_caps(Caps { checksum: true, ..Caps::plain(1500) });
        // The link marks checksums as verified.
        b.damage = Some(|_, _| {});
        let memory = Arc::new((0..LEN).map(|at| at as u8).collect());
        Self { b, loans: Loans::new(64), server, client, memory, foreign: false }
    }

    /// Lends all of the memory.
    fn send(&mut self, mut call: LentCall) {
        let (mut at, loans, memory, foreign) = (0, &mut self.loans, &self.memory, self.foreign);
        let lend = |room: usize, to: crate::socket::Borrower| {
            let len = room.min(LEN - at);
            let range = (at, len as u32);
            let piece = match foreign {
                true => loans.lend_as_foreign(memory, range, to.lender, to.token)?,
                false => loans.lend_recallable(memory, range, to.lender, to.token)?,
            };
            at += len;
            Some(piece)
        };
        let sent = self.b.with(CLIENT, |host, cx| {
            host.send_lent(self.client, &mut call, LEN, SendFlags::default(), lend, cx)
        });
        assert_eq!(sent, Ok(LEN));
    }

    /// Takes all packets that the client has to send.
    fn take(&mut self) -> Burst {
        let mut burst = Burst::new();
        self.b.with(CLIENT, |host, cx| host.output(&mut burst, cx));
        assert!(!burst.is_empty());
        burst
    }

    /// Lets time pass from deadline to deadline, and moves packets.
    fn wait(&mut self, time: Duration) {
        let until = self.b.now + time;
        loop {
            let next = self.b.hosts.iter().filter_map(|host| host.next_deadline()).min();
            let Some(at) = next.filter(|at| *at <= until) else { break };
            self.b.now = at.max(self.b.now);
            for host in [SERVER, CLIENT] {
                self.b.with(host, |host, cx| host.on_deadline(cx));
            }
            self.b.settle();
        }
        self.b.now = until;
    }

    fn notice(&mut self) -> Result<Notice, Error> {
        self.b.hosts[CLIENT].take_notice(self.client)
    }

    /// Overwrites the memory, of which the client is the only owner again.
    fn overwrite(&mut self) {
        Arc::get_mut(&mut self.memory).expect("no other owner").fill(0xff);
    }

    fn received(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while let Ok(bytes) = self.b.receive(SERVER, self.server) {
            if bytes.is_empty() {
                break;
            }
            all.extend(bytes);
            self.b.settle();
        }
        all
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn original() -> Vec<u8> {
    (0..LEN).map(|at| at as u8).collect()
}

/// Calls `first` to `last`, copied after all.
fn copied(first: u32, last: u32) -> Result<Notice, Error> {
    Ok(Notice::Lent { first, last, copied: true })
}

/// Goal: a call's memory is returned when its term ends, not before and not twice, though a stalled
/// port holds its packets and nothing was acknowledged. Retransmissions have the bytes that were
/// lent.
#[test]
fn a_term_ends_what_a_stalled_port_holds() {
    let mut t = Bound::new();
    t.send(LentCall::for_term(ms(50)));
    let stalled = t.take();
    t.wait(ms(49));
    assert_eq!(t.notice(), Err(Error::WouldBlock));
    t.wait(ms(1));
    assert_eq!(t.notice(), copied(0, 0));
    t.overwrite();
    let stats = t.b.hosts[CLIENT].lent_stats(t.b.now);
    assert_eq!((stats.groups, stats.terms_fired, stats.recalled_bytes), (0, 1, LEN as u64));
    assert_eq!(t.b.copied_at(Site::Recall), LEN as u64);
    drop(stalled);
    t.wait(Duration::from_secs(3));
    assert_eq!(t.received(), original());
    assert_eq!(t.notice(), Err(Error::WouldBlock), "told once");
    assert_eq!(t.loans.out_count(), 0);
}

/// Goal: a datagram's call may have a term, which takes precedence over its socket's. Packets that
/// a stalled port holds keep the bytes. So does a pending datagram, whose notice comes when it is
/// sent.
#[test]
fn a_datagram_has_a_term() {
    // One packet: the device computes no checksums for fragments.
    const SHORT: usize = 1000;
    let mut t = Bound::new();
    let udp = t.b.datagram(CLIENT, Family::V4);
    let peer = t.b.bound(at(53));
    let now = t.b.now;
    t.b.hosts[CLIENT].set_options(udp, now, |o| o.lent_term = Some(ms(500))).expect("open");
    let send = |t: &mut Bound, term, more| {
        let how = SendTo { to: Some(at(53)), term, more, ..SendTo::default() };
        let (loans, memory) = (&mut t.loans, &t.memory);
        let lend = |room: usize, to: Borrower| {
            loans.lend_recallable(memory, (0, room as u32), to.lender, to.token)
        };
        let sent = t.b.with(CLIENT, |host, cx| host.send_lent_datagram(udp, SHORT, &how, lend, cx));
        assert_eq!(sent, Ok(SHORT));
    };
    let notice = |t: &mut Bound| t.b.hosts[CLIENT].take_notice(udp);

    send(&mut t, Some(ms(20)), false);
    let stalled = t.take();
    t.wait(ms(19));
    assert_eq!(notice(&mut t), Err(Error::WouldBlock));
    t.wait(ms(1));
    assert_eq!(notice(&mut t), copied(0, 0));
    t.overwrite();
    let mut kept = Vec::new();
    for piece in stalled.iter().flat_map(|packet| packet.pieces()) {
        let at = kept.len();
        kept.resize(at + piece.len(), 0);
        Ledger::new().copy(Site::Linearise, piece, &mut kept[at..]);
    }
    assert_eq!(kept, original()[..SHORT]);
    drop(stalled);

    t.memory = Arc::new(original());
    send(&mut t, Some(ms(20)), true);
    t.wait(ms(20));
    t.overwrite();
    assert_eq!(notice(&mut t), Err(Error::WouldBlock), "it waits for more");
    t.b.with(CLIENT, |host, cx| host.push_datagram(udp, cx)).expect("it waits");
    t.b.settle();
    assert_eq!(notice(&mut t), copied(1, 1));
    assert_eq!(t.b.take(SERVER, peer).map(|(bytes, _)| bytes), Ok(original()[..SHORT].to_vec()));
    assert_eq!(t.loans.out_count(), 0);
}

/// Goal: the socket's term applies to calls without their own, and a call that ends in time is not
/// copied.
#[test]
fn a_socket_has_a_term() {
    let mut t = Bound::new();
    let now = t.b.now;
    t.b.hosts[CLIENT].set_options(t.client, now, |o| o.lent_term = Some(ms(10))).expect("open");
    t.send(LentCall::default());
    t.b.settle();
    assert_eq!(t.notice(), Ok(Notice::Lent { first: 0, last: 0, copied: false }));
    t.overwrite();
    t.wait(ms(20));
    assert_eq!(t.b.hosts[CLIENT].lent_stats(t.b.now).terms_fired, 0);
    t.memory = Arc::new(original());
    t.send(LentCall::default());
    let stalled = t.take();
    t.wait(ms(10));
    assert_eq!(t.notice(), copied(1, 1));
    drop(stalled);
}

/// Goal: acknowledged memory that a reader holds is returned by the default term; unacknowledged
/// memory stays until it is acknowledged.
#[test]
fn a_reader_holds_memory_for_the_default_term() {
    let mut t = Bound::new();
    t.send(LentCall::default());
    let burst = t.take();
    let held: Vec<Piece> = burst.iter().flat_map(|packet| packet.pieces().cloned()).collect();
    drop(burst);
    // The packet is lost, so that it is retransmitted.
    let sent = t.b.now;
    while t.b.hosts[CLIENT].tcp(t.client).expect("open").unacknowledged() > 0 {
        t.wait(ms(10));
        assert!(t.b.now.since(sent) < Duration::from_secs(3), "not retransmitted");
    }
    assert!(t.b.now.since(sent) > DEFAULT_TERM, "the stack needed it for longer");
    assert_eq!(t.notice(), Err(Error::WouldBlock));
    t.wait(DEFAULT_TERM - ms(10));
    assert_eq!(t.notice(), Err(Error::WouldBlock));
    t.wait(DEFAULT_TERM + ms(10));
    assert_eq!(t.notice(), copied(0, 0));
    t.overwrite();
    let (mut bytes, mut at) = (vec![0; LEN], 0);
    for piece in &held {
        at += t.b.with(CLIENT, |_, cx| cx.ledger.copy(Site::Linearise, piece, &mut bytes[at..]));
    }
    assert_eq!((at, bytes), (LEN, original()));

    // Without a default term the memory stays lent.
    t.memory = Arc::new(original());
    t.b.hosts[CLIENT].set_default_term(None);
    t.send(LentCall::default());
    let burst = t.take();
    let held: Vec<Piece> = burst.iter().flat_map(|packet| packet.pieces().cloned()).collect();
    drop(burst);
    t.wait(Duration::from_secs(60));
    assert_eq!(t.notice(), Err(Error::WouldBlock));
    drop(held);
    t.wait(ms(1));
    t.b.with(CLIENT, |host, cx| host.on_deadline(cx));
    assert_eq!(t.notice(), Ok(Notice::Lent { first: 1, last: 1, copied: false }));
}

/// Goal: a reader that pins memory at the end of a term delays its return by at most about twice
/// the time it reads, and is polled rarely if it takes long: after 1, 2, 4, 8, 10 and 10 ms.
#[test]
fn a_reader_at_the_end_of_a_term_ends_reading() {
    for (until, back) in [(5, 6), (9, 12), (19, 20), (29, 30), (30, 40)] {
        let mut t = Bound::new();
        t.send(LentCall::for_term(ms(5)));
        let stalled = t.take();
        let packet = stalled.iter().find(|packet| packet.payload_len() > 0).expect("data");
        let pinned = packet.pieces().next().expect("a piece").pin();
        t.wait(ms(until));
        drop(pinned);
        t.wait(ms(back - until) - Duration::from_micros(1));
        assert_eq!(t.notice(), Err(Error::WouldBlock), "read for {until} ms");
        t.wait(Duration::from_micros(1));
        assert_eq!(t.notice(), copied(0, 0), "read for {until} ms");
        t.overwrite();
    }
}

/// Goal: a recall covers the calls that it names, and those that share a notice with them.
#[test]
fn a_recall_is_for_the_calls_that_it_names() {
    let mut t = Bound::new();
    for _ in 0..2 {
        t.send(LentCall::default());
    }
    let stalled = t.take();
    let recall = |t: &mut Bound, calls| {
        let client = t.client;
        t.b.with(CLIENT, |host, cx| host.recall(client, calls, cx))
    };
    assert_eq!(recall(&mut t, (2, 9)), Ok(Recall::Gone), "there are no such calls");
    assert_eq!(t.notice(), Err(Error::WouldBlock));
    assert_eq!(recall(&mut t, (1, 1)), Ok(Recall::Done));
    assert!(matches!(t.notice(), Ok(Notice::Lent { last: 1, copied: true, .. })));
    assert_eq!(recall(&mut t, (0, 1)).map(|recall| recall <= Recall::Done), Ok(true));
    t.overwrite();
    assert_eq!(recall(&mut t, (0, u32::MAX)), Ok(Recall::Gone));
    let (client, now) = (t.client, t.b.now);
    t.b.hosts[CLIENT].close(client, now).expect("open");
    assert_eq!(recall(&mut t, (0, 0)), Err(Error::BadSocket));
    drop(stalled);
}

/// Goal: statistics report the age of the oldest loan.
#[test]
fn the_oldest_loan_has_an_age() {
    let mut t = Bound::new();
    assert_eq!(t.b.hosts[CLIENT].lent_stats(t.b.now).oldest, None);
    t.send(LentCall::default());
    let stalled = t.take();
    t.wait(ms(30));
    let stats = t.b.hosts[CLIENT].lent_stats(t.b.now);
    assert_eq!((stats.groups, stats.oldest), (1, Some(ms(30))));
    assert_eq!((stats.calls, stats.bytes), (1, LEN as u64));
    drop(stalled);
}

/// Goal: for a device without checksum offload a send is copied once, in the call, which returns
/// the memory at once: the checksum is that of bytes that no program writes, and a retransmission
/// copies nothing. A recall finds nothing. Gotchas 12 and 15.
#[test]
fn what_is_summed_here_is_our_own() {
    let mut t = Bound::new();
    (t.b.damage, t.foreign) = (None, true);
    t.b.hosts[CLIENT].stack_mut().set_caps(Caps::plain(1500));
    t.send(LentCall::default());
    assert_eq!(t.b.copied_at(Site::Checksum), LEN as u64);
    assert_eq!(t.b.hosts[CLIENT].lent_stats(t.b.now).groups, 0);
    let client = t.client;
    let recalled = t.b.with(CLIENT, |host, cx| host.recall(client, (0, 0), cx));
    assert_eq!((recalled, t.notice()), (Ok(Recall::Gone), copied(0, 0)));
    t.overwrite();
    let lost = t.take();
    assert!(lost.iter().flat_map(|packet| packet.pieces()).all(|piece| !piece.is_foreign()));
    drop(lost);
    t.wait(Duration::from_secs(3));
    assert_eq!(t.received(), original());
    assert_eq!(t.b.copied_at(Site::Checksum), LEN as u64);
}

/// Goal: calls whose terms end together are reported in order, in one notice, whatever the indices
/// of their groups.
#[test]
fn calls_that_end_together_are_reported_together() {
    let mut t = Bound::new();
    for round in 0..2 {
        t.send(LentCall::for_term(ms(10)));
        let first = t.take();
        t.send(LentCall::for_term(ms(10)));
        let second = t.take();
        t.wait(ms(10));
        assert_eq!(t.notice(), copied(2 * round, 2 * round + 1));
        drop((first, second));
        t.wait(Duration::from_secs(3));
        assert_eq!(t.received().len(), 2 * LEN);
    }
}

/// Goal: the terms of given calls can be ended at once, and their memory is returned in the next
/// turn; other calls are not affected. Calls of a closed socket are found too.
#[test]
fn terms_are_ended_for_a_call_alone() {
    let mut t = Bound::new();
    t.send(LentCall::for_term(ms(500)));
    let first = t.take();
    assert_eq!(t.b.hosts[CLIENT].next_lent(t.client), Ok(1));
    t.send(LentCall::for_term(ms(500)));
    let second = t.take();
    let (id, now) = (t.client, t.b.now);
    t.b.hosts[CLIENT].end_terms(id, (1, 1), now);
    t.b.hosts[CLIENT].end_terms(id, (2, 9), now);
    assert_eq!(t.b.hosts[CLIENT].next_deadline(), Some(now));
    t.wait(ms(0));
    assert_eq!(t.notice(), copied(1, 1));
    assert_eq!(t.notice(), Err(Error::WouldBlock));
    t.b.hosts[CLIENT].close(id, now).expect("open");
    t.b.hosts[CLIENT].end_terms(id, (0, 0), now);
    t.wait(ms(0));
    t.overwrite();
    assert_eq!(t.b.copied_at(Site::Recall), 2 * LEN as u64);
    drop((first, second));
}

/// Goal: unacknowledged bytes stay lent until they are acknowledged, also after the socket is
/// closed.
#[test]
fn a_closed_socket_keeps_what_is_not_acknowledged() {
    let mut t = Bound::new();
    t.send(LentCall::default());
    let lost = t.take();
    let (id, now) = (t.client, t.b.now);
    t.b.hosts[CLIENT].close(id, now).expect("open");
    drop(lost);
    t.b.hosts[CLIENT].set_default_term(Some(ms(1)));
    t.wait(ms(150));
    assert_eq!(t.b.copied_at(Site::Recall), 0);
    t.wait(Duration::from_secs(3));
    assert_eq!(t.received(), original());
    t.wait(DEFAULT_TERM);
    t.overwrite();
}
