//! Registrations of a queue and their state.

pub(in crate::events) mod changes;
pub(in crate::events) mod loads;
pub(in crate::events) mod multishot;
pub(in crate::events) mod ongoing;
pub(in crate::events) mod pool;
pub(in crate::events) mod relay;
pub(in crate::events) mod slots;
pub(in crate::events) mod socket;
pub(in crate::events) mod source;
pub(in crate::events) mod timers;
