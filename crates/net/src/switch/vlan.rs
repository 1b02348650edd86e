//! VLANs: membership of ports, and the tag of a frame (IEEE 802.1Q §9.6).

use alloc::boxed::Box;

use towpath_packet::Packet;

use crate::wire::ethernet::{self, EtherType};

/// Number of a VLAN, 1 to 4094.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Vid(u16);

impl Vid {
    /// VLAN of ports that are not assigned to another.
    pub const DEFAULT: Self = Self(1);

    /// `None` for 0, which means no VLAN, for the reserved number, and for numbers of more than 12
    /// bits.
    pub const fn new(number: u16) -> Option<Self> {
        if number == 0 || number >= RESERVED { None } else { Some(Self(number)) }
    }

    /// Number of the VLAN.
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

    /// Adds a VLAN.
    pub fn insert(&mut self, vid: Vid) {
        self.0[usize::from(vid.0) / 64] |= 1 << (vid.0 % 64);
    }

    /// True if the VLAN is in the set.
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
    /// One VLAN, untagged. Tagged frames from the station are dropped, except priority tags.
    Access(Vid),
    /// Several VLANs, tagged.
    Trunk {
        /// VLAN of untagged frames in both directions.
        native: Option<Vid>,
        /// VLANs of tagged frames.
        allowed: Box<VlanSet>,
    },
}

/// Form in which a frame of a VLAN leaves a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leaves {
    Tagged,
    Untagged,
}

impl PortVlans {
    /// VLAN of a received frame with this tag, or without a tag. `None` if the port is not in that
    /// VLAN.
    pub(super) fn classify(&self, tci: Option<u16>) -> Option<Vid> {
        let number = tci.map_or(0, |tci| tci & VID_MASK);
        match self {
            Self::Access(vid) => (number == 0).then_some(*vid),
            Self::Trunk { native, .. } if number == 0 => *native,
            Self::Trunk { .. } => Vid::new(number).filter(|&vid| self.leaves(vid).is_some()),
        }
    }

    /// Form in which a frame of `vid` leaves this port; `None` if the port is not in the VLAN.
    pub(super) fn leaves(&self, vid: Vid) -> Option<Leaves> {
        match self {
            Self::Access(own) => (*own == vid).then_some(Leaves::Untagged),
            Self::Trunk { native, .. } if *native == Some(vid) => Some(Leaves::Untagged),
            Self::Trunk { allowed, .. } => allowed.contains(vid).then_some(Leaves::Tagged),
        }
    }
}

/// Replaces the tag of a packet by `wanted`; the Ethernet header and tag must be in its private
/// headers. Returns by how many bytes the following headers moved. Offsets in the offload fields
/// are adjusted.
#[inline]
pub(super) fn set_tag(packet: &mut Packet, has_tag: bool, wanted: Option<u16>) -> isize {
    if !has_tag && wanted.is_none() { 0 } else { replace_tag(packet, has_tag, wanted) }
}

fn replace_tag(packet: &mut Packet, has_tag: bool, wanted: Option<u16>) -> isize {
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
        // The offsets have been checked to be behind the Ethernet header and within the packet.
        offload.shift(moved as i16);
        packet.set_offload(offload);
    }
    moved
}

/// Bytes of a tag: type and TCI.
pub(super) const TAG_LEN: usize = 4;
/// Bytes before a tag: both addresses.
const ADDRESSES_LEN: usize = ethernet::HEADER_LEN - 2;

/// VLAN bits of a TCI; the others are priority and drop eligibility.
pub(super) const VID_MASK: u16 = 0x0fff;
/// Reserved VLAN number.
const RESERVED: u16 = 0x0fff;
const WORDS: usize = 4096 / 64;
