//! Unit tests of waiting, for both back ends.

use super::{
    Action, BackEnd, BlockRead, Buffer, Calls, Choice, Interest, Job, Operation, OtherBuffer,
    Parts, PieceWrite, Socket, Trigger, What,
};
use crate::doorbell::EventDoorbell;
use crate::large_pages::{LARGE_BLOCK_BYTES, LargePages};
use crate::socket::zerocopy;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use towpath_packet::ring::Doorbell;
use towpath_packet::{Ledger, Lender, Loans, PinnedPiece, Recall};

/// Longer than any step here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Goal: a doorbell that rings after the caller has checked and before it waits ends the wait, even
/// if the kernel reports it before the wait starts.
#[test]
fn a_doorbell_that_rings_before_the_wait_ends_it() {
    for choice in [Choice::IoUring, Choice::Epoll] {
        let (bell, late) = (EventDoorbell::new().unwrap(), EventDoorbell::new().unwrap());
        let Ok(mut back) = BackEnd::new(choice, &bell) else {
            println!("skipped: this kernel does not allow {choice:?}");
            continue;
        };
        back.add(0, late.as_fd(), Interest::READ, Trigger::Level).unwrap();
        let (done, is_done) = mpsc::channel();
        let watchdog = thread::spawn(move || {
            if is_done.recv_timeout(PATIENCE).is_err() {
                late.ring();
            }
        });
        for _ in 0..3 {
            let mut arrived = Vec::new();
            // From here on the kernel polls the doorbell.
            back.wait(Some(Duration::ZERO), &mut arrived).unwrap();
            bell.ring();
            // Another system call gives the kernel an opportunity to report it.
            thread::yield_now();
            back.wait(None, &mut arrived).unwrap();
            assert!(arrived.is_empty(), "{choice:?} missed the doorbell");
        }
        done.send(()).unwrap();
        watchdog.join().unwrap();
    }
}

/// Goal: a block that cannot be read past the page cache is read normally, the outcome says so, and
/// no more than the file has is read. Tried: a descriptor without read access, an offset that a
/// disk cannot start at, the last block of a file.
#[test]
fn a_block_that_cannot_be_read_directly_is_read_all_the_same() {
    let dir = std::env::temp_dir();
    let path = dir.join(format!("towpath-block-{}", std::process::id()));
    let bytes: Vec<u8> = (0..LARGE_BLOCK_BYTES + 5000).map(|at| (at / 3) as u8).collect();
    std::fs::write(&path, &bytes).unwrap();
    let file = Arc::new(File::open(&path).unwrap());
    let refuses = Arc::new(File::options().write(true).open(&path).unwrap());
    let direct = crate::direct::reopen(&file).map(Arc::new);
    std::fs::remove_file(path).unwrap();
    let area = LargePages::new(1).unwrap();
    for choice in [Choice::IoUring, Choice::Epoll] {
        let bell = EventDoorbell::new().unwrap();
        let Ok(mut back) = BackEnd::new(choice, &bell) else {
            println!("skipped: this kernel does not allow {choice:?}");
            continue;
        };
        let cases = [(None, 0), (Some(&refuses), 0), (Some(&refuses), LARGE_BLOCK_BYTES)];
        let odd = [(direct.as_ref(), 1), (direct.as_ref(), LARGE_BLOCK_BYTES)];
        for (direct, at) in cases.into_iter().chain(odd) {
            let (direct, block) = (direct.cloned(), area.take().unwrap());
            let read = BlockRead { file: file.clone(), direct, at: at as u64, block };
            back.submit(3, Job::ReadBlock(read)).unwrap();
            let mut arrived = Vec::new();
            while arrived.is_empty() {
                back.wait(Some(PATIENCE), &mut arrived).unwrap();
            }
            let (3, What::Over(outcome)) = arrived.remove(0) else { panic!("{choice:?}") };
            let expected = &bytes[at..bytes.len().min(at + LARGE_BLOCK_BYTES)];
            assert_eq!((outcome.bytes, outcome.failure), (expected.len() as u64, None), "{at}");
            let Parts::Block(block, false) = outcome.parts else { panic!("{:?}", outcome.parts) };
            assert!(block[..expected.len()] == *expected, "{choice:?} {at}");
        }
    }
}

/// Goal: more pieces than one call takes are written in order, at their offset, from where they
/// are; a file that takes nothing ends the job; the pieces are free afterwards, and not before.
#[test]
fn pieces_are_written_where_they_are() {
    const COUNT: usize = 2500;
    let path = std::env::temp_dir().join(format!("towpath-pieces-{}", std::process::id()));
    let file = File::options().create(true).truncate(true).read(true).write(true).open(&path);
    let file = Arc::new(file.unwrap());
    std::fs::remove_file(path).unwrap();
    let full = Arc::new(File::options().write(true).open("/dev/full").unwrap());
    let memory: Arc<Vec<u8>> = Arc::new((0..COUNT * 7).map(|at| (at / 5) as u8).collect());
    for choice in [Choice::IoUring, Choice::Epoll] {
        let bell = EventDoorbell::new().unwrap();
        let Ok(mut back) = BackEnd::new(choice, &bell) else {
            println!("skipped: this kernel does not allow {choice:?}");
            continue;
        };
        for (file, failure) in [(&file, None), (&full, Some(Errno::NOSPC))] {
            let (mut loans, ledger) = (Loans::new(1), Ledger::new());
            let range = (0, memory.len() as u32);
            let lender = Arc::new(Nobody);
            let mut whole = loans.lend_recallable(&memory, range, lender, 0).unwrap();
            let mut watch = whole.watch().unwrap();
            let pieces = (0..COUNT).map(|at| PinnedPiece::new(whole.slice(at * 7, 7))).collect();
            let write = PieceWrite::new(file.clone(), 9, pieces);
            assert_eq!(watch.recall(&ledger), Recall::Busy, "they are pinned");
            back.submit(3, Job::WritePieces(write)).unwrap();
            let mut arrived = Vec::new();
            while arrived.is_empty() {
                back.wait(Some(PATIENCE), &mut arrived).unwrap();
            }
            let (3, What::Over(outcome)) = arrived.remove(0) else { panic!("{choice:?}") };
            assert_eq!(outcome.failure, failure, "{choice:?}");
            assert_eq!(watch.recall(&ledger), Recall::Done, "they are free");
            if failure.is_some() {
                assert_eq!(outcome.bytes, 0);
                continue;
            }
            assert_eq!(outcome.bytes, memory.len() as u64);
            let mut written = vec![0; memory.len()];
            file.read_exact_at(&mut written, 9).unwrap();
            assert!(written == *memory, "{choice:?}");
            file.set_len(0).unwrap();
        }
    }
}

/// A lender that does not care.
struct Nobody;

impl Lender for Nobody {
    fn returned(&self, _: u64, _: bool) {}
}

/// Goal: a job that waits on a socket with an unread zero-copy notice, which poll reports until the
/// program reads it, does not keep the thread busy, and continues when its own event arrives.
/// Method: counts the waits that end early. Tried: a step that is an io_uring request, and one that
/// is a call.
#[test]
fn an_unread_notice_keeps_no_thread_busy() {
    let receive = |socket| Job::Receive(socket, vec![0; 9].into());
    let call = |socket| {
        let receive = |socket: &OwnedFd, _| recv(socket, &mut [0; 9], RecvFlags::DONTWAIT);
        let call = Box::new(move |socket: &OwnedFd, done| receive(socket, done).map(|(n, _)| n));
        Job::Call(Calls { socket, interest: Interest::READ, all: None, call })
    };
    let jobs: [fn(Socket) -> Job; 2] = [receive, call];
    for (choice, job) in [Choice::IoUring, Choice::Epoll].map(|c| jobs.map(|job| (c, job))).concat()
    {
        let bell = EventDoorbell::new().unwrap();
        let Ok(mut back) = BackEnd::new(choice, &bell) else {
            println!("skipped: this kernel does not allow {choice:?}");
            continue;
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut peer = listener.accept().unwrap().0;
        zerocopy::enable_lending(stream.as_fd()).unwrap();
        zerocopy::send_lent(stream.as_fd(), b"7").unwrap();
        peer.read_exact(&mut [0]).unwrap();
        stream.set_nonblocking(true).unwrap();
        back.submit(3, job(Arc::new(stream.into()))).unwrap();
        let writer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(300));
            peer.write_all(b"towpath").unwrap();
            peer
        });
        let (mut arrived, mut waits) = (Vec::new(), 0);
        while arrived.is_empty() {
            back.wait(Some(PATIENCE), &mut arrived).unwrap();
            waits += 1;
        }
        assert!(waits < 1000, "{choice:?}: {waits} waits");
        writer.join().unwrap();
        let (3, What::Over(outcome)) = arrived.remove(0) else { panic!("{choice:?}") };
        assert_eq!((outcome.bytes, outcome.failure), (7, None), "{choice:?}");
    }
}

/// Goal: a socket of a job that the kernel has not completed is closed with the queue; only the
/// memory is leaked. Method: lends a long buffer to a peer that does not read.
#[test]
fn a_queue_that_ends_closes_the_sockets_of_its_jobs() {
    for choice in [Choice::IoUring, Choice::Epoll] {
        let bell = EventDoorbell::new().unwrap();
        let Ok(mut back) = BackEnd::new(choice, &bell) else {
            println!("skipped: this kernel does not allow {choice:?}");
            continue;
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut peer = listener.accept().unwrap().0;
        zerocopy::enable_lending(stream.as_fd()).unwrap();
        stream.set_nonblocking(true).unwrap();
        let socket: Socket = Arc::new(stream.into());
        let weak = Arc::downgrade(&socket);
        back.submit(1, Job::Lend(socket, vec![7; 32 << 20].into())).unwrap();
        back.wait(Some(Duration::from_millis(100)), &mut Vec::new()).unwrap();
        drop(back);
        assert!(weak.upgrade().is_none(), "{choice:?} keeps the socket");
        // The bytes sent before arrive, and then the end or a reset.
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        let end = peer.read_to_end(&mut Vec::new());
        assert!(end.is_ok() || end.unwrap_err().kind() == std::io::ErrorKind::ConnectionReset);
    }
}

/// A buffer within itself, so it must not move while the kernel has its bytes. Counts its drops.
struct Inline([u8; 64], Arc<AtomicUsize>);

impl OtherBuffer for Inline {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Inline {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

/// Goal: a buffer of another type is filled where it is, comes back once, and is dropped once, also
/// with its queue. Method: other jobs start meanwhile, so that the back end's own memory moves.
#[test]
fn a_buffer_of_another_type_comes_back_or_is_dropped_once() {
    for choice in [Choice::IoUring, Choice::Epoll] {
        let bell = EventDoorbell::new().unwrap();
        let Ok(mut back) = BackEnd::new(choice, &bell) else {
            println!("skipped: this kernel does not allow {choice:?}");
            continue;
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut peer = listener.accept().unwrap().0;
        let (socket, drops) = (Arc::new(OwnedFd::from(stream)), Arc::new(AtomicUsize::new(0)));
        let buffer = || Buffer::Other(Box::new(Inline([7; 64], drops.clone())));
        back.submit(1, Job::ReceiveAll(socket.clone(), buffer())).unwrap();
        let mut arrived = Vec::new();
        back.wait(Some(Duration::ZERO), &mut arrived).unwrap();
        for slot in 2..100 {
            let call = Box::new(|_: &OwnedFd, _| Ok(0));
            let socket = socket.clone();
            let calls = Calls { socket, interest: Interest::WRITE, all: Some(1), call };
            back.submit(slot, Job::Call(calls)).unwrap();
        }
        peer.write_all(&[1; 64]).unwrap();
        let outcome = loop {
            back.wait(Some(PATIENCE), &mut arrived).unwrap();
            let at = arrived.iter().position(|(slot, _)| *slot == 1);
            if let Some((_, What::Over(outcome))) = at.map(|at| arrived.remove(at)) {
                break outcome;
            }
        };
        assert_eq!((outcome.bytes, outcome.failure), (64, None), "{choice:?}");
        let Parts::Buffer(Buffer::Other(filled)) = outcome.parts else { panic!("{choice:?}") };
        assert_eq!((filled.bytes(), drops.load(Ordering::Relaxed)), (&[1; 64][..], 0));
        drop(filled);
        assert_eq!(drops.load(Ordering::Relaxed), 1);
        // One that waits for bytes, and one that is refused.
        back.submit(1, Job::Receive(socket.clone(), buffer())).unwrap();
        back.wait(Some(Duration::ZERO), &mut arrived).unwrap();
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let (action, file) = (Action::Read(0), Arc::new(File::from(reader)));
        let operation = Operation { action, file, buffer: buffer() };
        let (errno, refused) = back.submit(200, Job::File(operation)).unwrap_err();
        assert_eq!((errno, drops.load(Ordering::Relaxed)), (Errno::SPIPE, 1));
        drop(refused);
        drop(back);
        assert_eq!(drops.load(Ordering::Relaxed), 3, "{choice:?}");
    }
}
