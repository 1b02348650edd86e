//! Devices: the ones that a host can use, and the types that a device implementation needs.
//!
//! A host takes a TAP device ([`Tap`]), the back end of a virtual machine's network card
//! ([`VhostUser`]), or any type that implements [`Device`]
//! ([`Host::on_device`](crate::host::Host::on_device)):
//!
//! ```
//! use std::collections::VecDeque;
//! use std::convert::Infallible;
//! use std::io::{Read, Write};
//! use std::os::fd::BorrowedFd;
//! use std::sync::{Arc, Mutex, PoisonError};
//! use std::task::Waker;
//! use towpath::device::{Burst, Caps, Context, Device, Input, Packet};
//! use towpath::host::{Config, Host, TcpListener, TcpStream};
//!
//! /// Frames on their way to one end, and the waker of the host there.
//! #[derive(Default)]
//! struct Way {
//!     frames: VecDeque<Vec<u8>>,
//!     reader: Option<Waker>,
//! }
//!
//! /// One end of a cable between two hosts. The cable copies frames.
//! struct End {
//!     incoming: Arc<Mutex<Way>>,
//!     outgoing: Arc<Mutex<Way>>,
//! }
//!
//! impl Device for End {
//!     type Error = Infallible;
//!
//!     fn caps(&self) -> Caps {
//!         Caps::plain(1500)
//!     }
//!
//!     fn file(&self) -> Option<BorrowedFd<'_>> {
//!         None
//!     }
//!
//!     fn arm(&mut self) -> bool {
//!         !self.incoming.lock().unwrap_or_else(PoisonError::into_inner).frames.is_empty()
//!     }
//!
//!     fn receive(
//!         &mut self,
//!         burst: &mut Burst,
//!         cx: &mut Context<'_>,
//!     ) -> Result<Input, Infallible> {
//!         let mut way = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
//!         while !burst.is_full() {
//!             let Some(frame) = way.frames.front() else { break };
//!         // A packet, and a frame of pool memory for its bytes: 1,514 at most.
//!             let Some(mut packet) = cx.memory.packet() else { return Ok(Input::NoMemory) };
//!             let Some(mut room) = cx.memory.large.take() else { return Ok(Input::NoMemory) };
//!             room[..frame.len()].copy_from_slice(frame);
//!             let pushed = packet.push_piece(room.freeze(frame.len()));
//!             assert!(pushed.is_ok(), "a new packet has room");
//!             let pushed = burst.push(packet);
//!             assert!(pushed.is_ok(), "the burst was not full");
//!             way.frames.pop_front();
//!         }
//!         Ok(Input::Done)
//!     }
//!
//!     fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), Infallible> {
//!         let mut way = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner);
//!         while let Some(packet) = burst.pop() {
//!             let mut frame = vec![0; packet.len()];
//!             packet.copy_to(&mut frame, cx.ledger);
//!             way.frames.push_back(frame);
//!         }
//!         way.reader.iter().for_each(Waker::wake_by_ref);
//!         Ok(())
//!     }
//! }
//!
//! let ways = [(); 2].map(|()| Arc::new(Mutex::new(Way::default())));
//! let host = |number: usize| {
//!     let config = Config::with_address([10, 0, 0, 1 + number as u8], 24);
//!     Host::on_device(&config, |waker| {
//!         let (incoming, outgoing) = (ways[number].clone(), ways[1 - number].clone());
//!         incoming.lock().unwrap().reader = Some(waker);
//!         End { incoming, outgoing }
//!     })
//! };
//! let (a, b) = (host(0)?, host(1)?);
//! let listener = TcpListener::bind(&b, "10.0.0.2:80")?;
//! let mut stream = TcpStream::connect(&a, "10.0.0.2:80")?;
//! stream.write_all(b"over a cable")?;
//! let mut received = [0; 12];
//! listener.accept()?.0.read_exact(&mut received)?;
//! assert_eq!(&received, b"over a cable");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use towpath_io::tap::{Features, Tap, TapError};
pub use towpath_io::vhost_user::{DeviceEvent, Offer, PairSet, VhostUser, VhostUserError};
pub use towpath_packet::time::Instant;
pub use towpath_packet::{
    Burst, Caps, Checksum, Context, Device, Frame, Gso, GsoKind, Input, Ledger, Memory,
    MemoryConfig, Offload, Packet, Piece, Pool, Site, Tunnel,
};
