//! Messages of the vhost-user protocol: parses requests, encodes replies.
//!
//! A message consists of a header of [`HEADER_BYTES`], a payload whose length depends on the
//! request, and the descriptors that came with either. The parser accepts any bytes and any
//! descriptors without a panic. A [`Request`] exists only if its payload has the right length, its
//! values are consistent and exactly its own descriptors came along. The descriptors of a refused
//! message are closed.
//!
//! All numbers are in the machine's byte order, as the protocol specifies: both ends are on it.
//!
//! This module has no state; any thread. Limits: [`PAYLOAD_BYTES_MAX`], [`DESCRIPTORS_MAX`].

mod name;
mod reply;

pub use name::name;
pub use reply::{REPLY_BYTES_MAX, Reply};
use std::fmt;

use rustix::fd::OwnedFd;

/// Bytes of a header: request, flags, length of the payload.
pub const HEADER_BYTES: usize = 12;
/// Most regions of one memory table.
pub const TABLE_REGIONS_MAX: usize = 8;
/// Most regions of a guest's memory: the 32 slots of QEMU's own back ends.
pub const REGIONS_MAX: usize = 32;
/// Most bytes of the configuration space that one message may read or write.
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

/// The protocol version, in the lowest two bits of the flags.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const FLAG_REPLY: u32 = 1 << 2;
const FLAG_NEED_REPLY: u32 = 1 << 3;

/// In a message that names a ring and carries its descriptor: the bits of the ring.
const RING_MASK: u64 = 0xff;
/// In the same field: there is no descriptor.
const NO_DESCRIPTOR: u64 = 1 << 8;

/// Flag of ring addresses: writes to the used ring are logged.
const RING_FLAG_LOG: u32 = 1;

/// `BACKEND_CONFIG_CHANGE_MSG` on the back end's channel: number, flags, length of the payload. It
/// requests no answer.
pub(super) const CONFIG_CHANGED: [u32; 3] = [2, VERSION, 0];

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
    pub(in super::super) const SET_BACKEND_REQ_FD: u32 = 21;
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
    /// Not our protocol version.
    Version(u32),
    /// A reply where a request is expected.
    Reply,
    /// A longer payload than any request has.
    TooLong(u32),
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(value) => {
                write!(f, "the front end speaks version {value} of the protocol, not 1")
            }
            Self::Reply => f.write_str("the front end sent a reply instead of a request"),
            Self::TooLong(value) => {
                write!(f, "the front end announced a payload of {value} bytes, which is too large")
            }
        }
    }
}

impl std::error::Error for HeaderError {}

/// Why a request is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// Unknown, or of a feature that is not offered.
    Unknown(u32),
    /// The payload has the wrong length for this request.
    Length {
        /// The request number.
        code: u32,
        /// Bytes of the payload.
        bytes: usize,
    },
    /// The request came with too many or too few descriptors.
    Descriptors {
        /// The request number.
        code: u32,
        /// Number of descriptors.
        count: usize,
    },
    /// An impossible value.
    Value(u32),
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(value) => write!(f, "request {value} is unknown"),
            Self::Length { code, bytes } => {
                write!(f, "request {code} has a wrong length: {bytes} bytes")
            }
            Self::Descriptors { code, count } => {
                write!(f, "request {code} has a wrong number of descriptors: {count}")
            }
            Self::Value(value) => write!(f, "request {value} has a value out of range"),
        }
    }
}

impl std::error::Error for RequestError {}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The request number.
    pub code: u32,
    /// An acknowledgement is requested; valid if the feature is negotiated.
    pub need_reply: bool,
    /// Bytes of the payload that follows.
    pub payload_bytes: usize,
}

impl Header {
    /// Parses the header of a request.
    ///
    /// # Errors
    /// [`HeaderError`]; the start of the next message is then unknown.
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

/// A range of guest memory, and its location in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionLayout {
    /// Guest address. No range wraps around the end of its address space.
    pub guest_address: u64,
    /// Length in bytes; not zero.
    pub bytes: u64,
    /// Front-end address.
    pub user_address: u64,
    /// Offset in the file.
    pub file_offset: u64,
}

/// The areas of a ring, as front-end addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    /// Descriptor table, or packed ring.
    pub descriptors: u64,
    /// Used ring, or device event suppression.
    pub used: u64,
    /// Available ring, or driver event suppression.
    pub available: u64,
    /// Guest address at which writes to the used ring are logged; `None` if they are not.
    pub log: Option<u64>,
}

/// A range of the configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigRange {
    /// First byte.
    pub offset: usize,
    /// Number of bytes; the range ends within [`CONFIG_BYTES_MAX`].
    pub bytes: usize,
}

/// Description of an in-flight region, which survives a crash of the back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightLayout {
    /// Bytes of the region.
    pub bytes: u64,
    /// Offset in its file.
    pub file_offset: u64,
    /// Number of rings that it is for.
    pub queues: u16,
    /// Size of each ring.
    pub queue_size: u16,
}

/// A request about one ring.
#[derive(Debug)]
pub enum RingRequest {
    /// `SET_VRING_NUM`: number of descriptors.
    Size(u16),
    /// `SET_VRING_ADDR`: addresses of the ring.
    Addresses(RingAddresses),
    /// `SET_VRING_BASE`: where the ring continues.
    Base(u32),
    /// `GET_VRING_BASE`: stop the ring, and report where it continues.
    Stop,
    /// `SET_VRING_KICK`: event by which the driver announces buffers; the ring may start. `None`:
    /// poll the ring.
    Kick(Option<OwnedFd>),
    /// `SET_VRING_CALL`: event to signal when buffers were used. `None`: no event.
    Call(Option<OwnedFd>),
    /// `SET_VRING_ERR`: event to signal when the ring breaks. `None`: no event.
    Error(Option<OwnedFd>),
    /// `SET_VRING_ENABLE`: whether the ring carries packets.
    Enable(bool),
}

/// A request of the front end.
#[derive(Debug)]
pub enum Request {
    /// Report the offered features of virtio and of vhost-user.
    GetFeatures,
    /// Use these features.
    SetFeatures(u64),
    /// Report the offered protocol features.
    GetProtocolFeatures,
    /// Use these protocol features.
    SetProtocolFeatures(u64),
    /// The session begins.
    SetOwner,
    /// Deprecated; ignored.
    ResetOwner,
    /// Replace the guest's memory by these regions.
    SetMemTable(Vec<(RegionLayout, OwnedFd)>),
    /// Report how many regions there may be.
    GetMaxMemSlots,
    /// Add a region.
    AddMemReg(RegionLayout, OwnedFd),
    /// Remove a region. Its offset in the file does not matter.
    RemMemReg(RegionLayout),
    /// Use this dirty log: file, length, offset in the file.
    SetLogBase(OwnedFd, u64, u64),
    /// Event to signal when the dirty log changes; not used.
    SetLogFd,
    /// A request about one ring, whose number is not checked yet.
    Ring(u32, RingRequest),
    /// Report the number of rings.
    GetQueueNum,
    /// Announce the new location of this Ethernet address to the network.
    SendRarp([u8; 6]),
    /// The MTU to report to the guest.
    NetSetMtu(u16),
    /// Report changes of the configuration space on the socket that came with the message, which
    /// the [channel](super::channel::Channel) keeps.
    SetBackendChannel,
    /// Read a range of the configuration space.
    GetConfig(ConfigRange),
    /// Write these bytes at an offset, within [`CONFIG_BYTES_MAX`]. The flag is true if a migration
    /// restores them.
    SetConfig(usize, Vec<u8>, bool),
    /// Create an in-flight region for this number and size of rings.
    GetInflightFd(InflightLayout),
    /// Use this in-flight region.
    SetInflightFd(InflightLayout, OwnedFd),
    /// Reset the device, except memory and owner.
    ResetDevice,
    /// Set the virtio status field.
    SetStatus(u8),
    /// Report the virtio status field.
    GetStatus,
}

impl Request {
    /// Parses the request `code` with this payload and these descriptors.
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

/// A payload and its descriptors during parsing.
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
                // Some front ends send a descriptor by mistake. It is closed, as the protocol
                // specifies.
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
            code::SET_BACKEND_REQ_FD => self.empty(Request::SetBackendChannel)?,
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

    /// Parses a message that consists of a ring's number and a descriptor, or of a flag for none.
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

    /// Returns the range, the flags, and the bytes of the range.
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
        // Front ends send the structure with or without the padding at its end.
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

    /// Takes the only descriptor of this message.
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

/// The first `N` 32-bit numbers.
fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    std::array::from_fn(|index| u32::from_ne_bytes(bytes.as_chunks().0[index]))
}

/// The first `N` 64-bit numbers.
fn long_words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    std::array::from_fn(|index| u64::from_ne_bytes(bytes.as_chunks().0[index]))
}

#[cfg(test)]
mod tests;
