//! Multishot receives with buffers of groups, on streams of towpath and of the kernel.

use super::kernel_streams::tcp;
use super::sockets::{connection, hosts};
use super::{Case, PATIENCE, config, errno, now, one, queue, wait};
use crate::taken::Taken;
use rustix::io::Errno;
use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};
use towpath::events::{
    Choice, Config, EventKind, EventQueue, GROUP_BUFFERS_MAX, GROUPS_MAX, Group, Stream, Token,
};
use towpath::host::{Host, Part};

pub(super) const CASES: &[Case] = &[
    ("each_arrival_fills_a_buffer_of_the_group", arrivals),
    ("a_receive_without_buffers_pauses_and_goes_on", starved),
    ("buffers_go_to_those_who_wait_for_them", shared),
    ("a_buffer_that_is_left_goes_to_the_next_in_line", left),
    ("a_multishot_receive_ends_with_its_stream", ends),
    ("a_multishot_receive_is_cancelled_or_late", stopped),
    ("buffers_that_nobody_took_are_the_groups_again", forgotten),
    ("what_is_wrong_with_groups", wrong),
    ("a_group_has_buffers_of_several_types", of_other_types),
    ("a_queue_may_go_before_its_groups", dropped),
];

/// A stream of either stack, its other end, and the hosts that they need.
struct Pair {
    stream: Stream,
    peer: Stream,
    _hosts: Option<(Host, Host)>,
}

fn pairs() -> [Pair; 2] {
    let hosts = hosts();
    let (stream, peer) = connection(&hosts);
    let towpath = Pair { stream: stream.into(), peer: peer.into(), _hosts: Some(hosts) };
    let (stream, peer) = tcp();
    [towpath, Pair { stream: stream.into(), peer: peer.into(), _hosts: None }]
}

impl Pair {
    /// Sends a few bytes, for which there is room.
    fn sends(&self, bytes: &[u8]) {
        assert_eq!(self.peer.try_send(bytes).unwrap(), bytes.len());
    }
}

fn group(queue: &mut EventQueue, count: usize, len: usize) -> Group {
    queue.add_group(vec![vec![0; len]; count]).unwrap()
}

/// Waits for the next event, which must be of this receive.
fn next(queue: &mut EventQueue, token: Token) -> EventKind {
    let mut events = Vec::new();
    queue.wait_many(&mut events, 1..=1, Some(Instant::now() + PATIENCE)).unwrap();
    assert_eq!((events[0].token, events[0].data, events[0].is_over), (token, 9, false));
    events[0].kind
}

/// Takes received bytes, checks them, and gives the buffer back.
fn take(queue: &mut EventQueue, (token, group): (Token, Group), expected: &[u8]) {
    let received = queue.take_received(token).unwrap().unwrap();
    assert_eq!(&received.buffer[..received.len], expected);
    queue.give(group, received.buffer).unwrap();
}

/// Checks that the end is reported and taken once, and returns it.
fn end(queue: &mut EventQueue, token: Token) -> io::Result<()> {
    assert_eq!(next(queue, token), EventKind::Completed);
    assert_eq!(now(queue), []);
    queue.cancel(token).unwrap();
    let result = queue.take_received(token).unwrap();
    assert!(queue.take_received(token).is_none() && queue.is_empty());
    assert_eq!(errno(queue.cancel(token)), Errno::STALE);
    result.map(|received| assert!(received.len == 0 && received.buffer.is_empty()))
}

/// Goal: removing a receive gives its filled buffers that were not taken back to the group.
fn forgotten(choice: Choice) {
    for pair in pairs() {
        let mut queue = queue(choice);
        let group = group(&mut queue, 2, 100);
        let token = queue.receive_multishot(&pair.stream, group, None, 9).unwrap();
        assert_eq!(now(&mut queue), []);
        pair.sends(b"hello");
        assert_eq!(next(&mut queue, token), EventKind::Received { bytes: 5 });
        queue.cancel(token).unwrap();
        assert_eq!(next(&mut queue, token), EventKind::Completed);
        queue.remove(token).unwrap();
        assert!(queue.take_received(token).is_none());
        assert_eq!(queue.remove_group(group).unwrap().len(), 2);
    }
}

/// Goal: one registration yields many completions, with the same few buffers.
fn arrivals(choice: Choice) {
    for pair in pairs() {
        let mut queue = queue(choice);
        let group = group(&mut queue, 2, 100);
        let token = queue.receive_multishot(&pair.stream, group, None, 9).unwrap();
        assert_eq!(now(&mut queue), []);
        let mut addresses = HashSet::new();
        for turn in 0..20_u8 {
            pair.sends(&[turn; 7]);
            assert_eq!(next(&mut queue, token), EventKind::Received { bytes: 7 });
            let received = queue.take_received(token).unwrap().unwrap();
            assert_eq!((&received.buffer[..7], received.len), (&[turn; 7][..], 7));
            assert_eq!(received.buffer.len(), 100);
            addresses.insert(received.buffer.as_ptr());
            queue.give(group, received.buffer).unwrap();
            assert!(queue.take_received(token).is_none());
        }
        assert!(addresses.len() <= 2, "nothing is allocated");
        assert_eq!(errno(queue.remove(token)), Errno::BUSY);
        // More bytes than fit into a buffer arrive in several, in order, also if they are taken
        // late.
        let sent: Vec<u8> = (0..180).collect();
        pair.sends(&sent);
        let mut reported = 0;
        while reported < sent.len() {
            let EventKind::Received { bytes } = next(&mut queue, token) else {
                panic!("{reported}")
            };
            reported += bytes;
            if reported < sent.len() {
                continue;
            }
            let mut got = Vec::new();
            while let Some(received) = queue.take_received(token) {
                let received = received.unwrap();
                got.extend_from_slice(&received.buffer[..received.len]);
                queue.give(group, received.buffer).unwrap();
            }
            assert_eq!(got, sent);
        }
        pair.peer.shutdown(Shutdown::Write).unwrap();
        end(&mut queue, token).unwrap();
        assert_eq!(queue.remove_group(group).unwrap().len(), 2);
    }
}

/// Goal: a lack of buffers is reported once; nothing is lost and nothing fails.
fn starved(choice: Choice) {
    for pair in pairs() {
        let mut queue = queue(choice);
        let group = group(&mut queue, 0, 0);
        let token = queue.receive_multishot(&pair.stream, group, None, 9).unwrap();
        assert_eq!(now(&mut queue), [], "there is nothing to receive");
        pair.sends(b"abcdefgh");
        assert_eq!(next(&mut queue, token), EventKind::Starved);
        pair.sends(b"ijkl");
        assert_eq!(now(&mut queue), [], "it was reported");
        queue.give(group, vec![0; 4]).unwrap();
        for (at, expected) in [b"abcd", b"efgh", b"ijkl"].into_iter().enumerate() {
            if at > 0 {
                assert_eq!(next(&mut queue, token), EventKind::Starved);
                queue.give(group, vec![0; 4]).unwrap();
            }
            assert_eq!(next(&mut queue, token), EventKind::Received { bytes: 4 });
            let received = queue.take_received(token).unwrap().unwrap();
            assert_eq!(received.buffer, expected);
        }
        assert_eq!(now(&mut queue), []);
        queue.give(group, vec![0; 4]).unwrap();
        assert_eq!(now(&mut queue), []);
        pair.sends(b"m");
        assert_eq!(next(&mut queue, token), EventKind::Received { bytes: 1 });
        assert_eq!(queue.take_received(token).unwrap().unwrap().buffer[0], b'm');
        // The end needs no buffer.
        assert_eq!(now(&mut queue), []);
        pair.peer.shutdown(Shutdown::Write).unwrap();
        end(&mut queue, token).unwrap();
        assert!(queue.remove_group(group).unwrap().is_empty());
    }
}

/// Goal: two receives of one group get their buffers in turn.
fn shared(choice: Choice) {
    for (one_pair, other) in pairs().into_iter().zip(pairs()) {
        let mut queue = queue(choice);
        let group = group(&mut queue, 1, 4);
        let tokens = [&one_pair, &other]
            .map(|pair| queue.receive_multishot(&pair.stream, group, None, 9).unwrap());
        one_pair.sends(b"0000");
        assert_eq!(next(&mut queue, tokens[0]), EventKind::Received { bytes: 4 });
        other.sends(b"1111");
        assert_eq!(next(&mut queue, tokens[1]), EventKind::Starved);
        one_pair.sends(b"2222");
        assert_eq!(next(&mut queue, tokens[0]), EventKind::Starved);
        for (token, bytes) in [(tokens[0], b"0000"), (tokens[1], b"1111"), (tokens[0], b"2222")] {
            take(&mut queue, (token, group), bytes);
            if bytes != b"2222" {
                let event = one(&mut queue);
                assert_eq!(event.kind, EventKind::Received { bytes: 4 });
                assert_ne!(event.token, token);
            }
        }
        assert_eq!(now(&mut queue), []);
        assert_eq!(errno(queue.remove_group(group)), Errno::BUSY);
        for token in tokens {
            queue.cancel(token).unwrap();
            assert_eq!(next(&mut queue, token), EventKind::Completed);
            assert_eq!(errno(queue.take_received(token).unwrap()), Errno::CANCELED);
        }
        assert_eq!(queue.remove_group(group).unwrap().len(), 1);
    }
}

/// Goal: a receive that finds no bytes when its buffer arrives leaves the buffer to the next
/// receive, and so does a cancelled one; no wake-up is lost.
fn left(choice: Choice) {
    for cancels in [false, true] {
        for (one_pair, other) in pairs().into_iter().zip(pairs()) {
            let mut queue = queue(choice);
            let group = group(&mut queue, 0, 0);
            let tokens = [&one_pair, &other]
                .map(|pair| queue.receive_multishot(&pair.stream, group, None, 9).unwrap());
            for (token, pair) in tokens.into_iter().zip([&one_pair, &other]) {
                pair.sends(b"byte");
                assert_eq!(next(&mut queue, token), EventKind::Starved);
            }
            if cancels {
                queue.cancel(tokens[0]).unwrap();
            } else {
                assert_eq!(one_pair.stream.try_receive(&mut [0; 9]).unwrap(), 4);
            }
            queue.give(group, vec![0; 9]).unwrap();
            if cancels {
                assert_eq!(next(&mut queue, tokens[0]), EventKind::Completed);
            }
            assert_eq!(next(&mut queue, tokens[1]), EventKind::Received { bytes: 4 });
            take(&mut queue, (tokens[1], group), b"byte");
        }
    }
}

fn ends(choice: Choice) {
    for pair in pairs() {
        let mut queue = queue(choice);
        let group = group(&mut queue, 3, 100);
        let token = queue.receive_multishot(&pair.stream, group, None, 9).unwrap();
        pair.sends(b"last");
        assert_eq!(next(&mut queue, token), EventKind::Received { bytes: 4 });
        pair.peer.shutdown(Shutdown::Write).unwrap();
        assert_eq!(next(&mut queue, token), EventKind::Completed);
        // Bytes reported before are taken first.
        take(&mut queue, (token, group), b"last");
        assert_eq!(queue.take_received(token).unwrap().unwrap().len, 0);
        assert!(queue.is_empty());
        // Ended already; removing it without taking the result leaves the buffers in the group.
        let token = queue.receive_multishot(&pair.stream, group, None, 9).unwrap();
        assert_eq!(next(&mut queue, token), EventKind::Completed);
        queue.remove(token).unwrap();
        assert_eq!(queue.remove_group(group).unwrap().len(), 3);
    }
    // A peer that closes with unread bytes resets.
    for pair in pairs() {
        let mut queue = queue(choice);
        let group = group(&mut queue, 3, 100);
        assert_eq!(pair.stream.try_send(b"unread").unwrap(), 6);
        let token = queue.receive_multishot(&pair.stream, group, None, 9).unwrap();
        let mut byte = [0];
        until(|| pair.peer.try_receive(&mut byte).is_ok());
        drop(pair.peer);
        assert_eq!(errno(end(&mut queue, token)), Errno::CONNRESET);
        assert_eq!(queue.remove_group(group).unwrap().len(), 3);
    }
}

/// Repeats until the condition holds.
fn until(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "it never was");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn stopped(choice: Choice) {
    for pair in pairs() {
        let mut queue = queue(choice);
        let group = group(&mut queue, 1, 100);
        let token = queue.receive_multishot(&pair.stream, group, None, 9).unwrap();
        pair.sends(b"told");
        assert_eq!(next(&mut queue, token), EventKind::Received { bytes: 4 });
        queue.cancel(token).unwrap();
        pair.sends(b"kept");
        take(&mut queue, (token, group), b"told");
        assert_eq!(errno(end(&mut queue, token)), Errno::CANCELED);
        let soon = Some(Instant::now() + Duration::from_millis(5));
        let late = queue.receive_multishot(&pair.stream, group, Some(Instant::now()), 9).unwrap();
        assert_eq!(errno(end(&mut queue, late)), Errno::TIMEDOUT);
        let token = queue.receive_multishot(&pair.stream, group, None, 9).unwrap();
        assert_eq!(next(&mut queue, token), EventKind::Received { bytes: 4 });
        take(&mut queue, (token, group), b"kept");
        queue.cancel(token).unwrap();
        assert_eq!(errno(end(&mut queue, token)), Errno::CANCELED);
        let late = queue.receive_multishot(&pair.stream, group, soon, 9).unwrap();
        assert_eq!(errno(end(&mut queue, late)), Errno::TIMEDOUT);
    }
}

fn wrong(choice: Choice) {
    let mut queue = EventQueue::with(&Config { registrations: 1, ..config(choice) }).unwrap();
    let [pair, _] = pairs();
    let (error, buffers) = queue.add_group(vec![vec![1], vec![]]).unwrap_err();
    assert_eq!((errno::<()>(Err(error)), buffers), (Errno::INVAL, vec![vec![1], vec![]]));
    let (error, buffers) = queue.add_group(vec![vec![1]; GROUP_BUFFERS_MAX + 1]).unwrap_err();
    assert_eq!((errno::<()>(Err(error)), buffers.len()), (Errno::NOSPC, GROUP_BUFFERS_MAX + 1));
    let full = queue.add_group(vec![vec![1]; GROUP_BUFFERS_MAX]).unwrap();
    let refused = queue.give(full, vec![7]).unwrap_err();
    assert_eq!((errno::<()>(Err(refused.error)), refused.buffer), (Errno::NOSPC, vec![7]));
    let gone = group(&mut queue, 2, 3);
    let free = queue.remove_group(gone).unwrap().into_iter();
    let free = free.map(|buffer| buffer.downcast().expect("a vector"));
    assert_eq!(free.collect::<Vec<Vec<u8>>>(), [[0; 3]; 2]);
    assert_eq!(errno(queue.remove_group(gone)), Errno::STALE);
    let other = group(&mut queue, 1, 3);
    assert_ne!(gone, other, "a name is not used again");
    for (group, buffer, expected) in [(gone, vec![7], Errno::STALE), (other, vec![], Errno::INVAL)]
    {
        let refused = queue.give(group, buffer.clone()).unwrap_err();
        assert_eq!((errno::<()>(Err(refused.error)), refused.buffer), (expected, buffer));
    }
    assert_eq!(errno(queue.receive_multishot(&pair.stream, gone, None, 9)), Errno::STALE);
    let token = queue.receive_multishot(&pair.stream, other, None, 9).unwrap();
    assert_eq!(errno(queue.receive_multishot(&pair.stream, other, None, 9)), Errno::NOSPC);
    assert_eq!(errno(queue.remove_group(other)), Errno::BUSY);
    queue.cancel(token).unwrap();
    assert_eq!(errno(end(&mut queue, token)), Errno::CANCELED);
    assert_eq!(queue.remove_group(other).unwrap().len(), 1);
    let token = queue.receive(&pair.stream, vec![0; 4], None, 9).unwrap();
    assert!(queue.take_received(token).is_none());
    let groups: Vec<_> = (1..GROUPS_MAX).map(|_| group(&mut queue, 0, 0)).collect();
    assert_eq!(
        errno(queue.add_group(Vec::<Vec<u8>>::new()).map_err(|(error, _)| error)),
        Errno::NOSPC
    );
    assert!(queue.remove_group(groups[5]).unwrap().is_empty());
    group(&mut queue, 0, 0);
    queue.cancel(token).unwrap();
    assert_eq!(wait(&mut queue).len(), 1);
}

/// Goal: a group may have buffers of several types, and each comes back as it was given.
fn of_other_types(choice: Choice) {
    for pair in pairs() {
        let mut queue = queue(choice);
        let part = Part::new(vec![7; 8], 2..5).unwrap();
        let group = queue.add_group(vec![part]).unwrap();
        let token = queue.receive_multishot(&pair.stream, group, None, 9).unwrap();
        pair.sends(b"abcdef");
        assert_eq!(next(&mut queue, token), EventKind::Received { bytes: 3 });
        let completion = queue.take(token).unwrap();
        let completion = *completion.into_received_buffer::<Vec<u8>>().unwrap_err();
        let received =
            completion.into_received_buffer::<Part<Vec<u8>>>().unwrap().unwrap().unwrap();
        assert_eq!(received.len, 3);
        assert_eq!(received.buffer.into_buffer(), [7, 7, b'a', b'b', b'c', 7, 7, 7]);
        assert_eq!(next(&mut queue, token), EventKind::Starved);
        let empty = Part::new(vec![0; 8], 2..2).unwrap();
        let refused = queue.give(group, empty.clone()).unwrap_err();
        assert_eq!((errno::<()>(Err(refused.error)), refused.buffer), (Errno::INVAL, empty));
        queue.give(group, Box::new([0; 2])).unwrap();
        assert_eq!(next(&mut queue, token), EventKind::Received { bytes: 2 });
        let received = queue.take(token).unwrap().into_received_buffer::<Box<[u8; 2]>>();
        assert_eq!(*received.unwrap().unwrap().unwrap().buffer, *b"de");
        queue.give(group, vec![0; 4]).unwrap();
        assert_eq!(next(&mut queue, token), EventKind::Received { bytes: 1 });
        let received = queue.take(token).unwrap().into_received_buffer::<Vec<u8>>();
        assert_eq!(received.unwrap().unwrap().unwrap().buffer, b"f\0\0\0");
        queue.cancel(token).unwrap();
        wait(&mut queue);
        let ended = queue.take(token).unwrap().into_received_buffer::<Vec<u8>>().unwrap();
        assert_eq!(errno(ended.map(drop)), Errno::CANCELED);
        assert!(queue.remove_group(group).unwrap().is_empty());
    }
}

fn dropped(choice: Choice) {
    for pair in pairs() {
        let mut queue = queue(choice);
        let group = group(&mut queue, 1, 4);
        let token = queue.receive_multishot(&pair.stream, group, None, 9).unwrap();
        pair.sends(b"abcdefgh");
        assert_eq!(next(&mut queue, token), EventKind::Received { bytes: 4 });
        drop(queue);
        let mut rest = [0; 9];
        let mut count = 0;
        until(|| {
            count = pair.stream.try_receive(&mut rest).unwrap_or(0);
            count > 0
        });
        assert_eq!(&rest[..count], b"efgh");
    }
    // The queue keeps a socket open during a receive, even if the program has closed it.
    let (stream, mut peer) = tcp();
    let mut queue = queue(choice);
    let group = group(&mut queue, 1, 4);
    let token = queue.receive_multishot(stream, group, None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    peer.write_all(b"here").unwrap();
    assert_eq!(next(&mut queue, token), EventKind::Received { bytes: 4 });
    queue.cancel(token).unwrap();
    take(&mut queue, (token, group), b"here");
    assert_eq!(errno(end(&mut queue, token)), Errno::CANCELED);
    assert_eq!(peer.read(&mut [0]).unwrap(), 0, "it was closed with the registration");
}
