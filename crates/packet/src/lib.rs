//! Packets and loans: the only place where towpath shares memory between threads.
//!
//! A [`Packet`] consists of short private headers and of [`Piece`]s, references to ranges of lent
//! memory. Every piece belongs to a *loan*: a reference-counted descriptor of lent bytes. When the
//! last piece of a loan is dropped, or when the loan is recalled, its lender is notified, exactly
//! once. Pool frames, application buffers and memory that other programs can write are all lent
//! like this.
//!
//! Modules, each using only those before it:
//! `{sync, time} → foreign → slab → region → loan → lend → returns → ledger → {readers, recall} →
//! offload → segmentation → packet → pool → burst → ring → {device, ready, table, snapshot,
//! tokens, under_way}`.
//!
//! Only [`device`] and [`sync`] use the standard library, for one type each: the file descriptor of
//! a device, and the mutex.
//!
//! Unsafe code is allowed only in `slab`, `region`, `foreign`, `loan`, `lend`, `recall`, `packet`,
//! `pool`, and `fill` and `shared` of `ring`.
#![cfg_attr(not(loom), no_std)]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(not(loom))]
extern crate std;

pub mod burst;
pub mod device;
#[doc(hidden)]
pub mod foreign;
pub mod ledger;
pub mod lend;
pub mod loan;
pub mod offload;
pub mod packet;
pub mod pool;
pub mod readers;
pub mod ready;
pub mod recall;
mod region;
pub mod returns;
pub mod ring;
pub mod segmentation;
#[doc(hidden)]
pub mod slab;
pub mod snapshot;
pub mod sync;
pub mod table;
pub mod time;
pub mod tokens;
pub mod under_way;

pub use burst::Burst;
pub use device::{Caps, Context, Device, Input};
pub use ledger::{Ledger, Site};
pub use lend::Loans;
pub use loan::{Holders, Lender, Piece, Pinned, PinnedPiece, Pins, View};
pub use offload::{Checksum, Gso, GsoKind, Offload, Tunnel, VirtioHeader, VirtioTunnelHeader};
pub use packet::{Packet, PacketPool};
pub use pool::{Frame, Memory, MemoryConfig, NoMemory, Pool};
pub use readers::{Reader, Readers, ReceivedPiece};
pub use recall::{Recall, Watch};
pub use returns::Returns;
pub use segmentation::Segmentation;
