//! Servers of tonic on a host: the trait that they need of a connection.

use super::TcpStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// For `serve_with_incoming` of tonic's servers, with
/// [`TcpListener::into_incoming`](super::TcpListener::into_incoming). `Request::remote_addr` and
/// `Request::local_addr` return both addresses to handlers, as with the kernel's connections.
///
/// Clients of tonic connect with `Endpoint::connect_with_connector` and a
/// [`Connector`](super::Connector).
impl Connected for TcpStream {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        TcpConnectInfo { local_addr: self.local_addr().ok(), remote_addr: self.peer_addr().ok() }
    }
}
