//! The contract between devices and the threads that drive them.

use crate::burst::Burst;
use crate::ledger::Ledger;
use crate::pool::Memory;
use crate::time::Instant;
use alloc::boxed::Box;
use core::time::Duration;
use std::os::fd::BorrowedFd;

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

/// What calls of a device, and of the stack behind it, work with.
pub struct Context<'a> {
    /// Packets and frames.
    pub memory: &'a mut Memory,
    /// Where copies of payload are counted.
    pub ledger: &'a Ledger,
    /// Now.
    pub now: Instant,
}

/// Why a device stopped receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Nothing is left, or the burst is full.
    Done,
    /// Memory is short: what is left waits in the device.
    NoMemory,
    /// The device passed packets of this many bytes to other queues. There may be more to receive,
    /// though the burst is not full.
    HandedOver(usize),
}

/// One queue of packets in each direction: all that the thread needs that drives it.
///
/// No call blocks, and none reads a clock: [`Context::now`] is the time. One thread at a time calls
/// a device. It may be another one later.
///
/// A thread that has nothing to do calls [`Device::arm`], then sleeps until [`Device::file`] is
/// readable (watched level-triggered) or [`Device::next_deadline`] has come. After the sleep it
/// calls [`Device::turn`], then [`Device::receive`].
pub trait Device {
    /// What makes the device unusable. After an error it moves no more packets.
    type Error;

    /// What it can do. This may change: look again after [`Device::turn`] and
    /// [`Device::transmit`].
    fn caps(&self) -> Caps;

    /// The file that is readable while there is something to do. `None` if packets come from
    /// another thread of this process, which wakes the one that drives this device.
    fn file(&self) -> Option<BorrowedFd<'_>>;

    /// Which of the queues of its interface it is; 0 for the only one.
    fn queue(&self) -> u16 {
        0
    }

    /// When [`Device::turn`] is to be called, if its file is not readable before. A call of
    /// [`Device::receive`] can make it earlier.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Does what is due beside packets. `is_readable` says that its file was readable.
    fn turn(&mut self, is_readable: bool, cx: &mut Context<'_>) -> Result<(), Self::Error> {
        let _ = (is_readable, cx);
        Ok(())
    }

    /// For how long a thread should [poll](Device::poll) it before it sleeps. Zero if it cannot be
    /// polled.
    fn busy_poll(&self) -> Duration {
        Duration::ZERO
    }

    /// True if there is something to do. This costs a few loads and no system call.
    fn poll(&mut self) -> bool {
        false
    }

    /// To be called before a sleep: from now on the file becomes readable when there is something
    /// to do, until the next [`Device::turn`]. True if there is something to do already.
    fn arm(&mut self) -> bool {
        false
    }

    /// True if each look for another packet is a system call, and what is left after
    /// [`Device::receive`] keeps the file readable: then it is cheaper to ask for few packets.
    fn looks_by_call(&self) -> bool {
        false
    }

    /// Adds received packets to `burst` until it is full, nothing is left or memory is short; the
    /// result tells the last. Packets are neither peeked nor checked.
    fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<Input, Self::Error>;

    /// Sends packets from the front of `burst` until it is empty or the device is full; what is
    /// left stays in `burst`. A packet that the device refuses for good is dropped and counted.
    fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), Self::Error>;

    /// Packets that it took and lost since the last call, as whoever was to get them has gone. They
    /// are counted as dropped.
    fn take_lost(&mut self) -> usize {
        0
    }

    /// Packets that it refused for good since it was made.
    fn refused(&self) -> u64 {
        0
    }

    /// Gives back memory that it keeps ready: nothing has happened for a while.
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
