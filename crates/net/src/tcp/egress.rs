//! What the way out allows: the device, and the stack's memory.

/// How short the stack's memory is; limits the offered windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Pressure {
    /// More than three eighths are free: buffers may grow.
    #[default]
    None,
    /// Less than three eighths are free: windows open by at most 64 KiB, and out-of-order data is
    /// not kept.
    Some,
    /// Less than an eighth is free: windows open by two segments, and data beyond
    /// [`DATA_UNDER_PRESSURE`] unread bytes is dropped.
    High,
    /// Less than a thirty-second is free: all data is dropped; ACKs still pass.
    Critical,
}

/// Unread bytes of one connection that are accepted while memory is nearly exhausted.
pub const DATA_UNDER_PRESSURE: usize = 64 << 10;

/// What the egress path allows.
#[derive(Clone, Copy, Debug)]
pub struct Egress {
    /// Bytes of IP header in front of the TCP header.
    pub ip_header_len: u32,
    /// State of the stack's memory.
    pub pressure: Pressure,
    /// The device's queue is full: it drops what it is given.
    pub stopped: bool,
}
