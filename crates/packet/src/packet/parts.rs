//! Packets that a device segments, and the port by which packets entered.

use super::{NO_INGRESS, Packet};
use crate::cut::{Cut, Part};

impl Packet {
    /// Lets the device segment the packet. The offload fields apply to each part.
    pub fn set_cut(&mut self, cut: Cut) {
        let body = self.body_mut();
        (body.is_cut, body.cut) = (true, cut);
    }

    /// How the device segments the packet. `None` for a packet that is one frame.
    #[inline]
    pub fn cut(&self) -> Option<&Cut> {
        let body = self.body();
        body.is_cut.then_some(&body.cut)
    }

    /// Number of frames that the device makes of the packet.
    #[inline]
    pub fn frames(&self) -> usize {
        self.cut().map_or(1, |cut| cut.count(self.payload_len()))
    }

    /// Bytes of all these frames.
    #[inline]
    pub fn frame_bytes(&self) -> usize {
        self.len() + (self.frames() - 1) * self.headers().len()
    }

    /// Removes the first `count` parts, which were sent; at least one must be left.
    ///
    /// # Panics
    /// If the packet is not segmented by the device, or has no more than `count` parts.
    pub fn drop_parts(&mut self, count: usize) {
        let cut = *self.cut().expect("a packet that is cut has parts");
        assert!(count < cut.count(self.payload_len()), "at least one part has to be left");
        self.body_mut().cut.advance(count);
        self.drop_front(count * cut.size());
    }

    /// Turns the rest of a packet that the device was to segment into a super-packet.
    pub fn join_parts(&mut self) {
        let (Some(&cut), payload) = (self.cut(), self.payload_len()) else { return };
        let (gso, headers) = (cut.gso(self.headers()), self.headers_mut());
        cut.template().patch(&Part { len: payload, last: true, ..cut.part(0, payload) }, headers);
        let body = self.body_mut();
        (body.is_cut, body.offload.gso) = (false, Some(gso));
    }

    /// Number of the port by which the packet entered a switch. The switch sets it, so it
    /// identifies the guest that sent the packet, whatever addresses the packet claims.
    #[inline]
    pub fn ingress(&self) -> Option<u16> {
        let ingress = self.body().ingress;
        (ingress != NO_INGRESS).then_some(ingress)
    }

    /// Sets the port by which the packet entered, or none. Shared packets keep it; cleared packets
    /// have none.
    ///
    /// # Panics
    /// If the number is `u16::MAX`.
    #[inline]
    pub fn set_ingress(&mut self, port: Option<u16>) {
        assert!(port != Some(NO_INGRESS), "a port has a smaller number");
        self.body_mut().ingress = port.unwrap_or(NO_INGRESS);
    }
}
