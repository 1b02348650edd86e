//! Sockets shaped like tokio's, as programs written for tokio use them: with all traits imported,
//! in tasks of one thread.

use futures::StreamExt;
use futures::future::join;
use std::io::ErrorKind;
// The sockets must not conflict with tokio's traits.
#[allow(unused_imports, reason = "that they are there is the case")]
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use towpath::host::{Config, Host, Resolver, SendTo};
use towpath::tokio::{TcpListener, TcpStream, UdpSocket};

/// More than any step takes, so that a hanging test ends.
const PATIENCE: Duration = Duration::from_secs(60);

fn pair() -> (Host, Host) {
    // Without the default term, which a slow machine may exceed.
    let config = |last| Config { default_term: None, ..Config::with_address([10, 0, 0, last], 24) };
    Host::pair(&config(1), &config(2)).expect("two hosts")
}

/// Runs a case in a single-threaded runtime, in which a blocking call would block forever.
fn run(case: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime");
    let done = runtime.block_on(async { tokio::time::timeout(PATIENCE, case).await });
    done.expect("it ends");
}

async fn connection(hosts: &(Host, Host)) -> (TcpStream, TcpStream) {
    let address: SocketAddr = "10.0.0.2:80".parse().expect("an address");
    let listener = TcpListener::bind(&hosts.1, address).await.expect("listens");
    let (stream, accepted) = join(TcpStream::connect(&hosts.0, address), listener.accept()).await;
    (stream.expect("connects"), accepted.expect("accepted").0)
}

/// Goal: `shutdown` is that of tokio's trait, and the peer reads up to the end of the stream.
#[test]
fn a_stream_is_shut_down_by_the_trait() {
    let hosts = pair();
    run(async {
        let (mut stream, mut peer) = connection(&hosts).await;
        stream.write_all(b"question").await.expect("sent");
        stream.shutdown().await.expect("shut down");
        let mut text = String::new();
        peer.read_to_string(&mut text).await.expect("received");
        assert_eq!(text, "question");
        peer.write_all(b"answer").await.expect("sent");
        drop(peer);
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.expect("received");
        assert_eq!(answer, b"answer");
    });
}

/// Goal: the halves read and write concurrently, and dropping the write half ends the stream for
/// the peer.
#[test]
fn halves_belong_to_two_tasks() {
    const BYTES: usize = 3_000_000;
    let hosts = pair();
    run(async {
        let (stream, peer) = connection(&hosts).await;
        let (mut reads, mut writes) = stream.into_split();
        let (mut peer_reads, mut peer_writes) = peer.into_split();
        let send = async move {
            writes.write_all(&vec![7; BYTES]).await.expect("sent");
        };
        let echo = async move {
            let count = tokio::io::copy(&mut peer_reads, &mut peer_writes).await;
            assert_eq!(count.expect("copied"), BYTES as u64);
        };
        let receive = async move {
            let mut all = Vec::new();
            reads.read_to_end(&mut all).await.expect("received");
            assert!(all.len() == BYTES && all.iter().all(|byte| *byte == 7));
        };
        join(join(send, echo), receive).await;
    });
}

/// Goal: calls that cannot proceed report it, and readiness can be awaited.
#[test]
fn readiness_is_waited_for() {
    let hosts = pair();
    run(async {
        let (stream, mut peer) = connection(&hosts).await;
        let mut bytes = [0; 8];
        let nothing = stream.try_read(&mut bytes).expect_err("nothing is there");
        assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
        stream.writable().await.expect("it is");
        assert_eq!(stream.try_write(b"abc").expect("room"), 3);
        let mut received = [0; 3];
        peer.read_exact(&mut received).await.expect("received");
        let late = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            peer.write_all(b"xy").await.expect("sent");
        };
        let (ready, ()) = join(stream.readable(), late).await;
        ready.expect("it is");
        assert_eq!(stream.peek(&mut bytes).await.expect("there"), 2);
        assert_eq!(stream.try_read(&mut bytes).expect("there"), 2);
        assert_eq!(&bytes[..2], b"xy");
    });
}

/// Goal: a buffer that a task lends comes back.
#[test]
fn what_a_task_lends_comes_back() {
    let hosts = pair();
    run(async {
        let (stream, mut peer) = connection(&hosts).await;
        let sending = stream.send_zc(vec![9; 100_000]).await.expect("accepted");
        let mut received = vec![0; 100_000];
        peer.read_exact(&mut received).await.expect("received");
        let returned = sending.await;
        assert!(returned.buffer == received && !returned.copied);
    });
}

/// Goal: datagrams are sent, peeked, received and lent without blocking calls.
#[test]
fn datagrams_are_sent_and_received() {
    let hosts = pair();
    run(async {
        let client = UdpSocket::bind(&hosts.0, "10.0.0.1:53").await.expect("bound");
        let server = UdpSocket::bind(&hosts.1, "10.0.0.2:53").await.expect("bound");
        let to = server.local_addr().expect("an address");
        assert_eq!(client.send_to(b"one", to).await.expect("sent"), 3);
        server.readable().await.expect("it is");
        let mut bytes = [0; 16];
        for receive in [true, false] {
            let (count, from) = match receive {
                true => server.peek_from(&mut bytes).await.expect("there"),
                false => server.recv_from(&mut bytes).await.expect("there"),
            };
            assert_eq!((&bytes[..count], from), (&b"one"[..], client.local_addr().expect("one")));
        }
        client.connect(to).await.expect("a peer");
        let sending = client.send_zc(vec![1; 9], &SendTo::default()).await.expect("accepted");
        assert_eq!(server.recv(&mut bytes).await.expect("there"), 9);
        assert_eq!(sending.await.buffer, [1; 9]);
        assert_eq!(client.send(b"end").await.expect("sent"), 3);
        assert_eq!(server.recv(&mut bytes).await.expect("there"), 3);
    });
}

/// Goal: the host's resolver resolves names without blocking the runtime's thread, and its errors
/// are returned.
#[test]
fn names_are_resolved_beside_the_runtime() {
    let resolver = Resolver::new(|name, port| match name {
        "server.test" => {
            // Longer than the task would wait for its only thread.
            std::thread::sleep(Duration::from_millis(50));
            Ok(vec![([10, 0, 0, 2], port + 1).into(), ([10, 0, 0, 2], port).into()])
        }
        _ => Err(ErrorKind::NotFound.into()),
    });
    let config = |last| Config::with_address([10, 0, 0, last], 24);
    let (client, server) =
        Host::pair(&Config { resolver, ..config(1) }, &config(2)).expect("two hosts");
    run(async {
        let listener = TcpListener::bind(&server, "10.0.0.2:80").await.expect("listens");
        let mut incoming = listener.into_incoming();
        // The first address has no listener.
        let connect = TcpStream::connect(&client, "server.test:80");
        let ticks = async {
            let mut ticks = 0;
            while ticks < 5 {
                tokio::time::sleep(Duration::from_millis(5)).await;
                ticks += 1;
            }
            ticks
        };
        let ((stream, accepted), ticks) = join(join(connect, incoming.next()), ticks).await;
        let (stream, accepted) = (stream.expect("connects"), accepted.expect("endless"));
        let own = stream.local_addr().expect("an address");
        assert_eq!(accepted.expect("accepted").peer_addr().expect("a peer"), own);
        assert_eq!(ticks, 5);
        let failed = TcpStream::connect(&client, "other.test:80").await.expect_err("unknown");
        assert_eq!(failed.kind(), ErrorKind::NotFound);
        let failed = TcpStream::connect(&client, "no port").await.expect_err("wrong");
        assert_eq!(failed.kind(), ErrorKind::InvalidInput);
        let socket = UdpSocket::bind(&client, "0.0.0.0:0").await.expect("bound");
        assert_eq!(socket.send_to(b"one", "server.test:53").await.expect("sent"), 3);
    });
}
