//! An application of hyper on a towpath host.
//!
//! The application ([`answer`]) and hyper do not depend on towpath: a stream of a host implements
//! tokio's traits, and a runtime needs only its wakers; here it is a tokio runtime without an I/O
//! driver. The clients are hyper's, on a second host in this process; or a program on the kernel's
//! network, which runs beside the server in a network namespace and reaches it at 10.7.0.1:
//!
//! ```text
//! hyper -- curl -s http://10.7.0.1/
//! hyper -- wrk -t1 -c64 -d5 http://10.7.0.1/bytes/4096
//! ```

#[path = "shared/place.rs"]
mod place;
#[path = "shared/serve.rs"]
mod serve;

use std::convert::Infallible;
use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use bytes::Bytes;
use clap::Parser;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serve::{SERVER, beside, exit_code, in_process};
use towpath::host::Host;
use towpath::tokio::{TcpListener, TcpStream};

/// Serve with hyper on a towpath host, and run its clients.
#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// Concurrent connections of clients in this process.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,

    /// Requests per client.
    #[arg(long, default_value_t = 64)]
    requests: u32,

    /// Bytes per answer.
    #[arg(long, default_value_t = 64 << 10)]
    bytes: u32,

    /// A client on the kernel's network, with its arguments.
    #[arg(last = true)]
    command: Vec<OsString>,
}

const PORT: u16 = 80;
/// Most bytes of an answer.
const ANSWER_MAX: usize = 1 << 30;

/// Body of an answer: complete, or still arriving.
type Body = BoxBody<Bytes, hyper::Error>;

/// The application.
async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let of = |bytes: Bytes| Full::new(bytes).map_err(|never| match never {}).boxed();
    let path = request.uri().path().to_owned();
    let len = path.strip_prefix("/bytes/").and_then(|len| len.parse().ok());
    Ok(match (request.method(), path.as_str(), len) {
        (&Method::GET, "/", _) => Response::new(of(Bytes::from_static(b"hyper on towpath\n"))),
        (&Method::GET, _, Some(len @ 0..=ANSWER_MAX)) => Response::new(of(pattern(len).into())),
        // Each part goes back while others arrive.
        (&Method::POST, "/echo", _) => Response::new(request.into_body().boxed()),
        _ => {
            let mut response = Response::new(of(Bytes::new()));
            *response.status_mut() = StatusCode::NOT_FOUND;
            response
        }
    })
}

/// Serves each connection in a task, until the runtime ends.
async fn serve(listener: TcpListener) -> anyhow::Result<()> {
    loop {
        let (stream, _) = listener.accept().await.context("cannot accept")?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(answer));
            if let Err(error) = connection.await {
                eprintln!("a connection failed: {error}");
            }
        });
    }
}

/// Sends requests on one connection and checks the answers. Returns the bytes of their bodies.
async fn ask(host: Host, arguments: Arguments) -> anyhow::Result<u64> {
    let stream = TcpStream::connect(&host, (SERVER, PORT)).await?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let expected = pattern(arguments.bytes as usize);
    let mut total = 0;
    for number in 0..arguments.requests {
        let (request, body) = match number % 2 {
            0 => (Request::get(format!("/bytes/{}", expected.len())), Bytes::new()),
            _ => (Request::post("/echo"), Bytes::from(expected.clone())),
        };
        let request = request.header("host", SERVER.to_string()).body(Full::new(body))?;
        let response = sender.send_request(request).await?;
        ensure!(response.status() == StatusCode::OK, "the server says {}", response.status());
        let received = response.into_body().collect().await?.to_bytes();
        ensure!(received == expected, "other bytes than asked for");
        total += received.len() as u64;
    }
    drop(sender);
    connection.await??;
    Ok(total)
}

/// Runs all clients concurrently. Returns the bytes of all answers.
async fn ask_all(clients: Host, arguments: &Arguments) -> anyhow::Result<u64> {
    let asks: Vec<_> = (0..arguments.clients)
        .map(|_| tokio::spawn(ask(clients.clone(), arguments.clone())))
        .collect();
    let mut total = 0;
    for asked in asks {
        total += asked.await??;
    }
    Ok(total)
}

/// Returns bytes with a recognisable pattern.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    exit_code(match &arguments.command[..] {
        [] => in_process(PORT, serve, |clients| ask_all(clients, &arguments))
            .map(|bytes| println!("{bytes} bytes in answers, all right")),
        command => beside(command, PORT, serve),
    })
}
