//! A client of hyper-util on a towpath host, with its pool of connections.
//!
//! The client connects through a [`Connector`] (feature `hyper-util`). Names go to the host's
//! resolver, which here only knows `server.test`. The server is hyper's, on a second host in this
//! process; or a program on the kernel's network, which runs beside the client in a network
//! namespace and listens at 10.7.0.2, port 80, until the client has its answers. With `--serve`,
//! this program is such a server:
//!
//! ```text
//! hyper_client -- python3 -m http.server 80
//! hyper_client --path /bytes/4096 -- target/release/examples/hyper_client --serve
//! ```

#[path = "shared/place.rs"]
mod place;

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioIo};
use place::{PREFIX_LEN, isolated, on_tap};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use towpath::host::{Config, Host, Resolver};
use towpath::tokio::{Connector, TcpListener};

/// Run an HTTP client on a towpath host, and its server.
#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// Number of requests, made one after the other.
    #[arg(long, default_value_t = 16)]
    requests: u32,

    /// Path to request.
    #[arg(long, default_value = "/bytes/4096")]
    path: String,

    /// Host name in the requests.
    #[arg(long, default_value = NAME)]
    name: String,

    /// Run as a server on the kernel's network.
    #[arg(long, conflicts_with = "command")]
    serve: bool,

    /// A server on the kernel's network, with its arguments.
    #[arg(last = true)]
    command: Vec<OsString>,
}

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 2);
const PORT: u16 = 80;
/// The only name that the resolver knows.
const NAME: &str = "server.test";
/// Pause between attempts to connect while the server starts, and their maximum number.
const START_PAUSE: Duration = Duration::from_millis(20);
const STARTS_MAX: u32 = 500;

/// Answers with the requested number of bytes.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let len = request.uri().path().strip_prefix("/bytes/").and_then(|len| len.parse().ok());
    let mut response = Response::new(Full::default());
    match len {
        Some(len @ 0..=0x100_0000) => *response.body_mut() = vec![7; len].into(),
        _ => *response.status_mut() = StatusCode::NOT_FOUND,
    }
    Ok(response)
}

/// Serves a connection of either network in a task.
fn serve_one(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let http = hyper::server::conn::http1::Builder::new();
    let connection = http.serve_connection(TokioIo::new(stream), service_fn(answer));
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            eprintln!("a connection failed: {error}");
        }
    });
}

/// Returns a configuration whose resolver knows one name.
fn client_config() -> Config {
    let resolver = Resolver::new(|name, port| match name {
        NAME => Ok(vec![(IpAddr::V4(SERVER), port).into()]),
        _ => {
            let text = format!("{name} is not known; the only name is {NAME}");
            Err(io::Error::new(io::ErrorKind::NotFound, text))
        }
    });
    Config { resolver, ..Config::with_address(CLIENT, PREFIX_LEN) }
}

/// Makes requests one after the other. Returns the bytes of all answers.
async fn ask(host: &Host, arguments: &Arguments) -> anyhow::Result<u64> {
    let client = Client::builder(TokioExecutor::new()).build(Connector::new(host));
    let text = format!("http://{}{}", arguments.name, arguments.path);
    let uri: Uri = text.parse().with_context(|| format!("'{text}' is no URI"))?;
    let (mut refused, mut total) = (0, 0);
    for _ in 0..arguments.requests {
        let response = loop {
            match client.request(Request::get(&uri).body(Empty::<Bytes>::new())?).await {
                Err(error) if is_refused(&error) && refused < STARTS_MAX => {
                    refused += 1;
                    tokio::time::sleep(START_PAUSE).await;
                }
                answered => break answered.with_context(|| format!("cannot get {uri}"))?,
            }
        };
        ensure!(response.status() == StatusCode::OK, "{uri}: {}", response.status());
        total += response.into_body().collect().await?.to_bytes().len() as u64;
    }
    Ok(total)
}

/// Returns true if there is no listener at the server's port.
fn is_refused(error: &Error) -> bool {
    let first: &(dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(first), |error| error.source())
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Creates a tokio runtime without an I/O driver.
fn runtime() -> anyhow::Result<Runtime> {
    Ok(Builder::new_current_thread().enable_time().build()?)
}

fn in_process(arguments: &Arguments) -> anyhow::Result<u64> {
    let config = Config::with_address(SERVER, PREFIX_LEN);
    let (client, server) = Host::pair(&client_config(), &config)?;
    runtime()?.block_on(async {
        let listener = TcpListener::bind(&server, (SERVER, PORT)).await?;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serve_one(stream);
            }
        });
        ask(&client, arguments).await
    })
}

/// Sends requests to a server on the kernel's network, then ends the server.
fn beside(arguments: &Arguments) -> anyhow::Result<()> {
    let host = on_tap(&client_config(), SERVER)?;
    let (program, options) = arguments.command.split_first().context("there is no command")?;
    let server = Command::new(program).args(options).spawn();
    let mut server = server.with_context(|| format!("cannot run {}", program.to_string_lossy()))?;
    let asked = runtime()?.block_on(ask(&host, arguments));
    server.kill()?;
    server.wait()?;
    reported(asked?)
}

/// Serves on kernel sockets, until the process is killed.
fn serve_kernel() -> anyhow::Result<()> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await;
        let listener = listener.with_context(|| format!("cannot listen at port {PORT}"))?;
        loop {
            serve_one(listener.accept().await?.0);
        }
    })
}

fn reported(bytes: u64) -> anyhow::Result<()> {
    println!("{bytes} bytes in answers");
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.command[..] {
        [] if arguments.serve => serve_kernel(),
        [] => in_process(&arguments).and_then(reported),
        _ => isolated(|| beside(&arguments)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
