//! A child process that ends with the value that owns it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitStatus;

use super::{kill_and_reap, reap};
use crate::process_sys::Child;

/// A forked child that does not outlive this value: dropping it kills the child.
#[derive(Debug)]
pub struct ChildGuard(Option<Child>);

impl ChildGuard {
    /// Takes responsibility for `child`.
    pub fn new(child: Child) -> Self {
        Self(Some(child))
    }

    /// Waits for the end of the child.
    ///
    /// # Errors
    /// Those of waitpid(2).
    pub fn wait(mut self) -> io::Result<ExitStatus> {
        let child = self.0.take().expect("it is there until it is waited for or killed");
        reap(child.pid)
    }
}

impl AsFd for ChildGuard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("it is there until it is waited for or killed").as_fd()
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        if let Some(child) = &self.0 {
            kill_and_reap(child.pid);
        }
    }
}
