//! Target: the host's resolv.conf.

use std::net::{IpAddr, SocketAddr};
use towpath_gateway::resolv::{DNS_PORT, FILE_RESOLVERS_MAX, generate, name_servers};

/// Reads a byte of choices and a file, which need not be valid UTF-8.
pub fn run(data: &[u8]) {
    let Some((&choices, file)) = data.split_first() else { return };
    let file = String::from_utf8_lossy(file);
    let index = |zone: &str| (zone.len() < 16).then_some(zone.len() as u32);
    let servers = name_servers(&file, index);
    assert!(servers.len() <= FILE_RESOLVERS_MAX);
    assert!(servers.iter().all(|server| server.port() == DNS_PORT));
    let dns: IpAddr =
        if choices & 1 == 0 { [10, 0, 2, 3].into() } else { [0xfd00, 0, 0, 0, 0, 0, 0, 3].into() };
    let written = generate(&file, dns);
    // Whatever the file contains, the program queries only the given server.
    assert_eq!(name_servers(&written, index), [SocketAddr::new(dns, DNS_PORT)]);
    assert_eq!(generate(&written, dns), written);
}
