//! Packets that wait for one queue of a device.
//!
//! Packets from the switch go to the device at once. What the queue does not take waits here, up to
//! a bounded number, and is offered again in each turn. As long as packets wait, later ones go
//! behind them. Each queue has a lane of its own, so a slow one delays no other.

use towpath_io::pcapng::Direction;
use towpath_packet::{Burst, Context};

use super::config::PortError;
use super::device::PortDevice;
use super::pace::{self, Pace};
use super::queue::Queue;
use crate::capture::Mirrors;

/// The packets that wait for a queue, and those that have just arrived.
pub(super) struct Lane {
    /// Packets of the switch's burst, while it is distributed. Empty between calls.
    pub(super) arriving: Burst,
    /// The first packets that wait; captures have seen them.
    next: Burst,
    /// The packets behind them.
    queue: Queue,
}

/// The driver of one queue of a device, with the captures of its port.
pub(super) struct Driver<'a> {
    pub(super) device: &'a mut PortDevice,
    pub(super) queue: u16,
    pub(super) mirrors: &'a mut Mirrors,
    /// The bound of what the device gets.
    pub(super) pace: Option<&'a Pace>,
}

impl Driver<'_> {
    /// Passes packets from the front of `burst` to the queue, as far as it and the bound take them.
    fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), PortError> {
        let Self { device, queue, pace, .. } = self;
        let Some(pace) = pace else { return device.transmit_by(*queue, burst, cx) };
        pace::pass_front(burst, pace.left(cx.now), |front| {
            let before = pace::bytes(front);
            let result = device.transmit_by(*queue, front, cx);
            pace.take(before - pace::bytes(front), cx.now);
            result
        })
    }
}

impl Lane {
    /// Makes an empty lane, in which `len_max` packets may wait.
    ///
    /// # Errors
    /// As of [`Queue::new`].
    pub(super) fn new(len_max: usize) -> Result<Self, PortError> {
        Ok(Self { arriving: Burst::new(), next: Burst::new(), queue: Queue::new(len_max)? })
    }

    /// Changes how many packets may wait; see [`Queue::resize`].
    ///
    /// # Errors
    /// As of [`Queue::resize`].
    pub(super) fn resize(&mut self, len_max: usize) -> Result<(), PortError> {
        self.queue.resize(len_max)
    }

    /// Returns the number of waiting packets.
    pub(super) fn waiting(&self) -> usize {
        self.next.len() + self.queue.len()
    }

    /// Returns the bytes of the frames of the waiting packets.
    pub(super) fn waiting_bytes(&self) -> u64 {
        let queued = self.queue.iter().map(|packet| packet.frame_bytes() as u64);
        pace::bytes(&self.next) + queued.sum::<u64>()
    }

    /// Passes packets from the front of `burst` to the queue. What it does not take waits, as far
    /// as there is room, and as long as fewer than `most` wait; the rest stays in `burst`.
    ///
    /// # Errors
    /// The device has failed.
    pub(super) fn transmit(
        &mut self,
        burst: &mut Burst,
        most: usize,
        driver: &mut Driver<'_>,
        cx: &mut Context<'_>,
    ) -> Result<(), PortError> {
        if self.waiting() == 0 && burst.len() <= self.queue.len_max() {
            driver.mirrors.see(Direction::Outbound, burst.iter());
            driver.transmit(burst, cx)?;
            if !burst.is_empty() {
                std::mem::swap(burst, &mut self.next);
            }
            return Ok(());
        }
        loop {
            let room = self.queue.len_max().saturating_sub(self.waiting());
            self.queue.append(burst, if self.waiting() < most { room } else { 0 });
            if burst.is_empty() || !self.flush(driver, cx)? {
                return Ok(());
            }
        }
    }

    /// Offers the waiting packets to the queue again. Returns true if it has taken some.
    ///
    /// # Errors
    /// The device has failed.
    pub(super) fn flush(
        &mut self,
        driver: &mut Driver<'_>,
        cx: &mut Context<'_>,
    ) -> Result<bool, PortError> {
        let before = self.waiting();
        while self.waiting() > 0 {
            if self.next.is_empty() {
                self.queue.fill(&mut self.next);
                driver.mirrors.see(Direction::Outbound, self.next.iter());
            }
            driver.transmit(&mut self.next, cx)?;
            if !self.next.is_empty() {
                break;
            }
        }
        Ok(self.waiting() < before)
    }

    /// Drops what waits.
    pub(super) fn clear(&mut self) {
        self.next.clear();
        self.queue.clear();
    }
}
