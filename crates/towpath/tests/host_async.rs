//! Hosts under executors: that of futures, and tokio's.

use bytes::Bytes;
use futures::executor::block_on;
use futures::future::{FutureExt, join};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;
use towpath::events::{EventQueue, Interest, Source, Trigger};
use towpath::host::{Completions, Config, Host, SendTo, TcpListener, TcpStream, UdpSocket};

/// More than any step takes, so that a hanging test ends.
const PATIENCE: Duration = Duration::from_secs(60);

fn address() -> SocketAddr {
    "10.0.0.2:80".parse().expect("an address")
}

fn pair(lent: usize) -> (Host, Host) {
    // Without the default term, which a slow machine may exceed.
    let config = |last| Config { default_term: None, ..Config::with_address([10, 0, 0, last], 24) };
    let limited = Config { lent_by_socket: lent, ..config(1) };
    Host::pair(&limited, &config(2)).expect("two hosts")
}

async fn connection(a: &Host, b: &Host) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(b, address()).expect("listens");
    let both = join(TcpStream::connect_async(a, address()), listener.accept_async()).await;
    (both.0.expect("connects"), both.1.expect("accepted").0)
}

#[allow(deprecated, reason = "what is owned stays open, so the call without a promise will do")]
fn watched(fd: OwnedFd) -> AsyncFd<OwnedFd> {
    AsyncFd::new(fd).expect("it can be watched")
}

#[allow(clippy::disallowed_methods, reason = "queues and runtimes have the system's clock")]
fn soon() -> Instant {
    Instant::now() + Duration::from_millis(1)
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251 + seed * 7) as u8).collect()
}

/// Goal: sends wait for their budget without blocking a thread, and buffers come back in order.
#[test]
fn tasks_lend_and_collect() {
    let (a, b) = pair(300_000);
    block_on(async {
        let (stream, mut peer) = connection(&a, &b).await;
        let send = async {
            let mut sends = Completions::new();
            for seed in 0..20 {
                let buffer = Bytes::from(pattern(100_000, seed));
                sends.push(stream.send_zc_async(buffer).await.expect("sends"));
            }
            for seed in 0..20 {
                let returned = sends.next().await.expect("a send");
                assert!(returned.buffer == pattern(100_000, seed) && !returned.copied);
            }
            assert!(sends.next().await.is_none());
        };
        let receive = async {
            for seed in 0..20 {
                let mut received = vec![0; 100_000];
                futures::AsyncReadExt::read_exact(&mut peer, &mut received)
                    .await
                    .expect("receives");
                assert!(received == pattern(100_000, seed));
            }
        };
        join(send, receive).await;
    });
    assert_eq!(a.lent(), 0);
}

/// Returns another handle of a stream, shaped like tokio's.
fn tokios(stream: &TcpStream) -> towpath::tokio::TcpStream {
    stream.try_clone().expect("a handle").into()
}

/// Goal: head and body that a runtime passes in one call go out in one segment.
#[test]
fn slices_of_one_call_go_out_together() {
    let (a, b) = pair(300_000);
    block_on(async {
        let (mut stream, mut peer) = connection(&a, &b).await;
        let mut same = tokios(&stream);
        assert!(tokio::io::AsyncWrite::is_write_vectored(&same));
        let slices = || [&[1_u8; 9][..], &[2; 100]].map(IoSlice::new);
        let written = tokio::io::AsyncWriteExt::write_vectored(&mut same, &slices()).await;
        assert_eq!(written.expect("writes"), 109);
        let mut received = vec![0; 109];
        futures::AsyncReadExt::read_exact(&mut peer, &mut received).await.expect("receives");
        assert_eq!(peer.info().expect("a connection").data_segs_in, 1);
        let futures = futures::AsyncWriteExt::write_vectored(&mut stream, &slices()).await;
        assert_eq!(futures.expect("writes"), 109);
        futures::AsyncReadExt::read_exact(&mut peer, &mut received).await.expect("receives");
        assert_eq!(peer.info().expect("a connection").data_segs_in, 2);
    });
}

/// Goal: dropping futures frees nothing in flight and loses no return.
#[test]
fn a_future_that_is_dropped_frees_nothing_in_flight() {
    let (a, b) = pair(100_000);
    block_on(async {
        let (stream, peer) = connection(&a, &b).await;
        let first: Arc<[u8]> = pattern(90_000, 1).into();
        let second: Arc<[u8]> = pattern(90_000, 2).into();
        let mut sending = stream.send_zc_async(first.clone()).await.expect("sends");
        // There is no room: the future waits, is dropped, and its buffer was never lent.
        assert!(stream.send_zc_async(second.clone()).now_or_never().is_none());
        assert_eq!(Arc::strong_count(&second), 1);
        // Dropping the wait for the return does not lose the return.
        assert!((&mut sending).now_or_never().is_none());
        assert!(Arc::strong_count(&first) > 1, "in flight");
        let mut received = vec![0; first.len()];
        futures_read(&peer, &mut received).await;
        assert!(received == *first);
        let returned = sending.await;
        assert!(Arc::ptr_eq(&returned.buffer, &first) && !returned.copied);
        drop(returned);
        assert_eq!(Arc::strong_count(&first), 1);
        // The last loan frees the buffer.
        drop(stream.send_zc_async(second.clone()).await.expect("sends"));
        futures_read(&peer, &mut received).await;
        assert!(received == *second);
    });
    assert!(a.finish(PATIENCE));
}

/// Goal: a send that is recalled and then dropped frees its buffer even if the peer does not read,
/// and loses no byte; one that is recalled and awaited comes back; a task may set a term.
#[test]
fn a_future_that_is_dropped_during_a_recall_loses_nothing() {
    let (a, b) = pair(64 << 20);
    block_on(async {
        let (stream, peer) = connection(&a, &b).await;
        let buffers: Vec<Arc<[u8]>> = (0..3).map(|seed| pattern(8 << 20, seed).into()).collect();
        let mut dropped = stream.send_zc_async(buffers[0].clone()).await.expect("sends");
        let kept = stream.send_zc_async(buffers[1].clone()).await.expect("sends");
        assert!((&mut dropped).now_or_never().is_none());
        dropped.recall();
        drop(dropped);
        kept.recall();
        let returned = kept.await;
        assert!(returned.copied && Arc::ptr_eq(&returned.buffer, &buffers[1]));
        drop(returned);
        let term = Duration::from_millis(10);
        let termed = stream.send_zc_for_async(buffers[2].clone(), term).await.expect("sends");
        assert!(termed.await.copied);
        for _ in 0..20_000 {
            if buffers.iter().all(|buffer| Arc::strong_count(buffer) == 1) {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(buffers.iter().all(|buffer| Arc::strong_count(buffer) == 1));
        let mut received = vec![0; 8 << 20];
        for buffer in &buffers {
            futures_read(&peer, &mut received).await;
            assert!(received == **buffer);
        }
        let datagrams = UdpSocket::bind(&a, "10.0.0.1:7").expect("bound");
        let to = SendTo { to: Some(address()), ..SendTo::default() };
        let sending = datagrams.send_zc_async(buffers[0].clone(), &to).await.expect_err("too long");
        assert!(Arc::ptr_eq(&sending.buffer, &buffers[0]));
        let sending = datagrams.send_zc_async(vec![1, 2, 3], &to).await.expect("sends");
        assert_eq!(sending.await.buffer, [1, 2, 3]);
    });
    assert!(a.finish(PATIENCE));
}

/// Reads through the traits of futures.
async fn futures_read(mut stream: &TcpStream, mut into: &mut [u8]) {
    while !into.is_empty() {
        let read = |cx: &mut std::task::Context<'_>| {
            let stream = std::pin::Pin::new(&mut stream);
            futures::AsyncRead::poll_read(stream, cx, into)
        };
        let count = futures::future::poll_fn(read).await.expect("receives");
        assert!(count > 0);
        into = &mut into[count..];
    }
}

/// Goal: ordinary tokio code works on a stream.
#[test]
fn tokio_copies_a_stream_to_its_end() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let (a, b) = pair(1 << 20);
    runtime.block_on(async {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (stream, peer) = connection(&a, &b).await;
        let (mut stream, peer) = (tokios(&stream), tokios(&peer));
        let echo = tokio::spawn(async move {
            let (mut from, mut to) = peer.into_split();
            tokio::io::copy(&mut from, &mut to).await.expect("copies")
        });
        let sent = pattern(700_000, 3);
        let (mut reader, copy) = (tokios(stream.as_host()), sent.clone());
        let read = tokio::spawn(async move {
            let mut received = vec![0; copy.len()];
            reader.read_exact(&mut received).await.expect("receives");
            assert!(received == copy);
        });
        stream.write_all(&sent).await.expect("sends");
        stream.shutdown().await.expect("shuts down");
        read.await.expect("no panic");
        assert_eq!(echo.await.expect("no panic"), 700_000);
    });
}

/// Goal: ordinary code of futures works on a stream, up to the end that closing causes.
#[test]
fn futures_copy_a_stream_to_its_end() {
    let (a, b) = pair(1 << 20);
    block_on(async {
        use futures::io::{AsyncReadExt, AsyncWriteExt};
        let (mut stream, peer) = connection(&a, &b).await;
        let mut reader = stream.try_clone().expect("a clone");
        let sent = pattern(700_000, 3);
        let echo = async {
            let (from, mut to) = (&peer, &peer);
            let count = futures::io::copy(from, &mut to).await.expect("copies");
            to.close().await.expect("closes");
            count
        };
        let write = async {
            stream.write_all(&sent).await.expect("sends");
            stream.flush().await.expect("nothing is kept back");
            stream.close().await.expect("closes");
            let late = stream.write(&[1]).await.expect_err("it is closed");
            assert_eq!(late.kind(), std::io::ErrorKind::BrokenPipe);
        };
        let read = async {
            let mut received = Vec::new();
            reader.read_to_end(&mut received).await.expect("receives");
            received
        };
        let (count, ((), received)) = join(echo, join(write, read)).await;
        assert!(count == 700_000 && received == sent);
    });
}

/// Goal: errors hand buffers back to tasks, too, and a connection that fails is reported.
#[test]
fn tasks_learn_of_errors() {
    let (a, b) = pair(1 << 20);
    block_on(async {
        let refused = TcpStream::connect_async(&a, address()).await.expect_err("no listener");
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        let (stream, _peer) = connection(&a, &b).await;
        stream.shutdown(std::net::Shutdown::Write).expect("shuts down");
        let error = stream.send_zc_async(vec![1, 2, 3]).await.expect_err("shut down");
        assert_eq!(
            (error.error.kind(), error.buffer),
            (std::io::ErrorKind::BrokenPipe, vec![1, 2, 3])
        );
    });
}

/// Goal: a tokio task can await a queue through its edge-triggered descriptor, and gets events of
/// every kind of source: of the kernel, of a host, of timers and of other threads, even after the
/// future of an earlier wait was dropped.
#[test]
fn a_queue_is_awaited_in_a_task() {
    use std::io::{Read, Write};
    const ROUNDS: u32 = 50;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let mut queue = EventQueue::new().expect("a queue");
        let fd = watched(queue.descriptor().expect("a descriptor"));
        let (a, b) = pair(300_000);
        let (stream, peer) = connection(&a, &b).await;
        let (reader, writer) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let of_kernel = queue.add(
            Source::fd(reader.try_clone().expect("a handle"), Interest::READ, Trigger::Level),
            0,
        );
        let of_host = queue.add(Source::stream(&peer, Interest::READ, Trigger::Level), 0);
        let of_user = queue.add(Source::user(), 0).expect("room");
        let notifier = queue.notifier(of_user).expect("it is registered");
        let of_timer = queue.add(Source::every(soon(), Duration::from_millis(1)), 0);
        let wanted = [of_kernel.expect("room"), of_host.expect("room"), of_user];
        let of_timer = of_timer.expect("room");
        let (go, turns) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            for _ in turns {
                (&writer).write_all(b"a").expect("writes");
                (&stream).write_all(b"b").expect("writes");
                notifier.notify();
            }
        });
        let mut ticks = 0;
        for _ in 0..ROUNDS {
            let mut events = Vec::new();
            let early = queue.wait_async(&mut events, async || std::future::pending().await);
            drop(early.now_or_never());
            go.send(()).expect("the other is there");
            let (mut heard, mut reads) = ([false; 3], 0);
            while heard != [true; 3] {
                let readable = async || {
                    fd.readable().await?.clear_ready();
                    Ok(())
                };
                let wait = queue.wait_async(&mut events, readable);
                let count = tokio::time::timeout(PATIENCE, wait).await.expect("in time");
                assert!(count.expect("waits") > 0);
                for event in events.drain(..) {
                    ticks += u32::from(event.token == of_timer);
                    let Some(at) = wanted.iter().position(|token| *token == event.token) else {
                        continue;
                    };
                    reads += match at {
                        0 => (&reader).read(&mut [0; 9]).expect("reads"),
                        1 => (&peer).read(&mut [0; 9]).expect("reads"),
                        _ => 0,
                    };
                    heard[at] = true;
                }
            }
            assert_eq!(reads, 2);
        }
        assert!(ticks > 0);
        drop(go);
        other.join().expect("no panic");
    });
}

/// Goal: tasks of any executor send and receive datagrams.
#[test]
fn datagrams_are_awaited() {
    let (a, b) = pair(1 << 20);
    let client = UdpSocket::bind(&a, "0.0.0.0:0").expect("bound");
    let server = UdpSocket::bind(&b, "10.0.0.2:53").expect("bound");
    let to = server.local_addr().expect("an address");
    block_on(async {
        let mut question = [0; 16];
        let received = server.recv_from_async(&mut question);
        let (received, sent) = join(received, client.send_to_async(b"question", Some(to))).await;
        let reported = received.expect("received");
        assert_eq!((sent.expect("sent"), reported.copied), (8, 8));
        client.connect(to).expect("a peer");
        assert_eq!(client.send_to_async(b"end", None).await.expect("sent"), 3);
        let reported = server.recv_from_async(&mut question).await.expect("received");
        assert_eq!(&question[..reported.copied], b"end");
    });
}
