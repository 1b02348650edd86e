//! Virtio-net headers that the kernel checks before it passes the packet on. `device` feeds headers
//! that the kernel would never pass.

use std::net::IpAddr;

use super::{SIDES, end};
use crate::frame::{self, ACK, Segment};
use crate::host::{CLOSED, WELCOME, WELCOMING};
use crate::injector::Injector;
use crate::random::Random;
use crate::sys::{PacketSocket, Sees};

/// Goal: super-packets and checksum requests of a program, right or wrong, do no harm. Method:
/// every kind of segmentation and many sizes on TCP and UDP packets; the correct one is delivered.
pub(super) fn round(injector: &mut Injector, random: &mut Random) {
    let socket = PacketSocket::open("tap0", Sees::Nothing).expect("a packet socket");
    socket.use_virtio_headers().expect("virtio headers");
    for (program, host, _) in SIDES {
        let from = end(program, random);
        let payload = random.bytes(20_000);
        let ack = Segment { payload: &payload, ..Segment::new(from, (host, CLOSED), ACK) }.frame();
        let big = frame::udp(from, (host, CLOSED), &payload);
        let small = frame::udp(from, (host, CLOSED), b"small");
        let start = if program.is_ipv4() { frame::L4 } else { frame::L4_6 } as u16;
        for frame in [&ack, &big, &small] {
            for kind in [0, 1, 2, 3, 4, 5, 0x81, 0x84, 0x85, 0xff] {
                for size in [0, 1, 7, 536, 1400, 20_000, 65_535] {
                    // A thousand segments each.
                    injector.wait_for_gateway();
                    for flags in [0, 1, 2] {
                        for offset in [0, 6, 16, 0xfffe] {
                            let head = header(flags, kind, size, start, offset);
                            socket.send(&[&head, &frame[..]].concat());
                        }
                    }
                }
            }
        }
        injector.wait_for_gateway();
        welcome(injector, &socket, program, host, from.1, start);
    }
}

/// Returns a virtio-net header of ten bytes.
fn header(flags: u8, kind: u8, size: u16, start: u16, offset: u16) -> Vec<u8> {
    let mut bytes = vec![flags, kind];
    for word in [start + 20, size, start, offset] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes
}

/// Sends ten datagrams in one super-packet, and one with a partial checksum.
fn welcome(
    injector: &mut Injector,
    socket: &PacketSocket,
    program: IpAddr,
    host: IpAddr,
    port: u16,
    start: u16,
) {
    let (from, to) = ((program, port), (host, WELCOMING));
    for (kind, size, count) in [(5, 800, 10), (0, 0, 1)] {
        let mut frame = frame::udp(from, to, &WELCOME.repeat(100 * count));
        let len = frame.len() - usize::from(start);
        // A partial checksum: the sum over the pseudo-header.
        let mut pseudo = frame::udp_bytes(from, to, &[]);
        frame::put(&mut pseudo, 4, 8);
        let partial = pseudo_sum(program, host, len as u32);
        frame::put(&mut frame, usize::from(start) + 6, partial);
        let head = header(1, kind, size, start, 6);
        if socket.send(&[&head, &frame[..]].concat()) {
            injector.expects("welcome", count as u64);
        }
        injector.wait_for_gateway();
    }
}

fn pseudo_sum(source: IpAddr, destination: IpAddr, len: u32) -> u16 {
    // `seal` of an all-zero header leaves the complement of the pseudo-header's sum.
    let mut bytes = vec![0; 8];
    frame::seal(source, destination, frame::UDP, 6, &mut bytes);
    let of_eight = u32::from(!u16::from_be_bytes([bytes[6], bytes[7]]));
    let sum = of_eight + len - 8;
    ((sum & 0xffff) + (sum >> 16)) as u16
}
