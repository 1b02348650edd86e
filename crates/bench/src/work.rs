//! Deterministic work, which is counted instead of timed: instructions, allocations and system
//! calls of a packet, as `cargo xtask bench-guard` does.
//!
//! A harness does its work a given number of times and ends. The difference between a run and a run
//! with twice the number belongs to the work alone: the costs of starting and connecting cancel
//! out.

mod gateway;
pub(super) mod guests;
pub(super) mod network;
mod stray;
mod tap;

use std::str::FromStr;

use anyhow::{Context, bail};

use super::flows;
use super::vm::workload::{WORKLOADS, Workload};
use super::zerocopy::harness::Harness as Stacks;
use super::zerocopy::slices;

/// The kind of work and how often it is done. As text: `WAY,BYTES,CALLS` for two stacks, `slices,`
/// and a [process](slices::Process), or `NAME,COUNT`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// Send calls between two stacks.
    Stacks(Stacks),
    /// Packets from one guest to another, in rings of this layout.
    Guests(&'static Workload, guests::Layout, u32),
    /// Packets from guest to guest through a network with this many workers.
    Network(usize, u32),
    /// Blocks of 64 KiB of a program, to the host or from it; or its requests, connections or
    /// datagrams.
    Gateway(gateway::Way, u32),
    /// Blocks of 64 KiB of a program over a TAP device, to the host or from it.
    Tap(tap::Way, u32),
    /// Segments that belong to no connection.
    Stray(u32),
    /// Connections that are kept open, for `towpath-bench gateway`.
    Connections(u32),
    /// Sends whose cost another process measures, for `bench zerocopy`.
    Slices(slices::Process),
}

impl FromStr for Work {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        if let Some(process) = text.strip_prefix("slices,") {
            return Ok(Self::Slices(process.parse()?));
        }
        if text.split(',').count() == 3 {
            return Ok(Self::Stacks(text.parse()?));
        }
        let (name, count) = text.split_once(',').context("WAY,BYTES,CALLS or NAME,COUNT")?;
        let count = count.parse().context("COUNT: expected a number")?;
        let (guest, layout) = match name.strip_suffix("_packed") {
            Some(guest) => (guest, guests::Layout::Packed),
            None => (name, guests::Layout::Split),
        };
        if let Some(workload) =
            WORKLOADS.iter().find(|workload| workload.name == guest && workload.pairs == 1)
        {
            return Ok(Self::Guests(workload, layout, count));
        }
        if let Some(workers) = name.strip_prefix("network_of_") {
            let workers = workers.parse().context("expected a number of workers")?;
            return Ok(Self::Network(workers, count));
        }
        if let Some(flows) = name.strip_prefix("gateway_requests_of_") {
            let flows = flows.parse().context("expected a number of connections")?;
            return Ok(Self::Gateway(gateway::Way::RequestsOf(flows), count));
        }
        Ok(match name {
            "gateway_out" => Self::Gateway(gateway::Way::Out, count),
            "gateway_requests" => Self::Gateway(gateway::Way::Requests, count),
            "gateway_connections" => Self::Gateway(gateway::Way::Connections, count),
            "gateway_joined" => Self::Gateway(gateway::Way::Joined, count),
            "gateway_datagrams_out" => Self::Gateway(gateway::Way::DatagramsOut, count),
            "gateway_datagrams_in" => Self::Gateway(gateway::Way::DatagramsIn, count),
            "gateway_in" => Self::Gateway(gateway::Way::In, count),
            "tap_out" => Self::Tap(tap::Way { program_sends: true, flows: 1 }, count),
            "tap_out_8flows" => Self::Tap(tap::Way { program_sends: true, flows: 8 }, count),
            "tap_in" => Self::Tap(tap::Way { program_sends: false, flows: 1 }, count),
            "tap_in_8flows" => Self::Tap(tap::Way { program_sends: false, flows: 8 }, count),
            "stray" => Self::Stray(count),
            flows::KEEP => Self::Connections(count),
            _ => bail!("unknown work"),
        })
    }
}

/// Printed before the number of system calls that `cargo xtask bench-guard` subtracts.
const OWN_CALLS: &str = "system calls that are not the gateway's: ";

impl Work {
    pub(super) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Stacks(stacks) => stacks.run(),
            Self::Guests(workload, layout, count) => guests::pass(workload, layout, count),
            Self::Network(workers, count) => network::pass(workers, count),
            Self::Gateway(way, count) => {
                println!("{OWN_CALLS}{}", gateway::carry(way, count)?.own_calls);
                Ok(())
            }
            Self::Tap(way, count) => {
                println!("{OWN_CALLS}{}", tap::carry(way, count)?);
                Ok(())
            }
            Self::Stray(count) => stray::answer(count),
            Self::Connections(count) => flows::keep(count),
            Self::Slices(process) => process.run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ping_pong::Stopwatch;
    use std::time::Duration;

    #[test]
    fn all_work_is_done() {
        let works = ["vm_64B,40", "vm_64B_packed,40", "vm_to_vm_whole,40", "vm_to_vm_segmented,40"];
        let works = works.into_iter();
        let works = works.chain(["network_of_1,40", "network_of_2,40", "network_of_8,40"]);
        let gateway = ["gateway_out,40", "gateway_in,40", "gateway_requests,40"];
        let gateway = gateway.into_iter().chain(["gateway_joined,40", "gateway_connections,40"]);
        let gateway = gateway.chain(["gateway_datagrams_out,40", "gateway_datagrams_in,40"]);
        let gateway = gateway.chain(["gateway_requests_of_10,40"]);
        for text in works.chain(gateway).chain(["plain,1448,10", "stray,40"]) {
            let work: Work = text.parse().expect(text);
            work.run().unwrap_or_else(|problem| panic!("{text}: {problem:#}"));
        }
    }

    /// Goal: for a short connection, the program receives only SYN-ACK, answer and FIN; the ACKs
    /// are part of these packets. Method: tried until no answer was late, as answers are on a busy
    /// machine.
    #[test]
    fn a_short_connection_is_three_packets() {
        let started = Stopwatch::start();
        let mut fewest = None;
        let is_joined = |fewest: Option<u32>| fewest.is_some_and(|packets| packets <= 3);
        while !is_joined(fewest) && started.elapsed() < PATIENCE {
            fewest = gateway::carry(gateway::Way::Connections, 40).expect("carried").packets_min;
        }
        assert!(is_joined(fewest), "{fewest:?} packets");
    }

    /// Many times the period during which late answers keep the gateway from waiting for the next.
    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn unknown_work_is_refused() {
        let counts = ["vm_64B", "vm_64B,many", "gateway_requests_of_,1", "tap_out_many,1"];
        for text in ["", "vm_65B,1", "gateway_up,1", "lead,1,1"].into_iter().chain(counts) {
            assert!(text.parse::<Work>().is_err(), "{text}");
        }
    }
}
