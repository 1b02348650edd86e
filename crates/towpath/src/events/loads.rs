//! Loads: reads of blocks for the file caches of hosts, which a queue carries out beside the
//! operations of its caller. They are no registrations: their slots of the back end come before
//! those.
//!
//! A disk that does not answer keeps [`LOADS_PER_DEVICE_MAX`] loads and no more, so that those of
//! other disks go on.

use super::queue::LOADS_SLOT;
use crate::host::file_cache::Load;
use std::collections::VecDeque;
use towpath_io::events::{BackEnd, Job, Outcome, Parts, THREADS_MAX};

/// Loads that the back end has at a time.
pub(super) const LOADS_MAX: u32 = 64;
/// The same of one device.
const LOADS_PER_DEVICE_MAX: usize = 4;
const _: () = assert!(LOADS_PER_DEVICE_MAX < THREADS_MAX, "a disk that stands still blocks all");

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Loads {
    /// By slot.
    running: Vec<Option<Load>>,
    waiting: VecDeque<Load>,
}

impl Loads {
    /// Begins loads, or keeps them until there is room for them.
    pub(super) fn begin(&mut self, loads: Vec<Load>, back: &mut BackEnd) {
        if !loads.is_empty() {
            self.waiting.extend(loads);
            self.go_on(back);
        }
    }

    /// What became of the load of a slot of the back end.
    pub(super) fn finish(&mut self, slot: u32, outcome: Outcome, back: &mut BackEnd) {
        let slot = (slot - LOADS_SLOT) as usize;
        if let Some(load) = self.running.get_mut(slot).and_then(Option::take) {
            let Outcome { bytes, failure, parts } = outcome;
            let Parts::Buffer(buffer) = parts else { unreachable!("a read has a buffer") };
            let read = failure.filter(|_| bytes == 0).map_or(Ok(bytes as usize), Err);
            load.finish(read, buffer);
        }
        self.go_on(back);
    }

    fn go_on(&mut self, back: &mut BackEnd) {
        let Self { running, waiting } = self;
        waiting.retain(Load::is_wanted);
        let mut at = 0;
        while let Some(load) = waiting.get(at) {
            let of_device =
                running.iter().flatten().filter(|other| other.device() == load.device());
            if of_device.count() >= LOADS_PER_DEVICE_MAX {
                at += 1;
                continue;
            }
            let slot = match running.iter().position(Option::is_none) {
                Some(slot) => slot,
                None if running.len() < LOADS_MAX as usize => {
                    running.push(None);
                    running.len() - 1
                }
                None => return,
            };
            let Some(mut load) = waiting.remove(at) else { return };
            match back.submit(LOADS_SLOT + slot as u32, Job::File(load.operation())) {
                Ok(()) => running[slot] = Some(load),
                Err((errno, _)) => load.finish(Err(errno), Vec::new()),
            }
        }
    }
}
