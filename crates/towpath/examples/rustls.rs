//! HTTP over TLS on a towpath host, with rustls.
//!
//! tokio-rustls accepts streams of a host like any others. The certificate is self-signed and
//! created at the start. The client, on a second host in this process, trusts it; or the client is
//! a program on the kernel's network, which runs beside the server in a network namespace and
//! reaches it at 10.7.0.1:
//!
//! ```text
//! rustls -- curl -sk https://10.7.0.1/
//! rustls -- curl -sk --data-binary @FILE https://10.7.0.1/echo
//! ```

#[path = "shared/place.rs"]
mod place;
#[path = "shared/serve.rs"]
mod serve;

use std::convert::Infallible;
use std::ffi::OsString;
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, ensure};
use clap::Parser;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serve::{SERVER, beside, exit_code, in_process};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use towpath::host::Host;
use towpath::tokio::{TcpListener, TcpStream};

/// Serve HTTP over TLS on a towpath host, and run its client.
#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// Requests of the client in this process.
    #[arg(long, default_value_t = 64)]
    requests: u32,

    /// Bytes per request and per answer.
    #[arg(long, default_value_t = 64 << 10)]
    bytes: u32,

    /// A client on the kernel's network, with its arguments.
    #[arg(last = true)]
    command: Vec<OsString>,
}

const PORT: u16 = 443;

/// Creates a self-signed certificate of the server, and its key.
fn certificate() -> anyhow::Result<(CertificateDer<'static>, PrivateKeyDer<'static>)> {
    let own = rcgen::generate_simple_self_signed([SERVER.to_string()])?;
    let key = PrivateKeyDer::try_from(own.signing_key.serialize_der());
    Ok((own.cert.der().clone(), key.map_err(anyhow::Error::msg)?))
}

/// The application.
async fn answer(
    request: Request<Incoming>,
) -> Result<Response<BoxBody<Bytes, hyper::Error>>, Infallible> {
    let of = |text| Full::new(Bytes::from_static(text)).map_err(|never| match never {}).boxed();
    Ok(match (request.method(), request.uri().path()) {
        (&Method::GET, "/") => Response::new(of(b"rustls on towpath\n")),
        // Each part goes back while others arrive.
        (&Method::POST, "/echo") => Response::new(request.into_body().boxed()),
        _ => {
            let mut response = Response::new(of(b""));
            *response.status_mut() = StatusCode::NOT_FOUND;
            response
        }
    })
}

/// Serves each connection in a task, until the runtime ends.
async fn serve(listener: TcpListener, tls: TlsAcceptor) -> anyhow::Result<()> {
    loop {
        let (stream, peer) = listener.accept().await.context("cannot accept")?;
        stream.set_nodelay(true)?;
        let tls = tls.clone();
        tokio::spawn(async move {
            let served = async {
                let stream = tls.accept(stream).await.context("the handshake failed")?;
                let http = hyper::server::conn::http1::Builder::new();
                http.serve_connection(TokioIo::new(stream), service_fn(answer)).await?;
                anyhow::Ok(())
            };
            if let Err(error) = served.await {
                eprintln!("{peer}: {error:#}");
            }
        });
    }
}

/// Sends requests on one connection and checks the answers. Returns the bytes of their bodies.
async fn ask(host: Host, tls: TlsConnector, arguments: &Arguments) -> anyhow::Result<u64> {
    let stream = TcpStream::connect(&host, (SERVER, PORT)).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::from(IpAddr::V4(SERVER));
    let stream = tls.connect(name, stream).await.context("the handshake failed")?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let bytes: Vec<u8> = (0..arguments.bytes).map(|at| (at * 31 + at / 251) as u8).collect();
    let expected = Bytes::from(bytes);
    let mut total = 0;
    for number in 0..arguments.requests {
        let request = Request::post("/echo").header("host", SERVER.to_string());
        let response = sender.send_request(request.body(Full::new(expected.clone()))?).await?;
        ensure!(response.status() == StatusCode::OK, "the server says {}", response.status());
        let received = response.into_body().collect().await?.to_bytes();
        ensure!(received == expected, "other bytes than sent, in request {number}");
        total += received.len() as u64;
    }
    drop(sender);
    connection.await??;
    Ok(total)
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let (certificate, key) = certificate().context("cannot make a certificate")?;
    let server = ServerConfig::builder().with_no_client_auth();
    let server = server.with_single_cert(vec![certificate.clone()], key)?;
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let serve = |listener| serve(listener, acceptor);
    if !arguments.command.is_empty() {
        return beside(&arguments.command, PORT, serve);
    }
    let mut trusted = RootCertStore::empty();
    trusted.add(certificate)?;
    let client = ClientConfig::builder().with_root_certificates(trusted).with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(client));
    let total = in_process(PORT, serve, |clients| ask(clients, connector, arguments))?;
    println!("{total} bytes by TLS, all right");
    Ok(())
}

fn main() -> ExitCode {
    exit_code(run(&Arguments::parse()))
}
