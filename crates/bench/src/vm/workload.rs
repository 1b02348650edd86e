//! The packets that one machine sends to the other.

use towpath_io::vhost_user::virtq::feature;
use towpath_net::checksum::Sum;

use crate::cases::Case;

/// Packets of one kind.
#[derive(Debug)]
pub(crate) struct Workload {
    /// The first part of its cases' names.
    pub(crate) name: &'static str,
    /// TCP payload of a packet.
    pub(crate) payload: usize,
    /// Most payload of a segment; `None` for a packet that is not a TCP super-packet.
    pub(crate) segment: Option<usize>,
    /// Features of the machine that receives.
    pub(crate) receiver: u64,
    /// Bytes of its buffers.
    pub(crate) buffer: u32,
    /// Packets in flight from one machine to the other.
    pub(super) window: u64,
    /// Pairs of machines, each with a machine that sends to the other.
    pub(crate) pairs: u8,
    /// Workers of the network. With several, the machines of a pair have different ones.
    pub(crate) workers: usize,
}

/// Super-packets that are forwarded whole.
pub(crate) const WHOLE: Workload = Workload {
    name: "vm_to_vm_whole",
    payload: SUPER_PAYLOAD,
    segment: Some(SEGMENT),
    receiver: COMMON | feature::GUEST_CSUM | feature::GUEST_TSO4,
    buffer: PAGE_BUFFER,
    window: SUPER_WINDOW,
    pairs: 1,
    workers: 1,
};

/// A super-packet as a device without segmentation offloads receives it: as a long frame.
pub(crate) const LONG_FRAME: Workload = Workload {
    name: "long_frame",
    payload: SUPER_PAYLOAD,
    segment: None,
    receiver: COMMON,
    buffer: PAGE_BUFFER,
    window: SUPER_WINDOW,
    pairs: 1,
    workers: 1,
};

/// A figure of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Speed,
    Cpu,
    Copies,
}

/// Super-packets that are segmented for the machine that receives.
const SEGMENTED: Workload = Workload {
    name: "vm_to_vm_segmented",
    receiver: COMMON | feature::GUEST_CSUM,
    buffer: MTU_BUFFER,
    ..WHOLE
};

/// Small packets.
pub(crate) const SMALL: Workload = Workload {
    name: "vm_64B",
    payload: 64 - FRAME_HEADERS,
    segment: None,
    receiver: COMMON | feature::GUEST_CSUM,
    buffer: MTU_BUFFER,
    window: 512,
    pairs: 1,
    workers: 1,
};

pub(crate) static WORKLOADS: [Workload; 9] = [
    SEGMENTED,
    Workload { name: "vm_to_vm_segmented_4guests", pairs: 2, ..SEGMENTED },
    Workload { name: "vm_to_vm_segmented_8guests", pairs: 4, ..SEGMENTED },
    Workload { name: "vm_to_vm_segmented_16guests", pairs: 8, ..SEGMENTED },
    WHOLE,
    SMALL,
    Workload { name: "vm_to_vm_segmented_4guests_2workers", pairs: 2, workers: 2, ..SEGMENTED },
    Workload { name: "vm_64B_4guests", pairs: 2, window: 256, ..SMALL },
    Workload { name: "vm_64B_4guests_2workers", pairs: 2, window: 256, workers: 2, ..SMALL },
];

/// Features of a machine that sends TCP super-packets.
pub(crate) const SENDER: u64 = COMMON | feature::CSUM | feature::HOST_TSO4;

impl Workload {
    /// The figure of this workload that a case names.
    pub(super) fn figure_of(&self, case: &Case) -> Option<Which> {
        match case.name.strip_prefix(self.name)? {
            "" => Some(Which::Speed),
            "_cpu" => Some(Which::Cpu),
            "_copies" => Some(Which::Copies),
            _ => None,
        }
    }

    /// Features of the machine that sends.
    pub(super) fn sender(&self) -> u64 {
        if self.segment.is_some() { SENDER } else { COMMON }
    }

    /// Frames that the receiver gets for a packet.
    pub(super) fn frames(&self) -> usize {
        match self.segment {
            Some(segment) if self.receiver & feature::GUEST_TSO4 == 0 => {
                self.payload.div_ceil(segment)
            }
            _ => 1,
        }
    }

    /// Bytes that the receiver gets for a packet, headers included.
    pub(crate) fn bytes_received(&self) -> u64 {
        (self.payload + self.frames() * HEADERS) as u64
    }

    /// Payload of a pair's packets. It differs from that of other pairs.
    pub(super) fn payload_of(&self, pair: u8) -> Vec<u8> {
        pattern(usize::from(pair) + self.payload).split_off(pair.into())
    }

    /// Headers of a pair's packets: virtio, Ethernet, IPv4 and TCP.
    pub(crate) fn headers(&self, pair: u8) -> [u8; HEADERS] {
        let mut bytes = [0; HEADERS];
        let (virtio, frame) = bytes.split_at_mut(VIRTIO);
        if let Some(segment) = self.segment {
            const NEEDS_CSUM: u8 = 1;
            const TCPV4: u8 = 1;
            virtio[0] = NEEDS_CSUM;
            virtio[1] = TCPV4;
            virtio[2..4].copy_from_slice(&(FRAME_HEADERS as u16).to_le_bytes());
            virtio[4..6].copy_from_slice(&(segment as u16).to_le_bytes());
            virtio[6..8].copy_from_slice(&(ETHERNET as u16 + 20).to_le_bytes());
            virtio[8..10].copy_from_slice(&16_u16.to_le_bytes());
        }
        frame[..6].copy_from_slice(&of_pair(RECEIVER_MAC, pair));
        frame[6..12].copy_from_slice(&of_pair(SENDER_MAC, pair));
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        let (ip, tcp) = frame[ETHERNET..].split_at_mut(20);
        let tcp_bytes = (tcp.len() + self.payload) as u16;
        // RFC 791 §3.1: version and length, do not fragment, TCP, addresses.
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&(20 + tcp_bytes).to_be_bytes());
        ip[6] = 0x40;
        ip[8..10].copy_from_slice(&[64, 6]);
        ip[12..16].copy_from_slice(&[192, 0, 2, 1]);
        ip[16..20].copy_from_slice(&[192, 0, 2, 2]);
        let checksum = sum(&[ip]).finish();
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        // RFC 9293 §3.1: ports, data offset, ACK, window.
        tcp[..4].copy_from_slice(&[0x80, 0, 0x14, 0x51]);
        tcp[12..16].copy_from_slice(&[0x50, 0x10, 0xff, 0xff]);
        // Partial: the sum of the pseudo header (virtio 1.2 §5.1.6.2).
        let length = tcp_bytes.to_be_bytes();
        let pseudo = sum(&[&ip[12..20], &[0, 6], &length]);
        let checksum = match self.segment {
            Some(_) => pseudo.fold(),
            None => sum(&[&ip[12..20], &[0, 6], &length, tcp, &self.payload_of(pair)]).finish(),
        };
        tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }
}

/// The address of a machine of a pair; `mac` is that of pair 0.
pub(super) fn of_pair(mut mac: [u8; 6], pair: u8) -> [u8; 6] {
    mac[4] = pair;
    mac
}

/// Payload without long repetitions.
pub(crate) fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u8).wrapping_mul(7) ^ (at >> 8) as u8).collect()
}

fn sum(parts: &[&[u8]]) -> Sum {
    let mut sum = Sum::default();
    parts.iter().for_each(|part| sum.add(part));
    sum
}

/// Features that any guest accepts, as Linux does.
const COMMON: u64 = feature::MRG_RXBUF | feature::INDIRECT | feature::EVENT_INDEX;

pub(crate) const RECEIVER_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 2];
pub(crate) const SENDER_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 1];

/// Payload of a frame of 1,514 bytes.
pub(super) const SEGMENT: usize = 1460;
/// The most whole segments of one IP packet.
pub(super) const SUPER_PAYLOAD: usize = 44 * SEGMENT;
/// One megabyte, which a TCP connection easily has in flight; all its segments fit into a port's
/// queue.
const SUPER_WINDOW: u64 = 16;
/// Buffer for a frame of 1,514 bytes with its virtio header.
pub(super) const MTU_BUFFER: u32 = 1536;
/// Buffer for a part of a large packet.
const PAGE_BUFFER: u32 = 4096;

pub(crate) const VIRTIO: usize = 12;
const ETHERNET: usize = 14;
/// Headers of Ethernet, IPv4 and TCP.
const FRAME_HEADERS: usize = ETHERNET + 20 + 20;
pub(crate) const HEADERS: usize = VIRTIO + FRAME_HEADERS;
