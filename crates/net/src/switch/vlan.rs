//! VLANs: which of them a port belongs to, and the tag of a frame (IEEE 802.1Q §9.6).

use alloc::boxed::Box;

use towpath_packet::Packet;

use crate::wire::ethernet::{self, EtherType};

/// Number of a VLAN, 1 to 4094.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Vid(u16);

impl Vid {
    /// The VLAN of ports that nobody put into another.
    pub const DEFAULT: Self = Self(1);

    /// `None` for 0, which names no VLAN, and for what is reserved or does not fit 12 bits.
    pub const fn new(number: u16) -> Option<Self> {
        if number == 0 || number >= RESERVED { None } else { Some(Self(number)) }
    }

    /// Its number.
    pub const fn number(self) -> u16 {
        self.0
    }
}

/// A set of VLANs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VlanSet([u64; WORDS]);

impl VlanSet {
    /// No VLAN.
    pub const NONE: Self = Self([0; WORDS]);
    /// Every VLAN.
    pub const ALL: Self = Self([u64::MAX; WORDS]);

    /// Adds one.
    pub fn insert(&mut self, vid: Vid) {
        self.0[usize::from(vid.0) / 64] |= 1 << (vid.0 % 64);
    }

    /// Whether one is in it.
    pub fn contains(&self, vid: Vid) -> bool {
        self.0[usize::from(vid.0) / 64] & 1 << (vid.0 % 64) != 0
    }
}

impl FromIterator<Vid> for VlanSet {
    fn from_iter<I: IntoIterator<Item = Vid>>(vids: I) -> Self {
        let mut set = Self::NONE;
        vids.into_iter().for_each(|vid| set.insert(vid));
        set
    }
}

/// The VLANs of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortVlans {
    /// One VLAN, whose tag the station does not know. Tagged frames from it are dropped, but those
    /// that only carry a priority.
    Access(Vid),
    /// Several, with tags.
    Trunk {
        /// The VLAN of frames without a tag, in both directions.
        native: Option<Vid>,
        /// The VLANs of frames with one.
        allowed: Box<VlanSet>,
    },
}

/// How a frame of some VLAN leaves by a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leaves {
    Tagged,
    Untagged,
}

impl PortVlans {
    /// The VLAN of a frame that came with this tag, or without. `None` if the port is in no such
    /// VLAN.
    pub(super) fn classify(&self, tci: Option<u16>) -> Option<Vid> {
        let number = tci.map_or(0, |tci| tci & VID_MASK);
        match self {
            Self::Access(vid) => (number == 0).then_some(*vid),
            Self::Trunk { native, .. } if number == 0 => *native,
            Self::Trunk { .. } => Vid::new(number).filter(|&vid| self.leaves(vid).is_some()),
        }
    }

    /// How a frame of `vid` leaves by this port; `None` if it does not.
    pub(super) fn leaves(&self, vid: Vid) -> Option<Leaves> {
        match self {
            Self::Access(own) => (*own == vid).then_some(Leaves::Untagged),
            Self::Trunk { native, .. } if *native == Some(vid) => Some(Leaves::Untagged),
            Self::Trunk { allowed, .. } => allowed.contains(vid).then_some(Leaves::Tagged),
        }
    }
}

/// Gives a packet, whose Ethernet header and tag are in its private headers, the tag `wanted`
/// instead of the one it has; returns by how many bytes what follows it moved. Offsets in the
/// offload fields move along.
pub(super) fn set_tag(packet: &mut Packet, has_tag: bool, wanted: Option<u16>) -> isize {
    let moved = match (has_tag, wanted.is_some()) {
        (false, true) => {
            packet.push_header(TAG_LEN);
            packet.headers_mut().copy_within(TAG_LEN..TAG_LEN + ADDRESSES_LEN, 0);
            TAG_LEN as isize
        }
        (true, false) => {
            packet.headers_mut().copy_within(..ADDRESSES_LEN, TAG_LEN);
            packet.pop_header(TAG_LEN);
            -(TAG_LEN as isize)
        }
        _ => 0,
    };
    if let Some(tci) = wanted {
        let tag = &mut packet.headers_mut()[ADDRESSES_LEN..ADDRESSES_LEN + TAG_LEN];
        tag[..2].copy_from_slice(&EtherType::VLAN.0.to_be_bytes());
        tag[2..].copy_from_slice(&tci.to_be_bytes());
    }
    if moved != 0 {
        let mut offload = *packet.offload();
        // Offsets were checked to lie behind the Ethernet header and in the packet.
        offload.shift(moved as i16);
        packet.set_offload(offload);
    }
    moved
}

/// Bytes of a tag: its type and the TCI.
pub(super) const TAG_LEN: usize = 4;
/// Bytes in front of a tag: both addresses.
const ADDRESSES_LEN: usize = ethernet::HEADER_LEN - 2;

/// The bits of a TCI that are the VLAN; the others are priority and drop eligibility.
pub(super) const VID_MASK: u16 = 0x0fff;
/// A number that no frame may carry.
const RESERVED: u16 = 0x0fff;
const WORDS: usize = 4096 / 64;
