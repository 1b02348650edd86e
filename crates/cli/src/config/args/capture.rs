//! The command line of `towpath capture`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use towpath_io::pcapng::SNAP_BYTES_MAX;

use super::WhichNetwork;

/// Capture packets of a port of a running network to a file (pcapng).
///
/// Captures until SIGINT or SIGTERM arrives, N packets are captured, or the port or the network
/// ends; then prints how many packets were captured and dropped. Traffic never waits: if the file
/// or its reader is too slow, packets are missing from the capture and are counted. Payload is
/// written from its place in memory, without a copy.
///
/// The capture has packets as the port sends and receives them: super-packets of up to 64 KiB are
/// not segmented, and checksums may be incomplete (checksum offload).
#[derive(Debug, Args)]
#[command(after_help = crate::exit::help("capture"))]
pub(crate) struct CaptureArguments {
    /// The name of the port, or `gateway` for the port of the gateway.
    #[arg(value_name = "PORT")]
    pub(crate) port: String,

    /// The file; `-` is standard output, for example a pipe to tcpdump or Wireshark. Only the user
    /// can read a new file.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) write: PathBuf,

    /// Stop after N packets.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,

    /// Keep at most BYTES of each packet.
    #[arg(short, long, value_name = "BYTES", default_value_t = SNAP_BYTES_MAX,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(SNAP_BYTES_MAX)))]
    pub(crate) snaplen: u32,

    /// Capture only packets that match EXPR, a subset of tcpdump's expressions: `and`, `or`, `not`,
    /// parentheses, ip, ip6, arp, rarp, tcp, udp, icmp, icmp6, ether, vlan, less, greater, and
    /// host, net and port, each after an optional protocol and an optional src or dst. Addresses
    /// and ports must be numbers.
    #[arg(long, value_name = "EXPR", default_value = "", hide_default_value = true)]
    pub(crate) filter: String,

    /// Capture only packets between two endpoints, in both directions, for example
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
        Some(_) => Err("expected two IPv4 or two IPv6 addresses".to_owned()),
        None => {
            Err("expected ADDR:PORT,ADDR:PORT, for example 10.0.2.16:5201,10.0.2.17:40000"
                .to_owned())
        }
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
