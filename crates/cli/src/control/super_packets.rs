//! Super-packets of TAP devices that are as long as VXLAN ports send in one call.
//!
//! A limit belongs to an interface and outlives the port. What cannot be limited is only slower.

use towpath_gateway::network::{Attachment, Network, Operation};
use towpath_gateway::worker::Worker;
use towpath_io::netlink;

use crate::messages::Messages;

/// TAP devices that are to be limited.
#[derive(Debug)]
pub(crate) enum Taps {
    /// All of the network: there was no VXLAN port.
    All,
    /// Those that are added, by their names.
    Added(Vec<String>),
}

impl Taps {
    /// Returns those that these operations concern, which are yet to be applied to the network.
    pub(crate) fn of(network: &Network, operations: &[Operation]) -> Self {
        match network.super_packet_max() {
            None => Self::All,
            Some(_) => Self::added_by(operations),
        }
    }

    /// Returns those that these operations add.
    pub(crate) fn added_by(operations: &[Operation]) -> Self {
        let added = operations.iter().filter_map(|operation| match operation {
            Operation::Add { attachment: Attachment::Tap(name), .. } => Some(name.clone()),
            _ => None,
        });
        Self::Added(added.collect())
    }

    /// Limits their super-packets, if the network has VXLAN ports now.
    pub(crate) fn limit(self, worker: &Worker<Network>, messages: Messages) {
        let Some(bytes) = worker.inside().super_packet_max() else { return };
        let names = match self {
            Self::Added(names) => names,
            Self::All => {
                let ports = worker.inside().report(worker.now()).ports.into_iter();
                let names = ports.filter_map(|port| match port.attachment {
                    Attachment::Tap(name) => Some(name),
                    _ => None,
                });
                names.collect()
            }
        };
        for name in names {
            if let Err(error) = netlink::limit_super_packets(&name, bytes) {
                messages
                    .detail(format_args!("cannot set gso_max_size of {name} to {bytes}: {error}"));
            }
        }
    }
}
