//! TAP devices: Ethernet frames to and from a network namespace, super-packets included.
//!
//! # Theory of operation
//!
//! Each read and each write moves one packet: a virtio-net header of 12 bytes, or of 24 if tunnel
//! super-packets were agreed, then the frame. A read fills pool frames directly, and a write passes
//! the addresses of the packet's pieces. Only the kernel copies payload.
//!
//! A TAP device truncates a packet that does not fit the read, and does not report it. So every
//! read offers room for the largest packet: when pool frames are short, a private scratch area
//! takes the place of the missing ones, and a packet that reached it is dropped and counted. No
//! packet is ever delivered truncated.
//!
//! Features ([`Features`]) are agreed with the kernel when the device is created, and proved by
//! [`self_test()`]. They are withdrawn at run time if the kernel refuses [`REFUSALS_MAX`] packets
//! of one kind in a row: from then on the stack segments and computes checksums itself.
//!
//! Invariants: each packet taken from a burst is transmitted or counted under one drop reason, and
//! so is each packet read. No call blocks or allocates. One thread at a time.
//!
//! Register the file level-triggered: [`Device::receive`] may return before the device is empty.
//!
//! Limits: [`FRAME_BYTES_MAX`], [`READS_MAX`](crate::receive::READS_MAX). Specification: virtio 1.2
//! §5.1.6, Linux `Documentation/networking/tuntap.rst`.

mod counters;
mod error;
mod features;
pub mod self_test;

pub use counters::{TapCounters, Traffic};
pub use error::TapError;
pub use features::Features;
pub use self_test::{Reason, Report, SelfTest, self_test, self_test_patiently};

use crate::gather::Gather;
use crate::outside::{self, Answer, Wanted};
use crate::receive::{FRAMES_MAX, Read, ReceiveBuffer, empty_slices, receive_packets};
use crate::sys;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io::IoSliceMut;
use towpath_packet::offload::VirtioHeaderError;
use towpath_packet::packet::PIECES_MAX;
use towpath_packet::{
    Burst, Caps, Checksum, Context, Device, GsoKind, Input, Memory, Offload, Packet, VirtioHeader,
    VirtioTunnelHeader,
};

/// Largest frame: 14 bytes of Ethernet, 4 of a tag, 65,535 of IP.
pub const FRAME_BYTES_MAX: usize = 14 + 4 + 65_535;
/// Largest super-packet that a device accepts: 14 bytes of Ethernet, 65,535 of IP.
pub const GSO_BYTES_MAX: u32 = 14 + 65_535;
/// Packets of one kind refused in a row before their feature is withdrawn.
pub const REFUSALS_MAX: u8 = 3;

/// Bytes of an Ethernet header.
const ETHERNET_BYTES: usize = 14;
/// One byte more than the largest frame, to detect a longer one.
const READ_BYTES: usize = FRAME_BYTES_MAX + 1;
/// Slices of a read: header, frames, scratch.
const READ_SLICES: usize = 1 + FRAMES_MAX + 1;
/// Parts of a write: header, private headers, pieces.
const WRITE_PARTS: usize = 2 + PIECES_MAX;
/// Flags for attaching to an interface: whole frames, each with a virtio-net header.
const KIND: libc::c_int = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
/// The device file of TUN and TAP devices.
const TUN_PATH: &str = "/dev/net/tun";

/// Opens the device file of TAP devices and closes it again: no interface is created.
///
/// # Errors
/// [`TapError::NoDevice`], [`TapError::DeviceForbidden`] or [`TapError::Os`].
pub fn check_device_file() -> Result<(), TapError> {
    open_device_file().map(drop).map_err(TapError::from_open)
}

/// A TAP device; see the module documentation.
pub struct Tap {
    fd: OwnedFd,
    mtu: u16,
    features: Features,
    /// Bytes of the virtio-net header, as set in the kernel.
    header_len: usize,
    /// Features withdrawn at run time.
    withdrawn: Features,
    refusals: [u8; Kind::COUNT],
    counters: TapCounters,
    buffer: ReceiveBuffer,
    /// Takes the place of missing frames. It uses no memory until it is touched.
    scratch: Box<[u8]>,
}

impl Tap {
    /// Creates the interface `name` in the network namespace of this thread, or attaches to it if
    /// it exists and is free. The device has no features and an MTU of 1500.
    pub fn create(name: &str) -> Result<Self, TapError> {
        Self::set_up(attach(name)?)
    }

    /// Takes over a device that [`create`](Self::create) created, perhaps in another process.
    pub fn from_fd(fd: OwnedFd, features: Features, mtu: u16) -> Self {
        Self {
            fd,
            mtu,
            features,
            header_len: header_len(features),
            withdrawn: Features::NONE,
            refusals: [0; Kind::COUNT],
            counters: TapCounters::default(),
            buffer: ReceiveBuffer::new(),
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
        }
    }

    /// Takes over a device that other code opened and attached to its interface with `IFF_TAP |
    /// IFF_NO_PI | IFF_VNET_HDR`. Makes its descriptor non-blocking. The device has no features and
    /// an MTU of 1500.
    pub fn adopt(fd: OwnedFd) -> Result<Self, TapError> {
        let flags = sys::tun_flags(fd.as_fd()).map_err(TapError::from_setup)?;
        if flags & KIND != KIND {
            return Err(TapError::Unsupported);
        }
        let status = rustix::fs::fcntl_getfl(&fd).map_err(TapError::from_use)?;
        rustix::fs::fcntl_setfl(&fd, status | OFlags::NONBLOCK).map_err(TapError::from_use)?;
        Self::set_up(fd)
    }

    fn set_up(fd: OwnedFd) -> Result<Self, TapError> {
        sys::tun_set_header_len(fd.as_fd(), VirtioHeader::LEN as i32)
            .map_err(TapError::from_setup)?;
        sys::tun_set_little_endian(fd.as_fd()).map_err(TapError::from_setup)?;
        Ok(Self::from_fd(fd, Features::NONE, 1500))
    }

    /// Returns another handle of the same queue, for another thread that sends. Each call to the
    /// kernel moves a whole packet, so threads need no order between them; but a packet is read by
    /// one of them only. Counters, and features that are withdrawn from now on, are each handle's
    /// own.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        let mut clone = Self::from_fd(self.fd.try_clone()?, self.features, self.mtu);
        clone.withdrawn = self.withdrawn;
        Ok(clone)
    }

    /// Returns the descriptor, to pass it to another process.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Agrees with the kernel on as many features of `wanted` as it supports; returns those.
    pub fn set_offload(&mut self, wanted: Features) -> Result<Features, TapError> {
        // The kernel agrees to tunnels only if the header has room for their fields.
        if wanted.tunnel {
            self.set_header_len(wanted)?;
        }
        let set = |mask| sys::tun_set_offload(self.fd.as_fd(), mask);
        self.features = Features::negotiate(wanted, set).map_err(TapError::from_setup)?;
        self.set_header_len(self.features)?;
        Ok(self.features)
    }

    /// Sets the length of the virtio-net header that `features` require.
    fn set_header_len(&mut self, features: Features) -> Result<(), TapError> {
        let wanted = header_len(features);
        if wanted != self.header_len {
            sys::tun_set_header_len(self.fd.as_fd(), wanted as i32)
                .map_err(TapError::from_setup)?;
            self.header_len = wanted;
        }
        Ok(())
    }

    /// Stops using `features` for packets we send. What the kernel sends stays as agreed.
    pub fn disable(&mut self, features: Features) {
        let left = self.features.without(features);
        self.withdrawn = self.withdrawn.or(self.features.without(left).or(features));
        self.features = left;
    }

    /// Sets the MTU that the device's interface has.
    pub fn set_mtu(&mut self, mtu: u16) {
        self.mtu = mtu;
    }

    /// Sets the carrier of the device's interface: without it, the interface is up but has no link.
    ///
    /// # Errors
    /// [`TapError::Os`], if the kernel does not know this request (before Linux 5.0).
    pub fn set_carrier(&mut self, is_up: bool) -> Result<(), TapError> {
        sys::tun_set_carrier(self.fd.as_fd(), is_up).map_err(TapError::from_use)
    }

    /// Features in use.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Features that were agreed but did not work, for the log.
    pub fn withdrawn(&self) -> Features {
        self.withdrawn
    }

    /// Counters since the device was created or taken over.
    pub fn counters(&self) -> &TapCounters {
        &self.counters
    }

    /// The interface's name.
    pub fn name(&self) -> Result<String, TapError> {
        sys::tun_name(self.fd.as_fd()).map_err(TapError::from_use)
    }

    /// Reads one packet into `packet`.
    fn read_packet(&mut self, memory: &mut Memory, packet: &mut Packet) -> Result<Read, TapError> {
        let offered = self.buffer.prepare(memory, READ_BYTES);
        if offered == 0 {
            return Ok(Read::NoMemory);
        }
        let mut header = VirtioTunnelHeader::default();
        let result = {
            let mut slices: [IoSliceMut<'_>; READ_SLICES] = empty_slices();
            slices[0] = IoSliceMut::new(&mut header.0[..self.header_len]);
            let mut count = 1 + self.buffer.slices(&mut slices[1..]);
            if offered < READ_BYTES {
                slices[count] = IoSliceMut::new(&mut self.scratch[..READ_BYTES - offered]);
                count += 1;
            }
            self.counters.received.calls += 1;
            rustix::io::readv(&self.fd, &mut slices[..count])
        };
        let bytes = match result {
            Ok(bytes) => bytes,
            Err(Errno::AGAIN) => return Ok(Read::Empty),
            Err(Errno::INTR) => return Ok(Read::Again),
            Err(Errno::INVAL) => {
                self.counters.receive_lost += 1;
                return Ok(Read::Again);
            }
            Err(errno) => return Err(TapError::from_use(errno)),
        };
        let Some(frame_bytes) = bytes.checked_sub(self.header_len) else {
            self.counters.receive_short += 1;
            return Ok(Read::Again);
        };
        Ok(self.accept(frame_bytes, offered, header, packet))
    }

    /// Checks a packet that was read, and moves its frames into `packet`.
    fn accept(
        &mut self,
        bytes: usize,
        offered: usize,
        header: VirtioTunnelHeader,
        packet: &mut Packet,
    ) -> Read {
        let drop_reason = if bytes < ETHERNET_BYTES {
            Some(&mut self.counters.receive_short)
        } else if bytes > FRAME_BYTES_MAX {
            Some(&mut self.counters.receive_long)
        } else if bytes > offered {
            Some(&mut self.counters.receive_no_memory)
        } else {
            None
        };
        if let Some(counter) = drop_reason {
            *counter += 1;
            return Read::Again;
        }
        let Ok(offload) = self.decode(&header) else {
            self.counters.receive_bad_header += 1;
            return Read::Again;
        };
        self.buffer.take(bytes, |piece| {
            packet.push_piece(piece).expect("a packet has room for the frames of one read");
        });
        packet.set_offload(offload);
        self.counters.received.count(bytes, &offload);
        Read::Packet
    }

    fn decode(&self, header: &VirtioTunnelHeader) -> Result<Offload, VirtioHeaderError> {
        match self.header_len {
            VirtioHeader::LEN => header.plain().decode(),
            _ => header.decode(),
        }
    }

    /// Writes one packet; the kernel accepts all of it or nothing.
    fn write_packet(&mut self, packet: &Packet) -> Result<usize, Errno> {
        let headers = packet.wire_headers();
        // The header length is a hint for the kernel; one below an Ethernet header's would be
        // invalid.
        let hint = if headers.len() < ETHERNET_BYTES { 0 } else { headers.len() };
        let header = VirtioTunnelHeader::encode(packet.offload(), hint);
        let header = &header.0[..self.header_len];
        let mut gather: Gather<'_, WRITE_PARTS> = Gather::new();
        let fits = gather.push_bytes(header) && gather.push_packet(packet);
        assert!(fits, "there is a part for the headers and each piece of a packet");
        self.counters.transmitted.calls += 1;
        sys::write_gather(self.fd.as_fd(), &gather)
    }

    /// Counts a packet that the kernel refused; withdraws its feature after too many in a row.
    fn refuse(&mut self, errno: Errno, offload: &Offload) {
        match errno {
            Errno::IO => self.counters.transmit_down += 1,
            Errno::NOBUFS | Errno::NOMEM => self.counters.transmit_no_memory += 1,
            _ => self.counters.transmit_refused += 1,
        }
        if errno != Errno::INVAL {
            return;
        }
        let Some(kind) = Kind::of(offload) else { return };
        let refusals = &mut self.refusals[kind as usize];
        *refusals += 1;
        if *refusals == REFUSALS_MAX {
            *refusals = 0;
            self.disable(kind.feature());
        }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Device for Tap {
    type Error = TapError;

    fn caps(&self) -> Caps {
        let Features { checksum, tso4, tso6, uso, tunnel } = self.features;
        let gso_bytes_max = if self.features.any_gso() { GSO_BYTES_MAX } else { 0 };
        Caps { checksum, tso4, tso6, uso, tunnel, gso_bytes_max, ..Caps::plain(self.mtu) }
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn looks_by_call(&self) -> bool {
        true
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<Input, TapError> {
        let input =
            receive_packets(burst, cx.memory, |memory, packet| self.read_packet(memory, packet))?;
        if input == Input::NoMemory {
            self.counters.receive_paused += 1;
        }
        Ok(input)
    }

    fn transmit(&mut self, burst: &mut Burst, _: &mut Context<'_>) -> Result<(), TapError> {
        burst.prefetch();
        while let Some(packet) = burst.first() {
            let offload = *packet.offload();
            match self.write_packet(packet) {
                Ok(bytes) => {
                    let bytes = bytes.saturating_sub(self.header_len);
                    self.counters.transmitted.count(bytes, &offload);
                    if let Some(kind) = Kind::of(&offload) {
                        self.refusals[kind as usize] = 0;
                    }
                }
                Err(Errno::AGAIN) => {
                    self.counters.transmit_full += 1;
                    break;
                }
                Err(Errno::INTR) => continue,
                Err(Errno::BADFD) => return Err(TapError::Gone),
                Err(errno) => self.refuse(errno, &offload),
            }
            burst.pop();
        }
        Ok(())
    }

    fn refused(&self) -> u64 {
        self.counters.transmit_refused
    }

    fn rest(&mut self) {
        self.buffer.clear();
    }
}

/// Kinds of packets that the kernel may refuse separately.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Checksum,
    Tso4,
    Tso6,
    Uso,
    Tunnel,
}

impl Kind {
    pub(crate) const COUNT: usize = 5;

    pub(crate) fn of(offload: &Offload) -> Option<Self> {
        match (offload.gso, offload.checksum) {
            (Some(gso), _) if gso.tunnel.is_some() => Some(Self::Tunnel),
            (Some(gso), _) => Some(match gso.kind {
                GsoKind::Tcp4 => Self::Tso4,
                GsoKind::Tcp6 => Self::Tso6,
                GsoKind::Udp => Self::Uso,
            }),
            (None, Checksum::Partial { .. }) => Some(Self::Checksum),
            (None, _) => None,
        }
    }

    pub(crate) fn feature(self) -> Features {
        match self {
            Self::Checksum => Features { checksum: true, ..Features::NONE },
            Self::Tso4 => Features { tso4: true, ..Features::NONE },
            Self::Tso6 => Features { tso6: true, ..Features::NONE },
            Self::Uso => Features { uso: true, ..Features::NONE },
            Self::Tunnel => Features { tunnel: true, ..Features::NONE },
        }
    }
}

/// Bytes of the virtio-net header for these features.
fn header_len(features: Features) -> usize {
    if features.tunnel { VirtioTunnelHeader::LEN } else { VirtioHeader::LEN }
}

/// Opens a descriptor and attaches it to the interface `name`.
fn attach(name: &str) -> Result<OwnedFd, TapError> {
    if let Some(answer) = outside::ask(Wanted::Tap, KIND as u64, name.as_bytes(), None) {
        let Answer { numbers: [step, errno, exists, _], file, .. } =
            answer.map_err(TapError::from_use)?;
        if let Some(fd) = file {
            return Ok(fd);
        }
        let errno = Errno::from_raw_os_error(errno as i32);
        return Err(match step {
            OPENING => TapError::from_open(errno),
            _ => TapError::from_attach(errno, exists != 0),
        });
    }
    attach_here(name).map_err(|(step, errno)| match step {
        OPENING => TapError::from_open(errno),
        _ => TapError::from_attach(errno, interface_exists(name)),
    })
}

/// The step at which the broker failed, in its answer; 0 for success.
const OPENING: u64 = 1;
const ATTACHING: u64 = 2;

/// The broker's part of [`attach`], for a confined process.
pub(crate) fn attach_for(name: &str, kind: u64) -> Result<Answer, Errno> {
    if kind != KIND as u64 {
        return Err(Errno::INVAL);
    }
    Ok(match attach_here(name) {
        Ok(fd) => Answer { file: Some(fd), ..Answer::default() },
        Err((step, errno)) => {
            let exists = interface_exists(name).into();
            Answer { numbers: [step, errno.raw_os_error() as u64, exists, 0], ..Answer::default() }
        }
    })
}

fn attach_here(name: &str) -> Result<OwnedFd, (u64, Errno)> {
    let fd = open_device_file().map_err(|errno| (OPENING, errno))?;
    sys::tun_attach(fd.as_fd(), name, KIND).map_err(|errno| (ATTACHING, errno))?;
    Ok(fd)
}

fn open_device_file() -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(TUN_PATH, flags, Mode::empty())
}

fn interface_exists(name: &str) -> bool {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let (family, kind) = (AddressFamily::INET, SocketType::DGRAM);
    rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)
        .and_then(|socket| rustix::net::netdevice::name_to_index(socket, name))
        .is_ok()
}
