//! Messages of the vhost-user protocol: bytes and descriptors to requests, replies to bytes.
//!
//! A message is a header of [`HEADER_BYTES`], a payload whose length follows from the request, and
//! the descriptors that came with either. Any bytes and any descriptors are taken without a panic:
//! a [`Request`] exists only if its payload has the right length, its values contradict nothing and
//! exactly the descriptors came that belong to it. Those of a refused message are closed.
//!
//! All numbers are in the byte order of the machine, as the protocol says: both ends are on it.
//!
//! Owns no state; any thread. Limits: [`PAYLOAD_BYTES_MAX`], [`DESCRIPTORS_MAX`].

mod name;
mod reply;

pub use name::name;
pub use reply::{REPLY_BYTES_MAX, Reply};
use std::fmt;

use rustix::fd::OwnedFd;

/// Bytes of a header: request, flags, length of the payload.
pub const HEADER_BYTES: usize = 12;
/// Regions of one memory table.
pub const TABLE_REGIONS_MAX: usize = 8;
/// Most regions of a guest's memory: the 32 slots that QEMU's own back ends have.
pub const REGIONS_MAX: usize = 32;
/// Bytes of a device's configuration space that one message may read or write.
pub const CONFIG_BYTES_MAX: usize = 256;
/// Most descriptors of one message: those of a memory table.
pub const DESCRIPTORS_MAX: usize = TABLE_REGIONS_MAX;
/// Longest payload: a configuration space with its header.
pub const PAYLOAD_BYTES_MAX: usize = CONFIG_HEADER_BYTES + CONFIG_BYTES_MAX;

const CONFIG_HEADER_BYTES: usize = 12;
const REGION_BYTES: usize = 32;
const TABLE_HEADER_BYTES: usize = 8;
const INFLIGHT_BYTES: usize = 24;

const _: () = assert!(TABLE_HEADER_BYTES + TABLE_REGIONS_MAX * REGION_BYTES <= PAYLOAD_BYTES_MAX);

/// The version that both ends speak, in the lowest two bits of the flags.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const FLAG_REPLY: u32 = 1 << 2;
const FLAG_NEED_REPLY: u32 = 1 << 3;

/// Of a message that names a ring and carries its descriptor: the ring.
const RING_MASK: u64 = 0xff;
/// In the same place: there is no descriptor.
const NO_DESCRIPTOR: u64 = 1 << 8;

/// Of ring addresses: writes to the used ring are to be logged.
const RING_FLAG_LOG: u32 = 1;

/// Numbers of requests.
pub(super) mod code {
    pub(in super::super) const GET_FEATURES: u32 = 1;
    pub(in super::super) const SET_FEATURES: u32 = 2;
    pub(in super::super) const SET_OWNER: u32 = 3;
    pub(in super::super) const RESET_OWNER: u32 = 4;
    pub(in super::super) const SET_MEM_TABLE: u32 = 5;
    pub(in super::super) const SET_LOG_BASE: u32 = 6;
    pub(in super::super) const SET_LOG_FD: u32 = 7;
    pub(in super::super) const SET_VRING_NUM: u32 = 8;
    pub(in super::super) const SET_VRING_ADDR: u32 = 9;
    pub(in super::super) const SET_VRING_BASE: u32 = 10;
    pub(in super::super) const GET_VRING_BASE: u32 = 11;
    pub(in super::super) const SET_VRING_KICK: u32 = 12;
    pub(in super::super) const SET_VRING_CALL: u32 = 13;
    pub(in super::super) const SET_VRING_ERR: u32 = 14;
    pub(in super::super) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(in super::super) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(in super::super) const GET_QUEUE_NUM: u32 = 17;
    pub(in super::super) const SET_VRING_ENABLE: u32 = 18;
    pub(in super::super) const SEND_RARP: u32 = 19;
    pub(in super::super) const NET_SET_MTU: u32 = 20;
    pub(in super::super) const GET_CONFIG: u32 = 24;
    pub(in super::super) const SET_CONFIG: u32 = 25;
    pub(in super::super) const GET_INFLIGHT_FD: u32 = 31;
    pub(in super::super) const SET_INFLIGHT_FD: u32 = 32;
    pub(in super::super) const RESET_DEVICE: u32 = 34;
    pub(in super::super) const GET_MAX_MEM_SLOTS: u32 = 36;
    pub(in super::super) const ADD_MEM_REG: u32 = 37;
    pub(in super::super) const REM_MEM_REG: u32 = 38;
    pub(in super::super) const SET_STATUS: u32 = 39;
    pub(in super::super) const GET_STATUS: u32 = 40;
}

/// Why no further message can be read from a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// Another version than ours.
    Version(u32),
    /// A reply, where a request is expected.
    Reply,
    /// More than any request has.
    TooLong(u32),
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(value) => {
                write!(f, "the front end speaks version {value} of the protocol, not 1")
            }
            Self::Reply => f.write_str("the front end sent a reply instead of a request"),
            Self::TooLong(value) => write!(f, "the front end announced a payload of {value} bytes"),
        }
    }
}

impl std::error::Error for HeaderError {}

/// Why a request is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// A request that we do not know, or offer no feature for.
    Unknown(u32),
    /// The payload is not as long as this request's.
    Length {
        /// The request.
        code: u32,
        /// What came.
        bytes: usize,
    },
    /// More or fewer descriptors than belong to it.
    Descriptors {
        /// The request.
        code: u32,
        /// What came.
        count: usize,
    },
    /// A value that is not possible.
    Value(u32),
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(value) => write!(f, "request {value} is not known"),
            Self::Length { code, bytes } => {
                write!(f, "request {code} with a payload of {bytes} bytes")
            }
            Self::Descriptors { code, count } => {
                write!(f, "request {code} with {count} descriptors")
            }
            Self::Value(value) => write!(f, "request {value} with a value that is not possible"),
        }
    }
}

impl std::error::Error for RequestError {}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of the request.
    pub code: u32,
    /// An acknowledgement is asked for, if that was agreed upon.
    pub need_reply: bool,
    /// Bytes of payload that follow.
    pub payload_bytes: usize,
}

impl Header {
    /// The header of a request.
    ///
    /// # Errors
    /// [`HeaderError`]: where the next message begins is not known any more.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, HeaderError> {
        let [code, flags, payload_bytes] = words(bytes);
        if flags & VERSION_MASK != VERSION {
            return Err(HeaderError::Version(flags & VERSION_MASK));
        }
        if flags & FLAG_REPLY != 0 {
            return Err(HeaderError::Reply);
        }
        if payload_bytes as usize > PAYLOAD_BYTES_MAX {
            return Err(HeaderError::TooLong(payload_bytes));
        }
        let need_reply = flags & FLAG_NEED_REPLY != 0;
        Ok(Self { code, need_reply, payload_bytes: payload_bytes as usize })
    }
}

/// A stretch of guest memory, and where it lies in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionLayout {
    /// Where the guest has it. Nothing here wraps at the end of the address space.
    pub guest_address: u64,
    /// Its length; more than none.
    pub bytes: u64,
    /// Where the front end has it.
    pub user_address: u64,
    /// Where it begins in the file.
    pub file_offset: u64,
}

/// Where a ring's three areas are, as addresses of the front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    /// Descriptor table, or packed ring.
    pub descriptors: u64,
    /// Used ring, or what the device says about events.
    pub used: u64,
    /// Available ring, or what the driver says about events.
    pub available: u64,
    /// Where writes to the used ring are logged, as a guest address; `None`: nowhere.
    pub log: Option<u64>,
}

/// A part of the configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigRange {
    /// First byte.
    pub offset: usize,
    /// Number of bytes; the range ends within [`CONFIG_BYTES_MAX`].
    pub bytes: usize,
}

/// The area that keeps what is in flight over a crash of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightLayout {
    /// Bytes of the area.
    pub bytes: u64,
    /// Where it begins in its file.
    pub file_offset: u64,
    /// Rings that have a part of it.
    pub queues: u16,
    /// Size of each of these rings.
    pub queue_size: u16,
}

/// What the front end asks for about one ring.
#[derive(Debug)]
pub enum RingRequest {
    /// `SET_VRING_NUM`: descriptors.
    Size(u16),
    /// `SET_VRING_ADDR`: where it is.
    Addresses(RingAddresses),
    /// `SET_VRING_BASE`: where it goes on.
    Base(u32),
    /// `GET_VRING_BASE`: stop, and tell where it is to go on.
    Stop,
    /// `SET_VRING_KICK`: what signals that buffers are there; the ring may start. `None`: look
    /// without being told.
    Kick(Option<OwnedFd>),
    /// `SET_VRING_CALL`: what to signal when buffers were used. `None`: nothing.
    Call(Option<OwnedFd>),
    /// `SET_VRING_ERR`: what to signal when the ring is broken. `None`: nothing.
    Error(Option<OwnedFd>),
    /// `SET_VRING_ENABLE`: its packets count, or do not.
    Enable(bool),
}

/// What the front end asks for.
#[derive(Debug)]
pub enum Request {
    /// Which features of virtio and of the protocol itself we offer.
    GetFeatures,
    /// Which of these are in use.
    SetFeatures(u64),
    /// Which features of the protocol we offer.
    GetProtocolFeatures,
    /// Which of these are in use.
    SetProtocolFeatures(u64),
    /// The session begins.
    SetOwner,
    /// Deprecated, and to be ignored.
    ResetOwner,
    /// All of the guest's memory, in place of what was known.
    SetMemTable(Vec<(RegionLayout, OwnedFd)>),
    /// How many regions [`Request::AddMemReg`] may make.
    GetMaxMemSlots,
    /// A further region.
    AddMemReg(RegionLayout, OwnedFd),
    /// A region less. Where it lies in the file does not matter.
    RemMemReg(RegionLayout),
    /// The bitmap of pages that were written to: file, bytes, where it begins in the file.
    SetLogBase(OwnedFd, u64, u64),
    /// What to signal when the bitmap changes; not used.
    SetLogFd,
    /// Something about one ring, named by a number that is not yet checked.
    Ring(u32, RingRequest),
    /// How many rings we serve.
    GetQueueNum,
    /// Tell the network where this Ethernet address is now.
    SendRarp([u8; 6]),
    /// The MTU that the guest is told.
    NetSetMtu(u16),
    /// Reads the configuration space.
    GetConfig(ConfigRange),
    /// Writes these bytes from an offset on, within [`CONFIG_BYTES_MAX`]. True if a migration
    /// restores them.
    SetConfig(usize, Vec<u8>, bool),
    /// Make an area for what is in flight: for so many rings of such a size.
    GetInflightFd(InflightLayout),
    /// Use this area.
    SetInflightFd(InflightLayout, OwnedFd),
    /// Back to the beginning, but for memory and owner.
    ResetDevice,
    /// The status field of virtio.
    SetStatus(u8),
    /// The same, to be told.
    GetStatus,
}

impl Request {
    /// The request `code` with this payload and these descriptors.
    ///
    /// # Errors
    /// [`RequestError`]; the descriptors are closed.
    pub fn parse(
        code: u32,
        payload: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<Self, RequestError> {
        Payload { code, bytes: payload, descriptors }.parse()
    }
}

/// A payload and its descriptors while they are looked at.
struct Payload<'a> {
    code: u32,
    bytes: &'a [u8],
    descriptors: Vec<OwnedFd>,
}

impl Payload<'_> {
    fn parse(mut self) -> Result<Request, RequestError> {
        match self.code {
            code::SET_MEM_TABLE => return self.table(),
            code::SET_VRING_KICK => return self.ring_file(RingRequest::Kick),
            code::SET_VRING_CALL => return self.ring_file(RingRequest::Call),
            code::SET_VRING_ERR => return self.ring_file(RingRequest::Error),
            code::ADD_MEM_REG => {
                let file = self.descriptor()?;
                return Ok(Request::AddMemReg(self.single_region()?, file));
            }
            code::REM_MEM_REG => {
                // One that front ends send by mistake is closed, as the protocol says.
                self.descriptors.truncate(self.descriptors.len().saturating_sub(1));
                self.no_descriptor()?;
                return Ok(Request::RemMemReg(self.single_region()?));
            }
            code::SET_LOG_BASE => {
                let file = self.descriptor()?;
                let [bytes, offset] = self.u64s()?;
                offset.checked_add(bytes).ok_or(self.value())?;
                return Ok(Request::SetLogBase(file, bytes, offset));
            }
            code::SET_LOG_FD => {
                drop(self.descriptor()?);
                return self.empty(Request::SetLogFd);
            }
            code::SET_INFLIGHT_FD => {
                let file = self.descriptor()?;
                return Ok(Request::SetInflightFd(self.inflight()?, file));
            }
            _ => {}
        }
        self.without_descriptors()
    }

    fn without_descriptors(self) -> Result<Request, RequestError> {
        let request = match self.code {
            code::GET_FEATURES => self.empty(Request::GetFeatures)?,
            code::SET_FEATURES => Request::SetFeatures(self.u64()?),
            code::GET_PROTOCOL_FEATURES => self.empty(Request::GetProtocolFeatures)?,
            code::SET_PROTOCOL_FEATURES => Request::SetProtocolFeatures(self.u64()?),
            code::SET_OWNER => self.empty(Request::SetOwner)?,
            code::RESET_OWNER => self.empty(Request::ResetOwner)?,
            code::GET_MAX_MEM_SLOTS => self.empty(Request::GetMaxMemSlots)?,
            code::SET_VRING_NUM => {
                let (ring, size) = self.ring_state()?;
                Request::Ring(ring, RingRequest::Size(self.narrow(size)?))
            }
            code::SET_VRING_ADDR => self.ring_addresses()?,
            code::SET_VRING_BASE => {
                let (ring, base) = self.ring_state()?;
                Request::Ring(ring, RingRequest::Base(base))
            }
            code::GET_VRING_BASE => Request::Ring(self.ring_state()?.0, RingRequest::Stop),
            code::SET_VRING_ENABLE => match self.ring_state()? {
                (ring, on @ (0 | 1)) => Request::Ring(ring, RingRequest::Enable(on == 1)),
                _ => return Err(self.value()),
            },
            code::GET_QUEUE_NUM => self.empty(Request::GetQueueNum)?,
            code::SEND_RARP => {
                let [a, b, c, d, e, f, ..] = self.u64()?.to_ne_bytes();
                Request::SendRarp([a, b, c, d, e, f])
            }
            code::NET_SET_MTU => Request::NetSetMtu(self.narrow(self.u64()?)?),
            code::GET_CONFIG => Request::GetConfig(self.config()?.0),
            code::SET_CONFIG => {
                let (range, flags, bytes) = self.config()?;
                if flags > 1 {
                    return Err(self.value());
                }
                Request::SetConfig(range.offset, bytes.to_vec(), flags == 1)
            }
            code::GET_INFLIGHT_FD => Request::GetInflightFd(self.inflight()?),
            code::RESET_DEVICE => self.empty(Request::ResetDevice)?,
            code::SET_STATUS => Request::SetStatus(self.narrow(self.u64()?)?),
            code::GET_STATUS => self.empty(Request::GetStatus)?,
            code => return Err(RequestError::Unknown(code)),
        };
        self.no_descriptor()?;
        Ok(request)
    }

    fn table(mut self) -> Result<Request, RequestError> {
        if self.bytes.len() < TABLE_HEADER_BYTES {
            return Err(self.length());
        }
        let (header, regions) = self.bytes.split_at(TABLE_HEADER_BYTES);
        let [count, _] = words(header);
        let (regions, []) = regions.as_chunks::<REGION_BYTES>() else { return Err(self.length()) };
        if regions.len() != count as usize {
            return Err(self.length());
        }
        if regions.len() > TABLE_REGIONS_MAX {
            return Err(self.value());
        }
        if self.descriptors.len() != regions.len() {
            return Err(self.descriptor_count());
        }
        let layouts: Result<Vec<_>, _> = regions.iter().map(|region| self.region(region)).collect();
        let files = std::mem::take(&mut self.descriptors);
        Ok(Request::SetMemTable(layouts?.into_iter().zip(files).collect()))
    }

    fn region(&self, bytes: &[u8]) -> Result<RegionLayout, RequestError> {
        let [guest_address, bytes, user_address, file_offset] = long_words(bytes);
        let starts = [guest_address, user_address, file_offset];
        if bytes == 0 || starts.iter().any(|start| start.checked_add(bytes).is_none()) {
            return Err(self.value());
        }
        Ok(RegionLayout { guest_address, bytes, user_address, file_offset })
    }

    fn single_region(&self) -> Result<RegionLayout, RequestError> {
        const PADDING_BYTES: usize = 8;
        if self.bytes.len() != PADDING_BYTES + REGION_BYTES {
            return Err(self.length());
        }
        self.region(&self.bytes[PADDING_BYTES..])
    }

    /// A message that is a ring's number and, unless it says otherwise, a descriptor.
    fn ring_file(
        mut self,
        request: fn(Option<OwnedFd>) -> RingRequest,
    ) -> Result<Request, RequestError> {
        let value = self.u64()?;
        if value & !(RING_MASK | NO_DESCRIPTOR) != 0 {
            return Err(self.value());
        }
        let file = if value & NO_DESCRIPTOR != 0 {
            self.no_descriptor()?;
            None
        } else {
            Some(self.descriptor()?)
        };
        Ok(Request::Ring((value & RING_MASK) as u32, request(file)))
    }

    fn ring_state(&self) -> Result<(u32, u32), RequestError> {
        let bytes: &[u8; 8] = self.exactly()?;
        let [ring, number] = words(bytes);
        Ok((ring, number))
    }

    fn ring_addresses(&self) -> Result<Request, RequestError> {
        let bytes: &[u8; 40] = self.exactly()?;
        let [ring, flags] = words(bytes);
        let [descriptors, used, available, log] = long_words(&bytes[8..]);
        if flags & !RING_FLAG_LOG != 0 {
            return Err(self.value());
        }
        let log = (flags & RING_FLAG_LOG != 0).then_some(log);
        let addresses = RingAddresses { descriptors, used, available, log };
        Ok(Request::Ring(ring, RingRequest::Addresses(addresses)))
    }

    /// Range, flags, and the bytes of the range.
    fn config(&self) -> Result<(ConfigRange, u32, &[u8]), RequestError> {
        if self.bytes.len() < CONFIG_HEADER_BYTES {
            return Err(self.length());
        }
        let (header, content) = self.bytes.split_at(CONFIG_HEADER_BYTES);
        let [offset, bytes, flags] = words(header);
        let range = ConfigRange { offset: offset as usize, bytes: bytes as usize };
        if content.len() != range.bytes {
            return Err(self.length());
        }
        if range.bytes == 0 || range.offset > CONFIG_BYTES_MAX - range.bytes {
            return Err(self.value());
        }
        Ok((range, flags, content))
    }

    fn inflight(&self) -> Result<InflightLayout, RequestError> {
        // Front ends send the structure with the padding at its end, or without it.
        const WITHOUT_PADDING: usize = 20;
        if ![WITHOUT_PADDING, INFLIGHT_BYTES].contains(&self.bytes.len()) {
            return Err(self.length());
        }
        let [bytes, file_offset] = long_words(self.bytes);
        let short = |at: usize| u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]]);
        file_offset.checked_add(bytes).ok_or(self.value())?;
        Ok(InflightLayout { bytes, file_offset, queues: short(16), queue_size: short(18) })
    }

    fn empty(&self, request: Request) -> Result<Request, RequestError> {
        if self.bytes.is_empty() { Ok(request) } else { Err(self.length()) }
    }

    fn u64(&self) -> Result<u64, RequestError> {
        let bytes: &[u8; 8] = self.exactly()?;
        Ok(u64::from_ne_bytes(*bytes))
    }

    fn u64s<const N: usize>(&self) -> Result<[u64; N], RequestError> {
        if self.bytes.len() == 8 * N { Ok(long_words(self.bytes)) } else { Err(self.length()) }
    }

    fn exactly<const N: usize>(&self) -> Result<&[u8; N], RequestError> {
        self.bytes.try_into().map_err(|_| self.length())
    }

    fn narrow<W, N: TryFrom<W>>(&self, wide: W) -> Result<N, RequestError> {
        N::try_from(wide).map_err(|_| self.value())
    }

    /// The one descriptor of this message.
    fn descriptor(&mut self) -> Result<OwnedFd, RequestError> {
        match self.descriptors.pop() {
            Some(descriptor) if self.descriptors.is_empty() => Ok(descriptor),
            Some(descriptor) => {
                self.descriptors.push(descriptor);
                Err(self.descriptor_count())
            }
            None => Err(self.descriptor_count()),
        }
    }

    fn no_descriptor(&self) -> Result<(), RequestError> {
        if self.descriptors.is_empty() { Ok(()) } else { Err(self.descriptor_count()) }
    }

    fn descriptor_count(&self) -> RequestError {
        RequestError::Descriptors { code: self.code, count: self.descriptors.len() }
    }

    fn length(&self) -> RequestError {
        RequestError::Length { code: self.code, bytes: self.bytes.len() }
    }

    fn value(&self) -> RequestError {
        RequestError::Value(self.code)
    }
}

/// The first `N` numbers of 32 bits.
fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    std::array::from_fn(|index| u32::from_ne_bytes(bytes.as_chunks().0[index]))
}

/// The first `N` numbers of 64 bits.
fn long_words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    std::array::from_fn(|index| u64::from_ne_bytes(bytes.as_chunks().0[index]))
}

#[cfg(test)]
mod tests;
