//! Names that have resolved to addresses, for each guest, for as long as the answers are valid.
//!
//! A pin is made only for an answer that the guest got from towpath's own resolver, so the guest
//! cannot choose which address a name has.

use crate::egress::name::Name;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;
use towpath_net::time::Instant;

/// Least time for which an address belongs to a name. Programs look a name up, and connect a moment
/// later; many keep answers for a minute, and npm for five, whatever their time to live is.
pub const PIN_MIN: Duration = Duration::from_secs(6 * 60);
/// Longest time for which an address belongs to a name, without another answer.
pub const PIN_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Most pins of a guest. At the bound the oldest of them make room.
pub const PINS_MAX: usize = 16_384;
/// Most names of one address of a guest, which are judged one by one.
const NAMES_MAX: usize = 64;

/// A guest: its port on the switch, or `None` for the program of `run` and `attach`.
pub type Guest = Option<u16>;

/// Of the pins of a guest at its bound, one in this many makes room.
const ROOM_SHARE: usize = 8;

/// A name of an address.
struct Pin {
    name: Name,
    made: Instant,
    until: Instant,
}

/// The pins of all guests.
#[derive(Default)]
pub struct Pins {
    guests: HashMap<Guest, GuestPins>,
}

#[derive(Default)]
struct GuestPins {
    of: HashMap<IpAddr, Vec<Pin>>,
    count: usize,
}

impl Pins {
    /// Pins an address to a name for `ttl`, but at least [`PIN_MIN`] and at most [`PIN_MAX`].
    pub fn pin(&mut self, guest: Guest, name: &Name, address: IpAddr, ttl: Duration, now: Instant) {
        let until = now + ttl.clamp(PIN_MIN, PIN_MAX);
        let pins = self.guests.entry(guest).or_default();
        let names = pins.of.entry(address).or_default();
        if let Some(known) = names.iter_mut().find(|known| known.name == *name) {
            (known.made, known.until) = (now, until.max(known.until));
            return;
        }
        let pin = Pin { name: name.clone(), made: now, until };
        if names.len() == NAMES_MAX {
            let oldest = names.iter_mut().min_by_key(|known| known.made);
            *oldest.expect("it is full") = pin;
            return;
        }
        // Most addresses have one name.
        names.reserve_exact(usize::from(names.is_empty()));
        names.push(pin);
        pins.count += 1;
        if pins.count > PINS_MAX {
            pins.make_room(now);
        }
    }

    /// Returns the names that have resolved to the address.
    pub fn names(
        &self,
        guest: Guest,
        address: IpAddr,
        now: Instant,
    ) -> impl Iterator<Item = &Name> + Clone {
        let names = self.guests.get(&guest).and_then(|pins| pins.of.get(&address));
        let names = names.map_or(&[][..], |names| names);
        names.iter().filter(move |pin| pin.until > now).map(|pin| &pin.name)
    }

    /// Forgets a guest.
    pub fn forget(&mut self, guest: Guest) {
        self.guests.remove(&guest);
    }
}

impl GuestPins {
    /// Drops the pins that are over, and the oldest of the others.
    fn make_room(&mut self, now: Instant) {
        let mut ages: Vec<Instant> = self.of.values().flatten().map(|pin| pin.made).collect();
        let (_, &mut youngest, _) = ages.select_nth_unstable(self.count / ROOM_SHARE);
        // Many may have been made at that time: enough of them go, too.
        let mut surplus = self.count / ROOM_SHARE;
        self.of.retain(|_, names| {
            names.retain(|pin| {
                let stays = pin.until > now && (pin.made > youngest || surplus == 0);
                surplus -= usize::from(!stays && surplus > 0);
                stays
            });
            !names.is_empty()
        });
        self.count = self.of.values().map(Vec::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn at(secs: u64) -> Instant {
        Instant::from_micros(secs * 1_000_000)
    }

    /// Goal: a pin belongs to one guest and one address, and ends with the answer, though not
    /// before a program can have connected.
    #[test]
    fn pins_end_with_their_answers() {
        let mut pins = Pins::default();
        let [one, two] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        pins.pin(None, &name("a.example"), one, Duration::from_secs(900), at(0));
        pins.pin(None, &name("b.example"), one, Duration::ZERO, at(0));
        pins.pin(Some(3), &name("c.example"), one, Duration::MAX, at(0));
        let names = |guest, address, secs| -> Vec<String> {
            pins.names(guest, address, at(secs)).map(Name::to_string).collect()
        };
        assert_eq!(names(None, one, 359), ["a.example", "b.example"]);
        assert_eq!(names(None, one, 360), ["a.example"]);
        assert_eq!(names(None, one, 900), [""; 0]);
        assert_eq!(names(None, two, 0), [""; 0]);
        assert_eq!(names(Some(3), one, 86_399), ["c.example"]);
        assert_eq!(names(Some(3), one, 86_400), [""; 0]);
    }

    #[test]
    fn another_answer_prolongs_a_pin_and_shortens_none() {
        let mut pins = Pins::default();
        let address = IpAddr::from([192, 0, 2, 1]);
        for (ttl, now) in [(300, 0), (1, 10), (400, 20)] {
            pins.pin(None, &name("a"), address, Duration::from_secs(ttl), at(now));
        }
        assert_eq!(pins.names(None, address, at(419)).count(), 1);
        assert_eq!(pins.names(None, address, at(420)).count(), 0);
        pins.forget(None);
        assert_eq!(pins.names(None, address, at(0)).count(), 0);
    }

    /// Goal: memory is bounded, for each guest by itself, and new pins stay.
    #[test]
    fn pins_are_bounded() {
        let mut pins = Pins::default();
        let quiet = IpAddr::from([192, 0, 2, 1]);
        pins.pin(Some(1), &name("quiet"), quiet, PIN_MAX, at(0));
        for number in 0..PINS_MAX as u32 + 1000 {
            let address = IpAddr::from(number.to_be_bytes());
            pins.pin(None, &name("a"), address, PIN_MAX, at(u64::from(number)));
            assert!(pins.guests[&None].count <= PINS_MAX);
            assert_eq!(pins.names(None, address, at(u64::from(number))).count(), 1);
        }
        assert_eq!(pins.names(None, IpAddr::from([0; 4]), at(1)).count(), 0);
        assert_eq!(pins.names(Some(1), quiet, at(1)).count(), 1);
    }

    /// Goal: the names of one address are bounded, and those that ended make room.
    #[test]
    fn names_of_an_address_are_bounded() {
        let mut pins = Pins::default();
        let address = IpAddr::from([192, 0, 2, 1]);
        for number in 0..100 {
            pins.pin(None, &name(&format!("n{number}")), address, PIN_MIN, at(number));
        }
        assert_eq!(pins.names(None, address, at(400)).count(), 59, "those of the last minutes");
        assert_eq!(pins.guests[&None].of[&address].len(), NAMES_MAX);
        for number in 0..PINS_MAX as u32 * 2 {
            pins.pin(None, &name("a"), IpAddr::from(number.to_be_bytes()), PIN_MIN, at(0));
            assert!(pins.guests[&None].count <= PINS_MAX, "all are of one age");
        }
    }

    /// Goal: 10,000 names of one guest take less than 4 MiB, with the allocator's share.
    #[test]
    fn names_take_little_memory() {
        const ALLOCATOR_BYTES: usize = 16;
        const SHARED_BYTES: usize = 16;
        let mut pins = Pins::default();
        for number in 0..10_000u32 {
            let name = name(&format!("host-{number}.of-a-long-domain.example.com"));
            let address = IpAddr::V4(number.into());
            pins.pin(None, &name, address, PIN_MIN, Instant::from_micros(0));
        }
        let pins = &pins.guests[&None];
        assert_eq!(pins.count, 10_000);
        // The table has buckets for 8/7 of its capacity, each with a byte of control.
        let table = pins.of.capacity() * 8 / 7 * (size_of::<(IpAddr, Vec<Pin>)>() + 1);
        let of_names = pins.of.values().map(|names| {
            let texts = names.iter().map(|pin| {
                pin.name.as_str().len().next_multiple_of(8) + SHARED_BYTES + ALLOCATOR_BYTES
            });
            names.capacity() * size_of::<Pin>() + ALLOCATOR_BYTES + texts.sum::<usize>()
        });
        let bytes = table + of_names.sum::<usize>();
        assert!(bytes < 4 << 20, "{bytes}");
    }
}
