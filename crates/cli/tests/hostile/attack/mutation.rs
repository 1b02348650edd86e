//! Random bytes, and valid frames with random changes.

use super::{SIDES, end};
use crate::frame::{self, ACK, ARP, GATEWAY, GATEWAY6, IP, IPV4, IPV6, PROGRAM, SYN, Segment};
use crate::host::CLOSED;
use crate::injector::Injector;
use crate::random::Random;

const FRAMES: usize = 5000;

/// Goal: random bytes do no harm. Method: random bytes of random length, whose first bytes make
/// towpath parse the rest.
pub(super) fn random(injector: &mut Injector, random: &mut Random) {
    for count in 0..FRAMES {
        let len = random.below(if count % 4 == 0 { 1501 } else { 100 });
        let mut payload = random.bytes(len);
        let ethertype = [IPV4, IPV6, ARP, random.word()][count % 4];
        if let Some(first) = payload.first_mut() {
            match ethertype {
                IPV4 => *first = 0x45,
                IPV6 => *first = 0x60,
                _ => {}
            }
        }
        let mut frame = frame::ethernet(ethertype, &payload);
        if ethertype == IPV4 && len >= 20 {
            // A correct length and checksum, so that the rest is parsed.
            frame::put(&mut frame, IP + 2, len as u16);
            frame::fix_ipv4(&mut frame);
        }
        if ethertype == IPV6 && len >= 40 {
            frame::put(&mut frame, IP + 4, (len - 40) as u16);
        }
        injector.send(&frame);
    }
}

/// Goal: nearly valid frames do no harm. Method: valid frames of every protocol with up to eight
/// bytes changed, truncated or extended; most have a correct IPv4 checksum.
pub(super) fn mutated(injector: &mut Injector, random: &mut Random) {
    let good = good(random);
    for _ in 0..FRAMES {
        let mut frame = good[random.below(good.len())].clone();
        for _ in 0..=random.below(8) {
            let at = if random.below(8) == 0 { 0 } else { IP };
            let at = at + random.below(frame.len() - at);
            frame[at] = match random.below(4) {
                0 => random.next() as u8,
                1 => 0,
                2 => 0xff,
                _ => frame[at] ^ 1 << random.below(8),
            };
        }
        match random.below(8) {
            0 => frame.truncate(IP + random.below(frame.len() - IP)),
            1 => {
                let len = random.below(64);
                frame.extend(random.bytes(len));
            }
            _ => {}
        }
        if frame.len() >= IP + 20 && frame[12..14] == [8, 0] && random.below(4) != 0 {
            frame::fix_ipv4(&mut frame);
        }
        injector.send(&frame);
    }
}

fn good(random: &mut Random) -> Vec<Vec<u8>> {
    let mut frames = vec![frame::arp(1, frame::PROGRAM_MAC, PROGRAM, GATEWAY)];
    let options = [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 1, 3, 3, 7];
    for (program, host, nobody) in SIDES {
        let (from, to) = (end(program, random), (host, CLOSED));
        frames.push(frame::udp(from, to, b"a datagram"));
        frames.push(frame::udp(from, (nobody, 9), &[0; 1000]));
        frames.push(Segment { options: &options, ..Segment::new(from, to, SYN) }.frame());
        frames.push(Segment { payload: b"data", ..Segment::new(from, to, ACK) }.frame());
        let gateway = if program.is_ipv4() { GATEWAY.into() } else { GATEWAY6.into() };
        let kind = if program.is_ipv4() { 8 } else { 128 };
        frames.push(frame::icmp(program, gateway, [kind, 0, 0, 1, 0, 1], b"echo"));
        let quoted = Segment::new(to, from, ACK).frame();
        let error = if program.is_ipv4() { [3, 4, 0, 0, 2, 0] } else { [2, 0, 0, 0, 2, 0] };
        frames.push(frame::icmp(program, gateway, error, &quoted[IP..]));
    }
    let target = [&GATEWAY6.octets()[..], &[1, 1], &frame::PROGRAM_MAC].concat();
    let head = [135, 0, 0, 0, 0, 0];
    let mut question = frame::icmp(frame::PROGRAM6.into(), GATEWAY6.into(), head, &target);
    question[IP + 7] = 255;
    frames.push(question);
    frames
}
