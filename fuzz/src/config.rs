//! Target: networks, sizes and interface names as text.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use towpath_gateway::config::{Config, Subnet4, Subnet6, parse_size};

/// Longer texts find nothing new.
const TEXT_BYTES_MAX: usize = 128;

/// Parses the input as each kind of text.
pub fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(&data[..data.len().min(TEXT_BYTES_MAX)]) else { return };
    if let Ok(subnet) = text.parse() {
        subnet4(subnet);
    }
    if let Ok(subnet) = text.parse() {
        subnet6(subnet);
    }
    if let Ok(size) = parse_size(text) {
        assert_eq!(parse_size(&size.to_string()), Ok(size));
    }
    for interface in text.split('\n') {
        let mut config = Config { interface: interface.into(), ..Config::default() };
        if config.check().is_ok() {
            assert!((1..=15).contains(&interface.len()) && !interface.contains(['/', ':', ' ']));
        }
    }
}

fn subnet4(subnet: Subnet4) {
    assert_eq!(subnet.to_string().parse(), Ok(subnet));
    let config = subnet.config();
    let mask = !(u32::MAX >> config.prefix_len);
    let addresses = [config.address, config.gateway, config.dns.expect("a plan has it")];
    let network = addresses.map(|address| u32::from(address) & mask);
    assert!(network.iter().all(|first| *first == network[0]), "{subnet}");
    let broadcast = Ipv4Addr::from(network[0] | !mask);
    assert!(!addresses.contains(&broadcast) && !addresses.contains(&network[0].into()), "{subnet}");
    all_differ(addresses.map(IpAddr::from));
    let mut config = Config { ipv4: Some(config), ..Config::default() };
    assert!(config.check().is_ok(), "{subnet}");
}

fn subnet6(subnet: Subnet6) {
    assert_eq!(subnet.to_string().parse(), Ok(subnet));
    let config = subnet.config();
    let mask = !(u128::MAX >> config.prefix_len);
    let addresses: [Ipv6Addr; 3] =
        [config.address, config.gateway, config.dns.expect("a plan has it")];
    let network = addresses.map(|address| u128::from(address) & mask);
    assert!(network.iter().all(|first| *first == network[0]), "{subnet}");
    all_differ(addresses.map(IpAddr::from));
    let mut config = Config { ipv6: Some(config), ..Config::default() };
    assert!(config.check().is_ok(), "{subnet}");
}

fn all_differ([a, b, c]: [IpAddr; 3]) {
    assert!(a != b && b != c && a != c);
}
