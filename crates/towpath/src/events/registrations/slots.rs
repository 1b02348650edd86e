//! Registrations by token. Slots are reused; the generation distinguishes old tokens from new ones.

use crate::events::registrations::source::Kind;
use crate::events::registrations::timers::Setting;
use crate::events::{Interest, Readiness, Token, Trigger};

/// A slot; free if it has no registration.
struct Slot {
    generation: u32,
    registration: Option<Registration>,
}

/// A registered source and its state.
pub(in crate::events) struct Registration {
    pub(in crate::events) source: Kind,
    pub(in crate::events) data: u64,
    pub(in crate::events) interest: Interest,
    pub(in crate::events) trigger: Trigger,
    /// Readiness that the kernel has reported and the queue has not.
    pub(in crate::events) ready: Readiness,
    /// Number of the wait in which the kernel reported it.
    pub(in crate::events) noted_in: u64,
    /// The registration is queued for a report.
    pub(in crate::events) is_pending: bool,
    /// Number of the wait that last reported it.
    pub(in crate::events) reported_in: u64,
    /// The back end does not report it until it is resumed.
    pub(in crate::events) is_paused: bool,
    /// One-shot and already reported: not reported again until it is modified.
    pub(in crate::events) is_spent: bool,
}

/// All registrations of a queue.
pub(in crate::events) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots that are never used again.
    retired: usize,
    limit: usize,
    /// Most slots, including those that are never used again.
    most: usize,
}

impl Slots {
    /// Creates room for `limit` registrations, in at most `most` slots.
    pub(in crate::events) fn new(limit: usize, most: usize) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), retired: 0, limit: limit.min(most), most }
    }

    /// Returns the token that the next registration gets; `None` if there is no room.
    pub(in crate::events) fn next(&self) -> Option<Token> {
        match self.free.last() {
            Some(&slot) => Some(Token { slot, generation: self.slots[slot as usize].generation }),
            None if self.len() < self.limit && self.slots.len() < self.most => {
                Some(Token { slot: self.slots.len() as u32, generation: 0 })
            }
            None => None,
        }
    }

    /// Adds a registration under the token that [`next`](Self::next) returns.
    pub(in crate::events) fn insert(&mut self, registration: Registration) -> Token {
        let token = self.next().expect("the caller has looked for room");
        if self.free.pop().is_none() {
            self.slots.push(Slot { generation: 0, registration: None });
        }
        self.slots[token.slot as usize].registration = Some(registration);
        token
    }

    pub(in crate::events) fn get(&mut self, token: Token) -> Option<&mut Registration> {
        let slot = self.slots.get_mut(token.slot as usize)?;
        slot.registration.as_mut().filter(|_| slot.generation == token.generation)
    }

    /// Returns the current timer setting of a registration.
    pub(in crate::events) fn setting(&self, token: Token) -> Option<Setting> {
        let slot = self.slots.get(token.slot as usize)?;
        match &slot.registration.as_ref().filter(|_| slot.generation == token.generation)?.source {
            Kind::Timer { setting, .. } => Some(*setting),
            Kind::Operation(ongoing) => ongoing.deadline,
            Kind::Stream { deadline, .. }
            | Kind::Task { deadline, .. }
            | Kind::Relay { deadline, .. }
            | Kind::Multishot { deadline, .. } => *deadline,
            _ => None,
        }
    }

    /// Returns the token of a slot that is in use.
    pub(in crate::events) fn token(&self, slot: u32) -> Option<Token> {
        let Slot { generation, registration } = self.slots.get(slot as usize)?;
        registration.as_ref().map(|_| Token { slot, generation: *generation })
    }

    pub(in crate::events) fn remove(&mut self, token: Token) -> Option<Registration> {
        let slot = self.slots.get_mut(token.slot as usize)?;
        let registration = slot.registration.take_if(|_| slot.generation == token.generation)?;
        // A slot whose generations are used up is not used again.
        match slot.generation.checked_add(1) {
            Some(next) => {
                slot.generation = next;
                self.free.push(token.slot);
            }
            None => self.retired += 1,
        }
        Some(registration)
    }

    /// Returns the number of registrations.
    pub(in crate::events) fn len(&self) -> usize {
        self.slots.len() - self.free.len() - self.retired
    }

    /// Returns the tokens of all registrations.
    pub(in crate::events) fn tokens(&self) -> impl Iterator<Item = Token> + '_ {
        (0..self.slots.len() as u32).filter_map(|slot| self.token(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registration() -> Registration {
        Registration {
            source: Kind::User { wakes: None, count: 0 },
            data: 0,
            interest: Interest::READ,
            trigger: Trigger::Level,
            ready: Readiness::default(),
            noted_in: 0,
            is_pending: false,
            reported_in: 0,
            is_paused: false,
            is_spent: false,
        }
    }

    /// Goal: a slot whose generations are used up does not count, and its last token is rejected.
    #[test]
    fn used_up_slots_take_no_room() {
        let mut slots = Slots::new(1, 3);
        for slot in 0..3 {
            let first = slots.insert(registration());
            assert_eq!((first.slot, slots.len()), (slot, 1));
            assert!(slots.next().is_none(), "the limit of one registration is reached");
            slots.slots[slot as usize].generation = u32::MAX;
            let last = slots.token(slot).expect("in use");
            assert!(slots.get(first).is_none() && slots.remove(last).is_some());
            assert!(slots.get(last).is_none() && slots.remove(last).is_none());
            assert_eq!(slots.len(), 0);
        }
        assert!(slots.tokens().next().is_none() && slots.next().is_none(), "all slots are used up");
    }
}
