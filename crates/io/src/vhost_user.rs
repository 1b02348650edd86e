//! vhost-user: a network device for a virtual machine whose memory and rings this process shares.
//!
//! The peer is the *front end* (QEMU, cloud-hypervisor, …). It connects to a Unix socket and sends
//! messages that describe the guest's memory and its rings. From then on packets move through the
//! rings only.
//!
//! Follows the vhost-user protocol as described in QEMU's `docs/interop/vhost-user`, and virtio 1.2
//! §2.7, §2.8 and §5.1.

pub mod channel;
mod closing;
pub mod control;
pub mod device;
pub mod driver;
mod event;
mod events;
pub(crate) mod fuzz;
pub mod memory;
pub mod message;
mod rings;
pub mod session;
pub mod shared;
pub mod sigbus;
pub mod virtq;

/// Creates what all devices of this process share: a context for signalling guests, and a thread
/// that closes descriptors that front ends should not have sent. The first session does this by
/// itself. A program that forks or restricts itself calls this function beforehand: in the process
/// that will own the devices, while it may still start threads and call io_setup(2).
///
/// # Errors
/// Those of io_setup(2), eventfd(2) and pipe(2), and of starting a thread.
pub fn prepare() -> std::io::Result<()> {
    event::prepare()?;
    closing::prepare()
}

pub use device::{VhostUser, VhostUserCounters, VhostUserError};
pub use events::{DeviceEvent, EVENTS_MAX, REFUSALS_REPORTED_MAX, Refusals, SessionEnd};
pub use rings::{PairSet, Traffic};
pub use session::Offer;
