//! Packet sockets: frames as they are on the link, with the semantics of Linux's `AF_PACKET`.
//!
//! Each packet socket with a matching protocol gets a share of each received frame. A socket for
//! all protocols also gets the frames that are sent, except its own. Sent data has a link-layer
//! header or gets one. Queues, buffers and lending calls are those of UDP sockets. Super-packets
//! are shown whole, and checksums that the device completes are shown incomplete.

use super::super::{Error, Family, SocketId, Sockets};
use super::receive::Waiting;
use super::send::{Carrier, SendTo, Way};
use crate::bpf::Program;
use crate::counters::DropReason;
use crate::stack::{Context, share};
use crate::wire::MacAddr;
use crate::wire::ethernet::{self, EtherType};
use alloc::boxed::Box;
use core::net::{Ipv4Addr, SocketAddr};
use towpath_packet::Packet;
use towpath_packet::packet::PEEK_BYTES;

/// Options that only packet sockets have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketOptions {
    /// Protocol to receive: [`PacketOptions::ALL`], [`PacketOptions::NONE`] or one protocol.
    pub protocol: EtherType,
    /// Reads and sends without the link-layer header (`SOCK_DGRAM`).
    pub payload_only: bool,
    /// Does not receive outgoing frames (`PACKET_IGNORE_OUTGOING`).
    pub ignore_outgoing: bool,
    /// The socket is bound to the link, and may send without naming it.
    pub bound: bool,
}

impl PacketOptions {
    /// All protocols (Linux's `ETH_P_ALL`).
    pub const ALL: EtherType = EtherType(3);
    /// No protocol.
    pub const NONE: EtherType = EtherType(0);

    fn takes(&self, outgoing: bool, protocol: EtherType) -> bool {
        let all = self.protocol == Self::ALL;
        let one = self.protocol == protocol && protocol != Self::NONE;
        if outgoing { all && !self.ignore_outgoing } else { all || one }
    }
}

/// Destination of a frame that gets its header here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkDestination {
    /// Destination address; `None` is an error for a `SOCK_DGRAM` socket.
    pub address: Option<MacAddr>,
    /// EtherType of the frame.
    pub protocol: EtherType,
}

/// Receiver of a frame (Linux's `PACKET_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// This host.
    Host,
    /// All stations.
    Broadcast,
    /// A multicast group.
    Multicast,
    /// Another station.
    OtherHost,
    /// The frame was sent by this host.
    Outgoing,
}

/// Source of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FrameSource {
    /// Sender's address.
    pub address: MacAddr,
    /// EtherType; [`FrameSource::LENGTH`] if the header has a length instead.
    pub protocol: EtherType,
    /// Receiver.
    pub kind: FrameKind,
}

impl FrameSource {
    /// Protocol of IEEE 802.3 frames (Linux's `ETH_P_802_2`).
    pub const LENGTH: EtherType = EtherType(4);
}

/// State that only packet sockets have.
pub(super) struct PacketSocket {
    options: PacketOptions,
    /// Filter of received frames.
    filter: Option<Program>,
    /// Frames offered since the last statistics call, and the drop count at that time.
    offered: u32,
    dropped_before: u32,
}

/// Smaller values are lengths (IEEE 802.3 §3.2.6).
const ETHERTYPE_FIRST: u16 = 1536;
/// Bytes of a VLAN tag, which do not count for the MTU.
const VLAN_TAG_LEN: usize = 4;

impl Sockets {
    /// Creates a socket that receives and sends frames. It is not bound to the link.
    pub fn packet_socket(
        &mut self,
        protocol: EtherType,
        payload_only: bool,
    ) -> Result<SocketId, Error> {
        let id = self.datagram(Family::V4)?;
        let options =
            PacketOptions { protocol, payload_only, ignore_outgoing: false, bound: false };
        let own = PacketSocket { options, filter: None, offered: 0, dropped_before: 0 };
        self.socket_mut(id)?.datagrams_mut()?.link = Some(Box::new(own));
        self.datagrams.link.push(id);
        self.want_frames();
        Ok(id)
    }

    /// The options that only packet sockets have; `None` for others.
    pub fn packet_options(&self, id: SocketId) -> Option<&PacketOptions> {
        Some(&self.socket(id).ok()?.datagrams().ok()?.link.as_ref()?.options)
    }

    /// Changes the options that only packet sockets have.
    ///
    /// # Errors
    /// [`Error::NotSupported`] for other sockets.
    pub fn set_packet_options(
        &mut self,
        id: SocketId,
        change: impl FnOnce(&mut PacketOptions),
    ) -> Result<(), Error> {
        let own = self.socket_mut(id)?.datagrams_mut()?.link.as_mut().ok_or(Error::NotSupported)?;
        change(&mut own.options);
        self.want_frames();
        Ok(())
    }

    /// Sets which frames a packet socket receives from now on, and how many bytes of each: the
    /// result of the program (`SO_ATTACH_FILTER`). The program sees the first [`PEEK_BYTES`] of
    /// what the socket would read. `None` accepts all. Returns the previous filter.
    ///
    /// # Errors
    /// [`Error::NotSupported`] for other sockets.
    pub fn set_packet_filter(
        &mut self,
        id: SocketId,
        filter: Option<Program>,
    ) -> Result<Option<Program>, Error> {
        let own = self.socket_mut(id)?.datagrams_mut()?.link.as_mut().ok_or(Error::NotSupported)?;
        Ok(core::mem::replace(&mut own.filter, filter))
    }

    /// Returns the frames offered to a packet socket and those of them that it lost, since the last
    /// call (`PACKET_STATISTICS`).
    ///
    /// # Errors
    /// [`Error::NotSupported`] for other sockets.
    pub fn take_packet_statistics(&mut self, id: SocketId) -> Result<(u32, u32), Error> {
        let datagrams = self.socket_mut(id)?.datagrams_mut()?;
        let dropped = datagrams.dropped;
        let own = datagrams.link.as_mut().ok_or(Error::NotSupported)?;
        let before = core::mem::replace(&mut own.dropped_before, dropped);
        Ok((core::mem::take(&mut own.offered), dropped.wrapping_sub(before)))
    }

    /// Stops delivering frames to a packet socket that is closed.
    pub(super) fn close_packet(&mut self, id: SocketId) {
        if self.packet_options(id).is_some() {
            self.datagrams.link.retain(|other| *other != id);
            self.want_frames();
        }
    }

    /// Rejects a call that packet sockets do not support.
    pub(in crate::socket) fn refuse_packet(&self, id: SocketId) -> Result<(), Error> {
        if self.packet_options(id).is_some() { Err(Error::NotSupported) } else { Ok(()) }
    }

    /// Sets which frames the stack keeps for packet sockets.
    fn want_frames(&mut self) {
        let all = self.datagrams.link.iter().filter_map(|id| self.packet_options(*id));
        let (mut received, mut sent) = (false, false);
        for options in all {
            received |= options.protocol != PacketOptions::NONE;
            sent |= options.takes(true, options.protocol);
        }
        self.stack.want_frames(received, sent);
    }

    /// Checks whether and how `len` bytes can be sent (packet(7)).
    pub(super) fn prepare_frame(
        &mut self,
        id: SocketId,
        len: usize,
        (options, send): (PacketOptions, &SendTo),
    ) -> Result<Way, Error> {
        if send.link.is_none() && !options.bound {
            return Err(Error::DestinationRequired);
        }
        let mtu = usize::from(self.stack.mtu());
        let header = if options.payload_only {
            let (address, protocol) = match send.link {
                Some(to) => (to.address, to.protocol),
                None => (None, options.protocol),
            };
            if len > mtu {
                return Err(Error::MessageSize);
            }
            Some((address.ok_or(Error::Invalid)?, protocol))
        } else {
            if len > mtu + ethernet::HEADER_LEN + VLAN_TAG_LEN {
                return Err(Error::MessageSize);
            }
            if len < ethernet::HEADER_LEN {
                return Err(Error::Invalid);
            }
            None
        };
        self.check_room(id)?;
        let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        Ok(Way::of_frame(Carrier::Link(header), nowhere))
    }

    /// Passes a frame to the stack, and shares of it to other packet sockets.
    pub(super) fn send_frame(
        &mut self,
        id: SocketId,
        mut packet: Packet,
        header: Option<(MacAddr, EtherType)>,
        cx: &mut Context<'_>,
    ) -> Result<(), Error> {
        match header {
            Some((destination, ethertype)) => {
                let header = ethernet::Header { destination, source: self.stack.mac(), ethertype };
                header.emit(packet.push_header(ethernet::HEADER_LEN));
            }
            None => {
                packet.peek_headers();
                packet.pull(ethernet::HEADER_LEN);
                let header = ethernet::Header::parse(packet.headers());
                let tagged = header.is_ok_and(|header| header.ethertype == EtherType::VLAN);
                let room = ethernet::HEADER_LEN + if tagged { VLAN_TAG_LEN } else { 0 };
                if packet.len() > usize::from(self.stack.mtu()) + room {
                    return Err(Error::MessageSize);
                }
            }
        }
        self.show_frame(&packet, true, Some(id), cx);
        self.stack.send_made(packet);
        Ok(())
    }

    /// Gives a share of a frame to each packet socket that wants it, except to `maker`.
    pub(super) fn show_frame(
        &mut self,
        packet: &Packet,
        outgoing: bool,
        maker: Option<SocketId>,
        cx: &mut Context<'_>,
    ) {
        let Ok(header) = ethernet::Header::parse(packet.headers()) else { return };
        let source = self.source_of(&header, outgoing);
        for index in 0..self.datagrams.link.len() {
            let id = self.datagrams.link[index];
            let Some(options) = self.packet_options(id).copied() else { continue };
            if maker == Some(id) || !options.takes(outgoing, source.protocol) {
                continue;
            }
            let begin = if options.payload_only { ethernet::HEADER_LEN } else { 0 };
            let wanted = self.wanted_bytes(id, packet, begin);
            if wanted == 0 {
                continue;
            }
            let headers = &packet.headers()[begin..];
            let headers = &headers[..headers.len().min(wanted)];
            let Some(mut packet) = share(packet, headers, cx) else {
                return self.stack.count_drop(DropReason::NoMemory);
            };
            packet.truncate(wanted - headers.len());
            let waiting = Waiting {
                link: Some(source),
                with_headers: true,
                ..Waiting::new(packet, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))
            };
            self.enqueue(id, waiting, cx);
            let own = self.socket_mut(id).and_then(|socket| socket.datagrams_mut());
            if let Ok(Some(own)) = own.map(|own| own.link.as_mut()) {
                own.offered = own.offered.wrapping_add(1);
            }
        }
    }

    /// Bytes from `begin` on that a socket's filter accepts; more than the frame has means all.
    fn wanted_bytes(&self, id: SocketId, packet: &Packet, begin: usize) -> usize {
        let own = self.socket(id).ok().and_then(|socket| socket.datagrams().ok()?.link.as_ref());
        let Some(filter) = own.and_then(|own| own.filter.as_ref()) else { return usize::MAX };
        let mut first = [0; PEEK_BYTES];
        let count = packet.copy_first(&mut first);
        filter.run(&first[begin..count], (packet.len() - begin) as u32) as usize
    }

    /// Returns the source of a frame, classified as `sll_pkttype` (packet(7)).
    fn source_of(&self, header: &ethernet::Header, outgoing: bool) -> FrameSource {
        let to = header.destination;
        let kind = match () {
            () if outgoing => FrameKind::Outgoing,
            () if to.is_broadcast() => FrameKind::Broadcast,
            () if to.is_multicast() => FrameKind::Multicast,
            () if to == self.stack.mac() => FrameKind::Host,
            () => FrameKind::OtherHost,
        };
        let typed = header.ethertype.0 >= ETHERTYPE_FIRST;
        let protocol = if typed { header.ethertype } else { FrameSource::LENGTH };
        FrameSource { address: header.source, protocol, kind }
    }
}
