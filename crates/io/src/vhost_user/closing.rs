//! Closing what a front end supplied, where that may wait.
//!
//! Closing a file asks whoever serves it to write back what is left, and waits for the answer
//! (FUSE); closing the end of a pipe waits for a write that is under way at the other end; closing
//! a socket closes what waits in it. So descriptors that are neither events nor memory are closed
//! on a thread of its own, and so are connections in which such may wait. A front end can have that
//! thread wait for as long as it likes: then it is missed by nobody but ports whose front ends sent
//! such descriptors.
//!
//! Each port counts what it waits for ([`Closing`]), and meets no more front ends while that is
//! [`CLOSING_MAX`]. One thread for all devices of a process, in which they were made: [`prepare`].

use crate::thread;
use rustix::fd::OwnedFd;
use std::io;
use std::os::fd::IntoRawFd;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use towpath_packet::sync::{AtomicUsize, Ordering};

/// Sets of descriptors of a port that wait to be closed: front ends that were sent away.
pub(super) const CLOSING_MAX: usize = 16;

/// Descriptors of one front end.
struct Parcel {
    files: Vec<OwnedFd>,
    left: Arc<AtomicUsize>,
}

static CLOSER: OnceLock<Result<Sender<Parcel>, io::ErrorKind>> = OnceLock::new();

/// Starts the thread, once in a process.
pub(super) fn prepare() -> io::Result<()> {
    closer().map(drop).map_err(io::Error::from)
}

/// What a port waits to have closed.
#[derive(Clone, Debug, Default)]
pub(super) struct Closing(Arc<AtomicUsize>);

impl Closing {
    /// Closes descriptors soon. Waits for nobody.
    pub(super) fn close(&self, files: Vec<OwnedFd>) {
        // Relaxed: only the number is looked at, as is below.
        self.0.fetch_add(1, Ordering::Relaxed);
        let parcel = Parcel { files, left: self.0.clone() };
        if let Ok(closer) = closer()
            && let Err(refused) = closer.send(parcel)
        {
            // The thread is gone, as in the child of a fork: they stay open until the process ends.
            refused.0.files.into_iter().for_each(|file| _ = file.into_raw_fd());
        }
    }

    /// True if no more may be added.
    pub(super) fn is_full(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= CLOSING_MAX
    }
}

fn closer() -> Result<&'static Sender<Parcel>, io::ErrorKind> {
    let made = CLOSER.get_or_init(|| {
        let (sender, parcels) = channel::<Parcel>();
        let close = move || {
            for Parcel { files, left } in parcels {
                drop(files);
                left.fetch_sub(1, Ordering::Relaxed);
            }
        };
        thread::spawn(close).map(|_| sender).map_err(|error| error.kind())
    });
    made.as_ref().map_err(|kind| *kind)
}

#[cfg(test)]
impl Closing {
    /// Somebody who waits for so many.
    pub(super) fn waiting(count: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(count)))
    }
}
