//! The contract between devices and whoever drives them.

use crate::burst::Burst;
use crate::pool::Memory;

/// What a device takes and gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Largest IP packet that is one segment, in bytes.
    pub mtu: u16,
    /// Partial checksums may be sent to and come from the device.
    pub checksum: bool,
    /// TCP super-packets over IPv4.
    pub tso4: bool,
    /// TCP super-packets over IPv6.
    pub tso6: bool,
    /// UDP super-packets over both.
    pub uso: bool,
    /// Super-packets of these kinds in UDP tunnels, whether the outer checksum is partial or not.
    pub tunnel: bool,
    /// Largest super-packet in bytes, Ethernet header included.
    pub gso_bytes_max: u32,
    /// It cuts super-packets that are no tunnels' as it transmits them, if they have a
    /// [`Cut`](crate::Cut); for devices that take partial checksums.
    pub cuts: bool,
}

impl Caps {
    /// A device that offers nothing beyond frames of `mtu` bytes.
    pub const fn plain(mtu: u16) -> Self {
        Self {
            mtu,
            checksum: false,
            tso4: false,
            tso6: false,
            uso: false,
            tunnel: false,
            gso_bytes_max: 0,
            cuts: false,
        }
    }
}

/// A source and sink of packets, driven by one thread. Neither call blocks.
pub trait Device {
    /// What makes the device unusable.
    type Error;

    /// What it can do. May shrink over time, when a feature turns out not to work.
    fn caps(&self) -> Caps;

    /// Adds received packets to `burst` until it is full, nothing is left or `memory` is short.
    /// Packets are neither peeked nor checked.
    fn receive(&mut self, memory: &mut Memory, burst: &mut Burst) -> Result<(), Self::Error>;

    /// Sends packets from the front of `burst` until it is empty or the device is full; what is
    /// left stays in `burst`. A packet that the device refuses for good is dropped and counted.
    fn transmit(&mut self, burst: &mut Burst) -> Result<(), Self::Error>;
}
