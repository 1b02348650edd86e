//! What becomes of the buffers that a socket sends: what it was told, and how it chooses if it was
//! told to.

use crate::host::choosing::auto::{Choice, Chooser};
use crate::host::choosing::calibration::Watch;
use crate::host::choosing::trials::Costs;
use crate::host::core::Core;
use std::sync::{Arc, OnceLock};
use towpath_packet::sync::{AtomicU32, Ordering};

/// What becomes of buffers that are sent with
/// [`TcpStream::send_zc`](crate::host::TcpStream::send_zc) and
/// [`UdpSocket::send_zc`](crate::host::UdpSocket::send_zc).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SendMode {
    /// They are copied and come back at once.
    Copy,
    /// They are lent.
    #[default]
    Lend,
    /// Each is lent if that is expected to cost all threads together less than copying it: by its
    /// size, by how the socket's earlier loans went, and by what lending and copying were measured
    /// to cost: for streams in less than a millisecond, when the first of a host's is set to this,
    /// and from then on by trying both now and then, for 100 ms and more, with all sockets of the
    /// host that are set to this. One that is copied comes back at once.
    Auto,
}

/// The mode of a socket.
pub(in crate::host) struct Mode {
    mode: AtomicU32,
    /// Made when the mode is first set to [`SendMode::Auto`].
    chooser: OnceLock<Arc<Chooser>>,
}

impl Mode {
    pub(in crate::host) fn new() -> Self {
        Self { mode: AtomicU32::new(SendMode::default() as u32), chooser: OnceLock::new() }
    }

    pub(in crate::host) fn get(&self) -> SendMode {
        const MODES: [SendMode; 3] = [SendMode::Copy, SendMode::Lend, SendMode::Auto];
        // Relaxed: a call that begins beside a change goes by the old or the new.
        MODES[self.mode.load(Ordering::Relaxed) as usize]
    }

    /// Sets it; `costs` are those of the host's sockets of this kind.
    pub(in crate::host) fn set(&self, mode: SendMode, costs: impl FnOnce() -> Arc<Costs>) {
        if mode == SendMode::Auto {
            self.chooser.get_or_init(|| Arc::new(Chooser::new(costs())));
        }
        // Relaxed: as in `get`; the chooser is published by its cell.
        self.mode.store(mode as u32, Ordering::Relaxed);
    }

    /// Whether a call of `size` bytes lends, with a socket of this host.
    pub(in crate::host) fn choose(&self, size: usize, host: &Core) -> Choice {
        let chooser = match self.get() {
            SendMode::Copy => return Choice::Copy,
            SendMode::Lend => return Choice::Lend,
            SendMode::Auto => self.chooser.get(),
        };
        // Another thread is just setting the mode: the call goes by the one before.
        chooser.map_or(Choice::Lend, |chooser| chooser.choose(size, host))
    }

    /// Begins to watch a loan, if it was chosen to be.
    pub(in crate::host) fn watch(&self, choice: Choice, size: usize) -> Option<Watch> {
        let Choice::LendWatched(round) = choice else { return None };
        Some(Watch::new(self.chooser.get()?.clone(), round, size))
    }
}
