//! The interface between devices and the threads that drive them.

use crate::burst::Burst;
use crate::ledger::Ledger;
use crate::pool::Memory;
use crate::time::Instant;
use alloc::boxed::Box;
use core::time::Duration;
use std::os::fd::BorrowedFd;

/// Capabilities of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Largest IP packet that is one segment, in bytes.
    pub mtu: u16,
    /// The device accepts and delivers partial checksums.
    pub checksum: bool,
    /// It accepts TCP super-packets over IPv4.
    pub tso4: bool,
    /// It accepts TCP super-packets over IPv6.
    pub tso6: bool,
    /// It accepts UDP super-packets over both.
    pub uso: bool,
    /// It accepts super-packets of these kinds in UDP tunnels, with a partial outer checksum or
    /// without.
    pub tunnel: bool,
    /// Largest super-packet in bytes, Ethernet header included.
    pub gso_bytes_max: u32,
    /// It segments super-packets outside tunnels as it transmits them, if they have a
    /// [`Segmentation`](crate::Segmentation). For devices that accept partial checksums.
    pub segments: bool,
}

impl Caps {
    /// A device with no capabilities beyond frames of `mtu` bytes.
    pub const fn plain(mtu: u16) -> Self {
        Self {
            mtu,
            checksum: false,
            tso4: false,
            tso6: false,
            uso: false,
            tunnel: false,
            gso_bytes_max: 0,
            segments: false,
        }
    }
}

/// Resources for the calls of a device and of the stack behind it.
pub struct Context<'a> {
    /// Packets and frames.
    pub memory: &'a mut Memory,
    /// Counts copies of payload.
    pub ledger: &'a Ledger,
    /// The current time.
    pub now: Instant,
}

/// Why a device stopped receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// No packet is left, or the burst is full.
    Done,
    /// Memory is short: further packets stay in the device.
    NoMemory,
    /// The device passed packets of this many bytes to other queues. There may be more to receive,
    /// although the burst is not full.
    HandedOver(usize),
}

/// A pair of queues, one in each direction: the complete interface for the thread that drives the
/// device.
///
/// No call blocks, and none reads a clock: [`Context::now`] is the time. One thread at a time calls
/// a device; the thread may change.
///
/// A thread without work calls [`Device::arm`], then sleeps until [`Device::file`] is readable
/// (level-triggered) or [`Device::next_deadline`] is reached. After that it calls [`Device::turn`],
/// then [`Device::receive`].
pub trait Device {
    /// An error that makes the device unusable. After it the device moves no more packets.
    type Error;

    /// Its capabilities. They may change: read them again after [`Device::turn`] and
    /// [`Device::transmit`].
    fn caps(&self) -> Caps;

    /// The file that is readable while there is work. `None` if packets come from another thread of
    /// this process, which wakes the thread that drives this device.
    fn file(&self) -> Option<BorrowedFd<'_>>;

    /// The number of this queue of its interface; 0 for the only one.
    fn queue(&self) -> u16 {
        0
    }

    /// Time at which to call [`Device::turn`] if the file is not readable before. A call of
    /// [`Device::receive`] can move it to an earlier time.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Does work that is due apart from packets. `is_readable` says whether the file was readable.
    fn turn(&mut self, is_readable: bool, cx: &mut Context<'_>) -> Result<(), Self::Error> {
        let _ = (is_readable, cx);
        Ok(())
    }

    /// How long a thread should [poll](Device::poll) the device before it sleeps. Zero if the
    /// device cannot be polled.
    fn busy_poll(&self) -> Duration {
        Duration::ZERO
    }

    /// True if there is work. Costs a few loads and no system call.
    fn poll(&mut self) -> bool {
        false
    }

    /// Prepares for a sleep: until the next [`Device::turn`], the file becomes readable when there
    /// is work. Returns true if there is work already.
    fn arm(&mut self) -> bool {
        false
    }

    /// True if each check for another packet is a system call, and packets left by
    /// [`Device::receive`] keep the file readable: then it is cheaper to ask for few packets.
    fn looks_by_call(&self) -> bool {
        false
    }

    /// Appends received packets to `burst` until the burst is full, no packet is left or memory is
    /// short, as the result says. Packets are neither peeked nor checked.
    fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<Input, Self::Error>;

    /// Transmits packets from the front of `burst` until it is empty or the device is full. The
    /// rest stays in `burst`. Packets that the device rejects permanently are dropped and counted.
    fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), Self::Error>;

    /// Packets that the device accepted and lost since the last call because their receiver is
    /// gone. They are counted as dropped.
    fn take_lost(&mut self) -> usize {
        0
    }

    /// Packets that the device has rejected permanently since it was made.
    fn refused(&self) -> u64 {
        0
    }

    /// Releases memory that the device keeps ready. Called when nothing has happened for a while.
    fn rest(&mut self) {}
}

impl<D: Device + ?Sized> Device for Box<D> {
    type Error = D::Error;

    fn caps(&self) -> Caps {
        (**self).caps()
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        (**self).file()
    }

    fn queue(&self) -> u16 {
        (**self).queue()
    }

    fn next_deadline(&self) -> Option<Instant> {
        (**self).next_deadline()
    }

    fn turn(&mut self, is_readable: bool, cx: &mut Context<'_>) -> Result<(), D::Error> {
        (**self).turn(is_readable, cx)
    }

    fn busy_poll(&self) -> Duration {
        (**self).busy_poll()
    }

    fn poll(&mut self) -> bool {
        (**self).poll()
    }

    fn arm(&mut self) -> bool {
        (**self).arm()
    }

    fn looks_by_call(&self) -> bool {
        (**self).looks_by_call()
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<Input, D::Error> {
        (**self).receive(burst, cx)
    }

    fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), D::Error> {
        (**self).transmit(burst, cx)
    }

    fn take_lost(&mut self) -> usize {
        (**self).take_lost()
    }

    fn refused(&self) -> u64 {
        (**self).refused()
    }

    fn rest(&mut self) {
        (**self).rest();
    }
}
