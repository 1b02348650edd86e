//! The command line of `towpath capture`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use towpath_io::pcapng::SNAP_BYTES_MAX;

use super::WhichNetwork;

/// Write the packets of a port of a running network to a file (pcapng).
///
/// Captures until SIGINT or SIGTERM, until there are enough packets, or until the port or the
/// network goes; then tells how many packets were captured and how many were dropped. Traffic is
/// never slowed down by it: packets for which the file or its reader is too slow are missing from
/// the capture, and counted. Payload is written from where it lies, without a copy before.
///
/// Packets are seen as they come from the port and as they are handed to it, super-packets of up to
/// 64 KiB and checksums that somebody else completes included.
#[derive(Debug, Args)]
#[command(after_help = crate::exit::HELP)]
pub(crate) struct CaptureArguments {
    /// The port; `gateway` for that of the gateway.
    #[arg(value_name = "PORT")]
    pub(crate) port: String,

    /// The file, which only its user may read if it is new; `-` is standard output, to be read by
    /// tcpdump or Wireshark meanwhile.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) write: PathBuf,

    /// So many packets are enough.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,

    /// Bytes of each packet that are kept.
    #[arg(short, long, value_name = "BYTES", default_value_t = SNAP_BYTES_MAX,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(SNAP_BYTES_MAX)))]
    pub(crate) snaplen: u32,

    /// Only packets for which EXPR holds: as for tcpdump, with `and`, `or`, `not`, parentheses,
    /// ip, ip6, arp, tcp, udp, icmp, icmp6, vlan, less, greater, and host, net and port, before
    /// which src, dst and a protocol may stand. Addresses and ports are numbers.
    #[arg(long, value_name = "EXPR", default_value = "", hide_default_value = true)]
    pub(crate) filter: String,

    /// Only packets between two addresses with ports, either way, for example
    /// 10.0.2.16:5201,10.0.2.17:40000.
    #[arg(long, value_name = "ADDR:PORT,ADDR:PORT", value_parser = parse_flow)]
    pub(crate) flow: Option<[SocketAddr; 2]>,

    #[command(flatten)]
    pub(crate) which: WhichNetwork,
}

fn parse_flow(text: &str) -> Result<[SocketAddr; 2], String> {
    let ends = text.split_once(',').and_then(|(a, b)| Some([a.parse().ok()?, b.parse().ok()?]));
    match ends {
        Some([a, b]) if SocketAddr::is_ipv4(&a) == b.is_ipv4() => Ok([a, b]),
        Some(_) => Err("both addresses are of one kind".to_owned()),
        None => Err("two addresses with ports and a comma between them are wanted".to_owned()),
    }
}

impl CaptureArguments {
    /// Returns one expression for both the filter and the flow.
    pub(crate) fn expression(&self) -> String {
        let Some([a, b]) = self.flow else { return self.filter.clone() };
        let way = |from: SocketAddr, to: SocketAddr| {
            let (source, destination) = (from.ip(), to.ip());
            format!(
                "(src host {source} and src port {} and dst host {destination} and dst port {})",
                from.port(),
                to.port()
            )
        };
        let flow = format!("({} or {})", way(a, b), way(b, a));
        if self.filter.trim().is_empty() { flow } else { format!("{flow} and ({})", self.filter) }
    }
}
