//! Sockets and tasks of other stacks.

use super::{Case, now, one, queue, ready};
use rustix::fd::AsFd;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};
use towpath::events::custom::{Accessed, Pollable, Step, Task};
use towpath::events::{
    Action, Choice, EventKind, EventQueue, Interest, Operation, Readiness, Source, Token, Trigger,
};

pub(super) const CASES: &[Case] = &[
    ("a_socket_of_another_stack_is_reported_by_level", level),
    ("a_socket_of_another_stack_is_reported_by_edge_and_once", edge),
    ("a_socket_that_is_gone_ends_its_registration", gone),
    ("a_task_tells_its_steps", steps),
    ("a_task_is_stopped", stopped),
    ("tasks_are_dropped_with_the_queue", dropped),
    ("a_task_reads_a_file_and_watches_a_socket", reads_and_watches),
];

/// State of a stack: its readiness, the waker, and how often it was polled.
#[derive(Default)]
pub(super) struct Stack {
    readable: bool,
    gone: bool,
    steps: Vec<Step>,
    stopped: Option<Errno>,
    waker: Option<Waker>,
}

#[derive(Clone, Default)]
pub(super) struct Shared(Arc<Mutex<Stack>>);

impl Shared {
    /// Changes the state and wakes its waiter.
    fn change(&self, change: impl FnOnce(&mut Stack)) {
        let mut stack = self.0.lock().unwrap();
        change(&mut stack);
        stack.waker.take().into_iter().for_each(Waker::wake);
    }
}

impl Pollable for Shared {
    fn poll_ready(&mut self, interest: Interest, waker: &Waker) -> Option<Readiness> {
        let mut stack = self.0.lock().unwrap();
        stack.waker = Some(waker.clone());
        let readable = stack.readable && interest.readable;
        (!stack.gone).then_some(Readiness { readable, ..Readiness::default() })
    }
}

impl Task for Shared {
    fn poll(&mut self, waker: &Waker) -> Option<Step> {
        let mut stack = self.0.lock().unwrap();
        stack.waker = Some(waker.clone());
        match stack.stopped {
            Some(why) => Some(Step::Complete(-i64::from(why.raw_os_error()))),
            None => (!stack.steps.is_empty()).then(|| stack.steps.remove(0)),
        }
    }

    fn stop(&mut self, why: Errno) {
        self.0.lock().unwrap().stopped = Some(why);
    }
}

/// Sends a file on a kernel socket with one read and one call, once the peer has asked.
struct Answer {
    file: Arc<File>,
    socket: UnixStream,
    asked: bool,
    read: Option<Accessed>,
}

impl Task for Answer {
    fn poll(&mut self, _: &Waker) -> Option<Step> {
        if let Some(Accessed { bytes, failure, buffer, .. }) = self.read.take() {
            assert_eq!(failure, None);
            self.socket.write_all(&buffer[..bytes as usize]).unwrap();
            return Some(Step::Complete(bytes as i64));
        }
        let mut byte = [0];
        self.asked |= matches!(self.socket.read(&mut byte), Ok(1));
        None
    }

    fn stop(&mut self, _: Errno) {}

    fn fd(&self) -> Option<&dyn AsFd> {
        Some(&self.socket)
    }

    fn take_access(&mut self) -> Option<(u64, Operation)> {
        let (action, file) = (Action::Read(3), self.file.clone());
        let is_asked = std::mem::take(&mut self.asked);
        is_asked.then(|| (0, Operation { action, file, buffer: vec![0; 100] }))
    }

    fn accessed(&mut self, accessed: Accessed) {
        self.read = Some(accessed);
    }
}

fn reads_and_watches(choice: Choice) {
    let mut queue = queue(choice);
    let (socket, mut peer) = UnixStream::pair().unwrap();
    socket.set_nonblocking(true).unwrap();
    let file = rustix::fs::memfd_create("answer", MemfdFlags::CLOEXEC).unwrap();
    let file = Arc::new(File::from(file));
    (&*file).write_all(b"an answer").unwrap();
    let answer = Answer { file: file.clone(), socket, asked: false, read: None };
    let token = queue.start(answer, None, 5).unwrap();
    assert_eq!(now(&mut queue), []);
    peer.write_all(b"?").unwrap();
    let event = one(&mut queue);
    assert_eq!((event.token, event.data, event.kind), (token, 5, EventKind::Step { result: 6 }));
    assert!(event.is_over);
    let mut said = Vec::new();
    peer.read_to_end(&mut said).unwrap();
    assert_eq!((said.as_slice(), Arc::strong_count(&file)), (&b"answer"[..], 1));
}

fn add(queue: &mut EventQueue, stack: &Shared, trigger: Trigger) -> Token {
    queue.add(Source::custom(stack.clone(), Interest::READ, trigger), 0).unwrap()
}

fn level(choice: Choice) {
    let (mut queue, stack) = (queue(choice), Shared::default());
    let token = add(&mut queue, &stack, Trigger::Level);
    assert_eq!(now(&mut queue), []);
    let other = stack.clone();
    let thread = thread::spawn(move || other.change(|stack| stack.readable = true));
    assert!(ready(&mut queue, token).readable);
    thread.join().unwrap();
    assert!(ready(&mut queue, token).readable, "still ready, so reported again");
    queue.modify(token, Interest::WRITE, Trigger::Level).unwrap();
    assert_eq!(now(&mut queue), []);
    queue.remove(token).unwrap();
    stack.change(|_| {});
    assert_eq!((now(&mut queue), Arc::strong_count(&stack.0)), (vec![], 1));
}

fn edge(choice: Choice) {
    let (mut queue, stack) = (queue(choice), Shared::default());
    stack.change(|stack| stack.readable = true);
    let edge = add(&mut queue, &stack, Trigger::Edge);
    assert!(ready(&mut queue, edge).readable);
    assert_eq!(now(&mut queue), []);
    stack.change(|_| {});
    assert!(ready(&mut queue, edge).readable);
    queue.remove(edge).unwrap();
    let once = add(&mut queue, &stack, Trigger::OneShot);
    for _ in 0..2 {
        assert!(ready(&mut queue, once).readable);
        stack.change(|_| {});
        assert_eq!(now(&mut queue), []);
        queue.modify(once, Interest::READ, Trigger::OneShot).unwrap();
    }
}

fn gone(choice: Choice) {
    let (mut queue, stack) = (queue(choice), Shared::default());
    let token = add(&mut queue, &stack, Trigger::Edge);
    assert_eq!(now(&mut queue), []);
    stack.change(|stack| stack.gone = true);
    let event = one(&mut queue);
    let EventKind::Ready(ready) = event.kind else { panic!("{event:?}") };
    assert!(event.token == token && event.is_over && ready.hangup && ready.error);
    assert_eq!((now(&mut queue), queue.len()), (vec![], 0));
}

fn steps(choice: Choice) {
    let (mut queue, stack) = (queue(choice), Shared::default());
    let token = queue.start(stack.clone(), Some(Instant::now() + super::PATIENCE), 7).unwrap();
    assert_eq!(now(&mut queue), []);
    assert!(queue.remove(token).is_err(), "it is under way");
    stack.change(|stack| stack.steps = vec![Step::Progress(1), Step::Progress(2)]);
    let reported = now(&mut queue);
    let results: Vec<_> = reported.iter().map(|event| (event.kind, event.is_over)).collect();
    let step = |result, over| (EventKind::Step { result }, over);
    assert_eq!(results, [step(1, false), step(2, false)]);
    assert_eq!(now(&mut queue), []);
    stack.change(|stack| stack.steps = vec![Step::Complete(-5)]);
    let event = one(&mut queue);
    assert_eq!((event.kind, event.is_over), step(-5, true));
    assert_eq!((event.token, event.data), (token, 7));
    assert!(queue.is_empty() && queue.cancel(token).is_err());
    assert_eq!(Arc::strong_count(&stack.0), 1);
}

fn stopped(choice: Choice) {
    let mut queue = queue(choice);
    let cancelled = queue.start(Shared::default(), None, 0).unwrap();
    queue.cancel(cancelled).unwrap();
    let canceled = -i64::from(Errno::CANCELED.raw_os_error());
    assert_eq!(one(&mut queue).kind, EventKind::Step { result: canceled });
    let soon = Instant::now() + Duration::from_millis(5);
    queue.start(Shared::default(), Some(soon), 0).unwrap();
    let late = -i64::from(Errno::TIMEDOUT.raw_os_error());
    assert_eq!(one(&mut queue).kind, EventKind::Step { result: late });
    assert!(Instant::now() >= soon && queue.is_empty());
}

fn dropped(choice: Choice) {
    let (mut queue, stack) = (queue(choice), Shared::default());
    queue.start(stack.clone(), None, 0).unwrap();
    add(&mut queue, &stack, Trigger::Level);
    drop(queue);
    stack.change(|_| {});
    assert_eq!(Arc::strong_count(&stack.0), 1);
}
