//! One type for devices of any kind.

use rustix::fd::BorrowedFd;
use std::error::Error;
use towpath_net::time::{Duration, Instant};
use towpath_packet::{Burst, Caps, Context, Device, Input};

/// Why a device is no longer usable.
pub type DeviceError = Box<dyn Error + Send + Sync>;

/// A device of any kind. Each call costs one indirect jump per burst.
pub type AnyDevice = Box<dyn Device<Error = DeviceError> + Send>;

/// Turns a device of a certain kind into an [`AnyDevice`].
pub fn boxed<D>(device: D) -> AnyDevice
where
    D: Device<Error: Into<DeviceError>> + Send + 'static,
{
    Box::new(Boxed(device))
}

struct Boxed<D>(D);

impl<D: Device<Error: Into<DeviceError>>> Device for Boxed<D> {
    type Error = DeviceError;

    fn caps(&self) -> Caps {
        self.0.caps()
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.0.file()
    }

    fn queue(&self) -> u16 {
        self.0.queue()
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.0.next_deadline()
    }

    fn turn(&mut self, is_readable: bool, cx: &mut Context<'_>) -> Result<(), DeviceError> {
        self.0.turn(is_readable, cx).map_err(Into::into)
    }

    fn busy_poll(&self) -> Duration {
        self.0.busy_poll()
    }

    fn poll(&mut self) -> bool {
        self.0.poll()
    }

    fn arm(&mut self) -> bool {
        self.0.arm()
    }

    fn looks_by_call(&self) -> bool {
        self.0.looks_by_call()
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<Input, DeviceError> {
        self.0.receive(burst, cx).map_err(Into::into)
    }

    fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), DeviceError> {
        self.0.transmit(burst, cx).map_err(Into::into)
    }

    fn take_lost(&mut self) -> usize {
        self.0.take_lost()
    }

    fn refused(&self) -> u64 {
        self.0.refused()
    }

    fn rest(&mut self) {
        self.0.rest();
    }
}
