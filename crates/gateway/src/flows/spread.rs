//! Connections to published ports, spread over several workers.
//!
//! The first worker accepts them. The addresses and ports under which the program sees a connection
//! decide which worker owns it ([`Owners`]). That worker is handed the socket, and gets the
//! packets. So if the peer has to appear with another port, the connection stays in its bucket.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use towpath_io::doorbell::EventDoorbell;
use towpath_packet::ring::Doorbell;

use super::accepted::Accepted;
use super::moved::Order;
use crate::owners::{Owners, of_connection};

/// Orders to another worker, and the bell that wakes it for them.
#[derive(Clone)]
pub(crate) struct Orders {
    pub(crate) to: Sender<Order>,
    pub(crate) bell: EventDoorbell,
}

impl Orders {
    /// Gives an order; returns it if the worker has ended.
    pub(crate) fn give(&self, order: Order) -> Result<(), Order> {
        self.to.send(order).map_err(|back| back.0)?;
        self.bell.ring();
        Ok(())
    }
}

/// Which connections belong to this gateway: all, unless there are other workers.
#[derive(Default)]
pub(crate) struct Spread(Option<Several>);

struct Several {
    owners: Arc<Owners>,
    /// The workers from the second on; only the first worker has them.
    others: Vec<Orders>,
}

impl Spread {
    /// Makes the part of a worker.
    pub(crate) fn new(owners: Arc<Owners>) -> Self {
        Self(Some(Several { owners, others: Vec::new() }))
    }

    /// Another worker can own connections, the one with the next index.
    pub(crate) fn add(&mut self, orders: Orders) {
        if let Some(several) = &mut self.0 {
            several.others.push(orders);
        }
    }

    /// Returns true if a connection with the local address `other` belongs to the same worker as
    /// one with the local address `inside`, whatever happens.
    pub(super) fn is_alike(
        &self,
        other: SocketAddr,
        inside: SocketAddr,
        program: SocketAddr,
    ) -> bool {
        let bucket = |local| of_connection(local, program.port());
        self.0.is_none() || bucket(other) == bucket(inside)
    }

    /// Hands a connection to its worker; returns it if this worker owns it. The connection ends if
    /// its worker has ended.
    pub(super) fn hand_over(&self, accepted: Accepted) -> Option<Accepted> {
        let Some(several) = &self.0 else { return Some(accepted) };
        let owner = usize::from(several.owners.of(accepted.bucket()));
        // Flows that are on their way come to the first worker.
        let Some(orders) = owner.checked_sub(1).and_then(|at| several.others.get(at)) else {
            return Some(accepted);
        };
        if let Err(Order::Accept(back)) = orders.give(Order::Accept(accepted)) {
            back.socket.reset();
        }
        None
    }
}
