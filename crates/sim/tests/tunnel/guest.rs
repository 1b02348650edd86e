//! A super-packet in VXLAN for a virtual machine: segmented at its port, whatever its driver
//! negotiated.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use towpath_io::vhost_user::driver::{DriverQueue, FrontEnd, GuestRam};
use towpath_io::vhost_user::virtq::{Segment, feature};
use towpath_io::vhost_user::{Offer, VhostUser};
use towpath_net::switch::{Config, Egress, PortConfig, PortId, Switch};
use towpath_packet::{
    Burst, Caps, Checksum, Context, Device, Gso, GsoKind, Ledger, Loans, Memory, MemoryConfig,
    Offload, Returns, Site, Tunnel, VirtioHeader, time,
};
use towpath_sim::oracle;

use crate::{cx, no_memory};

const BASE: u64 = 0x1_0000;
const REGION: u64 = 0x10_0000;
const BUFFERS: u64 = BASE + 0x8_0000;
const BUFFER: u32 = 2048;
const SIZE: u16 = 64;
const PAYLOAD: usize = 20_500;
const SEGMENT: usize = 1000;
const MTU: usize = 1500;

/// All features that a driver can negotiate here.
const ALL: u64 = feature::GUEST_CSUM
    | feature::GUEST_TSO4
    | feature::GUEST_TSO6
    | feature::GUEST_ECN
    | feature::GUEST_USO4
    | feature::GUEST_USO6;

/// A virtual machine: its memory, its receive queue, and the device.
struct Guest {
    ram: GuestRam,
    receive: DriverQueue,
    device: VhostUser,
    _front_end: FrontEnd,
}

impl Guest {
    fn new(features: u64, ledger: &Ledger) -> Self {
        let ram = GuestRam::new(BASE, &[REGION]).expect("memory");
        let queue = |at| DriverQueue::new(&ram, BASE + at, SIZE, features).expect("room");
        let (mut receive, transmit) = (queue(0), queue(0x4_0000));
        for number in 0..u64::from(SIZE) {
            let address = BUFFERS + number * u64::from(BUFFER);
            assert!(receive.add(&[], &[Segment { address, bytes: BUFFER }], number));
        }
        receive.publish();
        let (near, far) = UnixStream::pair().expect("a pair of sockets");
        let device = VhostUser::from_socket(near.into(), Offer::default());
        let (mut device, mut memory) = (device.expect("a device"), no_memory());
        let is_attached = AtomicBool::new(false);
        let front_end = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_attached.load(Ordering::Acquire) {
                    device.turn(true, &mut cx(&mut memory, ledger)).expect("the device is fine");
                    thread::sleep(Duration::from_millis(1));
                }
            });
            let front_end = FrontEnd::over(far, &ram, features, [&receive, &transmit]);
            is_attached.store(true, Ordering::Release);
            front_end.expect("attached")
        });
        Self { ram, receive, device, _front_end: front_end }
    }

    /// The received headers and frames.
    fn received(&mut self) -> Vec<(VirtioHeader, Vec<u8>)> {
        std::iter::from_fn(|| {
            let (buffer, bytes) = self.receive.used()?;
            let mut content = vec![0; bytes as usize];
            let address = BUFFERS + buffer * u64::from(BUFFER);
            self.ram.memory().read(address, &mut content).expect("its memory");
            let (header, frame) = content.split_at(VirtioHeader::LEN);
            Some((VirtioHeader(header.try_into().expect("so many bytes")), frame.to_vec()))
        })
        .collect()
    }
}

impl Egress for Guest {
    fn transmit(&mut self, _: PortId, burst: &mut Burst, cx: &mut Context<'_>) {
        self.device.transmit(burst, cx).expect("the device is fine");
    }
}

/// The contents and the form of a tunnel packet.
#[derive(Clone, Copy, Debug)]
struct Case {
    is_outer_v6: bool,
    has_checksum: bool,
    is_inner_v6: bool,
    is_tcp: bool,
}

impl Case {
    /// Headers without lengths and checksums, which segmentation has to write, and the claims.
    fn headers(self) -> (Vec<u8>, Offload) {
        let ethernet = |is_v6: bool| {
            let ethertype = if is_v6 { [0x86, 0xdd] } else { [8, 0] };
            [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1][..], &ethertype].concat()
        };
        let ip = |is_v6: bool, protocol: u8| match is_v6 {
            true => [&[0x60, 0, 0, 0, 0, 0, protocol, 64][..], &[0xfd; 32]].concat(),
            false => [&[0x45, 0, 0, 0, 0, 1, 0, 0, 64, protocol, 0, 0][..], &[10; 8]].concat(),
        };
        let mut bytes = [ethernet(self.is_outer_v6), ip(self.is_outer_v6, 17)].concat();
        let transport_at = bytes.len() as u16;
        bytes.extend([0xc0, 0, 0x12, 0xb5, 0, 0, 0, 0]);
        bytes.extend([8, 0, 0, 0, 0, 0, 42, 0]);
        bytes.extend(ethernet(self.is_inner_v6));
        let network_at = bytes.len() as u16;
        bytes.extend(ip(self.is_inner_v6, if self.is_tcp { 6 } else { 17 }));
        let start = bytes.len() as u16;
        bytes.extend([3, 0xe8, 0, 80]);
        if self.is_tcp {
            bytes.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
        } else {
            bytes.extend([0; 4]);
        }
        let (kind, offset) = match (self.is_tcp, self.is_inner_v6) {
            (false, _) => (GsoKind::Udp, 6),
            (true, false) => (GsoKind::Tcp4, 16),
            (true, true) => (GsoKind::Tcp6, 16),
        };
        let (is_ipv6, checksum) = (self.is_outer_v6, self.has_checksum);
        let tunnel = Some(Tunnel { transport_at, network_at, is_ipv6, checksum });
        let size = (SEGMENT as u16).try_into().expect("not 0");
        let gso = Some(Gso { kind, size, ecn: false, tunnel });
        (bytes, Offload { checksum: Checksum::Partial { start, offset }, gso })
    }

    /// Sends a super-packet to a machine with these features. Returns the frames that it received,
    /// completed and checked.
    fn send(self, features: u64, copies_payload: bool) -> Vec<Vec<u8>> {
        let ledger = Ledger::new();
        let mut guest = Guest::new(features, &ledger);
        let mut memory =
            Memory::new(MemoryConfig { packets: 128, small_frames: 8, large_frames: 8 });
        let mut switch = Switch::new(Config { copies_payload, ..Config::default() });
        let from = switch.add_port(PortConfig::new(Caps::plain(1500))).expect("room");
        switch.add_port(PortConfig::new(guest.device.caps())).expect("room");
        let (headers, offload) = self.headers();
        let payload: Vec<u8> = (0..PAYLOAD as u64).map(|at| oracle::stream_byte(7, at)).collect();
        let lent = Arc::new([&headers[..], &payload].concat());
        let (returns, mut loans) = (Returns::new(1), Loans::new(1));
        returns.begin(0);
        let piece = loans.lend_shared(&lent, (0, lent.len() as u32), returns.clone(), 0);
        let mut packet = memory.packet().expect("free");
        packet.push_piece(piece.expect("a descriptor")).expect("room");
        packet.set_offload(offload);
        let mut burst = Burst::new();
        burst.push(packet).expect("room");
        let now = time::Instant::from_micros(1);
        let mut cx = Context { memory: &mut memory, ledger: &ledger, now };
        switch.forward(from, &mut burst, &mut cx, &mut guest);

        let mut reported = Vec::new();
        returns.take(|group, copied| reported.push((group, copied)));
        assert_eq!(reported, [(0, copies_payload)], "the lender is notified once");
        let orphaned = if copies_payload { PAYLOAD as u64 } else { 0 };
        assert_eq!(ledger.copied_at(Site::Orphan), orphaned);
        assert_eq!(ledger.copied_at(Site::Guest), PAYLOAD as u64, "into the machine, once");
        let received = guest.device.traffic().received;
        assert_eq!((received.refused, received.too_small), (0, 0));
        let frames = guest.received().into_iter();
        let frames: Vec<_> = frames.map(|(header, frame)| complete(header, frame)).collect();
        let tunnel = offload.gso.and_then(|gso| gso.tunnel).expect("in a tunnel");
        for frame in &frames {
            for at in [0, usize::from(tunnel.network_at) - 14] {
                let judged = oracle::check_frame(&frame[at..], MTU);
                assert_eq!(judged, Ok(()), "{self:?} from {at}");
            }
        }
        let got: Vec<u8> =
            frames.iter().flat_map(|frame| &frame[headers.len()..]).copied().collect();
        assert_eq!(frames.len(), PAYLOAD.div_ceil(SEGMENT));
        assert!(got == payload, "{self:?}: the payload");
        frames
    }
}

/// Completes the checksum that a device left to the driver, as its header says.
fn complete(header: VirtioHeader, mut frame: Vec<u8>) -> Vec<u8> {
    let offload = header.decode().expect("a header of twelve bytes");
    assert_eq!(offload.gso, None);
    if let Checksum::Partial { start, offset } = offload.checksum {
        let (start, offset) = (usize::from(start), usize::from(offset));
        let mut sum = 0_u32;
        for pair in frame[start..].chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        let field = match (!(sum as u16), offset) {
            (0, 6) => 0xffff,
            (field, _) => field,
        };
        frame[start + offset..start + offset + 2].copy_from_slice(&field.to_be_bytes());
    }
    frame
}

/// Goal: a machine receives valid frames with the payload and with the header that it negotiated,
/// completed or with the inner checksum left to it; the lender is notified once. If the payload is
/// copied out first, the machine receives the same bytes. Method: an independent oracle checks
/// outer and inner frames.
#[test]
fn a_machine_gets_what_is_cut() {
    let outside = [(false, false), (false, true), (true, true)];
    let inside = [(false, false), (false, true), (true, false), (true, true)];
    for (is_outer_v6, has_checksum) in outside {
        for (is_inner_v6, is_tcp) in inside {
            let case = Case { is_outer_v6, has_checksum, is_inner_v6, is_tcp };
            let shared = case.send(0, false);
            assert!(shared == case.send(0, true), "{case:?}: copied out");
            assert!(shared == case.send(ALL, false), "{case:?}: all features");
        }
    }
}
