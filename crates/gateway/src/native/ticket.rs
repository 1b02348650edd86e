//! What the policy has admitted: a ticket for each connection, until it is over.
//!
//! A ticket reports the end of its connection when it is dropped, so no way of ending can forget
//! it. The supervisor has one thread.

use super::judge::FlowEnd;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Ends that the gateway does not know yet. Each connection has one, so flows of the configuration
/// bound it, and those that begin while the gateway does not read.
pub(super) type Ends = Rc<RefCell<VecDeque<FlowEnd>>>;

/// A connection that the policy has admitted.
#[derive(Debug)]
pub(super) struct Ticket {
    end: FlowEnd,
    ends: Ends,
}

impl Ticket {
    /// Takes the ticket of a connection that is not made yet.
    pub(super) fn new(number: u64, ends: &Ends) -> Self {
        Self { end: FlowEnd { number, bytes: Some([0; 2]) }, ends: ends.clone() }
    }

    pub(super) fn number(&self) -> u64 {
        self.end.number
    }

    /// The program has the socket: its bytes are not known.
    pub(super) fn uncounted(mut self) -> Self {
        self.end.bytes = None;
        self
    }

    /// The connection is over, and has carried these bytes from and to the program.
    pub(super) fn end(mut self, bytes: [u64; 2]) {
        self.end.bytes = Some(bytes);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.ends.borrow_mut().push_back(self.end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each ticket reports its end once, with what is known of its bytes.
    #[test]
    fn ends_are_reported() {
        let ends = Ends::default();
        drop(Ticket::new(1, &ends));
        drop(Ticket::new(2, &ends).uncounted());
        Ticket::new(3, &ends).uncounted().end([5, 7]);
        let reported: Vec<_> = ends.take().into_iter().map(|end| (end.number, end.bytes)).collect();
        assert_eq!(reported, [(1, Some([0; 2])), (2, None), (3, Some([5, 7]))]);
    }
}
