//! Regions, ranges that cross them, areas, and the dirty log.

use super::*;
use crate::vhost_user::shared::Mapping;
use rustix::fs::{MemfdFlags, SealFlags};

const PAGE: u64 = 4096;

fn file(bytes: u64, flags: MemfdFlags) -> OwnedFd {
    let file = rustix::fs::memfd_create("memory", flags | MemfdFlags::CLOEXEC).expect("a file");
    rustix::fs::ftruncate(&file, bytes).expect("it grows");
    file
}

fn layout(guest_address: u64, bytes: u64, user_address: u64, file_offset: u64) -> RegionLayout {
    RegionLayout { guest_address, bytes, user_address, file_offset }
}

/// Goal: invalid regions are refused, each for its reason, and do not change the existing ones.
#[test]
fn impossible_regions_are_refused() {
    let file = file(8 * PAGE, MemfdFlags::ALLOW_SEALING);
    let mut memory = GuestMemory::new();
    memory.add(layout(0x1_0000, 2 * PAGE, 0x9_0000, 0), &file).expect("a proper region");
    let short = MemoryError::Map(MapError::Short);
    let cases = [
        (layout(0, 0, 0, 0), MemoryError::Range),
        (layout(u64::MAX - PAGE + 2, PAGE, 0, 0), MemoryError::Range),
        (layout(0, PAGE, u64::MAX - PAGE + 2, 0), MemoryError::Range),
        (layout(0x1_0000, PAGE, 0, 0), MemoryError::Overlap),
        (layout(0xf001, PAGE, 0, 0), MemoryError::Overlap),
        (layout(0x1_1fff, PAGE, 0, 0), MemoryError::Overlap),
        (layout(0, PAGE, 0x9_1fff, 0), MemoryError::Overlap),
        (layout(0, PAGE, 0, 8 * PAGE), short),
        (layout(0, PAGE, 0, 7 * PAGE + 1), short),
        (layout(0, PAGE, 0, u64::MAX), MemoryError::Map(MapError::Range)),
    ];
    for (layout, expected) in cases {
        assert_eq!(memory.add(layout, &file), Err(expected), "{layout:x?}");
        assert_eq!(memory.region_count(), 1);
    }
    assert_eq!(memory.remove(&layout(0x1_0000, PAGE, 0x9_0000, 0)), Err(MemoryError::Unknown));
    for index in 1..REGIONS_MAX as u64 {
        let region = layout(0x10_0000 * index, PAGE, 0x100_0000 * index, 0);
        memory.add(region, &file).expect("there is room");
    }
    assert_eq!(memory.add(layout(0, PAGE, 0, 0), &file), Err(MemoryError::TooMany));
    memory.remove(&layout(0x1_0000, 2 * PAGE, 0x9_0000, 7)).expect("the offset does not matter");
}

/// Goal: a region that is added once for each pair of queues, as by QEMU 7.2, is one region, and
/// stays until it was removed as often.
#[test]
fn a_region_is_there_as_long_as_one_pair_of_queues_has_it() {
    let file = file(PAGE, MemfdFlags::ALLOW_SEALING);
    let region = layout(0x1_0000, PAGE, 0x9_0000, 0);
    let mut memory = GuestMemory::new();
    for _ in 0..3 {
        memory.add(region, &file).expect("the same again");
        assert_eq!(memory.region_count(), 1);
    }
    for left in [1, 1, 0] {
        memory.remove(&region).expect("added as often");
        assert_eq!(memory.region_count(), left);
    }
    assert_eq!(memory.remove(&region), Err(MemoryError::Unknown));
}

/// Goal: only memory is mapped, with any seals. Method: each kind of file that a front end may
/// share, including those whose pages come from elsewhere.
#[test]
fn files_that_are_no_memory_are_refused() {
    let region = layout(0, PAGE, 0, 0);
    let add = |file: &OwnedFd| GuestMemory::new().add(region, file);
    for seals in [SealFlags::empty(), SealFlags::SHRINK | SealFlags::SEAL] {
        let memory = file(PAGE, MemfdFlags::ALLOW_SEALING);
        rustix::fs::fcntl_add_seals(&memory, seals).expect("it may be sealed");
        assert_eq!(add(&memory), Ok(()), "{seals:?}");
    }
    let open = |path: &str| -> OwnedFd {
        std::fs::File::options().read(true).write(true).open(path).expect(path).into()
    };
    let (pipe, _end) = std::io::pipe().expect("a pipe");
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).expect("an event");
    let own = std::fs::File::open("/proc/self/exe").expect("what runs").into();
    for file in [open("/dev/zero"), open("/proc/self/mem"), own, pipe.into(), event] {
        assert_eq!(add(&file), Err(MemoryError::Map(MapError::Kind)), "{file:?}");
    }
}

/// Goal: missing huge pages are refused when the file is shared, and do not end the process when
/// they are touched.
#[test]
fn huge_pages_that_are_not_there_are_refused() {
    let free = std::fs::read_to_string("/proc/meminfo").expect("of every kernel");
    let is_free = |line: &str| line.starts_with("HugePages_Free:") && !line.ends_with(" 0");
    if free.lines().any(is_free) {
        println!("skipped: there are free huge pages");
        return;
    }
    let flags = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB | MemfdFlags::ALLOW_SEALING;
    let Ok(huge) = rustix::fs::memfd_create("huge", flags) else {
        println!("skipped: the kernel has no huge pages of 2 MiB");
        return;
    };
    rustix::fs::ftruncate(&huge, 2 << 20).expect("it grows");
    for seals in [SealFlags::empty(), SealFlags::SHRINK] {
        rustix::fs::fcntl_add_seals(&huge, seals).expect("it may be sealed");
        let mut memory = GuestMemory::new();
        let added = memory.add(layout(0, 2 << 20, 0, 0), &huge);
        if added.is_ok() {
            memory.write(0, &[1]).expect("in memory");
        }
        assert_eq!(added, Err(MemoryError::Map(MapError::HugePages)));
    }
}

/// Goal: each range of the address space is found at the right place or refused, across adjacent
/// regions and gaps. Method: compares with a plain table of bytes.
#[test]
fn ranges_are_found_across_neighbours_and_not_across_gaps() {
    let file = file(8 * PAGE, MemfdFlags::ALLOW_SEALING);
    let mut memory = GuestMemory::new();
    // Added out of order; the second follows the first, then there is a gap of a page. Their order
    // in the file differs.
    for (guest, bytes, offset) in [(5, 1, 0), (2, 2, 1), (1, 1, 5)] {
        let region = layout(guest * PAGE, bytes * PAGE, guest * 16 * PAGE, offset * PAGE);
        memory.add(region, &file).expect("a proper region");
    }
    let is_there = |at: u64| (PAGE..4 * PAGE).contains(&at) || (5 * PAGE..6 * PAGE).contains(&at);
    let edges = [0, PAGE, 2 * PAGE, 4 * PAGE, 5 * PAGE, 6 * PAGE, u64::MAX - 2];
    let near = |edge: u64| (0..6).map(move |more| edge.wrapping_add(more).wrapping_sub(3));
    for guest in edges.into_iter().flat_map(near) {
        for bytes in [0, 1, 2, 3, 5, 4096, 4097, 8192, 3 * 4096, 1 << 20] {
            let all = (0..bytes as u64).all(|at| guest.checked_add(at).is_some_and(is_there));
            assert_eq!(memory.contains(guest, bytes), all, "{guest:#x} {bytes}");
            let mut to = vec![0; bytes];
            assert_eq!(memory.read(guest, &mut to).is_ok(), all);
        }
    }
    let text: Vec<u8> = (0..3 * PAGE).map(|at| (at % 251) as u8).collect();
    memory.write(PAGE, &text).expect("three pages");
    let mut back = vec![0; text.len()];
    memory.read(PAGE, &mut back).expect("three pages");
    assert_eq!(back, text);
    let raw = Mapping::new(&file, 0, 8 * PAGE).expect("the whole file");
    let mut page = vec![0; PAGE as usize];
    raw.stretch(5 * PAGE as usize, PAGE as usize).read(&mut page);
    assert_eq!(page, text[..PAGE as usize], "guest page 1 is page 5 of the file");
}

/// Goal: areas are found by front-end address, and only aligned and in one region.
#[test]
fn areas_lie_in_one_region() {
    let file = file(4 * PAGE, MemfdFlags::ALLOW_SEALING);
    let mut memory = GuestMemory::new();
    memory.add(layout(0, PAGE, 0x10_0000, 0), &file).expect("proper");
    memory.add(layout(PAGE, PAGE, 0x10_0000 + PAGE, PAGE), &file).expect("proper");
    let area = memory.area(0x10_0010, 64, 16).expect("it is there");
    area.store32(4, 0x0403_0201, Ordering::Relaxed);
    let mut bytes = [0; 4];
    memory.read(0x14, &mut bytes).expect("the same place");
    assert_eq!(bytes, [1, 2, 3, 4]);
    for (user, bytes, align) in
        [(0x10_0008, 64, 16), (0x10_0000 + PAGE - 32, 64, 16), (0, 1, 1), (u64::MAX, 1, 1)]
    {
        assert!(memory.area(user, bytes, align).is_none(), "{user:#x}");
    }
}

/// Goal: every written page is marked and no other, and a log that is too short does no harm.
#[test]
fn written_pages_are_marked() {
    let ram = file(64 * PAGE, MemfdFlags::ALLOW_SEALING);
    let log = file(PAGE, MemfdFlags::ALLOW_SEALING);
    let mut memory = GuestMemory::new();
    memory.add(layout(0, 64 * PAGE, 0, 0), &ram).expect("proper");
    // Bits for the first 32 pages, after the first 8 bytes of the file.
    memory.set_log(&log, 4, 8).expect("mapped");
    let raw = Mapping::new(&log, 0, PAGE).expect("mapped");
    let marked = || {
        let mut bytes = [0; 16];
        raw.stretch(0, 16).read(&mut bytes);
        raw.stretch(0, 16).write(&[0; 16]);
        u128::from_le_bytes(bytes)
    };
    let bits = |pages: &[u32]| pages.iter().fold(0, |bits, page| bits | 1u128 << (64 + page));
    memory.write(3 * PAGE - 1, &[1, 2]).expect("in memory");
    assert_eq!(marked(), bits(&[2, 3]));
    memory.write(9 * PAGE, &[0; 2 * 4096]).expect("in memory");
    assert_eq!(marked(), bits(&[9, 10]));
    memory.write(PAGE, &[]).expect("nothing");
    memory.read(PAGE, &mut [0; 9]).expect("in memory");
    assert_eq!(marked(), 0);
    memory.write(31 * PAGE, &[0; 2 * 4096]).expect("in memory");
    memory.write(63 * PAGE, &[0; 4096]).expect("in memory");
    assert_eq!(marked(), bits(&[31]), "no write past the log");
    let area = memory.area(5 * PAGE, 64, 16).expect("it is there");
    area.store16(0, 1, Ordering::Relaxed);
    assert_eq!(marked(), 0, "not requested");
    area.logged(&memory).store16(0, 1, Ordering::Relaxed);
    assert_eq!(marked(), bits(&[5]));
    memory.clear_log();
    memory.write(0, &[1]).expect("in memory");
    assert_eq!(marked(), 0);
}
