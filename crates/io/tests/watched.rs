//! The bound on watched mappings. In a process of its own, because the table is per process.

use rustix::fs::MemfdFlags;
use towpath_io::vhost_user::shared::{MapError, Mapping};
use towpath_io::vhost_user::sigbus::{WATCHED_MAX, guard};

const PAGE: u64 = 4096;

/// Goal: a mapping that cannot be watched is refused. Up to the bound, the file of a mapping can be
/// truncated without a crash. Dropped mappings make room for new ones.
#[test]
fn a_mapping_that_cannot_be_watched_is_refused() {
    guard().unwrap();
    let file = rustix::fs::memfd_create("watched", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 2 * PAGE).unwrap();
    let map = || Mapping::new(&file, 0, 2 * PAGE);
    let mut mappings: Vec<Mapping> = (0..WATCHED_MAX).map(|_| map().unwrap()).collect();
    assert_eq!(map().err(), Some(MapError::TooMany));
    mappings.pop();
    mappings.push(map().unwrap());
    assert_eq!(map().err(), Some(MapError::TooMany));

    rustix::fs::ftruncate(&file, 0).unwrap();
    for mapping in mappings.iter().step_by(WATCHED_MAX / 16).chain(mappings.last()) {
        let mut bytes = [1; 8];
        mapping.stretch(PAGE as usize, 8).read(&mut bytes);
        assert!(bytes == [0; 8] && mapping.is_lost());
    }
}
