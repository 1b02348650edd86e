//! A bounded queue of packets that wait: for the device of a port, or for the gateway.
//!
//! The thread that puts packets in also takes them out, so nothing is shared and nothing needs a
//! fence. The memory for [`Queue::len_max`] packets is allocated beforehand.

use std::collections::VecDeque;

use towpath_packet::{Burst, Packet};

use super::config::{PortError, check_queue_len};

/// A queue, first in, first out.
pub(super) struct Queue {
    packets: VecDeque<Packet>,
    len_max: usize,
}

impl Queue {
    /// Makes an empty queue for `len_max` packets.
    ///
    /// # Errors
    /// As of [`Queue::resize`].
    pub(super) fn new(len_max: usize) -> Result<Self, PortError> {
        let mut queue = Self { packets: VecDeque::new(), len_max: 0 };
        queue.resize(len_max)?;
        Ok(queue)
    }

    /// Changes how many packets may wait. If more wait now, none is dropped: the queue is full
    /// until enough were taken.
    ///
    /// # Errors
    /// [`PortError::QueueLen`] or [`PortError::NoMemory`]; nothing was changed.
    pub(super) fn resize(&mut self, len_max: usize) -> Result<(), PortError> {
        check_queue_len(len_max)?;
        let more = len_max.saturating_sub(self.len());
        self.packets.try_reserve_exact(more).map_err(|_| PortError::NoMemory(len_max))?;
        self.packets.shrink_to(len_max);
        self.len_max = len_max;
        Ok(())
    }

    /// Moves packets from the front of `burst` to the end, `most` of them at most, as far as there
    /// is room.
    pub(super) fn append(&mut self, burst: &mut Burst, most: usize) {
        let room = self.len_max.saturating_sub(self.len());
        for _ in 0..room.min(most).min(burst.len()) {
            self.packets.extend(burst.pop());
        }
    }

    /// Moves packets from the front to the end of `burst`, as far as it has room.
    pub(super) fn fill(&mut self, burst: &mut Burst) {
        let count = burst.room().min(self.len());
        for packet in self.packets.drain(..count) {
            burst.push(packet).expect("there is room");
        }
    }

    /// Takes the first packet.
    pub(super) fn pop(&mut self) -> Option<Packet> {
        self.packets.pop_front()
    }

    /// Returns the waiting packets, the first one first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Packet> {
        self.packets.iter()
    }

    /// Drops all packets but those that `keep` selects.
    pub(super) fn retain(&mut self, keep: impl FnMut(&Packet) -> bool) {
        self.packets.retain(keep);
    }

    /// Drops all packets.
    pub(super) fn clear(&mut self) {
        self.packets.clear();
    }

    /// Returns the number of waiting packets.
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns how many packets may wait.
    pub(super) fn len_max(&self) -> usize {
        self.len_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::QUEUE_LEN_MAX;
    use towpath_packet::{Memory, MemoryConfig};

    const PACKETS: usize = 256;

    /// Packets with ingress ports of these numbers.
    fn packets(memory: &mut Memory, numbers: std::ops::Range<u16>) -> Burst {
        let mut burst = Burst::new();
        for number in numbers {
            let mut packet = memory.packet().expect("free");
            packet.set_ingress(Some(number));
            burst.push(packet).expect("room");
        }
        burst
    }

    fn numbers(queue: &mut Queue) -> Vec<u16> {
        let mut burst = Burst::limited(3);
        let mut numbers = Vec::new();
        while queue.len() > 0 {
            queue.fill(&mut burst);
            while let Some(packet) = burst.pop() {
                numbers.extend(packet.ingress());
            }
        }
        numbers
    }

    fn memory() -> Memory {
        Memory::new(MemoryConfig { packets: PACKETS, small_frames: 0, large_frames: 0 })
    }

    #[test]
    fn a_full_queue_leaves_the_rest_in_the_burst() {
        let mut memory = memory();
        let mut queue = Queue::new(4).expect("a length");
        let mut burst = packets(&mut memory, 0..6);
        queue.append(&mut burst, 3);
        assert_eq!((queue.len(), burst.len()), (3, 3));
        queue.append(&mut burst, usize::MAX);
        assert_eq!((queue.len(), burst.len()), (4, 2));
        assert_eq!(burst.first().and_then(Packet::ingress), Some(4));
        assert_eq!(numbers(&mut queue), [0, 1, 2, 3]);
        drop(burst);
        assert_eq!(memory.packets.out_count(), 0);
    }

    /// Goal: a resize loses and reorders nothing, whatever waits.
    #[test]
    fn a_resize_keeps_what_waits() {
        let mut memory = memory();
        let mut queue = Queue::new(8).expect("a length");
        queue.append(&mut packets(&mut memory, 0..8), usize::MAX);
        assert_eq!(queue.pop().and_then(|packet| packet.ingress()), Some(0));
        queue.resize(2).expect("a length");
        let mut burst = packets(&mut memory, 8..20);
        queue.append(&mut burst, usize::MAX);
        assert_eq!((queue.len(), burst.len()), (7, 12), "full until enough were taken");
        queue.resize(16).expect("a length");
        queue.append(&mut burst, usize::MAX);
        assert_eq!((queue.len(), burst.len()), (16, 3));
        assert_eq!(numbers(&mut queue), (1..17).collect::<Vec<_>>());
    }

    #[test]
    fn a_queue_has_a_length() {
        for len_max in [0, QUEUE_LEN_MAX + 1, usize::MAX] {
            let refused = Queue::new(len_max).err();
            assert!(matches!(refused, Some(PortError::QueueLen(len)) if len == len_max));
        }
        let mut queue = Queue::new(1).expect("a length");
        assert!(queue.resize(0).is_err());
        assert_eq!(queue.len_max(), 1, "nothing has changed");
    }
}
