//! Packets and loans: the only place where towpath shares memory between threads.
//!
//! A [`Packet`] is a short private header plus [`Piece`]s, references to ranges of somebody's
//! memory. Every piece belongs to a *loan*: a counted descriptor of lent bytes. When the last
//! piece of a loan is dropped, its lender is told, once; there is no other way back. Pool frames,
//! application buffers and memory that other programs can write are all lent like this.
//!
//! Modules, each using only those before it:
//! `{sync, time} → foreign → slab → region → loan → lend → returns → ledger → {held, recall} →
//! offload → cut → packet → pool → burst → ring → {device, ready}`.
//!
//! The standard library is there for one type, the descriptor of a device's file: see [`device`].
//!
//! Unsafe code is allowed in `slab`, `region`, `foreign`, `loan`, `lend`, `recall`, `packet`,
//! `pool` and three parts of `ring` only.
#![cfg_attr(not(loom), no_std)]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(not(loom))]
extern crate std;

pub mod burst;
pub mod cut;
pub mod device;
#[doc(hidden)]
pub mod foreign;
pub mod held;
pub mod ledger;
pub mod lend;
pub mod loan;
pub mod offload;
pub mod packet;
pub mod pool;
pub mod ready;
pub mod recall;
mod region;
pub mod returns;
pub mod ring;
#[doc(hidden)]
pub mod slab;
pub mod sync;
pub mod time;

pub use burst::Burst;
pub use cut::Cut;
pub use device::{Caps, Context, Device, Input};
pub use held::{Held, Reader, Readers};
pub use ledger::{Ledger, Site};
pub use lend::Loans;
pub use loan::{Holders, Lender, Piece, Pinned, Pins, View};
pub use offload::{Checksum, Gso, GsoKind, Offload, Tunnel, VirtioHeader, VirtioTunnelHeader};
pub use packet::{Packet, PacketPool};
pub use pool::{Frame, Memory, MemoryConfig, NoMemory, Pool};
pub use recall::{Recall, Watch};
pub use returns::Returns;
