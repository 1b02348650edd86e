//! Uplinks through packet sockets: any Ethernet interface, super-packets and partial checksums in
//! both directions.
//!
//! # Theory of operation
//!
//! Each call moves one packet: a virtio-net header of 10 bytes (`PACKET_VNET_HDR`), then the frame.
//! A receive call fills pool frames directly, and a send call passes the addresses of the packet's
//! pieces. Only the kernel copies payload.
//!
//! The kernel takes the VLAN tag out of received frames and reports it beside them
//! (`PACKET_AUXDATA`). Each read leaves [`TAG_BYTES`] free in front of the frame: to restore the
//! tag, the addresses move to the start, and the tag follows.
//!
//! Offloads cannot be negotiated. A feature is withdrawn if the kernel refuses [`REFUSALS_MAX`]
//! packets of one kind in a row: from then on the switch segments and computes checksums itself.
//!
//! Invariants: each packet taken from a burst is transmitted or counted under one drop reason, and
//! so is each packet read; none is delivered truncated. No call blocks or allocates. One thread at
//! a time.
//!
//! Limits: [`FRAME_BYTES_MAX`], [`READS_MAX`](crate::receive::READS_MAX). Sources: packet(7),
//! linux/if_packet.h.

use super::calls;
use super::counters::UplinkCounters;
use super::error::{Problem, Step, UplinkError};
use super::open::{self, Opened};
use crate::gather::Gather;
use crate::receive::{FRAMES_MAX, Read, ReceiveBuffer, empty_slices, receive_packets};
use crate::sys;
use crate::tap::{FRAME_BYTES_MAX, Features, GSO_BYTES_MAX, Kind, REFUSALS_MAX};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SendFlags, send, sockopt};
use std::io::IoSliceMut;
use std::time::Duration;
use towpath_packet::packet::PIECES_MAX;
use towpath_packet::time::Instant;
use towpath_packet::{Burst, Caps, Context, Device, Input, Memory, Packet, VirtioHeader};

/// Time between two checks of an interface that is down.
pub const CHECK: Duration = Duration::from_secs(1);

/// Bytes of a VLAN tag.
const TAG_BYTES: usize = 4;
/// Bytes of the two addresses, in front of the tag.
const ADDRESS_BYTES: usize = 12;
/// Bytes of an Ethernet header.
const ETHERNET_BYTES: usize = 14;
/// Bytes of the virtio-net header: without `num_buffers`, unlike that of TAP devices.
const HEADER_BYTES: usize = VirtioHeader::LEN - 2;
/// Slices of a read: header, frames.
const READ_SLICES: usize = 1 + FRAMES_MAX;
/// Parts of a write: header, private headers, pieces.
const WRITE_PARTS: usize = 2 + PIECES_MAX;
/// Bytes of control messages: each has a header of 16 bytes; the data are `struct tpacket_auxdata`
/// (20 bytes) and a counter (4 bytes), each padded to 8.
const CONTROL_BYTES: usize = 16 + 24 + 16 + 8;

/// A packet socket; see the module documentation.
pub(super) struct PacketSocket {
    socket: OwnedFd,
    interface: String,
    mtu: u16,
    features: Features,
    refusals: [u8; Kind::COUNT],
    counters: UplinkCounters,
    buffer: ReceiveBuffer,
    is_up: bool,
    /// When the interface is checked again.
    check: Option<Instant>,
}

/// What the kernel reports beside a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Beside {
    /// The VLAN tag that it took out of the frame.
    tag: Option<[u8; TAG_BYTES]>,
    /// Frames dropped since the socket was opened, if there were any.
    overrun: Option<u32>,
}

impl PacketSocket {
    /// Opens a socket for `interface`, in the network namespace of this thread, for IP packets of
    /// at most `mtu` bytes.
    pub(super) fn open(interface: &str, mtu: u16) -> Result<Self, UplinkError> {
        let Opened { socket, mtu: own, .. } = open::packet(interface)?;
        Ok(Self {
            socket,
            interface: interface.to_owned(),
            mtu: u16::try_from(own).unwrap_or(u16::MAX).min(mtu),
            features: Features::ALL,
            refusals: [0; Kind::COUNT],
            counters: UplinkCounters::default(),
            buffer: ReceiveBuffer::with_headroom(TAG_BYTES),
            // The first call reports an interface that is down.
            is_up: true,
            check: None,
        })
    }

    pub(super) fn counters(&self) -> UplinkCounters {
        self.counters
    }

    pub(super) fn is_up(&self) -> bool {
        self.is_up
    }

    /// Reads one packet into `packet`.
    fn read_packet(
        &mut self,
        memory: &mut Memory,
        packet: &mut Packet,
        now: Instant,
    ) -> Result<Read, UplinkError> {
        let offered = self.buffer.prepare(memory, FRAME_BYTES_MAX);
        if offered == 0 {
            return Ok(Read::NoMemory);
        }
        let mut header = VirtioHeader::default();
        let mut control = [0; CONTROL_BYTES];
        let result = {
            let mut slices: [IoSliceMut<'_>; READ_SLICES] = empty_slices();
            slices[0] = IoSliceMut::new(&mut header.0[..HEADER_BYTES]);
            let count = 1 + self.buffer.slices(&mut slices[1..]);
            self.counters.received.calls += 1;
            sys::receive_message(
                self.socket.as_fd(),
                &mut slices[..count],
                &mut [],
                &mut control,
                0,
            )
        };
        let received = match result {
            Ok(received) => received,
            Err(Errno::AGAIN) => return Ok(Read::Empty),
            Err(Errno::INTR) => return Ok(Read::Again),
            Err(Errno::INVAL) => {
                self.counters.receive_lost += 1;
                return Ok(Read::Again);
            }
            Err(Errno::NETDOWN) => {
                self.lost(now)?;
                return Ok(Read::Again);
            }
            Err(errno) => return Err(self.failed(errno)),
        };
        let beside = Beside::parse(&control[..received.control_len]);
        if let Some(count) = beside.overrun {
            self.counters.receive_overrun = count.into();
        }
        let is_cut = received.flags & libc::MSG_TRUNC != 0;
        Ok(self.accept((received.bytes, is_cut), native(header), beside.tag, packet))
    }

    /// Checks a packet that was read, and moves its frames into `packet`.
    fn accept(
        &mut self,
        (bytes, is_cut): (usize, bool),
        header: VirtioHeader,
        tag: Option<[u8; TAG_BYTES]>,
        packet: &mut Packet,
    ) -> Read {
        let bytes = bytes.saturating_sub(HEADER_BYTES);
        if is_cut {
            self.counters.receive_no_memory += 1;
            return Read::Again;
        }
        if bytes < ETHERNET_BYTES {
            self.counters.receive_short += 1;
            return Read::Again;
        }
        let Ok(mut offload) = header.decode() else {
            self.counters.receive_bad_header += 1;
            return Read::Again;
        };
        if let Some(tag) = tag {
            let start = self.buffer.start_mut();
            start.copy_within(TAG_BYTES..TAG_BYTES + ADDRESS_BYTES, 0);
            start[ADDRESS_BYTES..ADDRESS_BYTES + TAG_BYTES].copy_from_slice(&tag);
            offload.shift(TAG_BYTES as i16);
        }
        self.buffer.take(bytes, |piece| {
            packet.push_piece(piece).expect("a packet has room for the frames of one read");
        });
        if tag.is_none() {
            packet.drop_front(TAG_BYTES);
        }
        packet.set_offload(offload);
        self.counters.received.count(packet.payload_len(), &offload);
        Read::Packet
    }

    /// Sends one packet; the kernel accepts all of it or nothing.
    fn write_packet(&mut self, packet: &Packet) -> Result<(), Errno> {
        let headers = packet.wire_headers();
        // The header length is a hint for the kernel; one below an Ethernet header's would be
        // invalid.
        let hint = if headers.len() < ETHERNET_BYTES { 0 } else { headers.len() };
        let header = native(VirtioHeader::encode(packet.offload(), hint));
        let mut gather: Gather<'_, WRITE_PARTS> = Gather::new();
        let fits = gather.push_bytes(&header.0[..HEADER_BYTES]) && gather.push_packet(packet);
        assert!(fits, "there is a part for the headers and each piece of a packet");
        self.counters.transmitted.calls += 1;
        sys::send_gather(self.socket.as_fd(), &gather, &[], &[], libc::MSG_DONTWAIT).map(drop)
    }

    /// Counts a packet that the kernel refused; withdraws its feature after too many in a row.
    fn refuse(&mut self, errno: Errno, kind: Option<Kind>) {
        self.counters.transmit_refused += 1;
        let Some(kind) = kind.filter(|_| errno == Errno::INVAL) else { return };
        let refusals = &mut self.refusals[kind as usize];
        *refusals += 1;
        if *refusals == REFUSALS_MAX {
            *refusals = 0;
            self.features = self.features.without(kind.feature());
        }
    }

    /// The interface is down, or has gone.
    fn lost(&mut self, now: Instant) -> Result<(), UplinkError> {
        let bound = calls::bound_interface(self.socket.as_fd());
        if bound.map_err(|errno| self.failed(errno))?.is_none() {
            return Err(Problem::Gone.of(&self.interface));
        }
        // The kernel keeps the error for the next call, which may come when the interface is up.
        let _ = sockopt::socket_error(&self.socket);
        self.is_up = false;
        self.check = Some(now + CHECK);
        Ok(())
    }

    fn failed(&self, errno: Errno) -> UplinkError {
        Problem::at(Step::Use, errno).of(&self.interface)
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Device for PacketSocket {
    type Error = UplinkError;

    fn caps(&self) -> Caps {
        let Features { checksum, tso4, tso6, uso, tunnel } = self.features;
        let gso_bytes_max = if self.features.any_gso() { GSO_BYTES_MAX } else { 0 };
        Caps { checksum, tso4, tso6, uso, tunnel, gso_bytes_max, ..Caps::plain(self.mtu) }
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.check
    }

    /// Checks an interface that was down.
    fn turn(&mut self, _: bool, cx: &mut Context<'_>) -> Result<(), UplinkError> {
        if self.check.is_none_or(|at| at > cx.now) {
            return Ok(());
        }
        // The kernel refuses a packet without a header, after it has looked at the interface.
        match send(&self.socket, &[], SendFlags::DONTWAIT) {
            Err(Errno::NETDOWN | Errno::NXIO | Errno::NODEV) => self.lost(cx.now),
            _ => {
                (self.is_up, self.check) = (true, None);
                Ok(())
            }
        }
    }

    fn looks_by_call(&self) -> bool {
        true
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<Input, UplinkError> {
        let now = cx.now;
        let input = receive_packets(burst, cx.memory, |memory, packet| {
            self.read_packet(memory, packet, now)
        })?;
        if input == Input::NoMemory {
            self.counters.receive_paused += 1;
        }
        Ok(input)
    }

    fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), UplinkError> {
        burst.prefetch();
        while let Some(packet) = burst.first() {
            let offload = *packet.offload();
            let kind = Kind::of(&offload);
            match self.write_packet(packet) {
                Ok(()) => {
                    self.counters.transmitted.count(packet.len(), &offload);
                    if let Some(kind) = kind {
                        self.refusals[kind as usize] = 0;
                    }
                }
                // The last two mean that the queue of the interface is full.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => {
                    self.counters.transmit_full += 1;
                    break;
                }
                Err(Errno::INTR) => continue,
                Err(Errno::NETDOWN | Errno::NXIO | Errno::NODEV) => {
                    self.counters.transmit_down += 1;
                    self.lost(cx.now)?;
                }
                Err(errno) => self.refuse(errno, kind),
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

impl Beside {
    /// Parses the control messages of a received frame.
    fn parse(mut control: &[u8]) -> Self {
        /// Bytes of `struct cmsghdr`: length, level, type.
        const HEAD: usize = size_of::<usize>() + 8;
        let mut beside = Self::default();
        while let Some((length, rest)) = control.split_first_chunk()
            && let Some((level, rest)) = rest.split_first_chunk()
            && let Some((kind, _)) = rest.split_first_chunk()
            && let length = usize::from_ne_bytes(*length)
            && let Some(data) = control.get(HEAD..length)
        {
            match (i32::from_ne_bytes(*level), i32::from_ne_bytes(*kind)) {
                (libc::SOL_PACKET, libc::PACKET_AUXDATA) => beside.tag = tag(data),
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                    beside.overrun = data.first_chunk().map(|count| u32::from_ne_bytes(*count));
                }
                _ => {}
            }
            let next = length.next_multiple_of(size_of::<usize>());
            control = control.get(next..).unwrap_or_default();
        }
        beside
    }
}

/// Returns the VLAN tag in a `struct tpacket_auxdata`, as in a frame.
fn tag(auxdata: &[u8]) -> Option<[u8; TAG_BYTES]> {
    let (status, rest) = auxdata.split_first_chunk()?;
    // Lengths of the packet and of what was captured, offsets of both headers; then the tag.
    let [tci_low, tci_high, tpid_low, tpid_high] = *rest.get(12..)?.first_chunk()?;
    let status = u32::from_ne_bytes(*status);
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let tci = u16::from_ne_bytes([tci_low, tci_high]);
    let tpid = match status & libc::TP_STATUS_VLAN_TPID_VALID {
        0 => ETH_P_8021Q,
        _ => u16::from_ne_bytes([tpid_low, tpid_high]),
    };
    let [[a, b], [c, d]] = [tpid.to_be_bytes(), tci.to_be_bytes()];
    Some([a, b, c, d])
}

/// Type of a frame with an 802.1Q tag.
const ETH_P_8021Q: u16 = 0x8100;

/// Converts the numbers in a virtio-net header between little-endian and the machine's byte order,
/// which packet sockets use.
fn native(mut header: VirtioHeader) -> VirtioHeader {
    if cfg!(target_endian = "big") {
        let (words, _) = header.0[2..HEADER_BYTES].as_chunks_mut::<2>();
        words.iter_mut().for_each(|word| word.reverse());
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
        let mut bytes = (16 + data.len()).to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    fn auxdata(status: u32, tci: u16, tpid: u16) -> Vec<u8> {
        let mut bytes = status.to_ne_bytes().to_vec();
        bytes.extend([0; 12]);
        bytes.extend(tci.to_ne_bytes());
        bytes.extend(tpid.to_ne_bytes());
        message(libc::SOL_PACKET, libc::PACKET_AUXDATA, &bytes)
    }

    /// Goal: tags and losses are found in any order and beside unknown messages, and no control
    /// message, however cut, causes a panic.
    #[test]
    fn control_messages_are_parsed() {
        let valid = libc::TP_STATUS_VLAN_VALID;
        let both = valid | libc::TP_STATUS_VLAN_TPID_VALID;
        let lost = message(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &7u32.to_ne_bytes());
        let other = message(libc::SOL_SOCKET, 29, &[1, 2, 3]);
        let tagged = auxdata(both, 0x6064, 0x88a8);
        let all = [other, tagged, lost].concat();
        let wanted = Beside { tag: Some([0x88, 0xa8, 0x60, 0x64]), overrun: Some(7) };
        assert_eq!(Beside::parse(&all), wanted);
        let tag = Beside::parse(&auxdata(valid, 100, 0)).tag;
        assert_eq!(tag, Some([0x81, 0, 0, 100]), "old kernels do not report the type");
        assert_eq!(Beside::parse(&auxdata(1, 100, 0x8100)).tag, None);
        for end in 0..all.len() {
            let _ = Beside::parse(&all[..end]);
        }
        for length in [0_usize, 15, usize::MAX] {
            let _ = Beside::parse(&[&length.to_ne_bytes()[..], &[0; 40]].concat());
        }
    }

    #[test]
    fn control_messages_have_room() {
        let longest = [auxdata(0, 0, 0), message(1, 40, &[0; 4])].concat();
        assert_eq!(longest.len(), CONTROL_BYTES);
    }
}
