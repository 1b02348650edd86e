//! Lent datagrams: numbers, shared notices, copies, limits. Tests that begin with `gotcha` are
//! numbered by the list of Linux behaviours that they check.

use super::bench::*;
use super::datagram::data;
use crate::pmtu_mode::PathMtu;
use crate::socket::{
    Borrower, Error, Family, LENT_RANGES_MAX, LentCall, LentLimits, NOTICE_CHARGE, Notice,
    Readiness, SendTo, SocketId,
};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::net::SocketAddr;
use towpath_packet::{Burst, Caps, Loans, Site};

/// The server has a socket at port 53; the client lends to it.
struct Lent {
    b: Bench,
    loans: Loans,
    server: SocketId,
    client: SocketId,
    to: SocketAddr,
}

/// Calls `first` to `last`, not copied.
fn lent(first: u32, last: u32) -> Result<Notice, Error> {
    Ok(Notice::Lent { first, last, copied: false })
}

fn copied(first: u32, last: u32) -> Result<Notice, Error> {
    Ok(Notice::Lent { first, last, copied: true })
}

impl Lent {
    fn over(ip: fn(usize) -> core::net::IpAddr) -> Self {
        let mut b = Bench::new();
        let to = SocketAddr::new(ip(SERVER), 53);
        let server = b.bound(to);
        let family = if to.is_ipv4() { Family::V4 } else { Family::V6 };
        let client = b.datagram(CLIENT, family);
        Self { b, loans: Loans::new(4096), server, client, to }
    }

    fn new() -> Self {
        Self::over(v4)
    }

    /// One call with ranges of the given lengths.
    fn call(&mut self, ranges: &[usize], how: SendTo) -> Result<usize, Error> {
        let total: usize = ranges.iter().sum();
        let memory = Arc::new(data(total));
        let ends: Vec<usize> = (1..=ranges.len()).map(|n| ranges[..n].iter().sum()).collect();
        let (mut at, loans) = (0, &mut self.loans);
        let lend = |room: usize, borrower: Borrower| {
            let end = ends.iter().copied().find(|end| *end > at)?;
            let len = room.min(end - at) as u32;
            let piece = loans.lend_shared(&memory, (at, len), borrower.lender, borrower.token)?;
            at += len as usize;
            Some(piece)
        };
        let how = SendTo { to: how.to.or(Some(self.to)), ..how };
        let client = self.client;
        self.b.with(CLIENT, |host, cx| host.send_lent_datagram(client, total, &how, lend, cx))
    }

    /// The rest, from `from` on, of a call for many datagrams of `size` bytes, in ranges of `range`
    /// bytes.
    fn rest(
        &mut self,
        call: &mut LentCall,
        (from, total): (usize, usize),
        (range, size): (usize, u16),
    ) -> Result<usize, Error> {
        let (memory, loans, client) = (Arc::new(data(total)), &mut self.loans, self.client);
        let lend = |at: usize, most: usize, borrower: Borrower| {
            let at = from + at;
            let len = most.min(range - at % range).min(total - at) as u32;
            loans.lend_shared(&memory, (at, len), borrower.lender, borrower.token)
        };
        let how = SendTo { to: Some(self.to), segment_size: Some(size), ..SendTo::default() };
        let left = total - from;
        self.b.with(CLIENT, |host, cx| host.send_lent_datagrams(client, call, left, &how, lend, cx))
    }

    fn send(&mut self, len: usize) -> Result<usize, Error> {
        self.call(&[len], SendTo::default())
    }

    fn more(&mut self, ranges: &[usize]) -> Result<usize, Error> {
        self.call(ranges, SendTo { more: true, ..SendTo::default() })
    }

    fn notice(&mut self) -> Result<Notice, Error> {
        self.b.hosts[CLIENT].take_notice(self.client)
    }

    fn is_reported(&self) -> bool {
        self.b.hosts[CLIENT].readiness(self.client).contains(Readiness::ERR)
    }

    fn received(&mut self) -> Result<Vec<u8>, Error> {
        Ok(self.b.take(SERVER, self.server)?.0)
    }

    fn copied_to_send(&self) -> u64 {
        self.b.copied_at(Site::SocketSend)
    }
}

/// Goal: datagrams of every size arrive whole over IPv4 and IPv6, in fragments if needed, to an
/// address and to the peer. Nothing is copied, and no notice reports a copy.
#[test]
fn lent_datagrams_arrive_whole_and_come_back() {
    for ip in [v4, v6] {
        let mut l = Lent::over(ip);
        for (number, len) in [0, 1, 1472, 1473, 9000, 65_507].into_iter().enumerate() {
            if number == 3 {
                l.b.hosts[CLIENT].connect(l.client, l.to, l.b.now).expect("route");
            }
            assert_eq!(l.send(len), Ok(len));
            l.b.settle();
            assert_eq!(l.received(), Ok(data(len)), "{len}");
            assert!(l.is_reported());
            assert_eq!(l.notice(), lent(number as u32, number as u32));
            assert!(!l.is_reported());
            // Gotcha 7.
            assert_eq!(l.b.hosts[CLIENT].take_error(l.client), Ok(None));
        }
        assert_eq!((l.copied_to_send(), l.loans.out_count(), l.b.in_use()), (0, 0, 0));
    }
}

/// Goal: a notice is extended whatever it says of copies, but only the last notice of the queue,
/// and not across an error.
#[test]
fn gotcha_01_and_02_only_the_last_notice_becomes_longer() {
    let mut l = Lent::new();
    l.b.hosts[CLIENT].set_receive_errors(l.client, Family::V4, true).expect("open socket");
    for copies in [false, true] {
        l.b.hosts[CLIENT].report_copied(copies);
        assert_eq!(l.send(10), Ok(10));
        l.b.settle();
    }
    // No socket has that port.
    let nowhere = SendTo { to: Some(at(9)), ..SendTo::default() };
    assert_eq!(l.call(&[10], nowhere), Ok(10));
    l.b.settle();
    assert_eq!(l.b.hosts[CLIENT].take_error(l.client), Ok(Some(Error::ConnectionRefused)));
    assert_eq!(l.send(10), Ok(10));
    l.b.settle();
    assert_eq!(
        l.notice(),
        lent(0, 2),
        "the first is not copied, the datagram left before the error came"
    );
    assert!(l.is_reported());
    assert!(matches!(l.notice(), Ok(Notice::Failed(failed)) if failed.remote == at(9)));
    assert_eq!(l.notice(), copied(3, 3));
    assert_eq!(l.notice(), Err(Error::WouldBlock));
    assert_eq!(l.b.hosts[CLIENT].take_error(l.client), Ok(None));
}

/// Goal: switching errors off keeps the notices.
#[test]
fn errors_are_forgotten_and_notices_stay() {
    let mut l = Lent::new();
    l.b.hosts[CLIENT].set_receive_errors(l.client, Family::V4, true).expect("open socket");
    let nowhere = SendTo { to: Some(at(9)), ..SendTo::default() };
    assert_eq!(l.call(&[10], nowhere), Ok(10));
    l.b.settle();
    l.b.hosts[CLIENT].set_receive_errors(l.client, Family::V4, false).expect("open socket");
    assert_eq!((l.notice(), l.notice()), (lent(0, 0), Err(Error::WouldBlock)));
    assert_eq!(l.b.in_use(), 0);
}

/// Goal: every failed call leaves its number to the next call, lends nothing, and returns the
/// reason; an empty datagram has a number, an empty addition has none.
#[test]
fn gotcha_03_calls_that_fail_leave_no_hole() {
    let mut l = Lent::new();
    assert_eq!(l.send(65_508), Err(Error::MessageSize));
    assert_eq!(l.call(&[1; LENT_RANGES_MAX + 1], SendTo::default()), Err(Error::MessageSize));
    let port0 = SendTo { to: Some(at(0)), ..SendTo::default() };
    assert_eq!(l.call(&[1], port0), Err(Error::Invalid));
    l.loans = Loans::new(1);
    assert_eq!(l.call(&[1, 1], SendTo::default()), Err(Error::NoBuffers), "no descriptor");
    assert_eq!(l.loans.out_count(), 0);
    l.loans = Loans::new(64);
    assert_eq!(l.send(0), Ok(0));
    l.b.settle();
    assert_eq!(l.notice(), lent(0, 0));
    assert_eq!(l.call(&[1; LENT_RANGES_MAX], SendTo::default()), Ok(LENT_RANGES_MAX));
    l.b.settle();
    assert_eq!(l.notice(), lent(1, 1));
    assert_eq!((l.more(&[]), l.more(&[]), l.send(5)), (Ok(0), Ok(0), Ok(5)));
    l.b.settle();
    assert_eq!(l.notice(), lent(2, 3), "the first begins a datagram, the second adds nothing");
    assert_eq!(l.notice(), Err(Error::WouldBlock));
    // A failed call drops the pending datagram, and its loans are reported.
    assert_eq!((l.more(&[100]), l.send(65_500)), (Ok(100), Err(Error::MessageSize)));
    l.b.settle();
    assert_eq!((l.notice(), l.notice()), (lent(4, 4), Err(Error::WouldBlock)));
    // Linux checks the segment size last, when the call has its number.
    for size in [10, 1473] {
        let cut = SendTo { segment_size: Some(size), ..SendTo::default() };
        assert!(matches!(l.call(&[2000], cut), Err(Error::Invalid | Error::MessageSize)));
    }
    l.b.settle();
    assert_eq!((l.notice(), l.notice()), (lent(5, 6), Err(Error::WouldBlock)));
    while l.received().is_ok() {}
    assert_eq!((l.loans.out_count(), l.b.in_use()), (0, 0));
}

/// Goal: each return raises an event, also if its notice was joined, and so do notices left after a
/// read; reading never blocks.
#[test]
fn gotcha_05_and_06_each_return_is_an_event() {
    let mut l = Lent::new();
    assert_eq!(l.notice(), Err(Error::WouldBlock));
    let reported = |l: &mut Lent| {
        let client = l.client;
        l.b.wakes(CLIENT).iter().any(|(id, what)| *id == client && what.contains(Readiness::ERR))
    };
    for _ in 0..3 {
        assert_eq!(l.send(1000), Ok(1000));
        l.b.settle();
        assert!(reported(&mut l));
    }
    assert_eq!(l.notice(), lent(0, 2));
    assert!(!reported(&mut l));
}

/// Goal: disconnecting a datagram socket keeps its numbers.
#[test]
fn gotcha_08_disconnecting_keeps_numbers_and_notices() {
    let mut l = Lent::new();
    l.b.hosts[CLIENT].connect(l.client, l.to, l.b.now).expect("route");
    assert_eq!(l.send(10), Ok(10));
    l.b.settle();
    l.b.hosts[CLIENT].disconnect(l.client, l.b.now).expect("open socket");
    assert_eq!(l.send(10), Ok(10));
    l.b.settle();
    assert_eq!((l.notice(), l.notice()), (lent(0, 1), Err(Error::WouldBlock)));
}

/// Goal: after `close`, lent datagrams are still sent and their memory is returned without a
/// notice; a pending datagram is dropped, and its memory is returned too.
#[test]
fn gotcha_09_closing_reports_nothing_and_keeps_the_memory() {
    let mut l = Lent::new();
    for _ in 0..10 {
        assert_eq!(l.send(1000), Ok(1000));
    }
    assert_eq!(l.more(&[1000; 3]), Ok(3000));
    l.b.hosts[CLIENT].close(l.client, l.b.now).expect("open socket");
    assert_eq!(l.loans.out_count(), 10);
    l.b.settle();
    assert_eq!(l.loans.out_count(), 0);
    assert_eq!(l.notice(), Err(Error::BadSocket));
    for _ in 0..10 {
        assert_eq!(l.received(), Ok(data(1000)));
    }
    assert_eq!((l.received(), l.b.in_use()), (Err(Error::WouldBlock), 0));
}

/// Goal: pages count from the call to the return, two more than the bytes fill; a notice counts
/// until it is read; both limits fail with `NoBuffers`.
#[test]
fn gotcha_10_and_11_limits() {
    let mut l = Lent::new();
    l.b.hosts[CLIENT].set_lent_limits(LentLimits { pages: Some(8), ..LentLimits::default() });
    assert_eq!(l.send(7 * 4096), Err(Error::NoBuffers));
    assert_eq!(l.send(5 * 4096), Ok(5 * 4096));
    assert_eq!(l.send(1), Err(Error::NoBuffers), "7 pages of 8, and a call needs two");
    l.b.settle();
    assert_eq!(l.send(1), Ok(1));
    l.b.settle();
    assert_eq!(l.notice(), lent(0, 1));
    // Two notices that cannot be joined, as an error is between them.
    let limits = LentLimits { notices: NOTICE_CHARGE + 600, pages: None };
    l.b.hosts[CLIENT].set_lent_limits(limits);
    l.b.hosts[CLIENT].set_receive_errors(l.client, Family::V4, true).expect("open socket");
    let nowhere = SendTo { to: Some(at(9)), ..SendTo::default() };
    assert_eq!(l.call(&[10], nowhere), Ok(10));
    l.b.settle();
    assert_eq!(l.b.hosts[CLIENT].take_error(l.client), Ok(Some(Error::ConnectionRefused)));
    assert_eq!(l.send(10), Ok(10));
    l.b.settle();
    assert_eq!(l.send(10), Err(Error::NoBuffers), "the error queue was never read");
    assert_eq!(l.notice(), lent(2, 2));
    // As in Linux, the next error of the queue becomes pending.
    assert_eq!(l.send(10), Err(Error::ConnectionRefused));
    assert_eq!(l.send(10), Ok(10));
    assert_eq!(l.loans.out_count(), 1);
}

/// Goal: with a device without checksum offload, the notice still comes when the datagram is gone,
/// not when the call returns. The bytes were read, not copied (gotcha 15: the checksum covers what
/// the memory holds when the packet is made).
#[test]
fn gotcha_12_and_15_without_offload_the_memory_is_lent_all_the_same() {
    let mut l = Lent::new();
    assert_eq!(l.send(1000), Ok(1000));
    let mut burst = Burst::new();
    l.b.with(CLIENT, |host, cx| host.output(&mut burst, cx));
    assert_eq!(burst.len(), 1);
    l.b.with(CLIENT, |host, cx| host.output(&mut Burst::new(), cx));
    assert_eq!((l.notice(), l.loans.out_count()), (Err(Error::WouldBlock), 1));
    drop(burst);
    l.b.settle();
    assert_eq!(l.notice(), lent(0, 0));
    assert_eq!(l.copied_to_send(), 0);
}

/// Goal: calls that add to one datagram share a notice, which comes after the datagram has left.
/// Lent bytes are not copied, also those of later calls.
#[test]
fn gotcha_18_a_datagram_has_one_notice() {
    for ip in [v4, v6] {
        let mut l = Lent::over(ip);
        for _ in 0..3 {
            assert_eq!(l.more(&[100, 200]), Ok(300));
            l.b.settle();
            assert!(!l.is_reported(), "none before the final call");
        }
        assert_eq!(l.send(100), Ok(100));
        l.b.settle();
        let expected: Vec<u8> = [data(300), data(300), data(300), data(100)].concat();
        assert_eq!(l.received(), Ok(expected));
        assert_eq!((l.notice(), l.notice()), (lent(0, 3), Err(Error::WouldBlock)));
        assert_eq!((l.copied_to_send(), l.b.in_use()), (0, 0));
    }
}

/// Goal: ranges for which a pending datagram has no room are copied, as is everything behind copied
/// bytes. The notice reports this for all calls that share it, and only for these (gotchas 13 and
/// 14).
#[test]
fn gotcha_13_and_14_what_is_copied_is_said() {
    let mut l = Lent::new();
    let ranges = [10; 14];
    assert_eq!((l.more(&ranges), l.more(&[10, 10])), (Ok(140), Ok(20)));
    assert_eq!(l.copied_to_send(), 20);
    assert_eq!(l.send(60_000), Ok(60_000));
    assert_eq!(l.copied_to_send(), 60_020);
    assert_eq!(l.send(10), Ok(10));
    l.b.settle();
    assert_eq!(l.received(), Ok([data(140), data(20), data(60_000)].concat()));
    assert_eq!(l.notice(), copied(0, 3), "the flag of the first notice of a range");
    assert_eq!(l.send(10), Ok(10));
    l.b.settle();
    assert_eq!(l.notice(), lent(4, 4));

    // Lending and copying calls in one datagram, in either order.
    for first_lent in [true, false] {
        let how = SendTo { to: Some(l.to), more: true, ..SendTo::default() };
        let (client, plain) = (l.client, data(50));
        let copy = |l: &mut Lent| {
            l.b.with(CLIENT, |host, cx| host.send_datagram(client, &[&plain], &how, cx))
        };
        if first_lent {
            assert_eq!((l.more(&[10]), copy(&mut l)), (Ok(10), Ok(50)));
        } else {
            assert_eq!((copy(&mut l), l.more(&[10])), (Ok(50), Ok(10)));
        }
        l.b.with(CLIENT, |host, cx| host.push_datagram(client, cx)).expect("it waits");
        l.b.settle();
        assert_eq!(l.notice(), if first_lent { lent(5, 5) } else { copied(6, 6) });
    }
    assert_eq!((l.loans.out_count(), l.b.hosts[CLIENT].has_pending_datagram(l.client)), (0, false));
}

/// Goal: a lent byte costs a page of the send buffer, so that lending is bounded.
#[test]
fn gotcha_17_a_lent_byte_costs_a_page_of_the_send_buffer() {
    let mut l = Lent::new();
    let mut calls = 0;
    while l.call(&[1; 16], SendTo::default()).is_ok() {
        calls += 1;
        assert!(calls < 1000, "the send buffer is bounded");
    }
    assert_eq!(calls, 212_992 / (16 * 4096 + 768) + 1);
    l.b.settle();
    assert_eq!(l.notice(), lent(0, calls - 1));
}

/// Goal: a super-packet is one call, segmented without a copy, or handed to a device with USO.
#[test]
fn super_packets_are_lent() {
    for uso in [false, true] {
        let mut l = Lent::new();
        let cut = SendTo { segment_size: Some(1000), ..SendTo::default() };
        if uso {
            let caps = Caps { checksum: true, uso, gso_bytes_max: 65_549, ..Caps::plain(1500) };
            l.b.hosts[CLIENT].stack_mut().set_caps(caps);
        }
        assert_eq!(l.call(&[300; 17], cut), Ok(5100));
        if uso {
            let mut burst = Burst::new();
            l.b.with(CLIENT, |host, cx| host.output(&mut burst, cx));
            let packet = burst.pop().expect("one");
            assert_eq!((packet.payload_len(), burst.is_empty()), (5100, true));
            assert_eq!(packet.offload().gso.map(|gso| gso.size.get()), Some(1000));
        } else {
            l.b.settle();
            let sizes: Vec<usize> =
                core::iter::from_fn(|| l.received().ok()).map(|bytes| bytes.len()).collect();
            assert_eq!(sizes, vec![1000, 1000, 1000, 1000, 1000, 100]);
        }
        l.b.settle();
        assert_eq!((l.notice(), l.notice()), (lent(0, 0), Err(Error::WouldBlock)));
        assert_eq!((l.copied_to_send(), l.loans.out_count()), (0, 0));
    }
}

/// Goal: a call for more datagrams than a super-packet takes, or than there is room for at once,
/// sends all of them whole and in order, whatever their ranges. It has one number, and is reported
/// once, when it ends.
#[test]
fn many_datagrams_are_one_call() {
    for (total, range) in [(400_500, 400_500), (65_001, 65_000), (30_000, 300), (999, 999), (0, 1)]
    {
        let mut l = Lent::new();
        let now = l.b.now;
        let room = |options: &mut crate::socket::Options| options.receive_buffer = Some(8 << 20);
        l.b.hosts[SERVER].set_options(l.server, now, room).expect("open socket");
        let (mut call, mut sent, mut received, mut calls) = (LentCall::default(), 0, Vec::new(), 0);
        while calls == 0 || sent < total {
            sent += l.rest(&mut call, (sent, total), (range, 1000)).expect("there is room again");
            calls += 1;
            l.b.settle();
            while let Ok(bytes) = l.received() {
                assert!(bytes.len() == 1000 || received.len() + bytes.len() == total);
                received.extend(bytes);
            }
            assert_eq!(l.notice(), Err(Error::WouldBlock), "the call is in progress");
        }
        assert_eq!((sent, received == data(total)), (total, true));
        assert!(calls > 1 || total < 200_000, "no room for all at once");
        drop(call);
        l.b.settle();
        assert_eq!((l.notice(), l.notice()), (lent(0, 0), Err(Error::WouldBlock)));
        assert_eq!((l.copied_to_send(), l.loans.out_count(), l.b.in_use()), (0, 0, 0));
    }
}

/// Goal: of many datagrams, those that cannot be sent are not sent. Cases: one with too many
/// ranges, first and in the middle; segments larger than the MTU; an error that arrives in between,
/// which is for the next call; a pending datagram, which cannot exceed one datagram.
#[test]
fn many_datagrams_stop_at_what_cannot_be_sent() {
    let mut l = Lent::new();
    let call = &mut LentCall::default();
    assert_eq!(l.rest(call, (0, 5000), (50, 1000)), Err(Error::MessageSize));
    assert_eq!((l.loans.out_count(), l.b.hosts[CLIENT].next_lent(l.client)), (0, Ok(0)));
    // As in Linux, such a call has a number.
    let call = &mut LentCall::default();
    assert_eq!(l.rest(call, (0, 70_000), (70_000, 1473)), Err(Error::MessageSize));
    l.b.settle();
    assert_eq!((l.loans.out_count(), l.notice()), (0, lent(0, 0)));
    // No socket has this port.
    l.to.set_port(9);
    l.b.hosts[CLIENT].connect(l.client, l.to, l.b.now).expect("route");
    let call = &mut LentCall::default();
    let sent = l.rest(call, (0, 400_000), (400_000, 1000)).expect("room");
    l.b.settle();
    assert_eq!(l.rest(call, (sent, 400_000), (400_000, 1000)), Ok(0));
    assert_eq!(l.b.hosts[CLIENT].take_error(l.client), Ok(Some(Error::ConnectionRefused)));
    l.more(&[10]).expect("waits");
    let call = &mut LentCall::default();
    assert_eq!(l.rest(call, (0, 70_000), (70_000, 1000)), Err(Error::MessageSize));
}

/// Goal: numbers wrap around without a gap.
#[test]
fn numbers_go_around() {
    let mut l = Lent::new();
    l.b.hosts[CLIENT].set_next_lent(l.client, u32::MAX);
    assert_eq!((l.more(&[10]), l.send(10), l.send(10)), (Ok(10), Ok(10), Ok(10)));
    l.b.settle();
    assert_eq!((l.notice(), l.notice()), (lent(u32::MAX, 1), Err(Error::WouldBlock)));
}

/// Goal: a socket without fragmentation lends nothing for a datagram that is too long.
#[test]
fn what_may_not_be_fragmented_is_not_lent() {
    let mut l = Lent::new();
    let now = l.b.now;
    let change = |options: &mut crate::socket::Options| options.path_mtu = PathMtu::Do;
    l.b.hosts[CLIENT].set_options(l.client, now, change).expect("open socket");
    assert_eq!((l.send(1473), l.loans.out_count()), (Err(Error::MessageSize), 0));
    assert_eq!(l.send(1472), Ok(1472));
    l.b.settle();
    assert_eq!((l.notice(), l.received()), (lent(0, 0), Ok(data(1472))));
}
