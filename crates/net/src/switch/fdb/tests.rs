//! The table against a map, as the owner and as a reader has it.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

const AGE: Duration = Duration::from_millis(AGE_MS);
const AGE_MS: u64 = 10_000;

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u8, bool),
    Refresh(u8, u8),
    Remove(u8),
    RemovePort(u8, bool),
    Pass(u16),
    Expire,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..40u8, 0..4u8, any::<bool>()).prop_map(|(s, p, f)| Step::Put(s, p, f)),
        4 => (0..40u8, 0..4u8).prop_map(|(station, port)| Step::Refresh(station, port)),
        2 => (0..40u8).prop_map(Step::Remove),
        1 => (0..4u8, any::<bool>()).prop_map(|(port, statics)| Step::RemovePort(port, statics)),
        3 => (0..9000u16).prop_map(Step::Pass),
        2 => Just(Step::Expire),
    ]
}

fn key(station: u8) -> Key {
    let vid = Vid::new(1 + u16::from(station & 1)).expect("a number");
    Key::new(MacAddr([2, 0, 0, 0, 0, station >> 1]), vid)
}

proptest! {
    /// Goal: after any sequence of insertions, removals and ageing, the owner and a reader find
    /// what a map finds. Few slots and one of 4096 seeds produce runs that wrap around the end.
    #[test]
    fn the_table_is_a_map(
        seed in 0..4096u64,
        steps in prop::collection::vec(any_step(), 0..200),
    ) {
        let mut fdb = Fdb::new(40, AGE, seed);
        let reader = fdb.reader();
        let mut map: BTreeMap<u8, (u8, bool, Instant)> = BTreeMap::new();
        let mut now = Instant::from_micros(1_000_000);
        for step in steps {
            match step {
                Step::Put(station, port, is_static) => {
                    fdb.put(key(station), port, is_static, now);
                    map.insert(station, (port, is_static, now));
                }
                Step::Refresh(station, port) => {
                    let entry = map.get_mut(&station).filter(|entry| entry.0 == port);
                    let entry = entry.filter(|entry| entry.1 || now.since(entry.2) < AGE);
                    prop_assert_eq!(reader.refresh(key(station), port, now), entry.is_some());
                    let age = |at: Instant| now.millis() - at.millis();
                    let stores = |entry: &&mut (u8, bool, Instant)| {
                        !entry.1 && age(entry.2) > AGE_MS / 64
                    };
                    if let Some(entry) = entry.filter(stores) {
                        entry.2 = now;
                    }
                }
                Step::Remove(station) => {
                    prop_assert_eq!(fdb.remove(key(station)), map.remove(&station).is_some());
                }
                Step::RemovePort(port, statics) => {
                    fdb.remove_port(port, statics);
                    map.retain(|_, entry| entry.0 != port || (entry.1 && !statics));
                }
                Step::Pass(millis) => now += Duration::from_millis(millis.into()),
                Step::Expire => {
                    fdb.expire(now);
                    map.retain(|_, entry| entry.1 || now.since(entry.2) < AGE);
                    let learned = map.values().filter(|entry| !entry.1).map(|entry| entry.2).min();
                    match (fdb.next_deadline(), learned) {
                        (Some(at), Some(oldest)) => prop_assert!(at > now && at <= oldest + AGE),
                        (None, oldest) => prop_assert_eq!(oldest, None),
                        (Some(at), None) => prop_assert!(at > now),
                    }
                }
            }
            for station in 0..40 {
                let entry = map.get(&station);
                let expected = entry.filter(|entry| entry.1 || now.since(entry.2) < AGE);
                let found = fdb.find(key(station), now);
                let found = found.map(|entry| (entry.port, entry.is_static));
                prop_assert_eq!(found, expected.map(|entry| (entry.0, entry.1)));
                let found = reader.find(key(station), now);
                let found = found.map(|entry| (entry.port, entry.is_static));
                prop_assert_eq!(found, expected.map(|entry| (entry.0, entry.1)));
                prop_assert_eq!(fdb.holder(key(station)), map.get(&station).map(|entry| entry.0));
            }
            for port in 0..4 {
                let of_port = map.values().filter(|entry| entry.0 == port);
                let statics = of_port.clone().filter(|entry| entry.1).count();
                prop_assert_eq!(fdb.static_count(port) as usize, statics);
                prop_assert_eq!(fdb.count(port) as usize, of_port.count());
            }
        }
    }
}

/// A full table: each entry is found, and the search for a missing entry ends.
#[test]
fn a_full_table_finds_all() {
    let mut fdb = Fdb::new(4096, AGE, 7);
    let key = |number: u32| {
        let [_, a, b, c] = number.to_be_bytes();
        Key::new(MacAddr([2, 0, 0, a, b, c]), Vid::DEFAULT)
    };
    for number in 0..4096 {
        fdb.put(key(number), number as u8, false, Instant::START);
    }
    assert!((0..4096).all(|number| fdb.find(key(number), Instant::START).is_some()));
    assert!((4096..9000).all(|number| fdb.find(key(number), Instant::START).is_none()));
    assert_eq!(fdb.iter(Instant::START).count(), 4096);
    fdb.expire(Instant::START + AGE);
    let left: Vec<_> = fdb.iter(Instant::START).collect();
    assert!(left.is_empty() && fdb.next_deadline().is_none());
}
