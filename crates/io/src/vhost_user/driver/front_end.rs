//! A front end: announces a guest's memory and rings to a device over its socket.
//!
//! It speaks the vhost-user protocol as a virtual machine monitor does. It requests an
//! acknowledgement of each message and waits for it at most [`REPLY_WAIT`]. The device is asked not
//! to call: the caller polls the rings. One thread; the device runs on another.

use super::{DriverQueue, GuestRam};
use crate::vhost_user::message::{HEADER_BYTES, RegionLayout, TABLE_REGIONS_MAX, code};
use crate::vhost_user::session::{feature, protocol};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fmt;
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Number of the guest's first receive ring.
pub const RECEIVE: usize = 0;
/// Number of the guest's first transmit ring.
pub const TRANSMIT: usize = 1;

/// Longest time that a device may take to reply.
const REPLY_WAIT: Duration = Duration::from_secs(10);

const VERSION: u32 = 1;
const NEED_REPLY: u32 = 1 << 3;
/// Flag beside the number of a ring: no descriptor is attached.
const NO_FILE: u64 = 1 << 8;

/// Why a guest could not be attached.
#[derive(Debug)]
pub enum FrontEndError {
    /// The socket failed, or the device did not reply in time.
    Os(io::Error),
    /// The device does not offer these features.
    Features(u64),
    /// The device sent a reply to another request.
    Reply(u32),
    /// The device refused the request.
    Refused(u32),
}

impl fmt::Display for FrontEndError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Os(error) => write!(f, "socket of the device: {error}"),
            Self::Features(value) => write!(f, "the device does not offer the features {value:#x}"),
            Self::Reply(value) => write!(f, "request {value} was answered with something else"),
            Self::Refused(value) => write!(f, "request {value} was refused"),
        }
    }
}

impl std::error::Error for FrontEndError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Os(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for FrontEndError {
    fn from(error: io::Error) -> Self {
        Self::Os(error)
    }
}

/// A connected front end. When it is dropped, the device forgets the guest.
pub struct FrontEnd {
    socket: UnixStream,
    kicks: Box<[OwnedFd]>,
}

impl FrontEnd {
    /// Attaches a guest with `features` to the device that listens at `path`. `queues` are its
    /// rings, by their numbers: [`RECEIVE`], [`TRANSMIT`], and so on if there are more pairs. They
    /// must be unused and lie in `ram`.
    ///
    /// # Errors
    /// [`FrontEndError`]; the device has no guest then.
    pub fn connect<const RINGS: usize>(
        path: &Path,
        ram: &GuestRam,
        features: u64,
        queues: [&DriverQueue; RINGS],
    ) -> Result<Self, FrontEndError> {
        Self::over(UnixStream::connect(path)?, ram, features, queues)
    }

    /// Attaches a guest as [`connect`](Self::connect) does, over a connected socket.
    ///
    /// # Errors
    /// [`FrontEndError`]; the device has no guest then.
    pub fn over<const RINGS: usize>(
        socket: UnixStream,
        ram: &GuestRam,
        features: u64,
        queues: [&DriverQueue; RINGS],
    ) -> Result<Self, FrontEndError> {
        socket.set_read_timeout(Some(REPLY_WAIT))?;
        let event = |_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let kicks: Result<_, _> = (0..RINGS).map(event).collect();
        let mut front_end = Self { socket, kicks: kicks.map_err(io::Error::from)? };
        let agreed = front_end.agree(features)?;
        if agreed & protocol::CONFIGURE_MEM_SLOTS != 0 {
            front_end.share(ram)?;
        } else {
            front_end.share_table(ram)?;
        }
        for (ring, queue) in (0..).zip(queues) {
            front_end.start(ring, queue)?;
        }
        Ok(front_end)
    }

    /// Kicks a ring of the device.
    pub fn kick(&self, ring: usize) {
        // Fails only if the counter is at its maximum; the device has been woken then anyway.
        let _ = rustix::io::write(&self.kicks[ring], &1u64.to_ne_bytes());
    }

    /// Negotiates features; returns the protocol features.
    fn agree(&mut self, features: u64) -> Result<u64, FrontEndError> {
        let features = features | feature::VERSION_1 | feature::PROTOCOL_FEATURES;
        let missing = features & !self.ask(code::GET_FEATURES)?;
        if missing != 0 {
            return Err(FrontEndError::Features(missing));
        }
        let offered = self.ask(code::GET_PROTOCOL_FEATURES)?;
        if offered & protocol::REPLY_ACK == 0 {
            return Err(FrontEndError::Features(protocol::REPLY_ACK));
        }
        let wanted = offered & (protocol::REPLY_ACK | protocol::CONFIGURE_MEM_SLOTS);
        // Acknowledgements are available only after this request.
        self.send(code::SET_PROTOCOL_FEATURES, 0, &wanted.to_ne_bytes(), &[])?;
        self.tell(code::SET_OWNER, &[], &[])?;
        self.tell(code::SET_FEATURES, &features.to_ne_bytes(), &[])?;
        Ok(wanted)
    }

    fn share(&mut self, ram: &GuestRam) -> Result<(), FrontEndError> {
        for layout in ram.layouts() {
            let padding = 0_u64.to_ne_bytes();
            let payload = [&padding[..], &region(layout)].concat();
            self.tell(code::ADD_MEM_REG, &payload, &[ram.file().as_fd()])?;
        }
        Ok(())
    }

    /// For devices that accept regions only as one table.
    fn share_table(&mut self, ram: &GuestRam) -> Result<(), FrontEndError> {
        let layouts = ram.layouts();
        let count = (layouts.len() as u64).to_ne_bytes();
        let regions: Vec<u8> = layouts.iter().flat_map(region).collect();
        let files = vec![ram.file().as_fd(); layouts.len()];
        self.tell(code::SET_MEM_TABLE, &[&count[..], &regions].concat(), &files)
    }

    fn start(&mut self, ring: u32, queue: &DriverQueue) -> Result<(), FrontEndError> {
        let config = queue.config();
        let state = |number: u32| [ring, number].map(u32::to_ne_bytes).concat();
        self.tell(code::SET_VRING_NUM, &state(config.size.into()), &[])?;
        self.tell(code::SET_VRING_BASE, &state(config.base), &[])?;
        let addresses = [config.descriptors, config.device, config.driver, 0];
        let addresses = addresses.map(u64::to_ne_bytes);
        self.tell(code::SET_VRING_ADDR, &[&state(0), addresses.as_flattened()].concat(), &[])?;
        let kick = self.kicks[ring as usize].try_clone()?;
        self.tell(code::SET_VRING_KICK, &u64::from(ring).to_ne_bytes(), &[kick.as_fd()])?;
        // Some devices start a ring only once they know that there is no call descriptor.
        self.tell(code::SET_VRING_CALL, &(u64::from(ring) | NO_FILE).to_ne_bytes(), &[])?;
        self.tell(code::SET_VRING_ENABLE, &state(1), &[])
    }

    /// Sends a request whose reply is a number.
    fn ask(&mut self, code: u32) -> Result<u64, FrontEndError> {
        self.send(code, 0, &[], &[])?;
        self.reply(code)
    }

    /// Sends a request with an acknowledgement.
    fn tell(
        &mut self,
        code: u32,
        payload: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> Result<(), FrontEndError> {
        self.send(code, NEED_REPLY, payload, files)?;
        match self.reply(code)? {
            0 => Ok(()),
            _ => Err(FrontEndError::Refused(code)),
        }
    }

    fn send(
        &self,
        code: u32,
        flags: u32,
        payload: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let header = [code, VERSION | flags, payload.len() as u32].map(u32::to_ne_bytes);
        let bytes = [header.as_flattened(), payload].concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(TABLE_REGIONS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            let fits = control.push(SendAncillaryMessage::ScmRights(files));
            assert!(fits, "there is room for all of them");
        }
        // So short a message is sent whole or not at all.
        sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    fn reply(&mut self, code: u32) -> Result<u64, FrontEndError> {
        let mut bytes = [0; HEADER_BYTES + 8];
        self.socket.read_exact(&mut bytes)?;
        let (header, value) = bytes.split_at(HEADER_BYTES);
        if header[..4] != code.to_ne_bytes() || header[8..] != 8_u32.to_ne_bytes() {
            return Err(FrontEndError::Reply(code));
        }
        Ok(u64::from_ne_bytes(value.try_into().expect("eight bytes are left")))
    }
}

/// Encodes a region as the protocol specifies.
fn region(layout: &RegionLayout) -> Vec<u8> {
    let RegionLayout { guest_address, bytes, user_address, file_offset } = *layout;
    [guest_address, bytes, user_address, file_offset].map(u64::to_ne_bytes).concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vhost_user::channel::{Channel, Incoming};
    use crate::vhost_user::message::{Reply, Request, RingRequest};
    use std::thread;

    /// Goal: a device that accepts memory only as a table, and starts rings only after a message
    /// about their call descriptors, gets both. Method: a device that accepts every request but
    /// offers only acknowledgements counts what it receives.
    #[test]
    fn devices_without_slots_get_all_regions_together() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let device = thread::spawn(move || {
            let mut channel = Channel::new(theirs.into());
            let (mut regions, mut silent) = (0, 0);
            loop {
                let Ok(incoming) = channel.receive() else { return (regions, silent) };
                let Some(Incoming { code, need_reply, request }) = incoming else {
                    thread::yield_now();
                    continue;
                };
                let answer = match request.unwrap() {
                    Request::GetFeatures => Some(u64::MAX),
                    Request::GetProtocolFeatures => Some(protocol::REPLY_ACK),
                    Request::AddMemReg(..) => Some(1),
                    Request::SetMemTable(table) => {
                        regions = table.len();
                        Some(0)
                    }
                    Request::Ring(_, RingRequest::Call(None)) => {
                        silent += 1;
                        Some(0)
                    }
                    _ => need_reply.then_some(0),
                };
                if let Some(number) = answer {
                    channel.send(code, &Reply::Number(number), None).unwrap();
                }
            }
        });
        let ram = GuestRam::new(0, &[1 << 20, 1 << 20]).unwrap();
        let queues = [0, 1 << 16].map(|at| DriverQueue::new(&ram, at, 16, 0).unwrap());
        drop(FrontEnd::over(ours, &ram, 0, [&queues[0], &queues[1]]).unwrap());
        assert_eq!(device.join().unwrap(), (2, 2));
    }
}
