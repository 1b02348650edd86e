//! Waiting: a waiter leaves a waker. A blocking call is a future that its thread polls.

use crate::driver::clock;
use std::cell::OnceCell;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

/// Wakers of tasks and threads that wait for the same thing.
#[derive(Default)]
pub(super) struct Waiters(Vec<Waker>);

impl Waiters {
    /// Returns true if there are no waiters.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a waker, unless an equivalent one is there.
    pub(super) fn add(&mut self, waker: &Waker) {
        if !self.0.iter().any(|known| known.will_wake(waker)) {
            self.0.push(waker.clone());
        }
    }

    /// Moves all wakers into `wakers`, to be woken after a lock is released.
    pub(super) fn take_into(&mut self, wakers: &mut Vec<Waker>) {
        wakers.append(&mut self.0);
    }

    /// Takes all wakers.
    pub(super) fn take(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.0)
    }
}

/// Wakes a thread that waits in [`block`].
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    static OWN: OnceCell<Waker> = const { OnceCell::new() };
}

/// Returns the waker of this thread.
fn own_waker() -> Waker {
    let make = || Waker::from(Arc::new(Parked(thread::current())));
    OWN.try_with(|own| own.get_or_init(make).clone()).unwrap_or_else(|_| make())
}

/// Polls until there is a result and parks the thread in between; returns `None` once `timeout` has
/// passed. Without a timeout it waits indefinitely; with a zero timeout it does not block.
pub(super) fn block<T>(
    timeout: Option<Duration>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Option<T> {
    if timeout == Some(Duration::ZERO) {
        return match poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        };
    }
    let waker = own_waker();
    let mut cx = Context::from_waker(&waker);
    // Computed only when there is something to wait for.
    let mut deadline = None;
    loop {
        if let Poll::Ready(result) = poll(&mut cx) {
            return Some(result);
        }
        let Some(timeout) = timeout else {
            thread::park();
            continue;
        };
        let now = clock::moment();
        let left = deadline.get_or_insert(now + timeout).checked_duration_since(now)?;
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}
