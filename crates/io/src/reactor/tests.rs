//! Readiness, wake-ups and deadlines over pipes.

use super::*;
use rustix::pipe::{PipeFlags, pipe_with};

const SOON: Option<Duration> = Some(Duration::from_secs(30));
const NOW: Option<Duration> = Some(Duration::ZERO);

fn pipe() -> (OwnedFd, OwnedFd) {
    pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).expect("a pipe")
}

fn wait(reactor: &mut Reactor, timeout: Option<Duration>) -> Vec<Event> {
    let mut events = Events::new();
    reactor.wait(timeout, &mut events).expect("wait");
    assert_eq!(events.len(), events.iter().count());
    events.iter().collect()
}

/// One reactor with exact timeouts, and one that waits as on kernels without them.
fn reactors() -> [Reactor; 2] {
    let exact = Reactor::new().expect("epoll");
    let mut rounded = Reactor::new().expect("epoll");
    rounded.exact = false;
    [exact, rounded]
}

#[test]
fn reports_readable_writable_and_hangup_with_the_token() {
    for mut reactor in reactors() {
        let (reader, writer) = pipe();
        let token = u64::MAX - 1;
        reactor.add(&reader, token, Interest::READ, false).expect("add");
        assert!(wait(&mut reactor, NOW).is_empty());
        reactor.add(&writer, 2, Interest::WRITE, false).expect("add");
        let events = wait(&mut reactor, SOON);
        assert_eq!(events.len(), 1);
        assert!(events[0].token == 2 && events[0].ready.writable && !events[0].ready.readable);

        reactor.modify(&writer, 3, Interest::NONE, false).expect("modify");
        rustix::io::write(&writer, b"x").expect("room");
        let events = wait(&mut reactor, SOON);
        assert_eq!(events.len(), 1);
        assert!(events[0].token == token && events[0].ready.readable && !events[0].ready.hangup);

        drop(writer);
        let events = wait(&mut reactor, SOON);
        assert!(events[0].token == token && events[0].ready.hangup);
        reactor.remove(&reader).expect("remove");
        assert!(wait(&mut reactor, NOW).is_empty());
    }
}

#[test]
fn an_edge_is_reported_once_and_a_level_again() {
    let mut reactor = Reactor::new().expect("epoll");
    let (edge_reader, edge_writer) = pipe();
    let (level_reader, level_writer) = pipe();
    reactor.add(&edge_reader, 1, Interest::READ, true).expect("add");
    reactor.add(&level_reader, 2, Interest::READ, false).expect("add");
    for writer in [&edge_writer, &level_writer] {
        rustix::io::write(writer, b"x").expect("room");
    }
    assert_eq!(wait(&mut reactor, SOON).len(), 2);
    let tokens: Vec<_> = wait(&mut reactor, SOON).iter().map(|event| event.token).collect();
    assert_eq!(tokens, [2]);
    rustix::io::write(&edge_writer, b"x").expect("room");
    assert_eq!(wait(&mut reactor, SOON).len(), 2);
}

/// Goal: ready files that do not fit into one wait are reported by the next ones.
#[test]
fn all_files_have_their_turn() {
    let mut reactor = Reactor::new().expect("epoll");
    let pipes: Vec<_> = (0..EVENTS_MAX + 10).map(|_| pipe()).collect();
    for (index, (reader, writer)) in pipes.iter().enumerate() {
        rustix::io::write(writer, b"x").expect("room");
        reactor.add(reader, index as u64, Interest::READ, true).expect("add");
    }
    let mut seen = vec![false; pipes.len()];
    for _ in 0..3 {
        wait(&mut reactor, NOW).iter().for_each(|event| seen[event.token as usize] = true);
    }
    assert!(seen.iter().all(|&seen| seen));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "measures how long a wait lasts")]
fn a_timeout_is_never_early_and_short_ones_are_short() {
    for (mut reactor, slack) in reactors().into_iter().zip([0, 1]) {
        let timeout = Duration::from_micros(300);
        let (mut shortest, mut begin) = (Duration::MAX, std::time::Instant::now());
        let short = timeout + Duration::from_millis(1 + slack);
        // Repeat until one round was not delayed by other load on the machine.
        for round in 0..2000 {
            if round >= 20 && shortest < short {
                break;
            }
            assert!(wait(&mut reactor, Some(timeout)).is_empty());
            let end = std::time::Instant::now();
            assert!(end - begin >= timeout);
            shortest = shortest.min(end - begin);
            begin = std::time::Instant::now();
        }
        assert!(shortest < short, "{shortest:?}");
    }
    assert_eq!(milliseconds(Some(Duration::from_nanos(1))), 1);
    assert_eq!(milliseconds(Some(Duration::from_millis(7))), 7);
    assert_eq!(milliseconds(Some(Duration::MAX)), i32::MAX);
    assert_eq!(milliseconds(None), -1);
}
