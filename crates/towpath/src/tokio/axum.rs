//! Servers of axum on a host: `axum::serve` accepts the host's listener.

use super::{TcpListener, TcpStream};
use axum::serve::Listener;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// For `axum::serve`. A failed accept is retried: at once if a connection ended before it was
/// accepted, otherwise after a second, as axum does with the kernel's listeners. That needs a
/// runtime with its timer enabled. Errors are not logged.
///
/// With a listener made by `ListenerExt::tap_io`, small parts of answers can be sent at once, and
/// handlers get the peer's address as `ConnectInfo<SocketAddr>`:
///
/// ```
/// use axum::Router;
/// use axum::extract::ConnectInfo;
/// use axum::routing::get;
/// use axum::serve::ListenerExt;
/// use std::net::SocketAddr;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// use towpath::host::{Config, Host};
/// use towpath::tokio::{TcpListener, TcpStream};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
/// # runtime.block_on(async {
/// let [a, b] = [1, 2].map(|last| Config::with_address([10, 0, 0, last], 24));
/// let (client, server) = Host::pair(&a, &b)?;
/// let listener = TcpListener::bind(&server, "10.0.0.2:80").await?.tap_io(|stream| {
///     // Fails if the connection has ended: the first read then reports it.
///     let _ = stream.set_nodelay(true);
/// });
/// let greet = |ConnectInfo(peer): ConnectInfo<SocketAddr>| async move {
///     format!("hello, {}", peer.ip())
/// };
/// let router = Router::new().route("/", get(greet));
/// let service = router.into_make_service_with_connect_info::<SocketAddr>();
/// tokio::spawn(async move { axum::serve(listener, service).await });
///
/// let mut stream = TcpStream::connect(&client, "10.0.0.2:80").await?;
/// stream.write_all(b"GET / HTTP/1.1\r\nhost: server\r\nconnection: close\r\n\r\n").await?;
/// let mut answer = String::new();
/// stream.read_to_string(&mut answer).await?;
/// assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("hello, 10.0.0.1"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Listener for TcpListener {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match TcpListener::accept(self).await {
                Ok(accepted) => return accepted,
                Err(error) if is_of_connection(&error) => {}
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        TcpListener::local_addr(self)
    }
}

/// Returns true if the error concerns one connection that has ended, and not the next one.
fn is_of_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Pause before another accept if memory or descriptors were short.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
