//! Internal file accesses of a queue, beside the operations of its caller: reads of blocks for the
//! file caches of hosts, writes of received bytes into files, and accesses of tasks. They are no
//! registrations; their back-end slots come before those of registrations.
//!
//! A device that does not answer keeps at most [`LOADS_PER_DEVICE_MAX`] of them, so that accesses
//! to other devices continue.

use crate::events::Token;
use crate::host::files::file_cache::Load;
use rustix::io::Errno;
use std::collections::VecDeque;
use towpath_io::events::{BackEnd, Job, Outcome, Parts, THREADS_MAX};

/// First back-end slot for accesses; the slot before it is for file changes.
pub(in crate::events) const LOADS_SLOT: u32 = 1;
/// Accesses that the back end has at a time.
pub(in crate::events) const LOADS_MAX: u32 = 64;
/// Accesses to one device that the back end has at a time.
const LOADS_PER_DEVICE_MAX: usize = 4;
const _: () = assert!(LOADS_PER_DEVICE_MAX < THREADS_MAX, "a stalled disk leaves threads free");

/// Accesses that wait, run or are complete. See the module documentation.
#[derive(Default)]
pub(in crate::events) struct Loads {
    /// Indexed by slot.
    running: Vec<Option<Access>>,
    waiting: VecDeque<Access>,
    /// Results of completed accesses, not yet passed to their operations.
    accessed: Vec<(Token, Outcome)>,
}

/// An access to a file.
enum Access {
    Load(Load),
    Own {
        token: Token,
        device: u64,
        /// `None` once it is started.
        job: Option<Job>,
    },
}

impl Loads {
    /// Starts the accesses that an operation asks for, or queues them until there is room.
    pub(in crate::events) fn begin(
        &mut self,
        token: Token,
        (loads, own): (Vec<Load>, Option<(u64, Job)>),
        back: &mut BackEnd,
    ) {
        let loads = loads.into_iter().map(Access::Load);
        let own = own.map(|(device, job)| Access::Own { token, device, job: Some(job) });
        let before = self.waiting.len();
        self.waiting.extend(loads.chain(own));
        if self.waiting.len() > before {
            self.go_on(back);
        }
    }

    /// Handles the result of the access in a back-end slot.
    pub(in crate::events) fn finish(&mut self, slot: u32, outcome: Outcome, back: &mut BackEnd) {
        let slot = (slot - LOADS_SLOT) as usize;
        match self.running.get_mut(slot).and_then(Option::take) {
            Some(Access::Load(load)) => {
                let Outcome { bytes, failure, parts } = outcome;
                match failure.filter(|_| bytes == 0) {
                    None => load.finish(bytes as usize, parts),
                    Some(why) => load.fail(why),
                }
            }
            Some(Access::Own { token, .. }) => self.accessed.push((token, outcome)),
            None => {}
        }
        self.go_on(back);
    }

    /// Takes back the queued access of a stopped operation, or cancels a running one.
    pub(in crate::events) fn withdraw(&mut self, stopped: Token, back: &mut BackEnd) {
        let is_its =
            |access: &Access| matches!(access, Access::Own { token, .. } if *token == stopped);
        if let Some(at) = self.waiting.iter().position(is_its) {
            if let Some(Access::Own { job: Some(job), .. }) = self.waiting.remove(at) {
                self.accessed.push((stopped, not_done(Errno::CANCELED, job)));
            }
        } else if let Some(slot) =
            self.running.iter().position(|at| at.as_ref().is_some_and(is_its))
        {
            back.cancel(LOADS_SLOT + slot as u32);
        }
    }

    /// Takes the result of an access, with the operation that asked for it.
    pub(in crate::events) fn take_accessed(&mut self) -> Option<(Token, Outcome)> {
        self.accessed.pop()
    }

    fn go_on(&mut self, back: &mut BackEnd) {
        let Self { running, waiting, accessed } = self;
        waiting.retain(Access::is_wanted);
        let mut at = 0;
        while let Some(access) = waiting.get(at) {
            let device = access.device();
            let of_device = running.iter().flatten().filter(|other| other.device() == device);
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
            let Some(mut access) = waiting.remove(at) else { return };
            let Some(job) = access.job() else { continue };
            match (back.submit(LOADS_SLOT + slot as u32, job), access) {
                (Ok(()), access) => running[slot] = Some(access),
                (Err((errno, _)), Access::Load(load)) => load.fail(errno),
                (Err((errno, job)), Access::Own { token, .. }) => {
                    accessed.push((token, not_done(errno, job)));
                }
            }
        }
    }
}

impl Access {
    fn device(&self) -> u64 {
        match self {
            Self::Load(load) => load.device(),
            Self::Own { device, .. } => *device,
        }
    }

    fn is_wanted(&self) -> bool {
        match self {
            Self::Load(load) => load.is_wanted(),
            Self::Own { .. } => true,
        }
    }

    /// Takes the job to do; only the first call returns it.
    fn job(&mut self) -> Option<Job> {
        match self {
            Self::Load(load) => load.job(),
            Self::Own { job, .. } => job.take(),
        }
    }
}

/// The result of a job that was not started.
fn not_done(why: Errno, job: Job) -> Outcome {
    let parts = match job {
        Job::File(operation) => Parts::Buffer(operation.buffer),
        _ => Parts::None,
    };
    Outcome { bytes: 0, failure: Some(why), parts }
}
