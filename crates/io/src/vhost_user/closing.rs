//! Closes descriptors from front ends in the background, where close(2) may block.
//!
//! Closing a file may ask its server to write data back, and waits for the answer (FUSE). Closing
//! the end of a pipe waits for a write in progress at the other end. Closing a socket closes the
//! descriptors queued in it. So a separate thread closes descriptors that are neither events nor
//! memory, and connections in which such descriptors may be queued. A front end can block that
//! thread for as long as it likes; that affects only ports whose front ends sent such descriptors.
//!
//! Each port counts its pending closes ([`Closing`]), and accepts no front ends while they reach
//! [`CLOSING_MAX`]. One thread serves all devices of the process that called [`prepare`].

use crate::thread;
use rustix::fd::OwnedFd;
use std::io;
use std::os::fd::IntoRawFd;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use towpath_packet::sync::{AtomicUsize, Ordering};

/// Most sets of descriptors of a port that wait to be closed, one for each front end disconnected.
pub(super) const CLOSING_MAX: usize = 16;

/// The descriptors of one front end.
struct Parcel {
    files: Vec<OwnedFd>,
    left: Arc<AtomicUsize>,
}

static CLOSER: OnceLock<Result<Sender<Parcel>, io::ErrorKind>> = OnceLock::new();

/// Starts the thread, once per process.
pub(super) fn prepare() -> io::Result<()> {
    closer().map(drop).map_err(io::Error::from)
}

/// Counts what a port waits to have closed.
#[derive(Clone, Debug, Default)]
pub(super) struct Closing(Arc<AtomicUsize>);

impl Closing {
    /// Hands descriptors to the thread, without waiting.
    pub(super) fn close(&self, files: Vec<OwnedFd>) {
        // Relaxed: only the number is used, here and below.
        self.0.fetch_add(1, Ordering::Relaxed);
        let parcel = Parcel { files, left: self.0.clone() };
        if let Ok(closer) = closer()
            && let Err(refused) = closer.send(parcel)
        {
            // The thread does not exist, as in the child of a fork: they stay open until the
            // process ends.
            refused.0.files.into_iter().for_each(|file| _ = file.into_raw_fd());
        }
    }

    /// True if nothing more may be added.
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
    /// A counter with `count` pending closes.
    pub(super) fn waiting(count: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(count)))
    }
}
