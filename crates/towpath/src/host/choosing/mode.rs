//! The send mode of a socket, and its state for choosing in `Auto` mode.

use crate::host::choosing::auto::{Choice, Chooser};
use crate::host::choosing::calibration::Watch;
use crate::host::choosing::trials::Costs;
use crate::host::core::Core;
use std::sync::{Arc, OnceLock};
use towpath_packet::sync::{AtomicU32, Ordering};

/// How buffers are sent with [`TcpStream::send_zc`](crate::host::TcpStream::send_zc) and
/// [`UdpSocket::send_zc`](crate::host::UdpSocket::send_zc).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum SendMode {
    /// Buffers are copied and come back at once.
    Copy,
    /// Buffers are lent.
    #[default]
    Lend,
    /// A buffer is lent if that is expected to cost all threads together less than copying it;
    /// otherwise it is copied and comes back at once. The decision depends on the buffer's size, on
    /// how the socket's earlier loans went, and on the measured costs of lending and copying. For
    /// streams these are first measured in less than a millisecond, when the first stream of a host
    /// is set to this mode. Later, all sockets of the host in this mode try both ways now and then,
    /// for 100 ms or more.
    Auto,
}

/// The mode of a socket.
pub(in crate::host) struct Mode {
    mode: AtomicU32,
    /// Created when the mode is first set to [`SendMode::Auto`].
    chooser: OnceLock<Arc<Chooser>>,
}

impl Mode {
    pub(in crate::host) fn new() -> Self {
        Self { mode: AtomicU32::new(SendMode::default() as u32), chooser: OnceLock::new() }
    }

    pub(in crate::host) fn get(&self) -> SendMode {
        const MODES: [SendMode; 3] = [SendMode::Copy, SendMode::Lend, SendMode::Auto];
        // Relaxed: a call that runs beside a change uses the old or the new mode.
        MODES[self.mode.load(Ordering::Relaxed) as usize]
    }

    /// Sets the mode; `costs` returns the costs of the host's sockets of this kind.
    pub(in crate::host) fn set(&self, mode: SendMode, costs: impl FnOnce() -> Arc<Costs>) {
        if mode == SendMode::Auto {
            self.chooser.get_or_init(|| Arc::new(Chooser::new(costs())));
        }
        // Relaxed: like `get`; the `OnceLock` publishes the chooser.
        self.mode.store(mode as u32, Ordering::Relaxed);
    }

    /// Decides whether a call of `size` bytes lends, on a socket of this host.
    pub(in crate::host) fn choose(&self, size: usize, host: &Core) -> Choice {
        let chooser = match self.get() {
            SendMode::Copy => return Choice::Copy,
            SendMode::Lend => return Choice::Lend,
            SendMode::Auto => self.chooser.get(),
        };
        // Another thread is setting the mode right now: the call uses the previous mode.
        chooser.map_or(Choice::Lend, |chooser| chooser.choose(size, host))
    }

    /// Starts to watch a loan, if it was chosen for that.
    pub(in crate::host) fn watch(&self, choice: Choice, size: usize) -> Option<Watch> {
        let Choice::LendWatched(round) = choice else { return None };
        Some(Watch::new(self.chooser.get()?.clone(), round, size))
    }
}
