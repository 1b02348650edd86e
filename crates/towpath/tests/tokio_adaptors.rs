//! Adaptors of host sockets for other crates: hyper-util's clients, axum and tonic, in tasks of one
//! thread.

use axum::Router;
use axum::routing::get;
use futures::future::{join, ready};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::{Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use std::error::Error;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tonic::transport::server::Connected;
use tower_service::Service;
use towpath::host::{Config, Host, Resolver};
use towpath::tokio::{ConnectError, Connector, TcpListener, TcpStream};

/// More than any step takes, so that a hanging test ends.
const PATIENCE: Duration = Duration::from_secs(60);

type Asked = Arc<Mutex<Vec<(String, u16)>>>;

/// Creates two hosts, and records the queries to the first one's resolver. It knows `server.test`,
/// whose first address has no listener.
fn pair() -> (Host, Host, Asked) {
    let asked = Asked::default();
    let resolver = Resolver::new({
        let asked = asked.clone();
        move |name, port| {
            asked.lock().expect("not poisoned").push((name.to_owned(), port));
            match name {
                "server.test" => {
                    Ok([port + 1, port].map(|port| ([10, 0, 0, 2], port).into()).into())
                }
                _ => Err(io::Error::new(ErrorKind::NotFound, "nobody knows it")),
            }
        }
    });
    let config = |last| Config::with_address([10, 0, 0, last], 24);
    let client = Config { resolver, ..config(1) };
    let (client, server) = Host::pair(&client, &config(2)).expect("two hosts");
    (client, server, asked)
}

/// Runs a case in a single-threaded runtime, in which a blocking call would block forever.
fn run(case: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime");
    let done = runtime.block_on(async { tokio::time::timeout(PATIENCE, case).await });
    done.expect("it ends");
}

fn uri(text: &str) -> Uri {
    text.parse().expect("a URI")
}

fn client(host: &Host) -> Client<Connector, Empty<Bytes>> {
    Client::builder(TokioExecutor::new()).build(Connector::new(host))
}

/// Requests `/` and returns the body of the answer.
async fn fetch(client: &Client<Connector, Empty<Bytes>>, from: &str) -> Bytes {
    let request = Request::get(from).body(Empty::new()).expect("a request");
    let response = client.request(request).await.expect("an answer");
    response.into_body().collect().await.expect("a body").to_bytes()
}

/// Goal: a client finds a server of axum through the host's resolver, at the second address, and
/// reuses the connection.
#[test]
fn a_client_keeps_its_connection() {
    let (host, server, asked) = pair();
    run(async {
        let listener = TcpListener::bind(&server, "10.0.0.2:80").await.expect("listens");
        let router = Router::new().route("/", get(|| ready("an answer")));
        tokio::spawn(async move { axum::serve(listener, router).await });
        let client = client(&host);
        for _ in 0..3 {
            assert_eq!(fetch(&client, "http://server.test/").await, "an answer");
        }
        let asked = asked.lock().expect("not poisoned");
        assert_eq!(*asked, [("server.test".to_owned(), 80)]);
    });
}

/// Goal: the scheme sets the port if the URI has none, and small segments wait for ACKs only on
/// request.
#[test]
fn a_connector_connects() {
    let (host, server, asked) = pair();
    run(async {
        let listener = TcpListener::bind(&server, "10.0.0.2:443").await.expect("listens");
        for nodelay in [true, false] {
            let mut connector = Connector::new(&host).nodelay(nodelay);
            let connect = connector.call(uri("https://server.test/"));
            let (stream, accepted) = join(connect, listener.accept()).await;
            let stream = stream.expect("connects").into_inner();
            assert_eq!(stream.nodelay().expect("known"), nodelay);
            assert_eq!(stream.local_addr().expect("known"), accepted.expect("accepted").1);
        }
        let expected = ("server.test".to_owned(), 443);
        assert_eq!(*asked.lock().expect("not poisoned"), [expected.clone(), expected]);
    });
}

/// Goal: failures are reported with port, cause and kind, also through the client.
#[test]
fn each_failure_is_reported() {
    let (host, _server, _) = pair();
    run(async {
        for (from, reported, kind) in [
            (
                "http://10.0.0.2/",
                "cannot connect to 10.0.0.2, port 80",
                ErrorKind::ConnectionRefused,
            ),
            ("https://a.test/", "cannot connect to a.test, port 443", ErrorKind::NotFound),
        ] {
            let error = client(&host).get(uri(from)).await.expect_err("no such host");
            assert!(error.is_connect(), "{error:?}");
            let error = error.source().expect("a cause").downcast_ref().expect("ours");
            let ConnectError::Failed { error: cause, .. } = error else { panic!("{error:?}") };
            assert_eq!((error.to_string().as_str(), cause.kind()), (reported, kind));
        }
        let error = Connector::new(&host).call(uri("ws://a.test/")).await.expect_err("no port");
        assert!(matches!(error, ConnectError::NoPort(_)), "{error:?}");
        let error = Connector::new(&host).call(uri("/")).await.expect_err("no name");
        assert!(matches!(error, ConnectError::NoName(_)), "{error:?}");
    });
}

/// Goal: connections that end before they are accepted do not end a server of axum.
#[test]
fn axum_serves_on() {
    let (host, server, _) = pair();
    run(async {
        let listener = TcpListener::bind(&server, "10.0.0.2:80").await.expect("listens");
        for linger in [None, Some(Duration::ZERO)] {
            let mut stream = TcpStream::connect(&host, "10.0.0.2:80").await.expect("connects");
            stream.write_all(b"GET").await.expect("sent");
            stream.as_host().set_linger(linger).expect("set");
        }
        let router = Router::new().route("/", get(|| ready("an answer")));
        tokio::spawn(async move { axum::serve(listener, router).await });
        assert_eq!(fetch(&client(&host), "http://10.0.0.2/").await, "an answer");
    });
}

/// Goal: tonic gets both addresses of a connection.
#[test]
fn tonic_gets_addresses() {
    let (host, server, _) = pair();
    run(async {
        let listener = TcpListener::bind(&server, "10.0.0.2:50051").await.expect("listens");
        let connect = TcpStream::connect(&host, "10.0.0.2:50051");
        let (stream, accepted) = join(connect, listener.accept()).await;
        let (stream, (accepted, peer)) = (stream.expect("connects"), accepted.expect("accepted"));
        let info = accepted.connect_info();
        assert_eq!(info.remote_addr(), Some(peer));
        assert_eq!(info.local_addr(), stream.peer_addr().ok());
    });
}
