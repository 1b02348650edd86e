//! Packets that a device cuts, and where packets came in.

use super::{NO_INGRESS, Packet};
use crate::cut::{Cut, Part};

impl Packet {
    /// Leaves it to the device to cut the packet. Its offload fields are those of each part.
    pub fn set_cut(&mut self, cut: Cut) {
        let body = self.body_mut();
        (body.is_cut, body.cut) = (true, cut);
    }

    /// How the device is to cut the packet; `None` for one that is a frame as it is.
    #[inline]
    pub fn cut(&self) -> Option<&Cut> {
        let body = self.body();
        body.is_cut.then_some(&body.cut)
    }

    /// Frames that the device makes of it.
    #[inline]
    pub fn frames(&self) -> usize {
        self.cut().map_or(1, |cut| cut.count(self.payload_len()))
    }

    /// Bytes of these frames.
    #[inline]
    pub fn frame_bytes(&self) -> usize {
        self.len() + (self.frames() - 1) * self.headers().len()
    }

    /// The first `count` parts were sent; at least one is left.
    ///
    /// # Panics
    /// If the packet is not to be cut, or has no more parts.
    pub fn drop_parts(&mut self, count: usize) {
        let cut = *self.cut().expect("a packet that is cut has parts");
        assert!(count < cut.count(self.payload_len()), "a packet without parts is dropped whole");
        self.body_mut().cut.advance(count);
        self.drop_front(count * cut.size());
    }

    /// Makes a packet that was to be cut the super-packet again that is left of it.
    pub fn join_parts(&mut self) {
        let (Some(&cut), payload) = (self.cut(), self.payload_len()) else { return };
        let (gso, headers) = (cut.gso(self.headers()), self.headers_mut());
        cut.template().patch(&Part { len: payload, last: true, ..cut.part(0, payload) }, headers);
        let body = self.body_mut();
        (body.is_cut, body.offload.gso) = (false, Some(gso));
    }

    /// Number of the port by which the packet came into a switch. The switch notes it, so it says
    /// which guest has sent the packet, whatever its addresses claim.
    #[inline]
    pub fn ingress(&self) -> Option<u16> {
        let ingress = self.body().ingress;
        (ingress != NO_INGRESS).then_some(ingress)
    }

    /// Notes the port by which the packet came, or that it came by none. A shared packet has the
    /// same; an empty one has none.
    ///
    /// # Panics
    /// If the number is `u16::MAX`.
    #[inline]
    pub fn set_ingress(&mut self, port: Option<u16>) {
        assert!(port != Some(NO_INGRESS), "a port has a smaller number");
        self.body_mut().ingress = port.unwrap_or(NO_INGRESS);
    }
}
