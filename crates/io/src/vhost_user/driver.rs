//! The driver's side of a virtqueue, for tests and benchmarks: a small driver in this process.
//!
//! It does what a guest's driver does, in memory of its own that a device maps a second time. It
//! shares no code with the device side. It supports split and packed rings, indirect tables, the
//! event index, and chains of any shape. [`GuestRam`] is the memory, [`DriverQueue`] a queue in it.
//!
//! Invariant: [`used`](DriverQueue::used) returns each token that was [added](DriverQueue::add)
//! once. A device that returns a buffer that it does not have causes a panic. One thread drives a
//! queue. Limit: [`TABLE_MAX`].

mod front_end;
mod packed;
mod split;

pub use front_end::{FrontEnd, FrontEndError, RECEIVE, TRANSMIT};

use super::memory::{GuestMemory, LoggedArea};
use super::message::RegionLayout;
use super::virtq::{QueueConfig, Segment, feature};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

/// Most buffers of a chain: more than Linux's driver needs for the largest packet.
pub const TABLE_MAX: usize = 24;
/// Bytes of an indirect table.
const TABLE_BYTES: usize = 16 * TABLE_MAX;
/// Difference between front-end addresses and guest addresses.
const USER_OFFSET: u64 = 0x7f00_0000_0000;

/// Guest memory without a guest: a memory file with regions that follow each other.
pub struct GuestRam {
    file: OwnedFd,
    layouts: Vec<RegionLayout>,
    memory: GuestMemory,
}

impl GuestRam {
    /// Creates regions of these sizes, one after the other from guest address `first`, in a file
    /// that is sealed against truncation. Sizes are multiples of a page.
    pub fn new(first: u64, sizes: &[u64]) -> Result<Self, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("guest", flags)?;
        let ram = Self::in_file(file, first, sizes)?;
        rustix::fs::fcntl_add_seals(&ram.file, SealFlags::SHRINK)?;
        Ok(ram)
    }

    /// Creates regions of these sizes, as [`new`](Self::new) does, in an empty file of the caller.
    pub fn in_file(file: OwnedFd, first: u64, sizes: &[u64]) -> Result<Self, Errno> {
        rustix::fs::ftruncate(&file, sizes.iter().sum())?;
        let mut layouts = Vec::new();
        let mut file_offset = 0;
        for &bytes in sizes {
            let guest_address = first + file_offset;
            let user_address = guest_address + USER_OFFSET;
            layouts.push(RegionLayout { guest_address, bytes, user_address, file_offset });
            file_offset += bytes;
        }
        let memory = map(&file, &layouts)?;
        Ok(Self { file, layouts, memory })
    }

    /// The file, to pass to a device.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// The regions.
    pub fn layouts(&self) -> &[RegionLayout] {
        &self.layouts
    }

    /// The driver's own mapping.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Maps the memory again, as a device does.
    pub fn map(&self) -> Result<GuestMemory, Errno> {
        map(&self.file, &self.layouts)
    }
}

fn map(file: &OwnedFd, layouts: &[RegionLayout]) -> Result<GuestMemory, Errno> {
    let mut memory = GuestMemory::new();
    for layout in layouts {
        memory.add(*layout, file).map_err(|_| Errno::NOMEM)?;
    }
    Ok(memory)
}

/// Guest addresses of a queue's areas.
#[derive(Clone, Copy, Debug)]
struct Places {
    descriptors: u64,
    driver: u64,
    device: u64,
    /// An indirect table for each descriptor.
    tables: u64,
    end: u64,
}

impl Places {
    fn new(at: u64, size: u16) -> Self {
        let size = u64::from(size);
        let descriptors = at.next_multiple_of(64);
        let driver = (descriptors + 16 * size).next_multiple_of(64);
        let device = (driver + 6 + 2 * size).next_multiple_of(64);
        let tables = (device + 6 + 8 * size).next_multiple_of(64);
        Self { descriptors, driver, device, tables, end: tables + TABLE_BYTES as u64 * size }
    }
}

enum Ring {
    Split(split::Ring),
    Packed(packed::Ring),
}

/// The driver's side of a queue.
pub struct DriverQueue {
    ring: Ring,
    memory: GuestMemory,
    places: Places,
    size: u16,
    features: u64,
    /// Tokens of chains that the device has, by the chain's identifier.
    tokens: Box<[Option<u64>]>,
}

impl DriverQueue {
    /// Creates a queue of `size` descriptors at guest address `at`, in zeroed memory. `features`
    /// selects the layout, the event index and indirect tables. `None` if it does not fit into its
    /// region.
    pub fn new(ram: &GuestRam, at: u64, size: u16, features: u64) -> Option<Self> {
        let places = Places::new(at, size);
        let memory = ram.memory().clone();
        let event_index = features & feature::EVENT_INDEX != 0;
        let user = |guest: u64| guest + USER_OFFSET;
        let area = |guest, bytes| memory.area(user(guest), bytes, 4);
        let count = usize::from(size);
        let descriptors = area(places.descriptors, 16 * count)?;
        let driver = area(places.driver, 6 + 2 * count)?;
        let device = area(places.device, 6 + 8 * count)?;
        let areas = Areas { descriptors, driver, device };
        let ring = if features & feature::PACKED != 0 {
            Ring::Packed(packed::Ring::new(areas, size, event_index))
        } else {
            Ring::Split(split::Ring::new(areas, size, event_index))
        };
        let tokens = vec![None; count].into_boxed_slice();
        Some(Self { ring, memory, places, size, features, tokens })
    }

    /// The first guest address after the queue.
    pub fn end(&self) -> u64 {
        self.places.end
    }

    /// Configuration for a device that starts its side from the beginning.
    pub fn config(&self) -> QueueConfig {
        QueueConfig {
            size: self.size,
            features: self.features | feature::VERSION_1,
            descriptors: self.places.descriptors + USER_OFFSET,
            driver: self.places.driver + USER_OFFSET,
            device: self.places.device + USER_OFFSET,
            // The wrap counter of a packed ring is initially set.
            base: if self.features & feature::PACKED != 0 { 0x8000 } else { 0 },
            log: false,
            inflight: None,
            call: None,
        }
    }

    /// Adds a chain: buffers to read, then buffers to write. Returns false if there is no room.
    /// [`DriverQueue::publish`] makes it available.
    ///
    /// # Panics
    /// If the chain is empty or longer than [`TABLE_MAX`].
    pub fn add(&mut self, readable: &[Segment], writable: &[Segment], token: u64) -> bool {
        let count = readable.len() + writable.len();
        assert!((1..=TABLE_MAX).contains(&count), "a chain has one to TABLE_MAX buffers");
        let is_indirect = count > 1 && self.features & feature::INDIRECT != 0;
        let needed = if is_indirect { 1 } else { count as u16 };
        let Some(id) = (match &mut self.ring {
            Ring::Split(ring) => ring.reserve(needed),
            Ring::Packed(ring) => ring.reserve(needed),
        }) else {
            return false;
        };
        let chain = Buffers { readable, writable };
        if is_indirect {
            let table = self.places.tables + u64::from(id) * TABLE_BYTES as u64;
            let linked = matches!(self.ring, Ring::Split(_));
            chain.write_table(&self.memory, table, linked);
            let table = Segment { address: table, bytes: 16 * count as u32 };
            match &mut self.ring {
                Ring::Split(ring) => ring.put_table(id, table),
                Ring::Packed(ring) => ring.put_table(id, table),
            }
        } else {
            match &mut self.ring {
                Ring::Split(ring) => ring.put(id, &chain),
                Ring::Packed(ring) => ring.put(id, &chain),
            }
        }
        let before = self.tokens[usize::from(id)].replace(token);
        assert_eq!(before, None, "an identifier is free before it is used");
        true
    }

    /// Makes the added chains available. True if the device wants a kick.
    pub fn publish(&mut self) -> bool {
        match &mut self.ring {
            Ring::Split(ring) => ring.publish(),
            Ring::Packed(ring) => ring.publish(),
        }
    }

    /// Returns the next used chain: its token, and the number of bytes written.
    ///
    /// # Panics
    /// If the device returns a chain that it does not have.
    pub fn used(&mut self) -> Option<(u64, u32)> {
        let (id, written) = match &mut self.ring {
            Ring::Split(ring) => ring.used()?,
            Ring::Packed(ring) => ring.used()?,
        };
        let token = self.tokens[usize::from(id)].take();
        Some((token.expect("the device returns a chain once"), written))
    }

    /// Requests a call for the next used chain. True if there is one already.
    pub fn enable_calls(&mut self) -> bool {
        match &mut self.ring {
            Ring::Split(ring) => ring.enable_calls(),
            Ring::Packed(ring) => ring.enable_calls(),
        }
    }

    /// Requests no calls.
    pub fn disable_calls(&mut self) {
        match &mut self.ring {
            Ring::Split(ring) => ring.disable_calls(),
            Ring::Packed(ring) => ring.disable_calls(),
        }
    }

    /// Number of chains that the device has.
    pub fn out_count(&self) -> usize {
        self.tokens.iter().flatten().count()
    }
}

/// The three areas of a queue.
struct Areas {
    descriptors: LoggedArea,
    driver: LoggedArea,
    device: LoggedArea,
}

/// The buffers of a chain.
struct Buffers<'a> {
    readable: &'a [Segment],
    writable: &'a [Segment],
}

impl Buffers<'_> {
    const NEXT: u16 = 1;
    const WRITE: u16 = 2;

    /// Each buffer with its flags.
    fn iter(&self) -> impl Iterator<Item = (&Segment, u16)> {
        let count = self.readable.len() + self.writable.len();
        let kinds = self.readable.iter().map(|segment| (segment, 0));
        let kinds = kinds.chain(self.writable.iter().map(|segment| (segment, Self::WRITE)));
        kinds.enumerate().map(move |(index, (segment, flags))| {
            (segment, if index + 1 < count { flags | Self::NEXT } else { flags })
        })
    }

    fn write_table(&self, memory: &GuestMemory, table: u64, linked: bool) {
        let mut descriptors = [[0; 16]; TABLE_MAX];
        let mut count = 0;
        for (bytes, (segment, flags)) in descriptors.iter_mut().zip(self.iter()) {
            count += 1;
            bytes[..8].copy_from_slice(&segment.address.to_le_bytes());
            bytes[8..12].copy_from_slice(&segment.bytes.to_le_bytes());
            if linked {
                bytes[12..14].copy_from_slice(&flags.to_le_bytes());
                bytes[14..].copy_from_slice(&(count as u16).to_le_bytes());
            } else {
                let flags = flags & !Self::NEXT;
                bytes[14..].copy_from_slice(&flags.to_le_bytes());
            }
        }
        let bytes = descriptors[..count].as_flattened();
        memory.write(table, bytes).expect("tables lie in the guest's memory");
    }
}
