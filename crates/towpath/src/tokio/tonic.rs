//! Servers of tonic on a host: what they ask of a connection.

use super::TcpStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// For `serve_with_incoming` of tonic's servers, with
/// [`TcpListener::into_incoming`](super::TcpListener::into_incoming). Handlers have both addresses,
/// as with the kernel's connections: `Request::remote_addr` and `Request::local_addr` tell them.
///
/// Clients of tonic connect by `Endpoint::connect_with_connector` with a
/// [`Connector`](super::Connector).
impl Connected for TcpStream {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        TcpConnectInfo { local_addr: self.local_addr().ok(), remote_addr: self.peer_addr().ok() }
    }
}
