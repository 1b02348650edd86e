//! Packet sockets (`packet(7)`): frames on the instance's only link, whose index is 1.

use super::sockets::TYPE_FLAGS;
use crate::errno::{Errno, Outcome};
use crate::instance::{Instance, State};
use crate::memory::address::Name;
use std::net::SocketAddr;
use towpath::layers::net::bpf::Program;
use towpath::layers::net::socket::{
    FrameKind, FrameSource, LinkDestination, PacketOptions, SendTo,
};
use towpath::layers::net::wire::MacAddr;
use towpath::layers::net::wire::ethernet::EtherType;

/// The index of the only link.
const LINK: i32 = 1;
/// Bytes of `struct sockaddr_ll`, and the offset of its address.
const NAME_LEN: usize = size_of::<libc::sockaddr_ll>();
const ADDRESS_AT: usize = 12;
/// `PACKET_STATISTICS` and `PACKET_IGNORE_OUTGOING` of `linux/if_packet.h`.
const STATISTICS: i32 = 6;
const IGNORE_OUTGOING: i32 = 23;

/// A protocol that a program passed in network byte order.
fn protocol(number: u16) -> EtherType {
    EtherType(u16::from_be(number))
}

/// A link-layer address that a program passed.
struct Given {
    family: i32,
    protocol: EtherType,
    index: i32,
    address: Option<MacAddr>,
}

impl Given {
    fn parse(bytes: &[u8]) -> Outcome<Self> {
        let fixed = bytes.first_chunk::<NAME_LEN>().ok_or(Errno::INVAL)?;
        let len = usize::from(fixed[11]);
        if bytes.len() < ADDRESS_AT + len {
            return Err(Errno::INVAL);
        }
        let mut address = [0; 6];
        address.copy_from_slice(&fixed[ADDRESS_AT..][..6]);
        Ok(Self {
            family: i32::from(u16::from_ne_bytes([fixed[0], fixed[1]])),
            protocol: protocol(u16::from_ne_bytes([fixed[2], fixed[3]])),
            index: i32::from_ne_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]),
            address: (len > 0).then_some(MacAddr(address)),
        })
    }
}

/// A `struct sockaddr_ll`.
fn name(protocol: EtherType, kind: u8, address: Option<MacAddr>) -> [u8; NAME_LEN] {
    let mut bytes = [0; NAME_LEN];
    bytes[..2].copy_from_slice(&(libc::AF_PACKET as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&protocol.0.to_be_bytes());
    if let Some(address) = address {
        bytes[4..8].copy_from_slice(&LINK.to_ne_bytes());
        bytes[8..10].copy_from_slice(&libc::ARPHRD_ETHER.to_ne_bytes());
        (bytes[10], bytes[11]) = (kind, address.0.len() as u8);
        bytes[ADDRESS_AT..][..6].copy_from_slice(&address.0);
    }
    bytes
}

/// The source of a message.
pub(crate) fn source(from: SocketAddr, link: Option<FrameSource>) -> Name {
    let Some(source) = link else { return Name::Internet(from) };
    let kind = match source.kind {
        FrameKind::Host => libc::PACKET_HOST,
        FrameKind::Broadcast => libc::PACKET_BROADCAST,
        FrameKind::Multicast => libc::PACKET_MULTICAST,
        FrameKind::OtherHost => libc::PACKET_OTHERHOST,
        FrameKind::Outgoing => libc::PACKET_OUTGOING,
    };
    Name::Link(name(source.protocol, kind, Some(source.address)), NAME_LEN)
}

impl Instance {
    /// The local address, as `getsockname(2)` returns it.
    pub(crate) fn own_name(&self, fd: i32) -> Outcome<Name> {
        let state = self.lock();
        let id = state.id(fd)?;
        let Some(options) = state.engine.protocols.packet_options(id) else {
            return Ok(Name::Internet(state.engine.protocols.local(id)?));
        };
        let mac = options.bound.then_some(state.engine.protocols.stack().mac());
        let len = ADDRESS_AT + mac.map_or(0, |mac| mac.0.len());
        Ok(Name::Link(name(options.protocol, 0, mac), len))
    }
}

impl Instance {
    /// Sets the filter of a packet socket: which later frames it receives, and how much of each
    /// (`SO_ATTACH_FILTER`).
    pub(crate) fn attach_filter(&self, fd: i32, filter: Outcome<Program>) -> Outcome<()> {
        self.call(|state| {
            let id = state.id(fd)?;
            // Other sockets do not support the option.
            state.packet(fd).ok_or(Errno(libc::ENOPROTOOPT))?;
            Ok(state.engine.protocols.set_packet_filter(id, Some(filter?)).map(drop)?)
        })
    }
}

impl State {
    /// The options of a packet socket. `None` for other sockets.
    pub(crate) fn packet(&self, fd: i32) -> Option<PacketOptions> {
        self.engine.protocols.packet_options(self.id(fd).ok()?).copied()
    }

    /// Rejects a call that packet sockets do not support.
    pub(crate) fn refuse_packet(&self, fd: i32) -> Outcome<()> {
        if self.packet(fd).is_some() { Err(Errno(libc::EOPNOTSUPP)) } else { Ok(()) }
    }

    /// Makes a packet socket of a type, for a protocol in network byte order.
    pub(crate) fn packet_socket(&mut self, kind: i32, number: i32) -> Outcome<i32> {
        let payload_only = match kind & !TYPE_FLAGS {
            libc::SOCK_RAW => false,
            libc::SOCK_DGRAM => true,
            _ => return Err(Errno(libc::ESOCKTNOSUPPORT)),
        };
        let id = self.engine.protocols.packet_socket(protocol(number as u16), payload_only)?;
        self.add_socket(id, libc::AF_PACKET, kind)
    }

    /// Binds to a protocol and to the link.
    pub(crate) fn bind_packet(&mut self, fd: i32, address: &[u8]) -> Outcome<()> {
        let given = Given::parse(address)?;
        if given.family != libc::AF_PACKET {
            return Err(Errno::INVAL);
        }
        if ![0, LINK].contains(&given.index) {
            return Err(Errno(libc::ENODEV));
        }
        let id = self.id(fd)?;
        Ok(self.engine.protocols.set_packet_options(id, |own| {
            own.bound = given.index == LINK;
            if given.protocol != PacketOptions::NONE {
                own.protocol = given.protocol;
            }
        })?)
    }

    /// Where a frame goes, by the address of a call.
    pub(crate) fn send_frame_to(own: &PacketOptions, address: Option<&[u8]>) -> Outcome<SendTo> {
        let link = match address.map(Given::parse).transpose()? {
            Some(given) if given.index != LINK => return Err(Errno(libc::ENXIO)),
            Some(Given { address, protocol, .. }) => Some(LinkDestination { address, protocol }),
            None if !own.bound => return Err(Errno(libc::ENXIO)),
            None => None,
        };
        Ok(SendTo { link, ..SendTo::default() })
    }

    /// Sets an option of a packet socket. `None` if other code handles the option.
    pub(crate) fn set_packet_option(
        &mut self,
        fd: i32,
        (level, option): (i32, i32),
        value: &[u8],
    ) -> Option<Outcome<()>> {
        self.packet(fd)?;
        match (level, option) {
            (libc::SOL_SOCKET, libc::SO_DETACH_FILTER) => Some(self.detach_filter(fd, value)),
            (libc::SOL_SOCKET, _) => None,
            (libc::SOL_PACKET, IGNORE_OUTGOING) => Some(self.ignore_outgoing(fd, value)),
            _ => Some(Err(Errno(libc::ENOPROTOOPT))),
        }
    }

    /// The value is ignored, but must be present.
    fn detach_filter(&mut self, fd: i32, value: &[u8]) -> Outcome<()> {
        if value.len() < size_of::<i32>() {
            return Err(Errno::INVAL);
        }
        let before = self.engine.protocols.set_packet_filter(self.id(fd)?, None)?;
        before.map(drop).ok_or(Errno(libc::ENOENT))
    }

    fn ignore_outgoing(&mut self, fd: i32, value: &[u8]) -> Outcome<()> {
        let on = match value.first_chunk::<4>().map(|bytes| i32::from_ne_bytes(*bytes)) {
            Some(number @ 0..=1) => number != 0,
            _ => return Err(Errno::INVAL),
        };
        let id = self.id(fd)?;
        Ok(self.engine.protocols.set_packet_options(id, |own| own.ignore_outgoing = on)?)
    }

    /// The value of an option of a packet socket. `None` if other code handles the option.
    pub(crate) fn packet_option(
        &mut self,
        fd: i32,
        level: i32,
        option: i32,
    ) -> Option<Outcome<Vec<u8>>> {
        let own = self.packet(fd)?;
        let number = match (level, option) {
            (libc::SOL_SOCKET, libc::SO_TYPE) if own.payload_only => libc::SOCK_DGRAM,
            (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_RAW,
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => 0,
            (libc::SOL_SOCKET, _) => return None,
            (libc::SOL_PACKET, IGNORE_OUTGOING) => i32::from(own.ignore_outgoing),
            (libc::SOL_PACKET, STATISTICS) => return Some(self.packet_statistics(fd)),
            _ => return Some(Err(Errno(libc::ENOPROTOOPT))),
        };
        Some(Ok(number.to_ne_bytes().to_vec()))
    }

    /// `struct tpacket_stats`.
    fn packet_statistics(&mut self, fd: i32) -> Outcome<Vec<u8>> {
        let (frames, lost) = self.engine.protocols.take_packet_statistics(self.id(fd)?)?;
        Ok([frames.to_ne_bytes(), lost.to_ne_bytes()].concat())
    }
}
