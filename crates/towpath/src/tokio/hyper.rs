//! Clients of hyper-util on a host: the connector for them, and the traits that they need of a
//! connection.

use super::TcpStream;
use crate::host::Host;
use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tower_service::Service;

/// Connects clients through a host: those of hyper-util, of tonic, and all that accept a service
/// from a [`Uri`] to a connection. Clones share the host.
///
/// The host's [resolver](crate::host::Resolver) resolves the name in a URI. The default port is 80
/// for `http` and 443 for `https`. The connector does no TLS; wrap it in a connector that does.
///
/// ```
/// use http_body_util::{BodyExt, Empty};
/// use hyper::body::Bytes;
/// use hyper_util::client::legacy::Client;
/// use hyper_util::rt::TokioExecutor;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// use towpath::host::{Config, Host};
/// use towpath::tokio::{Connector, TcpListener};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
/// let [a, b] = [1, 2].map(|last| Config::with_address([10, 0, 0, last], 24));
/// let (host, server) = Host::pair(&a, &b)?;
/// let listener = TcpListener::bind(&server, "10.0.0.2:80").await?;
/// tokio::spawn(async move {
///     let (mut stream, _) = listener.accept().await?;
///     stream.read(&mut [0; 1024]).await?;
///     stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").await
/// });
/// let client = Client::builder(TokioExecutor::new()).build(Connector::new(&host));
/// let request = hyper::Request::get("http://10.0.0.2/").body(Empty::<Bytes>::new())?;
/// let response = client.request(request).await?;
/// assert_eq!(response.into_body().collect().await?.to_bytes(), "hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Connector {
    host: Host,
    nodelay: bool,
}

impl Connector {
    /// Creates a connector of `host` with `TCP_NODELAY` set.
    pub fn new(host: &Host) -> Self {
        Self { host: host.clone(), nodelay: true }
    }

    /// Sets `TCP_NODELAY`: true sends small segments at once instead of waiting for ACKs.
    pub fn nodelay(self, nodelay: bool) -> Self {
        Self { nodelay, ..self }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = ConnectError;
    type Future = Connecting;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Connecting {
        let Self { host, nodelay } = self.clone();
        Connecting(Box::pin(async move {
            let (name, port) = target(&uri)?;
            let stream = async {
                let stream = TcpStream::connect(&host, (name, port)).await?;
                stream.set_nodelay(nodelay)?;
                Ok(stream)
            };
            match stream.await {
                Ok(stream) => Ok(TokioIo::new(stream)),
                Err(error) => Err(ConnectError::Failed { name: name.to_owned(), port, error }),
            }
        }))
    }
}

/// A connection attempt of a [`Connector`]. Dropping it aborts the attempt.
#[must_use = "nothing is connected unless it is awaited"]
pub struct Connecting(Pin<Box<dyn Future<Output = Outcome> + Send>>);

type Outcome = Result<TokioIo<TcpStream>, ConnectError>;

impl Future for Connecting {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting").finish_non_exhaustive()
    }
}

/// Why a [`Connector`] could not connect.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URI has no host.
    NoName(Uri),
    /// The URI has no port, and its scheme is neither `http` nor `https`.
    NoPort(Uri),
    /// The name was not resolved, or no address answered.
    Failed {
        /// The name or address in the URI.
        name: String,
        /// The port.
        port: u16,
        /// The error of the resolver, or of connect(2) for the address tried last.
        error: io::Error,
    },
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoName(uri) => {
                write!(f, "the URI '{uri}' has no host; expected for example http://example.org/")
            }
            Self::NoPort(uri) => write!(
                f,
                "the URI '{uri}' names no port, which is known for http and https only; \
                 write the port behind the host"
            ),
            Self::Failed { name, port, .. } => write!(f, "cannot connect to {name}, port {port}"),
        }
    }
}

impl Error for ConnectError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::NoName(_) | Self::NoPort(_) => None,
            Self::Failed { error, .. } => Some(error),
        }
    }
}

/// A direct TCP connection: no proxy, no ALPN.
impl Connection for TcpStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

/// Returns the name or address of a URI, and its port.
fn target(uri: &Uri) -> Result<(&str, u16), ConnectError> {
    let name = uri.host().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| ConnectError::NoName(uri.clone()))?;
    // An IPv6 address is in brackets.
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let port = match (uri.port_u16(), uri.scheme_str()) {
        (Some(port), _) => port,
        (None, Some("http")) => HTTP_PORT,
        (None, Some("https")) => HTTPS_PORT,
        (None, _) => return Err(ConnectError::NoPort(uri.clone())),
    };
    Ok((address.unwrap_or(name), port))
}

const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_says_where() {
        for (uri, expected) in [
            ("http://example.org/a", ("example.org", 80)),
            ("https://example.org", ("example.org", 443)),
            ("https://example.org:8443/", ("example.org", 8443)),
            ("ws://example.org:81/", ("example.org", 81)),
            ("http://10.0.0.2:8080/", ("10.0.0.2", 8080)),
            ("http://[2001:db8::1]/", ("2001:db8::1", 80)),
            ("example.org:7", ("example.org", 7)),
        ] {
            let parsed: Uri = uri.parse().expect("a URI");
            assert_eq!(target(&parsed).expect("a target"), expected, "{uri}");
        }
    }

    #[test]
    fn missing_parts_of_a_uri_are_reported() {
        for (uri, expected) in [
            ("/index.html", "has no host"),
            ("ws://example.org/", "names no port"),
            ("example.org", "names no port"),
        ] {
            let error = target(&uri.parse().expect("a URI")).expect_err("not a target");
            let text = error.to_string();
            assert!(text.contains(expected) && text.contains(uri), "{text}");
        }
    }
}
