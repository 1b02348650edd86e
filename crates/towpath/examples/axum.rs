//! A server of axum on a towpath host.
//!
//! `axum::serve` accepts the host's listener (feature `axum`); routes and handlers are ordinary
//! ones. The clients are hyper-util's, on a second host in this process; or a program on the
//! kernel's network, which runs beside the server in a network namespace and reaches it at
//! 10.7.0.1:
//!
//! ```text
//! axum -- curl -s http://10.7.0.1/
//! axum -- curl -s --data-binary @FILE http://10.7.0.1/echo
//! ```

#[path = "shared/place.rs"]
mod place;
#[path = "shared/serve.rs"]
mod serve;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::ensure;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Path};
use axum::http::{Request, StatusCode};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use clap::{Parser, value_parser};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serve::{CLIENT, SERVER, beside, exit_code, in_process};
use towpath::host::Host;
use towpath::tokio::{Connector, TcpListener};

/// Serve with axum on a towpath host, and run its clients.
#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// Requests of the client in this process.
    #[arg(long, default_value_t = 64)]
    requests: u32,

    /// Bytes per answer.
    #[arg(long, default_value_t = 64 << 10, value_parser = value_parser!(u32).range(..=1 << 20))]
    bytes: u32,

    /// A client on the kernel's network, with its arguments.
    #[arg(last = true)]
    command: Vec<OsString>,
}

const PORT: u16 = 80;
/// Most bytes of an answer that is requested by length.
const ANSWER_MAX: usize = 1 << 30;

/// The application, which does not depend on towpath.
fn application() -> Router {
    Router::new()
        .route("/", get(|| async { "axum on towpath\n" }))
        .route("/peer", get(peer))
        .route("/bytes/{len}", get(bytes))
        // Each part goes back while others arrive.
        .route("/echo", post(|body: Body| async { body }))
}

async fn peer(ConnectInfo(peer): ConnectInfo<SocketAddr>) -> String {
    format!("{}\n", peer.ip())
}

async fn bytes(Path(len): Path<usize>) -> Result<Vec<u8>, (StatusCode, String)> {
    match len {
        0..=ANSWER_MAX => Ok(pattern(len)),
        _ => Err((StatusCode::BAD_REQUEST, format!("{len} bytes, of {ANSWER_MAX} at most\n"))),
    }
}

/// Serves until the runtime ends.
async fn serve(listener: TcpListener) -> anyhow::Result<()> {
    let listener = listener.tap_io(|stream| {
        // Fails if the connection has ended: the first read then reports it.
        let _ = stream.set_nodelay(true);
    });
    let service = application().into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}

/// Makes requests one after the other and checks the answers. Returns the bytes of their bodies.
async fn ask(host: Host, arguments: &Arguments) -> anyhow::Result<u64> {
    let client = Client::builder(TokioExecutor::new()).build(Connector::new(&host));
    let expected = Bytes::from(pattern(arguments.bytes as usize));
    let at = |path: &str| format!("http://{SERVER}{path}");
    let mut total = 0;
    for number in 0..arguments.requests {
        let request = match number % 2 {
            0 => Request::get(at(&format!("/bytes/{}", expected.len()))).body(Full::default())?,
            _ => Request::post(at("/echo")).body(Full::new(expected.clone()))?,
        };
        let response = client.request(request).await?;
        ensure!(response.status() == StatusCode::OK, "the server says {}", response.status());
        let received = response.into_body().collect().await?.to_bytes();
        ensure!(received == expected, "other bytes than asked for, in request {number}");
        total += received.len() as u64;
    }
    let request = Request::get(at("/peer")).body(Full::default())?;
    let seen = client.request(request).await?.into_body().collect().await?.to_bytes();
    ensure!(seen == format!("{CLIENT}\n"), "the server takes its client for {seen:?}");
    Ok(total)
}

/// Returns bytes with a recognisable pattern.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    exit_code(match &arguments.command[..] {
        [] => in_process(PORT, serve, |clients| ask(clients, &arguments))
            .map(|bytes| println!("{bytes} bytes in answers, all right")),
        command => beside(command, PORT, serve),
    })
}
