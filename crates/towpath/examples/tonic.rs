//! A server and a client of tonic on towpath hosts: gRPC.
//!
//! The server accepts a host's connections, and the client connects through a [`Connector`]
//! (feature `tonic`). Messages are plain bytes, by a codec of a few lines, so that no schema must
//! be compiled; code that tonic generates from a schema is served in the same way. The client is on
//! a second host in this process; or it is a program on the kernel's network, which runs beside the
//! server in a network namespace and reaches it at 10.7.0.1. With `--connect`, this program is such
//! a client:
//!
//! ```text
//! tonic -- target/release/examples/tonic --connect http://10.7.0.1:50051
//! ```

#[path = "shared/place.rs"]
mod place;
#[path = "shared/serve.rs"]
mod serve;

use std::convert::Infallible;
use std::ffi::OsString;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::process::ExitCode;
use std::task::{Context, Poll};

use anyhow::ensure;
use bytes::{Buf, BufMut, Bytes};
use clap::{Parser, value_parser};
use futures::stream::{self, Iter};
use http::uri::PathAndQuery;
use serve::{CLIENT, SERVER, beside, exit_code, in_process};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{NamedService, ServerStreamingService, UnaryService};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tower_service::Service;
use towpath::tokio::{Connector, TcpListener};

/// Serve gRPC on a towpath host, and run its client.
#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// Calls of each of the two methods.
    #[arg(long, default_value_t = 16)]
    calls: u32,

    /// Bytes per message.
    #[arg(long, default_value_t = 64 << 10, value_parser = value_parser!(u32).range(1..=4 << 20))]
    bytes: u32,

    /// Run as a client on the kernel's network, for the server at this URI.
    #[arg(long, conflicts_with = "command")]
    connect: Option<String>,

    /// A client on the kernel's network, with its arguments.
    #[arg(last = true)]
    command: Vec<OsString>,
}

const PORT: u16 = 50051;
/// The method that echoes a message.
const WHOLE: &str = "/towpath.example.Echo/Whole";
/// The method that echoes a message in parts.
const PARTS: &str = "/towpath.example.Echo/Parts";
const PART_LEN: usize = 1000;
/// Metadata key under which `WHOLE` reports the client's address.
const PEER: &str = "peer";

/// A codec for messages that are plain bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Plain;

impl Codec for Plain {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// The service, which does not depend on towpath.
#[derive(Clone, Copy, Debug)]
struct Echo;

impl UnaryService<Bytes> for Echo {
    type Response = Bytes;
    type Future = Ready<Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let peer = request.remote_addr().map(|peer| peer.ip().to_string());
        let mut response = Response::new(request.into_inner());
        if let Some(peer) = peer.and_then(|peer| peer.parse().ok()) {
            response.metadata_mut().insert(PEER, peer);
        }
        ready(Ok(response))
    }
}

impl ServerStreamingService<Bytes> for Echo {
    type Response = Bytes;
    type ResponseStream = Iter<std::vec::IntoIter<Result<Bytes, Status>>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let bytes = request.into_inner();
        let parts: Vec<_> = bytes.chunks(PART_LEN).map(|part| Ok(bytes.slice_ref(part))).collect();
        ready(Ok(Response::new(stream::iter(parts))))
    }
}

impl NamedService for Echo {
    const NAME: &'static str = "towpath.example.Echo";
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let mut grpc = tonic::server::Grpc::new(Plain);
        Box::pin(async move {
            Ok(match request.uri().path() {
                WHOLE => grpc.unary(Self, request).await,
                PARTS => grpc.server_streaming(Self, request).await,
                _ => Status::unimplemented("there is no such method").into_http(),
            })
        })
    }
}

/// Serves until the runtime ends.
async fn serve(listener: TcpListener) -> anyhow::Result<()> {
    listener.as_host().set_nodelay(true)?;
    let router = Server::builder().add_service(Echo);
    Ok(router.serve_with_incoming(listener.into_incoming()).await?)
}

/// Calls both methods and checks the answers. Returns the bytes of all answers.
async fn ask(channel: Channel, arguments: &Arguments) -> anyhow::Result<u64> {
    let mut client = tonic::client::Grpc::new(channel);
    let sent: Bytes = (0..arguments.bytes).map(|at| (at * 31 + at / 251) as u8).collect();
    let mut total = 0;
    for _ in 0..arguments.calls {
        client.ready().await?;
        let (whole, parts) = (PathAndQuery::from_static(WHOLE), PathAndQuery::from_static(PARTS));
        let answer = client.unary(Request::new(sent.clone()), whole, Plain).await?;
        ensure!(answer.get_ref() == &sent, "the answer is other than the question");
        let seen = answer.metadata().get(PEER).map(|peer| peer.as_bytes());
        let own = CLIENT.to_string();
        ensure!(seen == Some(own.as_bytes()), "the server takes its client for {seen:?}");
        client.ready().await?;
        let answer = client.server_streaming(Request::new(sent.clone()), parts, Plain).await?;
        let (mut parts, mut received) = (answer.into_inner(), Vec::new());
        while let Some(part) = parts.message().await? {
            received.extend_from_slice(&part);
        }
        ensure!(received == sent, "the parts of the answer are other than the question");
        total += 2 * received.len() as u64;
    }
    Ok(total)
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let bytes = match (&arguments.connect, &arguments.command[..]) {
        (Some(uri), _) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let channel = Endpoint::from_shared(uri.clone())?.connect().await?;
                ask(channel, arguments).await
            })?
        }
        (None, []) => in_process(PORT, serve, async |clients| {
            let endpoint = Endpoint::from_shared(format!("http://{SERVER}:{PORT}"))?;
            let channel = endpoint.connect_with_connector(Connector::new(&clients)).await?;
            ask(channel, arguments).await
        })?,
        (None, command) => return beside(command, PORT, serve),
    };
    println!("{bytes} bytes in answers, all right");
    Ok(())
}

fn main() -> ExitCode {
    exit_code(run(&Arguments::parse()))
}
