//! Connections that make the gateway keep data: a little each, together more than its memory.

use super::connection::{Flow, open_socket};
use crate::frame::{ACK, PSH};
use crate::honest;
use crate::host::SINK;
use crate::injector::Injector;
use crate::random::Random;
use crate::sys::PacketSocket;

/// Connections that leave holes, and the small segments of each.
const WITH_HOLES: usize = 64;
const PARTS: u32 = 1000;
/// Connections whose reader on the host does not read, and bytes sent on each: together twice the
/// memory that the gateway may use.
const UNREAD: usize = 128;
const UNREAD_BYTES: usize = 512 << 10;
/// Connections that request data and acknowledge none.
const UNACKNOWLEDGED: usize = 256;

/// Goal: data that waits for a hole to be filled is bounded for each connection, and does not
/// starve the honest flow. Method: connections that send every second byte and never the first.
pub(super) fn holes(injector: &mut Injector, random: &mut Random) {
    let socket = open_socket();
    let flows = connect(&socket, injector, random, SINK, WITH_HOLES);
    for part in 1..PARTS {
        for flow in &flows {
            injector.send(&flow.displaced(part * 2, ACK, b"x"));
        }
    }
    for flow in &flows {
        for part in 0..40 {
            injector.send(&flow.displaced(4000 + part * 1400, ACK, &[0x78; 1300]));
        }
    }
}

/// Goal: data for readers on the host that do not read stays within the memory limit, and the
/// honest flow gets through. Method: many connections that send in order until their windows are
/// closed and beyond.
pub(super) fn unread(injector: &mut Injector, random: &mut Random) {
    let socket = open_socket();
    let mut flows = connect(&socket, injector, random, SINK, UNREAD);
    for _ in 0..UNREAD_BYTES / 1400 {
        for flow in &mut flows {
            injector.send(&flow.segment_frame(ACK | PSH, &[0x78; 1400]));
            flow.next = flow.next.wrapping_add(1400);
        }
    }
}

/// Goal: data that the program requests and never acknowledges is bounded for each connection, and
/// the honest flow gets through. Method: many connections to the honest server that request 16 MiB
/// each, then fall silent with an open window.
pub(super) fn unacknowledged(injector: &mut Injector, random: &mut Random) {
    let socket = open_socket();
    let flows = connect(&socket, injector, random, honest::PORT, UNACKNOWLEDGED);
    for flow in &flows {
        let wanted = (16u64 << 20).to_be_bytes();
        injector.send(&flow.segment_frame(ACK | PSH, &wanted));
    }
}

fn connect<'a>(
    socket: &'a PacketSocket,
    injector: &mut Injector,
    random: &mut Random,
    port: u16,
    count: usize,
) -> Vec<Flow<'a>> {
    let connect = |_| Flow::connect(socket, injector, random, port, 1460).expect("a connection");
    (0..count).map(connect).collect()
}
