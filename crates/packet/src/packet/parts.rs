//! Packets that a device segments, and the port by which packets entered.

use super::{NO_INGRESS, Packet};
use crate::segmentation::{Part, Segmentation};

impl Packet {
    /// Lets the device segment the packet. The offload fields apply to each part.
    pub fn set_segmentation(&mut self, segmentation: Segmentation) {
        let body = self.body_mut();
        (body.is_segmented, body.segmentation) = (true, segmentation);
    }

    /// How the device segments the packet. `None` for a packet that is one frame.
    #[inline]
    pub fn segmentation(&self) -> Option<&Segmentation> {
        let body = self.body();
        body.is_segmented.then_some(&body.segmentation)
    }

    /// Number of frames that the device makes of the packet.
    #[inline]
    pub fn frames(&self) -> usize {
        self.segmentation().map_or(1, |segmentation| segmentation.count(self.payload_len()))
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
        let segmentation =
            *self.segmentation().expect("only a packet that the device segments has parts");
        assert!(count < segmentation.count(self.payload_len()), "at least one part has to be left");
        self.body_mut().segmentation.advance(count);
        self.drop_front(count * segmentation.size());
    }

    /// Turns the rest of a packet that the device was to segment into a super-packet.
    pub fn join_parts(&mut self) {
        let (Some(&segmentation), payload) = (self.segmentation(), self.payload_len()) else {
            return;
        };
        let (gso, headers) = (segmentation.gso(self.headers()), self.headers_mut());
        segmentation
            .template()
            .patch(&Part { len: payload, last: true, ..segmentation.part(0, payload) }, headers);
        let body = self.body_mut();
        (body.is_segmented, body.offload.gso) = (false, Some(gso));
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
