//! vhost-user: a network device for a virtual machine, whose memory and rings this process shares.
//!
//! The other side is the *front end* (QEMU, cloud-hypervisor, …). It connects to a UNIX socket and
//! says in messages where the guest's memory is and how its rings are set up; from then on packets
//! move through the rings alone.
//!
//! Follows the vhost-user protocol as QEMU's `docs/interop/vhost-user` describes it, and virtio
//! 1.2 §2.7, §2.8 and §5.1.

pub mod channel;
mod closing;
pub mod control;
pub mod cut;
pub mod device;
pub mod driver;
mod event;
pub(crate) mod fuzz;
pub mod memory;
pub mod message;
mod news;
mod rings;
pub mod session;
pub mod shared;
pub mod virtq;

/// Makes what all devices of this process share: a context by which guests are told, and a thread
/// that closes what front ends should not have sent. The first session does so by itself; whoever
/// forks or restricts the process calls it at the right moment: in the process that will have the
/// devices, while it may start threads and call io_setup(2).
///
/// # Errors
/// Those of io_setup(2), eventfd(2), pipe(2), and of starting a thread.
pub fn prepare() -> std::io::Result<()> {
    event::prepare()?;
    closing::prepare()
}

pub use device::{VhostUser, VhostUserCounters, VhostUserError};
pub use news::{NEWS_MAX, News, REFUSALS_TOLD_MAX, Refusals, SessionEnd};
pub use rings::Traffic;
pub use session::Offer;
