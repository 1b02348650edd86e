//! What the choices between lending and copying of an instance depend on.

use std::sync::Arc;
use towpath::layers::choosing::{Chooser, Costs, break_even};

/// See the module text.
pub(crate) struct Choosing {
    /// Measured when the first socket needs it.
    costs: Option<Arc<Costs>>,
    /// New sockets choose.
    pub(crate) by_default: bool,
}

impl Choosing {
    pub(crate) fn new(by_default: bool) -> Self {
        Self { costs: None, by_default }
    }

    /// Makes the chooser of a socket.
    pub(crate) fn chooser(&mut self) -> Arc<Chooser> {
        let costs = self.costs.get_or_insert_with(|| Costs::new(break_even(true)).into());
        Chooser::new(costs.clone()).into()
    }
}
