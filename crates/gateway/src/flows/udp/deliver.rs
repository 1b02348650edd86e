//! Datagrams of hosts on their way to the program.

use super::Realm;
use super::host::for_each_segment;
use crate::egress::meter::Pass;
use crate::flows::shares::Share;
use crate::flows::{Gateway, Io, Slot};
use towpath_io::socket::Datagram as HostDatagram;

/// What a segment needs besides its payload: an IPv4 and a UDP header without options.
const HEADERS_V4: usize = 28;
const HEADERS_V6: usize = 48;

impl Gateway {
    /// Passes a datagram of the host on to the program.
    pub(super) fn deliver(&mut self, slot: Slot, datagram: HostDatagram, io: &mut Io<'_>) {
        let Some(from) = self.accept_datagram(slot, &datagram, io.now) else { return };
        let Some(flow) = self.udp.slots.get_mut(slot) else { return };
        let to = flow.program;
        let bytes = datagram.len;
        let headers = if to.is_ipv4() { HEADERS_V4 } else { HEADERS_V6 };
        let room = usize::from(io.stack.mtu()) - headers;
        let size = datagram.gro_size;
        let Some(mut packet) = io.memory.packet() else {
            self.counters.udp_no_memory += 1;
            return;
        };
        for piece in datagram.pieces {
            if packet.push_piece(piece).is_err() {
                self.counters.udp_no_memory += 1;
                return;
            }
        }
        if let (Some(egress), Share::Guest(guest)) = (&mut self.egress, flow.share) {
            match egress.count_in((guest, to, datagram.from), bytes, io.now) {
                Pass::Passes => {}
                Pass::TooFast => return self.counters.over_bandwidth += 1,
                Pass::Over => return self.counters.over_quota += 1,
            }
        }
        flow.tally.bytes[1] += bytes as u64;
        if self.egress.is_some() && matches!(flow.realm, Realm::Dns(_)) {
            let Share::Guest(guest) = flow.share else { return };
            let size = size.map_or(bytes, |size| usize::from(size.get()));
            return self.send_judged_answers(&packet, size, guest, (from, to), io);
        }
        self.counters.bytes_in += bytes as u64;
        io.ledger.carry(bytes);
        match size {
            Some(size) if usize::from(size.get()) > room => {
                // Each segment needs fragments of its own.
                for_each_segment(&packet, size, |pieces| {
                    let Some(mut single) = io.memory.packet() else {
                        self.counters.udp_no_memory += 1;
                        return;
                    };
                    for piece in pieces {
                        // A part of a packet has no more pieces than the packet.
                        let _ = single.push_piece(piece);
                    }
                    let (stack, mut context) = io.stack_and_context();
                    stack.udp_send(single, from, to, None, &mut context);
                });
            }
            _ => {
                let (stack, mut context) = io.stack_and_context();
                stack.udp_send(packet, from, to, size, &mut context);
            }
        }
    }
}
