//! NewReno (RFC 5681, RFC 6582): the defaults of the interface.

use super::{Controller, Start};

/// NewReno keeps no state beyond the window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reno;

impl Controller for Reno {
    fn new(_: &Start) -> Self {
        Self
    }
}
