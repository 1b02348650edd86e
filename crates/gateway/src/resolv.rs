//! The text of resolv.conf(5): parsed from the host's file, generated for the program.
//!
//! The host's file is untrusted input: parsing never fails, and skips what it does not understand.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Port of DNS.
pub const DNS_PORT: u16 = 53;
/// Most resolvers taken from a file (resolv.conf(5) MAXNS).
pub const FILE_RESOLVERS_MAX: usize = 3;
/// Most bytes of the host's file that are parsed; resolvers themselves read far less.
pub const HOST_FILE_BYTES_MAX: u64 = 64 << 10;

/// Returns the addresses of the `nameserver` lines. An address may have a zone, `fe80::1%2` or
/// `fe80::1%eth0`; `interface_index` maps an interface name to its index.
pub fn name_servers(text: &str, interface_index: impl Fn(&str) -> Option<u32>) -> Vec<SocketAddr> {
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let address = (words.next()? == "nameserver").then_some(words.next()?)?;
        parse_address(address, &interface_index)
    });
    servers.take(FILE_RESOLVERS_MAX).collect()
}

fn parse_address(text: &str, interface_index: impl Fn(&str) -> Option<u32>) -> Option<SocketAddr> {
    let Some((address, zone)) = text.split_once('%') else {
        return Some(SocketAddr::new(text.parse().ok()?, DNS_PORT));
    };
    let address: Ipv6Addr = address.parse().ok()?;
    let scope = zone.parse().ok().or_else(|| interface_index(zone))?;
    Some(SocketAddr::V6(SocketAddrV6::new(address, DNS_PORT, 0, scope)))
}

/// Returns the host's file with its name servers replaced by `dns`; keeps search domains and
/// options.
pub fn generate(host_file: &str, dns: IpAddr) -> String {
    let mut text = format!("# written by towpath for this network\nnameserver {dns}\n");
    for line in host_file.lines() {
        let keyword = line.split_ascii_whitespace().next();
        if matches!(keyword, Some("search" | "domain" | "options")) {
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_a_file_may_hold() {
        let text = "# nameserver 192.0.2.9\nsearch example.org\nnameserver 192.0.2.1\n\
                    nameserver\t2001:db8::1  \nnameserver fe80::2%none\n\
                    nameserver fe80::1%eth7\nnameserver 192.0.2.4\n\
                    nameserver nonsense\noptions edns0\n";
        let expected: Vec<SocketAddr> = vec![
            "192.0.2.1:53".parse().expect("an address"),
            "[2001:db8::1]:53".parse().expect("an address"),
            SocketAddrV6::new("fe80::1".parse().expect("an address"), 53, 0, 7).into(),
        ];
        let index = |zone: &str| zone.strip_prefix("eth")?.parse().ok();
        assert_eq!(name_servers(text, index), expected);
        assert_eq!(name_servers("nameserver fe80::1%7", |_| None), expected[2..]);
        assert!(name_servers("", index).is_empty());
    }

    #[test]
    fn search_domains_and_options_stay() {
        let host = "# comment\nnameserver 192.0.2.1\nnameserver ::1\nsearch a.example b.example\r\n\
                    options edns0\ntrust\n sortlist 1.2.3.4\noptionsx";
        let dns = "10.0.2.3".parse().unwrap();
        assert_eq!(
            generate(host, dns),
            "# written by towpath for this network\nnameserver 10.0.2.3\nsearch a.example \
             b.example\noptions edns0\n"
        );
    }
}
