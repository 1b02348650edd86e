//! Sends without a copy: numbers, shared notices, limits, and ends of connections.

use super::bench::*;
use crate::socket::shares::GROUPS_PER_PART;
use crate::socket::{
    Borrower, Error, Family, LentCall, LentLimits, LentWatch, Linger, NOTICE_CHARGE, Notice,
    Options, Readiness, SendFlags, SendTo, SocketId,
};
use crate::tcp::fastopen::{self, CLIENT_NO_COOKIE};
use crate::time::Instant;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::net::SocketAddr;
use towpath_packet::{Loans, Piece, Site};

/// Two connected hosts; the client lends.
pub(super) struct Lent {
    pub(super) b: Bench,
    pub(super) loans: Loans,
    pub(super) server: SocketId,
    pub(super) client: SocketId,
}

/// Calls `first` to `last`, not copied.
pub(super) fn lent(first: u32, last: u32) -> Result<Notice, Error> {
    Ok(Notice::Lent { first, last, copied: false })
}

impl Lent {
    pub(super) fn new() -> Self {
        let mut b = Bench::new();
        let (server, client) = b.connected();
        Self { b, loans: Loans::new(4096), server, client }
    }

    /// One call with ranges of the given lengths; it ends even if only a part is taken.
    pub(super) fn call(&mut self, ranges: &[usize], flags: SendFlags) -> Result<usize, Error> {
        let total: usize = ranges.iter().sum();
        let memory = Arc::new((0..total).map(|at| at as u8).collect::<Vec<u8>>());
        let ends: Vec<usize> = ranges
            .iter()
            .scan(0, |at, len| {
                *at += len;
                Some(*at)
            })
            .collect();
        let (mut at, loans) = (0, &mut self.loans);
        let lend = |room: usize, borrower: Borrower| {
            let end = ends.iter().copied().find(|end| *end > at)?;
            let len = room.min(end - at) as u32;
            let piece = loans.lend_shared(&memory, (at, len), borrower.lender, borrower.token)?;
            at += len as usize;
            Some(piece)
        };
        self.b.with(CLIENT, |host, cx| {
            host.send_lent(self.client, &mut LentCall::default(), total, flags, lend, cx)
        })
    }

    /// One call of `len` bytes, taken in as many parts as needed; no packet leaves meanwhile.
    pub(super) fn whole_call(&mut self, len: usize, flags: SendFlags) {
        let memory = Arc::new(vec![1; len]);
        let (mut call, mut sent) = (LentCall::default(), 0);
        while sent < len {
            let flags = SendFlags { continues: sent > 0, ..flags };
            let (loans, client) = (&mut self.loans, self.client);
            let mut at = sent;
            let lend = |room: usize, borrower: Borrower| {
                let part = (at, room.min(len - at) as u32);
                at += part.1 as usize;
                loans.lend_shared(&memory, part, borrower.lender, borrower.token)
            };
            sent += self
                .b
                .with(CLIENT, |host, cx| {
                    host.send_lent(client, &mut call, len - sent, flags, lend, cx)
                })
                .expect("room");
        }
    }

    pub(super) fn send(&mut self, len: usize) -> Result<usize, Error> {
        self.call(&[len], SendFlags::default())
    }

    pub(super) fn notice(&mut self) -> Result<Notice, Error> {
        self.b.hosts[CLIENT].take_notice(self.client)
    }

    /// One call of `len` bytes in one range, all of which is taken.
    fn make(&mut self, mut call: LentCall, len: usize) {
        let memory = Arc::new(vec![1; len]);
        let (mut at, loans) = (0, &mut self.loans);
        let lend = |room: usize, borrower: Borrower| {
            let part = (at, room.min(len - at) as u32);
            at += part.1 as usize;
            loans.lend_shared(&memory, part, borrower.lender, borrower.token)
        };
        let client = self.client;
        let sent = self.b.with(CLIENT, |host, cx| {
            host.send_lent(client, &mut call, len, SendFlags::default(), lend, cx)
        });
        assert_eq!(sent, Ok(len));
    }

    fn is_reported(&self) -> bool {
        self.b.hosts[CLIENT].readiness(self.client).contains(Readiness::ERR)
    }

    /// Reads everything that the server received; returns how many bytes.
    pub(super) fn received(&mut self) -> usize {
        let mut count = 0;
        while let Ok(bytes) = self.b.receive(SERVER, self.server) {
            if bytes.is_empty() {
                break;
            }
            count += bytes.len();
            self.b.settle();
        }
        count
    }
}

/// Goal: sending copies nothing, the peer gets every byte, and each call has a number, reported
/// when all of the call is acknowledged (gotcha 4).
#[test]
fn gotcha_04_06_and_07_calls_are_reported_when_acknowledged() {
    let mut l = Lent::new();
    assert_eq!(l.send(4000), Ok(4000));
    assert!(!l.is_reported() && l.notice() == Err(Error::WouldBlock), "gotcha 6: it never blocks");
    l.b.settle();
    assert!(l.is_reported());
    assert_eq!(l.notice(), lent(0, 0));
    assert!(!l.is_reported());
    assert_eq!(l.send(4000), Ok(4000));
    l.b.settle();
    assert_eq!(l.notice(), lent(1, 1));
    assert_eq!(l.received(), 8000);
    assert_eq!(l.loans.out_count(), 0);
    assert_eq!(l.b.copied_at(Site::SocketSend), 0);
    // Gotcha 7.
    assert_eq!(l.b.hosts[CLIENT].take_error(l.client), Ok(None));
}

/// Goal: an ACK for a part of a call reports nothing, and all of the call's memory stays lent
/// (gotcha 4).
#[test]
fn gotcha_04_an_acknowledged_part_is_not_reported() {
    let mut l = Lent::new();
    let now = l.b.now;
    let small = |options: &mut Options| options.receive_buffer = Some(4096);
    l.b.hosts[SERVER].set_options(l.server, now, small).expect("open");
    let sent = l.send(200_000).expect("there is room for some");
    l.b.settle();
    let info = l.b.hosts[CLIENT].tcp(l.client).expect("connected").info(now);
    assert!((1000..sent as u64).contains(&info.bytes_acked), "{} of {sent}", info.bytes_acked);
    assert!(!l.is_reported() && l.notice() == Err(Error::WouldBlock) && l.loans.out_count() == 1);
    assert_eq!(l.received(), sent);
    assert_eq!((l.notice(), l.loans.out_count()), (lent(0, 0), 0));
}

/// Goal: consecutive notices are joined, and each return raises an event (gotchas 1, 2 and 5).
#[test]
fn gotcha_01_02_and_05_notices_are_joined() {
    let mut l = Lent::new();
    for round in 0..3 {
        assert_eq!(l.send(1000), Ok(1000));
        l.b.settle();
        let woken =
            l.b.wakes(CLIENT)
                .iter()
                .any(|(id, what)| *id == l.client && what.contains(Readiness::ERR));
        assert!(woken, "return {round} raises no event");
    }
    l.b.hosts[CLIENT].report_copied(true);
    assert_eq!(l.send(1000), Ok(1000));
    l.b.settle();
    assert_eq!(l.notice(), lent(0, 3), "the flag of the first notice stays");
    assert_eq!(l.send(1000), Ok(1000));
    l.b.settle();
    assert_eq!(l.notice(), Ok(Notice::Lent { first: 4, last: 4, copied: true }));
    assert_eq!(l.notice(), Err(Error::WouldBlock));
}

/// Goal: calls whose bytes share a buffer share a notice, and none is reported before all of them
/// are acknowledged.
#[test]
fn gotcha_04_calls_that_share_a_buffer_share_a_notice() {
    let mut l = Lent::new();
    let cork = SendFlags { more: true, ..SendFlags::default() };
    for _ in 0..3 {
        assert_eq!(l.call(&[100], cork), Ok(100));
    }
    assert_eq!(l.call(&[100], SendFlags::default()), Ok(100));
    l.b.settle();
    assert_eq!((l.notice(), l.notice()), (lent(0, 3), Err(Error::WouldBlock)));

    // Unsent bytes at the end of the queue share the buffer, as no packet leaves meanwhile.
    let mut sent = Vec::new();
    while let Ok(count) = l.send(32 << 10) {
        sent.push(count);
        assert!(sent.len() < 1000, "the send buffer is bounded");
    }
    let whole = sent.iter().filter(|count| **count == 32 << 10).count();
    assert!(whole >= 2, "{sent:?}");
    l.b.settle();
    let mut reported = 0;
    let (mut next, mut groups) = (4, 0);
    while reported < sent.len() {
        l.received();
        l.b.settle();
        let Ok(Notice::Lent { first, last, .. }) = l.notice() else {
            panic!("{reported} reported")
        };
        assert_eq!(first, next);
        next = last + 1;
        reported += (last - first + 1) as usize;
        groups += 1;
    }
    assert!(groups >= 1 && reported == sent.len());
    assert_eq!(l.loans.out_count(), 0);
}

/// Goal: failed calls leave no gap in the numbers (gotcha 3), and nothing lent.
#[test]
fn gotcha_03_calls_that_fail_have_no_number() {
    let mut b = Bench::new();
    let client = b.stream(CLIENT);
    let server = b.listen(80, 1);
    let mut l = Lent { b, loans: Loans::new(4), server, client };
    assert_eq!(l.send(4000), Err(Error::BrokenPipe));
    assert_eq!(l.b.hosts[CLIENT].connect(client, at(80), l.b.now), Err(Error::InProgress));
    assert_eq!(l.send(4000), Err(Error::WouldBlock), "handshake in progress");
    l.b.settle();
    assert_eq!(l.b.hosts[CLIENT].connect(client, at(80), l.b.now), Ok(()));
    l.loans = Loans::new(0);
    assert_eq!(l.send(4000), Err(Error::NoBuffers), "no descriptor");
    l.loans = Loans::new(4);
    assert_eq!(l.send(4000), Ok(4000));
    l.b.settle();
    assert_eq!((l.notice(), l.notice()), (lent(0, 0), Err(Error::WouldBlock)));
}

/// Goal: notices count from the call until they are read, pages until the return (gotcha 10); at a
/// limit a call fails and lends nothing (gotcha 11).
#[test]
fn gotcha_10_and_11_limits_end_in_no_buffers() {
    let mut l = Lent::new();
    l.b.hosts[CLIENT].set_lent_limits(LentLimits { notices: NOTICE_CHARGE + 600, pages: None });
    assert_eq!(l.send(4000), Ok(4000));
    l.b.settle();
    assert_eq!(l.send(4000), Ok(4000), "the charge of one is left");
    l.b.settle();
    assert_eq!(l.send(1), Ok(1), "the second was joined to the first");
    l.b.settle();
    assert_eq!(l.notice(), lent(0, 2));

    l.b.hosts[CLIENT].set_lent_limits(LentLimits { pages: Some(8), ..LentLimits::default() });
    assert_eq!(l.send(7 * 4096), Err(Error::NoBuffers));
    assert_eq!(l.send(5 * 4096), Ok(5 * 4096));
    assert_eq!(l.send(1), Err(Error::NoBuffers), "7 pages of 8, and a call needs two");
    l.b.settle();
    assert_eq!(l.send(1), Ok(1));
    l.b.settle();
    assert_eq!(l.notice(), lent(3, 4));
    assert_eq!(l.loans.out_count(), 0);
}

/// Goal: an unread error queue ends in `NoBuffers`, however idle the link. As in Linux, the charge
/// is held until the notice is read.
#[test]
fn gotcha_10_unread_notices_use_up_the_limit() {
    let mut l = Lent::new();
    l.b.hosts[CLIENT].set_lent_limits(LentLimits { notices: 600, pages: None });
    assert_eq!(l.send(10), Ok(10));
    l.b.settle();
    assert_eq!(l.send(10), Err(Error::NoBuffers));
    assert_eq!(l.notice(), lent(0, 0));
    assert_eq!(l.send(10), Ok(10));
}

/// Goal: the limit on pages applies to all sockets together: pages that one socket lends are not
/// available to another, of another kind, until they are returned.
#[test]
fn sockets_share_the_limit_of_pages() {
    let mut l = Lent::new();
    l.b.hosts[CLIENT].set_lent_limits(LentLimits { notices: 100_000, pages: Some(4) });
    let other = l.b.datagram(CLIENT, Family::V4);
    let how = SendTo { to: Some(SocketAddr::new(v4(SERVER), 53)), ..SendTo::default() };
    let memory = Arc::new(vec![1; 4000]);
    let lend = |l: &mut Lent| {
        let Lent { b, loans, .. } = l;
        let lend = |most: usize, to: Borrower| {
            loans.lend_shared(&memory, (0, most as u32), to.lender, to.token)
        };
        b.with(CLIENT, |host, cx| host.send_lent_datagram(other, 4000, &how, lend, cx))
    };
    // A range at any offset may touch one page more than its length fills.
    assert_eq!((l.send(4000), l.send(4000)), (Ok(4000), Ok(4000)));
    assert_eq!(lend(&mut l), Err(Error::NoBuffers));
    assert_eq!(l.send(1), Err(Error::NoBuffers));
    l.b.settle();
    assert_eq!((l.notice(), l.loans.out_count()), (lent(0, 1), 0));
    assert_eq!(lend(&mut l), Ok(4000));
    assert_eq!(l.send(4000), Ok(4000));
    assert_eq!(l.send(1), Err(Error::NoBuffers));
}

/// Goal: the table of groups grows: many sockets have more calls outstanding than one of its parts
/// holds, and each gets its notices.
#[test]
fn the_table_of_groups_grows() {
    const CALLS: u32 = 160;
    let mut l = Lent::new();
    let sockets: Vec<SocketId> =
        (0..GROUPS_PER_PART as u32 / CALLS + 2).map(|_| l.b.datagram(CLIENT, Family::V4)).collect();
    let how = SendTo { to: Some(SocketAddr::new(v4(SERVER), 53)), ..SendTo::default() };
    let memory = Arc::new(vec![1; 64]);
    let calls = sockets.len() * CALLS as usize;
    let mut loans = Loans::new(calls);
    // The memory stays lent: the test holds what the calls lent.
    let mut held = Vec::new();
    for id in &sockets {
        for _ in 0..CALLS {
            let lend = |most: usize, to: Borrower| {
                let len = most.min(64) as u32;
                let piece = loans.lend_shared(&memory, (0, len), to.lender, to.token)?;
                held.push(piece.clone());
                Some(piece)
            };
            let sent =
                l.b.with(CLIENT, |host, cx| host.send_lent_datagram(*id, 64, &how, lend, cx));
            assert_eq!(sent, Ok(64));
            l.b.settle();
        }
    }
    assert!(held.len() > GROUPS_PER_PART && loans.out_count() == held.len());
    assert_eq!(l.b.hosts[CLIENT].lent_stats(l.b.now).groups, held.len());
    held.clear();
    l.b.settle();
    for id in sockets {
        let notice = l.b.hosts[CLIENT].take_notice(id);
        assert_eq!(notice, lent(0, CALLS - 1));
    }
}

/// Goal: while as many groups lend as may, calls on streams and datagram sockets copy and complete:
/// their memory is back at once, with a notice, and the peer gets every byte. Later calls lend
/// again.
#[test]
fn calls_beyond_the_groups_copy() {
    let mut l = Lent::new();
    let datagrams = l.b.datagram(CLIENT, Family::V4);
    let how = SendTo { to: Some(SocketAddr::new(v4(SERVER), 53)), ..SendTo::default() };
    let (listener, other) = (l.b.listen(81, 1), l.b.connecting(81));
    l.b.settle();
    let (peer, _) = l.b.hosts[SERVER].accept(listener, l.b.now).expect("a connection");
    l.b.hosts[CLIENT].set_lending_max(1);
    let copied = Ok(Notice::Lent { first: 0, last: 0, copied: true });

    assert_eq!((l.send(4000), l.loans.out_count()), (Ok(4000), 1));
    assert_eq!(l.b.copied_at(Site::SocketSend), 0);
    let first = (l.server, l.client);
    (l.server, l.client) = (peer, other);
    l.whole_call(3000, SendFlags::default());
    assert_eq!((l.loans.out_count(), l.notice()), (1, copied));
    let memory = Arc::new(vec![7; 2000]);
    let loans = &mut l.loans;
    let lend = |most: usize, to: Borrower| {
        loans.lend_shared(&memory, (0, most.min(2000) as u32), to.lender, to.token)
    };
    let sent =
        l.b.with(CLIENT, |host, cx| host.send_lent_datagram(datagrams, 2000, &how, lend, cx));
    assert_eq!((sent, l.loans.out_count()), (Ok(2000), 1));
    l.b.settle();
    assert_eq!(l.b.hosts[CLIENT].take_notice(datagrams), copied);
    assert_eq!((l.received(), l.b.copied_at(Site::SocketSend)), (3000, 5000));
    (l.server, l.client) = first;
    assert_eq!((l.received(), l.notice(), l.loans.out_count()), (4000, lent(0, 0), 0));
    assert_eq!((l.send(1000), l.loans.out_count()), (Ok(1000), 1));
    assert_eq!(l.b.copied_at(Site::SocketSend), 5000);
}

/// Goal: a reset returns everything at once, and the notices stay readable.
/// Goal: a call that copies has the next number, and its notice at once, while the memory of the
/// call before it, whose bytes wait in front of its own, is still lent. All bytes arrive in order.
#[test]
fn a_call_may_copy() {
    let mut l = Lent::new();
    l.make(LentCall::default(), 3000);
    l.make(LentCall::copying(), 500);
    assert_eq!(l.notice(), Ok(Notice::Lent { first: 1, last: 1, copied: true }));
    assert_eq!((l.loans.out_count(), l.b.copied_at(Site::SocketSend)), (1, 500));
    l.make(LentCall::default(), 100);
    assert_eq!(l.notice(), Err(Error::WouldBlock));
    l.b.settle();
    assert_eq!(l.notice(), lent(0, 0));
    assert_eq!(l.notice(), lent(2, 2));
    assert_eq!((l.received(), l.loans.out_count()), (3600, 0));
}

/// Goal: the outcome of a watched call is reported once, when its memory is back; also that of a
/// call whose socket is closed. Calls that share its notice do not replace it.
#[test]
fn watched_calls_report_their_outcome() {
    let mut l = Lent::new();
    let watch = |round| LentWatch { round, size: 9, began: Instant::START };
    l.make(LentCall::default().watched(watch(1)), 100);
    l.make(LentCall::default().watched(watch(2)), 100);
    assert_eq!(l.b.hosts[CLIENT].next_outcome(), None);
    l.b.settle();
    assert_eq!(l.notice(), lent(0, 1));
    assert_eq!(l.b.hosts[CLIENT].next_outcome(), Some((l.client, watch(1), false)));
    assert_eq!(l.b.hosts[CLIENT].next_outcome(), None);
    l.make(LentCall::default().watched(watch(3)), 100);
    let (client, now) = (l.client, l.b.now);
    l.b.hosts[CLIENT].close(client, now).expect("open");
    l.b.settle();
    assert_eq!(l.b.hosts[CLIENT].next_outcome(), Some((client, watch(3), false)));
}

#[test]
fn a_reset_returns_everything() {
    let mut l = Lent::new();
    for _ in 0..4 {
        assert_eq!(l.send(4 << 10), Ok(4 << 10));
    }
    let now = l.b.now;
    l.b.hosts[SERVER].disconnect(l.server, now).expect("connected");
    l.b.settle();
    assert_eq!(l.notice(), lent(0, 3));
    assert_eq!(l.loans.out_count(), 0);
    assert!(l.b.hosts[CLIENT].readiness(l.client).contains(Readiness::HUP));
}

/// Goal: `disconnect` returns everything, and numbers and notices continue (gotcha 8).
#[test]
fn gotcha_08_disconnecting_keeps_numbers_and_notices() {
    let mut l = Lent::new();
    assert_eq!((l.send(4000), l.send(4000)), (Ok(4000), Ok(4000)));
    let now = l.b.now;
    l.b.hosts[CLIENT].disconnect(l.client, now).expect("connected");
    l.b.settle();
    assert_eq!(l.loans.out_count(), 0);
    l.b.listen(81, 1);
    assert_eq!(l.b.hosts[CLIENT].connect(l.client, at(81), now), Err(Error::InProgress));
    l.b.settle();
    assert_eq!(l.send(10), Ok(10));
    l.b.settle();
    assert_eq!((l.notice(), l.notice()), (lent(0, 2), Err(Error::WouldBlock)));
}

/// Goal: after `close` the bytes are still sent, from memory that is kept until they are
/// acknowledged, without a notice (gotcha 9).
#[test]
fn gotcha_09_closing_reports_nothing_and_keeps_the_memory() {
    let mut l = Lent::new();
    assert_eq!(l.send(30_000), Ok(30_000));
    let now = l.b.now;
    l.b.hosts[CLIENT].close(l.client, now).expect("open");
    assert_eq!(l.loans.out_count(), 1);
    l.b.settle();
    assert_eq!(l.received(), 30_000);
    assert_eq!(l.loans.out_count(), 0);
    assert_eq!(l.notice(), Err(Error::BadSocket));
}

/// Goal: a buffer takes 17 ranges, then its segment is pushed; all ranges share one number (gotcha
/// 16).
#[test]
fn gotcha_16_many_small_ranges_make_several_segments() {
    let mut l = Lent::new();
    assert_eq!(l.call(&[1; 64], SendFlags::default()), Ok(64));
    l.b.settle();
    let segment = |len| (CLIENT, len, true);
    assert_eq!(l.b.segments, vec![segment(17), segment(17), segment(17), segment(13)]);
    assert_eq!(l.received(), 64);
    assert_eq!((l.notice(), l.notice()), (lent(0, 0), Err(Error::WouldBlock)));
}

/// Goal: a range of one byte costs a page of the send buffer, so that lending is bounded (gotcha
/// 17).
#[test]
fn gotcha_17_a_lent_byte_costs_a_page_of_the_send_buffer() {
    let mut l = Lent::new();
    let mut lent = 0;
    while let Ok(count) = l.call(&[1; 16], SendFlags::default()) {
        lent += count;
        assert!(lent < 4096, "the send buffer is bounded");
    }
    let buffer = l.b.hosts[CLIENT].tcp(l.client).expect("connected").send_buffer() as usize;
    assert!(lent <= buffer / 4096 + 32, "{lent} bytes of {buffer}");
}

/// Goal: numbers wrap around without a gap, and so does the notice.
#[test]
fn numbers_go_around() {
    let mut l = Lent::new();
    l.b.hosts[CLIENT].set_next_lent(l.client, u32::MAX);
    let cork = SendFlags { more: true, ..SendFlags::default() };
    assert_eq!((l.call(&[10], cork), l.send(10)), (Ok(10), Ok(10)));
    l.b.settle();
    assert_eq!(l.notice(), lent(u32::MAX, 0));
    assert_eq!(l.send(10), Ok(10));
    l.b.settle();
    assert_eq!(l.notice(), lent(1, 1));
}

/// Goal: the ledger has every byte that is sent without a copy, whatever call sends it, also with a
/// SYN or as a piece. Pool frames were copied or received: they are carried, but not lent. Bytes
/// that a call rejects do not count.
#[test]
fn all_that_is_lent_is_in_the_ledger() {
    let mut b = Bench::new();
    b.hosts[CLIENT].stack_mut().tcp_settings_mut().fastopen |= CLIENT_NO_COOKIE;
    b.listen(80, 1);
    let mut loans = Loans::new(8);
    let memory = Arc::new(vec![7; 3000]);
    let counted = |b: &mut Bench| b.with(CLIENT, |_, cx| (cx.ledger.carried(), cx.ledger.lent()));

    let client = b.stream(CLIENT);
    let with_syn = {
        let lend = |room: usize, to: Borrower| {
            loans.lend_shared(&memory, (0, room as u32), to.lender, to.token)
        };
        let (mut call, flags) = (LentCall::default(), SendFlags::default());
        let to = (client, Some(at(80)));
        b.with(CLIENT, |host, cx| {
            host.send_lent_with_syn(to, &mut call, 3000, flags, lend, cx).expect("it connects")
        })
    };
    let with_syn = with_syn.expect("it is not open yet") as u64;
    assert!((1..3000).contains(&with_syn), "the room of a segment");
    assert_eq!(counted(&mut b), (with_syn, with_syn));
    let other = b.stream(CLIENT);
    let copied = b.with(CLIENT, |host, cx| {
        let to = Some(at(80));
        host.send_with_syn(other, to, b"hello", SendFlags::default(), cx).expect("it connects")
    });
    assert_eq!(copied, Some(5));
    assert_eq!(counted(&mut b), (with_syn + 5, with_syn));
    b.settle();

    let piece = loans.lend_owned(vec![1; 100].into()).expect("a descriptor");
    let frame = b.with(CLIENT, |_, cx| cx.memory.small.take().expect("memory")).freeze(10);
    for piece in [piece.clone(), frame] {
        b.with(CLIENT, |host, cx| host.send_piece(client, piece, cx)).expect("it is open");
    }
    assert_eq!(counted(&mut b), (with_syn + 115, with_syn + 100));
    let idle = b.stream(CLIENT);
    let refused = b.with(CLIENT, |host, cx| host.send_piece(idle, piece, cx));
    assert!(refused.is_err());
    assert_eq!(counted(&mut b), (with_syn + 115, with_syn + 100));
}

/// Lends `memory` from offset `from` on, range by range.
fn ranges<'a>(
    loans: &'a mut Loans,
    memory: &'a Arc<Vec<u8>>,
    mut from: usize,
) -> impl FnMut(usize, Borrower) -> Option<Piece> + 'a {
    move |room, to| {
        let range = (from, room.min(memory.len() - from) as u32);
        from += range.1 as usize;
        loans.lend_shared(memory, range, to.lender, to.token)
    }
}

/// Goal: bytes lent with a SYN (Fast Open) are returned once, by one notice with what the call lent
/// afterwards; also if the server ignores them and they are retransmitted.
#[test]
fn what_is_lent_with_a_syn_comes_back_once() {
    for server_takes_it in [true, false] {
        let mut b = Bench::new();
        b.hosts[CLIENT].stack_mut().tcp_settings_mut().fastopen |= CLIENT_NO_COOKIE;
        if server_takes_it {
            let wanted = fastopen::SERVER | fastopen::SERVER_NO_COOKIE | fastopen::SERVER_ALL;
            b.hosts[SERVER].stack_mut().tcp_settings_mut().fastopen |= wanted;
        }
        let listener = b.listen(80, 1);
        let client = b.stream(CLIENT);
        let (mut loans, memory) = (Loans::new(8), Arc::new(vec![7; 3000]));
        let (mut call, mut done) = (LentCall::default(), 0);
        let to = (client, Some(at(80)));
        done += b.with(CLIENT, |host, cx| {
            let how = SendFlags::default();
            host.send_lent_with_syn(to, &mut call, 3000, how, ranges(&mut loans, &memory, 0), cx)
                .expect("it connects")
                .expect("it is not open yet")
        });
        b.settle();
        let (server, _) = b.hosts[SERVER].accept(listener, b.now).expect("a connection");
        let news = b.hosts[CLIENT].take_notice(client);
        assert_eq!(news, Err(Error::WouldBlock), "the call is in progress");
        done += b.with(CLIENT, |host, cx| {
            let how = SendFlags { continues: true, ..SendFlags::default() };
            let lend = ranges(&mut loans, &memory, done);
            host.send_lent(client, &mut call, 3000 - done, how, lend, cx).expect("room")
        });
        assert_eq!(done, 3000);
        drop(call);
        b.settle();
        let mut l = Lent { b, loans, server, client };
        assert_eq!(l.received(), 3000);
        assert_eq!((l.notice(), l.notice()), (lent(0, 0), Err(Error::WouldBlock)));
        assert_eq!((l.loans.out_count(), l.b.copied_at(Site::SocketSend)), (0, 0));
        let sent: usize = l.b.segments.iter().map(|(_, len, _)| len).sum();
        assert_eq!(sent > 3000, !server_takes_it, "{sent} bytes went");
    }
}

/// More than the number of pages in the largest send buffer.
const LOANS_MAX: usize = 1_100_000;

impl Lent {
    /// With the largest send buffer possible, and more descriptors than it has room for.
    fn with_largest_buffer() -> Self {
        let mut l = Self::new();
        l.loans = Loans::new(LOANS_MAX);
        let set = |options: &mut Options| {
            (options.send_buffer, options.linger) = (Some(u32::MAX), Linger::Reset);
        };
        let now = l.b.now;
        l.b.hosts[CLIENT].set_options(l.client, now, set).expect("open");
        l.b.hosts[CLIENT].set_lent_limits(LentLimits { notices: usize::MAX, pages: None });
        l
    }

    /// Closes the client with a reset, after which nothing is lent.
    fn close_at_once(&mut self) {
        let now = self.b.now;
        self.b.hosts[CLIENT].close(self.client, now).expect("open");
        self.b.settle();
        assert_eq!(self.loans.out_count(), 0);
        assert_eq!(self.notice(), Err(Error::BadSocket));
        assert_eq!(self.b.hosts[CLIENT].lent_stats(now).groups, 0);
    }
}

/// Goal: a socket closed with a million outstanding loans returns each once, and there are never
/// more than pages in the largest send buffer. Method: calls of single bytes until one is rejected;
/// a loan needs no memory here but its descriptor.
#[test]
fn a_million_loans_come_back_from_a_closed_socket() {
    const RANGES: usize = 16;
    let mut l = Lent::with_largest_buffer();
    let mut bytes = 0;
    let refused = (0..LOANS_MAX / RANGES)
        .find_map(|_| l.call(&[1; RANGES], SendFlags::default()).map(|count| bytes += count).err());
    assert_eq!(refused, Some(Error::WouldBlock));
    let out = l.loans.out_count();
    assert!(out > 1_000_000 && out <= u32::MAX as usize / 4096 && out == bytes, "{out} {bytes}");
    let stats = l.b.hosts[CLIENT].lent_stats(l.b.now);
    assert_eq!((stats.calls, stats.bytes), (bytes.div_ceil(RANGES) as u64, bytes as u64));
    l.close_at_once();
}

/// Goal: the largest send buffer takes no more bytes than sequence numbers can distinguish.
#[test]
fn the_largest_send_buffer_takes_a_gibibyte() {
    const PART: usize = 1 << 16;
    let mut l = Lent::with_largest_buffer();
    let memory = Arc::new(vec![1; PART]);
    let (client, mut bytes) = (l.client, 0);
    let refused = (0..(1 << 32) / PART).find_map(|_| {
        let loans = &mut l.loans;
        let lend = |room: usize, borrower: Borrower| {
            loans.lend_shared(&memory, (0, room.min(PART) as u32), borrower.lender, borrower.token)
        };
        let call = &mut LentCall::default();
        let sent = l.b.with(CLIENT, |host, cx| {
            host.send_lent(client, call, PART, SendFlags::default(), lend, cx)
        });
        sent.map(|count| bytes += count).err()
    });
    assert_eq!(refused, Some(Error::WouldBlock));
    assert!((1 << 30..(1 << 30) + 2 * PART).contains(&bytes), "{bytes}");
    l.close_at_once();
}
