//! Frames for packet sockets, and frames that packet sockets send.
//!
//! While frames are wanted, a share of each frame received from or sent to the device is queued
//! here; only headers are copied. Packets to local addresses are not included, as they are on no
//! link. Bound: [`Limits::datagrams`](super::Limits::datagrams).

use super::raw::share;
use super::{Context, Stack};
use crate::counters::DropReason;
use crate::wire::{MacAddr, ethernet};
use alloc::collections::VecDeque;
use towpath_packet::{Burst, Packet};

/// A frame that was received or sent.
pub struct LinkFrame {
    /// Packet whose headers begin with the Ethernet header.
    pub packet: Packet,
    /// The frame was sent.
    pub outgoing: bool,
}

/// Which frames are wanted, frames not yet taken, and frames that sockets send.
#[derive(Default)]
pub(super) struct Link {
    received_wanted: bool,
    sent_wanted: bool,
    frames: VecDeque<LinkFrame>,
    pub(super) made: VecDeque<Packet>,
}

impl Stack {
    /// Sets whether received frames and sent frames are wanted.
    pub fn want_frames(&mut self, received: bool, sent: bool) {
        (self.link.received_wanted, self.link.sent_wanted) = (received, sent);
    }

    /// Takes the next frame.
    pub fn next_frame(&mut self) -> Option<LinkFrame> {
        self.link.frames.pop_front()
    }

    /// Sends a frame with its header. It is not queued as a sent frame: the caller passes it to
    /// other sockets itself.
    pub fn send_made(&mut self, packet: Packet) {
        if self.stopped {
            return self.counters.drop(DropReason::DeviceFull);
        }
        self.link.made.push_back(packet);
    }

    /// Link-layer address of the stack.
    pub fn mac(&self) -> MacAddr {
        self.config.mac
    }

    /// Keeps shares of received frames, if wanted.
    pub(super) fn offer_received(&mut self, burst: &Burst, cx: &mut Context<'_>) {
        if !self.link.received_wanted {
            return;
        }
        for packet in burst.iter() {
            let Some(mut packet) = self.share_frame(packet, cx) else { continue };
            // Shorter frames are dropped and counted on receipt.
            if packet.peek_headers().len() >= ethernet::HEADER_LEN {
                packet.pull(ethernet::HEADER_LEN);
                self.link.frames.push_back(LinkFrame { packet, outgoing: false });
            }
        }
    }

    /// Keeps shares of the frames behind the first `done`, if wanted.
    pub(super) fn offer_sent(&mut self, burst: &Burst, done: usize, cx: &mut Context<'_>) {
        if !self.link.sent_wanted {
            return;
        }
        for packet in burst.iter().skip(done) {
            let Some(packet) = self.share_frame(packet, cx) else { continue };
            self.link.frames.push_back(LinkFrame { packet, outgoing: true });
        }
    }

    /// Moves frames that sockets send to `burst`.
    pub(super) fn output_made(&mut self, burst: &mut Burst) {
        while !burst.is_full()
            && let Some(packet) = self.link.made.pop_front()
        {
            self.hand_out(packet, burst);
        }
    }

    fn share_frame(&mut self, packet: &Packet, cx: &mut Context<'_>) -> Option<Packet> {
        if self.link.frames.len() >= self.config.limits.datagrams {
            self.counters.drop(DropReason::LinkQueueFull);
            return None;
        }
        let shared = share(packet, packet.headers(), cx);
        if shared.is_none() {
            self.counters.drop(DropReason::NoMemory);
        }
        shared
    }
}
