//! What tests of networks have in common: a switch without a gateway, and guests at stream ports.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use towpath_io::endpoint::Connection;
use towpath_net::wire::MacAddr;

use super::{Attachment, Network, NetworkConfig, PortSettings};

/// A network without a gateway and without ports.
pub(super) fn network() -> Network {
    Network::new(NetworkConfig {
        mtu: 1500,
        gateway: None,
        gateway_addresses: Vec::new(),
        orphan: false,
        busy_poll: Duration::ZERO,
        seed: 1,
    })
    .expect("a network")
}

/// Adds a port with a guest. Returns the guest's end of the connection, which does not block.
pub(super) fn add_guest(network: &mut Network, name: &str) -> UnixStream {
    let (near, guest) = UnixStream::pair().expect("a pair of sockets");
    let connection = Connection::new(near.into()).expect("a connected socket");
    let attachment = Attachment::StreamFd(connection);
    network.add_port(name, attachment, PortSettings::default()).expect("added");
    guest.set_nonblocking(true).expect("set");
    guest
}

/// A broadcast of 60 bytes after its length, as a guest writes it to a stream. `fill` follows the
/// Ethernet header.
pub(super) fn broadcast(from: MacAddr, fill: u8) -> Vec<u8> {
    let mut frame = [&60_u32.to_be_bytes()[..], &[0xff; 6], &from.0, &[0x88, 0xb5]].concat();
    frame.resize(64, fill);
    frame
}
