//! The resolv.conf that the program sees.

use std::net::IpAddr;

/// Most bytes of the host's file that are looked at; resolvers read far less.
pub(crate) const HOST_FILE_BYTES_MAX: u64 = 64 << 10;

/// The host's file with its name servers replaced by towpath's; search domains and options stay.
pub(crate) fn generate(host_file: &str, dns: IpAddr) -> String {
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
