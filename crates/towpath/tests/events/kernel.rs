//! File descriptors of the kernel, signals and child processes.

use super::{Case, PATIENCE, now, one, queue, ready, wait};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, read, write};
use rustix::pipe::{PipeFlags, pipe_with};
use std::io::{Read, Write};
use std::ops::RangeInclusive;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use towpath::events::{Change, Choice, EventKind, EventQueue, Exit, Interest, Source, Trigger};

pub(super) const CASES: &[Case] = &[
    ("a_level_is_reported_as_long_as_it_holds", level),
    ("an_edge_is_reported_once_for_each_event", edge),
    ("one_shot_is_reported_until_modified_once", one_shot),
    ("what_is_not_asked_for_is_not_reported", interest),
    ("the_peer_that_closes_is_reported", peer_closed),
    ("a_removed_source_is_closed_and_silent", removal),
    ("stale_tokens_are_refused", stale),
    ("one_file_may_be_added_twice", twice),
    ("files_on_disk_are_refused", disk),
    ("at_least_as_many_as_asked", at_least),
    ("changes_in_a_batch_stand_for_themselves", batch),
    ("signals_are_reported", signals),
    ("the_end_of_a_child_is_reported", children),
    ("a_child_of_a_fork_cannot_use_it", fork),
    ("a_queue_may_move_to_another_thread", moved),
    ("a_queue_may_move_from_a_thread_that_is_busy", moved_from_a_busy_thread),
    ("what_was_left_over_is_looked_at_again", left_over),
    ("a_queue_waits_for_another", nested),
    ("the_descriptor_is_readable_while_events_wait", descriptor),
    ("what_is_removed_amid_events_is_closed", removed_amid_events),
];

fn pipe() -> (OwnedFd, OwnedFd) {
    pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap()
}

fn level(choice: Choice) {
    let (mut queue, (reader, writer)) = (queue(choice), pipe());
    let reader = Arc::new(reader);
    let source = Source::fd(reader.clone(), Interest::READ, Trigger::Level);
    let token = queue.add(source, 5).unwrap();
    assert_eq!(now(&mut queue), []);
    write(&writer, b"abc").unwrap();
    for _ in 0..3 {
        let found = ready(&mut queue, token);
        assert!(found.readable && !found.writable && !found.hangup);
    }
    read(&reader, &mut [0; 8]).unwrap();
    assert_eq!(now(&mut queue), []);
    write(&writer, b"d").unwrap();
    assert_eq!(one(&mut queue).data, 5);
}

fn edge(choice: Choice) {
    let (mut queue, (reader, writer)) = (queue(choice), pipe());
    write(&writer, b"a").unwrap();
    let token = queue.add(Source::fd(reader, Interest::READ, Trigger::Edge), 0).unwrap();
    assert!(ready(&mut queue, token).readable, "already ready, so reported");
    assert_eq!(now(&mut queue), []);
    write(&writer, b"b").unwrap();
    assert!(ready(&mut queue, token).readable);
    assert_eq!(now(&mut queue), []);
    // Once modified, it is looked at again.
    queue.modify(token, Interest::READ, Trigger::Edge).unwrap();
    assert!(ready(&mut queue, token).readable);
    assert_eq!(now(&mut queue), []);
}

fn one_shot(choice: Choice) {
    let (mut queue, (reader, writer)) = (queue(choice), pipe());
    let token = queue.add(Source::fd(reader, Interest::READ, Trigger::OneShot), 0).unwrap();
    for _ in 0..3 {
        write(&writer, b"a").unwrap();
        assert!(ready(&mut queue, token).readable);
        write(&writer, b"b").unwrap();
        assert_eq!(now(&mut queue), []);
        queue.modify(token, Interest::READ, Trigger::OneShot).unwrap();
        assert!(ready(&mut queue, token).readable);
        queue.modify(token, Interest::NONE, Trigger::OneShot).unwrap();
        assert_eq!(now(&mut queue), []);
        queue.modify(token, Interest::READ, Trigger::OneShot).unwrap();
        assert!(ready(&mut queue, token).readable);
        queue.modify(token, Interest::NONE, Trigger::Level).unwrap();
        queue.modify(token, Interest::READ, Trigger::OneShot).unwrap();
        assert!(ready(&mut queue, token).readable);
        // Not drained, so the next round is about new data.
        queue.modify(token, Interest::READ, Trigger::OneShot).unwrap();
        assert!(ready(&mut queue, token).readable);
        queue.modify(token, Interest::READ, Trigger::OneShot).unwrap();
    }
}

fn interest(choice: Choice) {
    let (mut queue, (a, mut b)) = (queue(choice), UnixStream::pair().unwrap());
    let token = queue.add(Source::fd(a, Interest::WRITE, Trigger::Level), 0).unwrap();
    b.write_all(b"abc").unwrap();
    let found = ready(&mut queue, token);
    assert!(found.writable && !found.readable);
    queue.modify(token, Interest::BOTH, Trigger::Level).unwrap();
    let found = ready(&mut queue, token);
    assert!(found.writable && found.readable);
    queue.modify(token, Interest::NONE, Trigger::Level).unwrap();
    assert_eq!(now(&mut queue), []);
    // Hang-ups are reported in any case.
    drop(b);
    assert!(ready(&mut queue, token).hangup);
}

fn peer_closed(choice: Choice) {
    let (mut queue, (a, b)) = (queue(choice), UnixStream::pair().unwrap());
    let token = queue.add(Source::fd(a, Interest::READ, Trigger::Edge), 0).unwrap();
    assert_eq!(now(&mut queue), []);
    b.shutdown(std::net::Shutdown::Write).unwrap();
    let found = ready(&mut queue, token);
    assert!(found.readable && found.peer_closed && !found.hangup, "{found:?}");
}

/// Goal: after a removal the queue keeps nothing open, and reports no event that was on its way.
fn removal(choice: Choice) {
    let (mut queue, (a, mut b)) = (queue(choice), UnixStream::pair().unwrap());
    b.set_read_timeout(Some(PATIENCE)).unwrap();
    for trigger in [Trigger::Level, Trigger::Edge, Trigger::OneShot] {
        let copy = a.try_clone().unwrap();
        let token = queue.add(Source::fd(copy, Interest::READ, trigger), 0).unwrap();
        b.write_all(b"x").unwrap();
        queue.remove(token).unwrap();
        assert_eq!(now(&mut queue), []);
        assert_eq!(queue.len(), 0);
    }
    let token = queue.add(Source::fd(a, Interest::READ, Trigger::Edge), 0).unwrap();
    wait(&mut queue);
    queue.remove(token).unwrap();
    // The queue had the last descriptor. Unread data makes the close a reset.
    let end = b.read(&mut [0; 8]);
    assert!(
        matches!(&end, Ok(0)) || end.is_err_and(|e| e.kind() != std::io::ErrorKind::WouldBlock)
    );
}

fn stale(choice: Choice) {
    let (mut queue, (reader, writer)) = (queue(choice), pipe());
    let (reader, again) = (Arc::new(reader), 7);
    let source = || Source::fd(reader.clone(), Interest::READ, Trigger::Level);
    let old = queue.add(source(), 1).unwrap();
    write(&writer, b"x").unwrap();
    assert_eq!(one(&mut queue).token, old);
    queue.remove(old).unwrap();
    let new = queue.add(source(), again).unwrap();
    assert_ne!(old, new);
    let event = one(&mut queue);
    assert_eq!((event.token, event.data), (new, again));
    let errno = |result: std::io::Result<()>| Errno::from_io_error(&result.unwrap_err());
    assert_eq!(errno(queue.remove(old)), Some(Errno::STALE));
    assert_eq!(errno(queue.modify(old, Interest::READ, Trigger::Edge)), Some(Errno::STALE));
    assert_eq!(errno(queue.set_timer(old, Instant::now())), Some(Errno::STALE));
    assert_eq!(errno(queue.cancel(old)), Some(Errno::STALE));
    assert_eq!(errno(queue.cancel(new)), Some(Errno::INVAL));
    assert!(queue.take(old).is_none() && queue.take(new).is_none());
    assert!(queue.notifier(old).is_none() && queue.notifier(new).is_none());
    queue.remove(new).unwrap();
}

fn twice(choice: Choice) {
    let (mut queue, (a, mut b)) = (queue(choice), UnixStream::pair().unwrap());
    let a = Arc::new(a);
    let reads = Source::fd(a.clone(), Interest::READ, Trigger::Level);
    let writes = Source::fd(a.clone(), Interest::WRITE, Trigger::OneShot);
    let reads = queue.add(reads, 0).unwrap();
    let writes = queue.add(writes, 0).unwrap();
    assert!(ready(&mut queue, writes).writable);
    b.write_all(b"x").unwrap();
    assert!(ready(&mut queue, reads).readable);
    queue.remove(writes).unwrap();
    assert!(ready(&mut queue, reads).readable);
    queue.remove(reads).unwrap();
    assert_eq!(now(&mut queue), []);
}

fn disk(choice: Choice) {
    let mut queue = queue(choice);
    for path in ["/proc/self/exe", "/"] {
        let file = std::fs::File::open(path).unwrap();
        let error = queue.add(Source::fd(file, Interest::READ, Trigger::Level), 0).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::PERM), "{path}");
    }
    assert!(queue.is_empty());
}

/// Goal: a wait for several events counts each registration once, sleeps while there are too few,
/// and returns fewer at its deadline.
fn at_least(choice: Choice) {
    let mut queue = queue(choice);
    let pipes: Vec<_> = (0..4).map(|_| pipe()).collect();
    let mut writers = Vec::new();
    for (reader, writer) in pipes {
        queue.add(Source::fd(reader, Interest::READ, Trigger::Level), 0).unwrap();
        writers.push(writer);
    }
    write(&writers[0], b"x").unwrap();
    let mut events = Vec::new();
    let soon = Instant::now() + Duration::from_millis(30);
    assert_eq!(queue.wait_many(&mut events, 2..=9, Some(soon)).unwrap(), 1);
    assert!(Instant::now() >= soon, "a deadline is not early");
    let other = std::thread::spawn(move || {
        for writer in &writers[1..] {
            std::thread::sleep(Duration::from_millis(10));
            write(writer, b"x").unwrap();
        }
        writers
    });
    events.clear();
    let late = Some(Instant::now() + PATIENCE);
    assert_eq!(queue.wait_many(&mut events, 4..=9, late).unwrap(), 4);
    let mut tokens: Vec<_> = events.iter().map(|event| event.token).collect();
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 4);
    let writers = other.join().unwrap();
    // Returns at most as many as requested, and the others later.
    events.clear();
    for _ in 0..8 {
        assert_eq!(queue.wait_many(&mut events, 1..=1, late).unwrap(), 1);
    }
    for token in tokens {
        let times = events.iter().filter(|event| event.token == token).count();
        assert!(times >= 1, "each has its turn");
    }
    let none = queue.wait_many(&mut events, RangeInclusive::new(5, 4), late);
    assert_eq!(Errno::from_io_error(&none.unwrap_err()), Some(Errno::INVAL));
    drop(writers);
}

fn batch(choice: Choice) {
    let mut queue = queue(choice);
    let pipes: Vec<_> = (0..10).map(|_| pipe()).collect();
    let (readers, writers): (Vec<_>, Vec<_>) = pipes.into_iter().unzip();
    let add = |(data, fd)| Change::Add(Source::fd(fd, Interest::READ, Trigger::Level), data);
    let mut changes: Vec<_> = (0..).zip(readers).map(add).collect();
    changes.push(Change::Add(Source::signal(9), 0));
    let results = queue.apply(changes).unwrap();
    assert!(results[10].is_err(), "SIGKILL cannot be caught");
    let tokens: Vec<_> = results.into_iter().flatten().collect();
    assert_eq!(tokens.len(), 10);
    for writer in &writers {
        write(writer, b"x").unwrap();
    }
    let changes = tokens.iter().zip(0..).map(|(&token, number)| match number % 2 {
        0 => Change::Remove(token),
        _ => Change::Modify(token, Interest::READ, Trigger::OneShot),
    });
    assert!(queue.apply(changes).unwrap().iter().all(Result::is_ok));
    let mut reported: Vec<_> = wait(&mut queue).iter().map(|event| event.data).collect();
    reported.sort_unstable();
    assert_eq!(reported, [1, 3, 5, 7, 9]);
    assert_eq!(now(&mut queue), []);
}

fn signals(choice: Choice) {
    let mut queue = queue(choice);
    let number = libc::SIGRTMIN() + 3;
    let token = queue.add(Source::signal(number), 0).unwrap();
    for wrong in [-1, 0, 9, 19, 32, 65] {
        assert!(queue.add(Source::signal(wrong), 0).is_err(), "{wrong}");
    }
    assert_eq!(now(&mut queue), []);
    // SAFETY: `raise` has no memory effects; it sends this thread a signal that it blocks.
    unsafe { libc::raise(number) };
    let event = one(&mut queue);
    let sender = std::process::id();
    assert_eq!((event.token, event.kind), (token, EventKind::Signal { signal: number, sender }));
    assert_eq!(now(&mut queue), []);
    queue.remove(token).unwrap();
}

fn children(choice: Choice) {
    let mut queue = queue(choice);
    let run = |script: &str| Command::new("/bin/sh").args(["-c", script]).spawn().unwrap();
    let mut children = [run("exit 3"), run("kill -KILL $$")];
    for (child, exit) in children.iter_mut().zip([Exit::Code(3), Exit::Signal(9)]) {
        let token = queue.add(Source::child(child.id()), 0).unwrap();
        let event = one(&mut queue);
        assert_eq!((event.token, event.kind), (token, EventKind::Exited(exit)));
        assert!(queue.is_empty(), "it is over");
        // The child can still be waited for.
        child.wait().unwrap();
        assert!(queue.add(Source::child(child.id()), 0).is_err());
    }
}

fn fork(choice: Choice) {
    let (mut queue, (reader, writer)) = (queue(choice), pipe());
    let token = queue.add(Source::fd(reader, Interest::READ, Trigger::Level), 0).unwrap();
    let user = queue.add(Source::user(), 0).unwrap();
    // SAFETY: the child only calls the queue, `_exit` and the allocator, which the C library keeps
    // usable after a fork.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let refused = queue.wait(&mut Vec::new(), Some(Instant::now())).is_err()
            && queue.remove(token).is_err()
            && queue.add(Source::user(), 0).is_err();
        drop(queue);
        // SAFETY: `_exit` ends the process and does not return.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut parent = EventQueue::new().unwrap();
    parent.add(Source::child(child as u32), 0).unwrap();
    assert_eq!(one(&mut parent).kind, EventKind::Exited(Exit::Code(0)));
    // SAFETY: `waitpid` accepts a null status; the child has ended.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    // The child's actions do not affect the parent.
    write(&writer, b"x").unwrap();
    assert!(ready(&mut queue, token).readable);
    queue.remove(token).unwrap();
    queue.notifier(user).unwrap().notify();
    assert_eq!(one(&mut queue).token, user);
}

/// Goal: registrations of a thread continue after it has ended, including sleeping waits and the
/// descriptor.
fn moved(choice: Choice) {
    for is_exposed in [false, true] {
        let (reader, writer) = pipe();
        let reader = Arc::new(reader);
        let other = std::thread::spawn(move || {
            let mut queue = queue(choice);
            let tokens = [Trigger::Edge, Trigger::Level, Trigger::OneShot].map(|trigger| {
                queue.add(Source::fd(reader.clone(), Interest::READ, trigger), 0).unwrap()
            });
            let user = queue.add(Source::user(), 0).unwrap();
            assert_eq!(now(&mut queue), []);
            let descriptor = is_exposed.then(|| queue.descriptor().unwrap());
            (queue, tokens, user, descriptor)
        });
        let (mut queue, tokens, user, descriptor) = other.join().unwrap();
        let notifier = queue.notifier(user).unwrap();
        std::thread::spawn(move || notifier.notify());
        assert_eq!(one(&mut queue).token, user);
        write(&writer, b"x").unwrap();
        if let Some(descriptor) = descriptor {
            let mut outer = super::queue(choice);
            let source = Source::fd(descriptor, Interest::READ, Trigger::Level);
            outer.add(source, 0).unwrap();
            wait(&mut outer);
        }
        let mut reported = Vec::new();
        while reported.len() < tokens.len() {
            reported.extend(wait(&mut queue).iter().map(|event| event.token));
            reported.sort();
            reported.dedup();
        }
        assert_eq!(reported, tokens);
    }
}

/// Goal: operations started by a thread continue while that thread computes without system calls.
fn moved_from_a_busy_thread(choice: Choice) {
    let (reader, writer) = pipe();
    let (hand_over, handed_over) = mpsc::channel();
    let is_over = Arc::new(AtomicBool::new(false));
    let (busy, begun) = (is_over.clone(), Instant::now());
    let other = std::thread::spawn(move || {
        let mut queue = queue(choice);
        let token = queue.add(Source::fd(reader, Interest::READ, Trigger::Level), 0).unwrap();
        assert_eq!(now(&mut queue), []);
        hand_over.send((queue, token)).unwrap();
        while !busy.load(Ordering::Relaxed) && begun.elapsed() < PATIENCE {
            std::hint::spin_loop();
        }
    });
    let (mut queue, token) = handed_over.recv().unwrap();
    write(&writer, b"x").unwrap();
    // Non-blocking waits also make progress.
    while now(&mut queue).is_empty() {
        assert!(begun.elapsed() < PATIENCE);
    }
    assert_eq!(one(&mut queue).token, token);
    is_over.store(true, Ordering::Relaxed);
    other.join().unwrap();
}

/// Goal: the next wait reports what a wait had no room for, unless it no longer holds.
fn left_over(choice: Choice) {
    for trigger in [Trigger::Level, Trigger::OneShot] {
        let mut queue = queue(choice);
        let pipes = [pipe(), pipe(), pipe()];
        let mut readers = Vec::new();
        for (data, (reader, writer)) in (0..).zip(&pipes) {
            let reader = Arc::new(reader.try_clone().unwrap());
            write(writer, b"x").unwrap();
            readers.push(reader.clone());
            queue.add(Source::fd(reader, Interest::READ, trigger), data).unwrap();
        }
        let mut events = Vec::new();
        assert_eq!(queue.wait_many(&mut events, 1..=1, None).unwrap(), 1);
        for reader in &readers {
            read(reader, &mut [0; 8]).unwrap();
        }
        assert_eq!(now(&mut queue), []);
        for (_, writer) in &pipes {
            write(writer, b"x").unwrap();
        }
        let expected = if trigger == Trigger::Level { 3 } else { 2 };
        let late = Some(Instant::now() + PATIENCE);
        events.clear();
        assert_eq!(queue.wait_many(&mut events, expected..=9, late).unwrap(), expected);
    }
}

fn nested(choice: Choice) {
    let (mut outer, mut inner) = (queue(choice), queue(choice));
    let descriptor = inner.descriptor().unwrap();
    let token = outer.add(Source::fd(descriptor, Interest::READ, Trigger::Level), 0).unwrap();
    let (reader, writer) = pipe();
    let reader = Arc::new(reader);
    let pipe = Source::fd(reader.clone(), Interest::READ, Trigger::Level);
    let pipe = inner.add(pipe, 0).unwrap();
    let user = inner.add(Source::user(), 0).unwrap();
    assert_eq!(now(&mut outer), []);
    for _ in 0..3 {
        write(&writer, b"x").unwrap();
        assert!(ready(&mut outer, token).readable);
        assert_eq!(one(&mut inner).token, pipe);
        assert!(ready(&mut outer, token).readable, "still ready, so reported again");
        read(&reader, &mut [0; 8]).unwrap();
        assert_eq!(now(&mut inner), []);
        assert_eq!(now(&mut outer), []);
        let notifier = inner.notifier(user).unwrap();
        std::thread::spawn(move || notifier.notify());
        assert!(ready(&mut outer, token).readable);
        assert_eq!(one(&mut inner).token, user);
        assert_eq!(now(&mut inner), []);
        assert_eq!(now(&mut outer), []);
        inner.add(Source::at(Instant::now() + Duration::from_millis(5)), 3).unwrap();
        assert!(ready(&mut outer, token).readable);
        assert_eq!(one(&mut inner).data, 3);
        assert_eq!(now(&mut outer), []);
    }
}

/// Goal: events that exist and were not reported, because no wait asked, keep the descriptor
/// readable.
fn descriptor(choice: Choice) {
    let (mut queue, mut watch) = (queue(choice), queue(choice));
    let fd = queue.descriptor().unwrap();
    let token = watch.add(Source::fd(fd, Interest::READ, Trigger::Level), 0).unwrap();
    for data in 0..3 {
        let user = queue.add(Source::user(), data).unwrap();
        queue.notifier(user).unwrap().notify();
    }
    for data in 0..3 {
        assert!(ready(&mut watch, token).readable);
        let mut events = Vec::new();
        assert_eq!(queue.wait_many(&mut events, 1..=1, None).unwrap(), 1);
        assert_eq!(events[0].data, data);
    }
    assert_eq!(now(&mut watch), []);
}

/// Goal: the kernel releases removed sockets even if events are on their way. Method: a peer reads
/// from many sockets, so that room is reported repeatedly, and must see the end of each.
fn removed_amid_events(choice: Choice) {
    let mut queue = queue(choice);
    for _ in 0..40 {
        let (tokens, mut peers): (Vec<_>, Vec<_>) = (0..50)
            .map(|_| {
                let (ours, peer) = UnixStream::pair().unwrap();
                ours.set_nonblocking(true).unwrap();
                peer.set_nonblocking(true).unwrap();
                while (&ours).write(&[7; 512]).is_ok() {}
                let source = Source::fd(ours, Interest::BOTH, Trigger::Edge);
                (queue.add(source, 0).unwrap(), peer)
            })
            .unzip();
        let _ = now(&mut queue);
        let reader = std::thread::spawn(move || {
            let give_up = Instant::now() + PATIENCE;
            let mut bytes = [0; 512];
            while !peers.is_empty() && Instant::now() < give_up {
                peers.retain(|mut peer| !matches!(peer.read(&mut bytes), Ok(0)));
            }
            peers.len()
        });
        for token in tokens {
            let _ = now(&mut queue);
            queue.remove(token).unwrap();
        }
        assert_eq!(reader.join().unwrap(), 0, "all have ended");
    }
}
