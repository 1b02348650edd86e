//! Operations on kernel streams.

use super::files::pattern;
use super::{Case, PATIENCE, config, errno, now, one, queue, until_over, wait};
use crate::taken::{Done, Taken};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath::events::{
    Choice, Config, EventKind, EventQueue, Interest, Listener, SendFile, Source, Stack, Stream,
    Token, Trigger,
};

pub(super) const CASES: &[Case] = &[
    ("the_kernel_connects_or_is_refused", connect),
    ("a_kernels_connect_is_cancelled_or_ends_in_time", connect_stopped),
    ("one_accept_takes_more_connections_than_it_keeps", accept),
    ("an_accept_of_the_kernel_is_cancelled", accept_stopped),
    ("a_kernels_stream_is_received", receive),
    ("a_kernels_stream_ends_or_is_reset", receive_end),
    ("bytes_stay_when_a_kernels_receive_is_cancelled", receive_stopped),
    ("a_large_buffer_is_sent_by_the_kernel", send),
    ("a_kernels_send_is_cancelled_in_the_middle", send_stopped),
    ("a_kernels_send_fails_without_a_signal", send_failed),
    ("signals_do_not_disturb_operations", storm),
    ("a_kernels_socket_is_watched_and_operated_on", watched),
    ("a_full_queue_refuses_the_kernels_streams", full),
    ("a_queue_may_go_before_operations_of_the_kernel", dropped),
];

/// Creates a connection over loopback.
pub(super) fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, from) = listener.accept().unwrap();
    assert_eq!(stream.local_addr().unwrap(), from, "another client connected");
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    peer.set_write_timeout(Some(PATIENCE)).unwrap();
    (stream, peer)
}

/// Creates a pair of sockets with small buffers.
pub(super) fn unix() -> (UnixStream, UnixStream) {
    let (stream, peer) = UnixStream::pair().unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    peer.set_write_timeout(Some(PATIENCE)).unwrap();
    (stream, peer)
}

/// Waits until the peer has something to read. Work of the ring may interrupt the call.
fn until_there(peer: &TcpStream) {
    while let Err(error) = peer.peek(&mut [0]) {
        assert_eq!(error.kind(), ErrorKind::Interrupted);
    }
}

/// Returns the result of an operation with a buffer, and checks that it is reported once.
fn finish(queue: &mut EventQueue, token: Token) -> Done {
    until_over(queue, token);
    take(queue, token)
}

fn take(queue: &mut EventQueue, token: Token) -> Done {
    assert_eq!(now(queue), []);
    queue.cancel(token).unwrap();
    assert_eq!(now(queue), [], "too late");
    let completed = queue.take_done(token).unwrap();
    assert!(queue.take(token).is_none());
    assert_eq!(errno(queue.cancel(token)), Errno::STALE);
    completed
}

pub(super) fn past() -> Option<Instant> {
    Some(Instant::now())
}

pub(super) fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(20))
}

fn connect(choice: Choice) {
    let mut queue = queue(choice);
    let listener = Stack::Kernel.listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = listener.local_addr().unwrap();
    let far = Some(Instant::now() + 100 * PATIENCE);
    let token = queue.connect(Stack::Kernel, address, far, 9).unwrap();
    assert!(queue.take_stream(token).is_none());
    assert_eq!(errno(queue.remove(token)), Errno::BUSY);
    assert_eq!(until_over(&mut queue, token), []);
    let (stream, remote) = queue.take_stream(token).unwrap().unwrap();
    assert_eq!((remote, stream.peer_addr().unwrap()), (Some(address), address));
    stream.set_nodelay(true).unwrap();
    assert_eq!(stream.try_send(b"hello").unwrap(), 5);
    assert_eq!(stream.try_receive(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    let accepted = queue.accept(&listener, None, 9).unwrap();
    assert_eq!(one(&mut queue).kind, EventKind::Connection);
    let (peer, from) = queue.take_stream(accepted).unwrap().unwrap();
    assert_eq!(from, stream.local_addr().ok());
    let token = queue.receive(&peer, vec![0; 9], None, 9).unwrap();
    assert_eq!(finish(&mut queue, token).result.unwrap(), 5);
    stream.shutdown(Shutdown::Write).unwrap();
    let token = queue.receive(&peer, vec![0; 9], None, 9).unwrap();
    assert_eq!(finish(&mut queue, token).result.unwrap(), 0);
    listener.set_nodelay(true).unwrap();
    let _other = std::net::TcpStream::connect(address).unwrap();
    assert_eq!(one(&mut queue).kind, EventKind::Connection);
    let peer = queue.take_stream(accepted).unwrap().unwrap().0;
    assert!(rustix::net::sockopt::tcp_nodelay(peer.as_kernel().unwrap()).unwrap());
    assert!(queue.take_stream(accepted).is_none());
    // There is no listener any more.
    queue.cancel(accepted).unwrap();
    until_over(&mut queue, accepted);
    assert_eq!(errno(queue.take_stream(accepted).unwrap()), Errno::CANCELED);
    drop(listener);
    let token = queue.connect(Stack::Kernel, address, None, 9).unwrap();
    until_over(&mut queue, token);
    assert_eq!(errno(queue.take_stream(token).unwrap()), Errno::CONNREFUSED);
    assert!(queue.is_empty());
}

/// Creates a listener whose backlog is full, and the sockets that fill it.
pub(super) fn full_listener() -> (OwnedFd, SocketAddr, Vec<OwnedFd>) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let socket = |flags| {
        let flags = SocketFlags::CLOEXEC | flags;
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap()
    };
    let listener = socket(SocketFlags::empty());
    let any: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    rustix::net::bind(&listener, &any).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = SocketAddr::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap();
    let fillers = (0..4).map(|_| {
        let filler = socket(SocketFlags::NONBLOCK);
        assert_eq!(rustix::net::connect(&filler, &address), Err(Errno::INPROGRESS));
        filler
    });
    let fillers = fillers.collect();
    (listener, address, fillers)
}

fn connect_stopped(choice: Choice) {
    let (mut queue, (_listener, address, _fillers)) = (queue(choice), full_listener());
    let token = queue.connect(Stack::Kernel, address, None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    queue.cancel(token).unwrap();
    queue.cancel(token).unwrap();
    until_over(&mut queue, token);
    assert_eq!(errno(queue.take_stream(token).unwrap()), Errno::CANCELED);
    let token = queue.connect(Stack::Kernel, address, soon(), 9).unwrap();
    until_over(&mut queue, token);
    assert_eq!(errno(queue.take_stream(token).unwrap()), Errno::TIMEDOUT);
    assert!(queue.is_empty());
}

/// Goal: no connection is lost, however many arrive before they are taken.
fn accept(choice: Choice) {
    const MANY: usize = 200;
    let mut queue = queue(choice);
    let path = std::env::temp_dir().join(format!("towpath-{}-{choice:?}", std::process::id()));
    let unix = UnixListener::bind(&path).unwrap();
    // The backlog is smaller than the number of clients.
    let clients = std::thread::spawn({
        let path = path.clone();
        move || (0..MANY).map(|_| UnixStream::connect(&path).unwrap()).collect::<Vec<_>>()
    });
    let token = queue.accept(unix, None, 9).unwrap();
    let mut streams = Vec::new();
    while streams.len() < MANY {
        assert_eq!(one(&mut queue).kind, EventKind::Connection);
        // Takes one connection and all connections in turn.
        let few = if streams.len().is_multiple_of(2) { 1 } else { usize::MAX };
        streams.extend(std::iter::from_fn(|| queue.take_stream(token)).take(few));
    }
    let mut clients = clients.join().unwrap();
    std::fs::remove_file(path).unwrap();
    for (at, client) in clients.iter_mut().enumerate() {
        client.write_all(&[at as u8]).unwrap();
    }
    let mut seen = [false; MANY];
    for stream in streams {
        let (stream, from) = stream.unwrap();
        assert_eq!(from, None);
        let mut byte = [0];
        assert_eq!(stream.try_receive(&mut byte).unwrap(), 1);
        seen[usize::from(byte[0])] = true;
    }
    assert_eq!(seen, [true; MANY]);
    assert_eq!(now(&mut queue), []);
}

fn accept_stopped(choice: Choice) {
    let mut queue = queue(choice);
    let listener = Listener::from(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let address = listener.local_addr().unwrap();
    let token = queue.accept(&listener, None, 9).unwrap();
    let _client = TcpStream::connect(address).unwrap();
    assert_eq!(one(&mut queue).kind, EventKind::Connection);
    assert_eq!(now(&mut queue), [], "it is reported once");
    queue.cancel(token).unwrap();
    assert_eq!(now(&mut queue), [], "the connection comes first");
    queue.take_stream(token).unwrap().unwrap();
    assert_eq!(until_over(&mut queue, token), []);
    assert_eq!(errno(queue.take_stream(token).unwrap()), Errno::CANCELED);
    // A later connection waits for the next accept.
    let _client = TcpStream::connect(address).unwrap();
    let token = queue.accept(&listener, soon(), 9).unwrap();
    assert_eq!(one(&mut queue).kind, EventKind::Connection);
    queue.take_stream(token).unwrap().unwrap();
    assert_eq!(until_over(&mut queue, token), []);
    assert_eq!(errno(queue.take_stream(token).unwrap()), Errno::TIMEDOUT);
    // A socket that does not listen, and one that is shut down.
    let token = queue.accept(OwnedFd::from(tcp().0), None, 9).unwrap();
    until_over(&mut queue, token);
    assert_eq!(errno(queue.take_stream(token).unwrap()), Errno::INVAL);
    let token = queue.accept(&listener, None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    rustix::net::shutdown(listener.as_kernel().unwrap(), rustix::net::Shutdown::Both).unwrap();
    until_over(&mut queue, token);
    assert_eq!(errno(queue.take_stream(token).unwrap()), Errno::INVAL);
}

fn receive(choice: Choice) {
    let mut queue = queue(choice);
    for nonblocking in [false, true] {
        let (stream, mut peer) = tcp();
        stream.set_nonblocking(nonblocking).unwrap();
        let stream = Stream::from(stream);
        let far = Some(Instant::now() + 100 * PATIENCE);
        let token = queue.receive(&stream, vec![0; 100], far, 9).unwrap();
        assert_eq!(now(&mut queue), []);
        assert_eq!(errno(queue.remove(token)), Errno::BUSY);
        peer.write_all(b"hello").unwrap();
        let Done { result, buffer, copied } = finish(&mut queue, token);
        assert_eq!((result.unwrap(), buffer.len(), &buffer[..5]), (5, 100, &b"hello"[..]));
        assert!(!copied);
        // More bytes than room, and no room.
        peer.write_all(b"hello").unwrap();
        let token = queue.receive(&stream, vec![0; 2], None, 9).unwrap();
        let Done { result, buffer, .. } = finish(&mut queue, token);
        assert_eq!((result.unwrap(), &buffer[..]), (2, &b"he"[..]));
        let token = queue.receive(&stream, Vec::new(), None, 9).unwrap();
        assert_eq!(finish(&mut queue, token).result.unwrap(), 0);
        let token = queue.receive(&stream, vec![0; 9], None, 9).unwrap();
        assert_eq!(finish(&mut queue, token).result.unwrap(), 3);
        assert_eq!(errno(queue.receive_lent(&stream, 9, None, 9)), Errno::OPNOTSUPP);
    }
}

fn receive_end(choice: Choice) {
    let mut queue = queue(choice);
    let (stream, peer) = tcp();
    let token = queue.receive(stream, vec![0; 9], None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    peer.shutdown(Shutdown::Write).unwrap();
    let Done { result, buffer, .. } = finish(&mut queue, token);
    assert_eq!((result.unwrap(), buffer.len()), (0, 9));
    // A peer that closes with unread bytes resets.
    let (mut stream, peer) = tcp();
    stream.write_all(b"hello").unwrap();
    until_there(&peer);
    let token = queue.receive(stream, vec![0; 9], None, 9).unwrap();
    drop(peer);
    let Done { result, buffer, .. } = finish(&mut queue, token);
    assert_eq!((errno(result), buffer.len()), (Errno::CONNRESET, 9));
    // A socket that is shut down during the operation.
    let (stream, _peer) = tcp();
    let stream = Stream::from(stream);
    let token = queue.receive(&stream, vec![0; 9], None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    stream.shutdown(Shutdown::Both).unwrap();
    assert_eq!(finish(&mut queue, token).result.unwrap(), 0);
}

fn receive_stopped(choice: Choice) {
    let mut queue = queue(choice);
    let (stream, mut peer) = tcp();
    let stream = Stream::from(stream);
    let token = queue.receive(&stream, vec![3; 9], None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    queue.cancel(token).unwrap();
    let Done { result, buffer, .. } = finish(&mut queue, token);
    assert_eq!((errno(result), buffer), (Errno::CANCELED, vec![3; 9]));
    // Cancelled at once, and before any wait.
    let token = queue.receive(&stream, vec![3; 9], None, 9).unwrap();
    queue.cancel(token).unwrap();
    assert_eq!(errno(finish(&mut queue, token).result), Errno::CANCELED);
    let token = queue.receive(&stream, vec![3; 9], soon(), 9).unwrap();
    assert_eq!(errno(finish(&mut queue, token).result), Errno::TIMEDOUT);
    // In a race, bytes are either in the buffer or still in the stream.
    for _ in 0..50 {
        let token = queue.receive(&stream, vec![0; 9], None, 9).unwrap();
        if choice == Choice::Epoll {
            assert_eq!(now(&mut queue), []);
        }
        peer.write_all(b"hello").unwrap();
        queue.cancel(token).unwrap();
        let first = finish(&mut queue, token);
        let count = first.result.or_else(|error| match Errno::from_io_error(&error) {
            Some(Errno::CANCELED) => {
                let token = queue.receive(&stream, vec![0; 9], None, 9).unwrap();
                finish(&mut queue, token).result
            }
            _ => Err(error),
        });
        assert_eq!(count.unwrap(), 5);
    }
}

fn send(choice: Choice) {
    const LARGE: usize = 30 << 20;
    let mut queue = queue(choice);
    for nonblocking in [false, true] {
        let (stream, mut peer) = tcp();
        stream.set_nonblocking(nonblocking).unwrap();
        let stream = Stream::from(stream);
        for len in [0, 1, LARGE] {
            let token = queue.send(&stream, pattern(len), None, 9).unwrap();
            let reader = std::thread::spawn(move || {
                let mut read = vec![0; len];
                peer.read_exact(&mut read).unwrap();
                assert!(read == pattern(len));
                peer
            });
            assert_eq!(until_over(&mut queue, token), [EventKind::Accepted { bytes: len }]);
            let Done { result, buffer, copied } = take(&mut queue, token);
            assert_eq!((result.unwrap(), buffer.len(), copied), (len, len, len > 0));
            peer = reader.join().unwrap();
        }
    }
}

fn send_stopped(choice: Choice) {
    const LEN: usize = 64 << 20;
    let mut queue = queue(choice);
    for by_deadline in [false, true] {
        let (stream, mut peer) = tcp();
        let deadline = by_deadline.then(|| Instant::now() + Duration::from_millis(50));
        let token = queue.send(stream, vec![7; LEN], deadline, 9).unwrap();
        if !by_deadline {
            assert_eq!(now(&mut queue), []);
            // Some of it has been sent by then.
            until_there(&peer);
            queue.cancel(token).unwrap();
        }
        let reported = until_over(&mut queue, token);
        let Done { result, buffer, .. } = take(&mut queue, token);
        let count = result.unwrap();
        assert!(count > 0 && count < LEN && buffer.len() == LEN, "{count}");
        assert_eq!(reported, [EventKind::Accepted { bytes: count }]);
        // The queue has released the socket.
        let mut read = Vec::new();
        peer.read_to_end(&mut read).unwrap();
        assert_eq!(read.len(), count);
    }
}

/// Runs a function while SIGPIPE ends the process, as in programs that are not written in Rust.
pub(super) fn with_sigpipe(run: impl FnOnce()) {
    // SAFETY: installs the default action of a signal that nothing else in this process changes.
    let before = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    run();
    // SAFETY: restores the previous action.
    unsafe { libc::signal(libc::SIGPIPE, before) };
}

fn send_failed(choice: Choice) {
    let mut queue = queue(choice);
    with_sigpipe(|| {
        let (stream, peer) = tcp();
        let stream = Stream::from(stream);
        let token = queue.send(&stream, vec![7; 30 << 20], None, 9).unwrap();
        assert_eq!(now(&mut queue), []);
        until_there(&peer);
        drop(peer);
        let Done { result, buffer, .. } = finish(&mut queue, token);
        assert!(result.unwrap() < buffer.len());
        for _ in 0..2 {
            let token = queue.send(&stream, vec![7; 100], None, 9).unwrap();
            assert_eq!(until_over(&mut queue, token), []);
            let Done { result, buffer, copied } = take(&mut queue, token);
            assert!(matches!(errno(result), Errno::CONNRESET | Errno::PIPE));
            assert!(buffer == [7; 100] && !copied);
        }
        let (stream, _peer) = tcp();
        let stream = Stream::from(stream);
        stream.shutdown(Shutdown::Write).unwrap();
        let token = queue.send(&stream, vec![7; 100], None, 9).unwrap();
        assert_eq!(errno(finish(&mut queue, token).result), Errno::PIPE);
    });
}

extern "C" fn ignore(_: libc::c_int) {}

/// Goal: signals that a program handles end no operation and no wait.
fn storm(choice: Choice) {
    const LEN: usize = 20 << 20;
    // SAFETY: the handler does nothing, and nothing else here uses the signal.
    unsafe { libc::signal(libc::SIGUSR2, ignore as *const () as libc::sighandler_t) };
    // SAFETY: `gettid` only returns the ID of the calling thread.
    let (process, thread) = (std::process::id(), unsafe { libc::gettid() });
    let end = Arc::new(());
    let weak = Arc::downgrade(&end);
    let storm = std::thread::spawn(move || {
        while weak.strong_count() > 0 {
            // SAFETY: sends a handled signal to a thread that lives until it has joined this one.
            unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR2) };
            std::thread::sleep(Duration::from_micros(100));
        }
    });
    let mut queue = queue(choice);
    let (stream, mut peer) = tcp();
    let stream = Stream::from(stream);
    let sent = queue.send(&stream, pattern(LEN), None, 9).unwrap();
    let echo = std::thread::spawn(move || {
        let mut read = vec![0; LEN];
        peer.read_exact(&mut read).unwrap();
        peer.write_all(&read).unwrap();
        peer
    });
    assert_eq!(until_over(&mut queue, sent), [EventKind::Accepted { bytes: LEN }]);
    assert_eq!(queue.take_done(sent).unwrap().result.unwrap(), LEN);
    let mut received = Vec::new();
    while received.len() < LEN {
        let token = queue.receive(&stream, vec![0; 1 << 20], None, 9).unwrap();
        let Done { result, buffer, .. } = finish(&mut queue, token);
        received.extend_from_slice(&buffer[..result.unwrap()]);
    }
    assert!(received == pattern(LEN));
    // Closed only here: the kernel does not wait as long for unsent data of closed sockets, and
    // resets them if there are many or memory is short.
    drop(echo.join().unwrap());
    // They make no wait end early or late.
    let mut events = Vec::new();
    let until = Instant::now() + Duration::from_millis(30);
    assert_eq!(queue.wait(&mut events, Some(until)).unwrap(), 0);
    assert!(Instant::now() >= until);
    // Files and pipes between sockets.
    let (from, mut writer) = tcp();
    let (to, mut reader) = tcp();
    let file = super::send_file::fresh(&pattern(LEN));
    let written = std::thread::spawn(move || {
        writer.write_all(&pattern(LEN)).unwrap();
        writer
    });
    let read = std::thread::spawn(move || {
        let mut read = vec![0; 2 * LEN];
        reader.read_exact(&mut read).unwrap();
        assert!(read[..LEN] == pattern(LEN) && read[LEN..] == pattern(LEN));
    });
    let to = Stream::from(to);
    let token = queue.splice(from, &to, LEN as u64, None, 9).unwrap();
    assert_eq!(until_over(&mut queue, token), []);
    queue.take_moved(token).unwrap().result.unwrap();
    let parts = SendFile { header: vec![], file, range: 0..LEN as u64, trailer: vec![] };
    let token = queue.send_file(&to, parts, None, 9).unwrap();
    assert_eq!(until_over(&mut queue, token), []);
    queue.take_file(token).unwrap().result.unwrap();
    drop(written.join().unwrap());
    read.join().unwrap();
    drop(end);
    storm.join().unwrap();
}

/// Goal: readiness and operations on one socket at the same time are each reported to the right
/// registration.
fn watched(choice: Choice) {
    let mut queue = queue(choice);
    let (stream, mut peer) = tcp();
    let stream = Stream::from(stream);
    let source = Source::stream(&stream, Interest::WRITE, Trigger::Edge);
    let ready = queue.add(source, 1).unwrap();
    let token = queue.receive(&stream, vec![0; 9], None, 2).unwrap();
    let other = queue.send(&stream, b"hello".to_vec(), None, 3).unwrap();
    peer.write_all(b"hello").unwrap();
    let (mut is_ready, mut over) = (false, Vec::new());
    while !is_ready || over.len() < 2 {
        for event in wait(&mut queue) {
            match (event.data, event.kind) {
                (1, EventKind::Ready(_)) => is_ready = true,
                (2 | 3, EventKind::Completed) => over.push(event.token),
                (3, EventKind::Accepted { bytes: 5 }) => {}
                _ => panic!("{event:?}"),
            }
        }
    }
    over.sort();
    assert_eq!(over, [token, other]);
    assert_eq!(queue.take_done(token).unwrap().result.unwrap(), 5);
    assert_eq!(queue.take_done(other).unwrap().result.unwrap(), 5);
    queue.remove(ready).unwrap();
    assert!(queue.is_empty());
}

fn full(choice: Choice) {
    let small = Config { registrations: 1, ..config(choice) };
    let mut queue = EventQueue::with(&small).unwrap();
    let (stream, mut peer) = tcp();
    let stream = Stream::from(stream);
    let token = queue.receive(&stream, vec![0; 5], None, 9).unwrap();
    let refused = queue.receive(&stream, vec![7; 5], None, 9).unwrap_err();
    assert_eq!((errno::<()>(Err(refused.error)), refused.buffer), (Errno::NOSPC, vec![7; 5]));
    let refused = queue.send(&stream, vec![7; 5], None, 9).unwrap_err();
    assert_eq!((errno::<()>(Err(refused.error)), refused.buffer), (Errno::NOSPC, vec![7; 5]));
    let address = stream.local_addr().unwrap();
    assert_eq!(errno(queue.connect(Stack::Kernel, address, None, 9)), Errno::NOSPC);
    peer.write_all(b"hello").unwrap();
    assert_eq!(finish(&mut queue, token).result.unwrap(), 5);
}

/// Goal: a dropped queue takes nothing more from sockets, and they close once they are unused.
fn dropped(choice: Choice) {
    let mut queue = queue(choice);
    let (stream, mut peer) = tcp();
    let (kept, mut other) = tcp();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (full, address, _fillers) = full_listener();
    let kept = Stream::from(kept);
    let server = listener.try_clone().unwrap();
    server.set_nonblocking(false).unwrap();
    queue.receive(stream, vec![0; 9], Some(Instant::now() + PATIENCE), 9).unwrap();
    queue.receive(&kept, vec![0; 9], None, 9).unwrap();
    queue.send(&kept, vec![7; 30 << 20], None, 9).unwrap();
    queue.accept(listener, None, 9).unwrap();
    queue.connect(Stack::Kernel, address, None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    drop((queue, full));
    // The end of a ring may interrupt a call; `read_to_end` repeats it.
    assert_eq!(peer.read_to_end(&mut Vec::new()).unwrap(), 0, "it is closed");
    other.write_all(b"hello").unwrap();
    let deadline = Instant::now() + PATIENCE;
    while kept.try_receive(&mut [0; 5]).is_err() {
        assert!(Instant::now() < deadline, "timed out without data");
        std::thread::yield_now();
    }
    server.set_nonblocking(false).unwrap();
    let client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
    assert_eq!(server.accept().unwrap().1, client.local_addr().unwrap());
}
