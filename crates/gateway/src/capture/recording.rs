//! A recording: a [`Recorder`] on a thread of its own, which is told to end and waited for with a
//! bound.
//!
//! The thread writes to a file that is open already, and does nothing else. A disk or a reader that
//! stands still keeps that thread, never who captures: [`Recording::finish`] gives it a time, and
//! what is not written by then is missing.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use towpath_io::doorbell::EventDoorbell;
use towpath_io::namespace::channel::wait_readable;
use towpath_packet::ring::Doorbell;

use super::record::{Recorder, Summary};
use super::{CaptureSettings, Mirrors};

/// How long a recording that is dropped is waited for.
const DROP_PATIENCE: Duration = Duration::from_secs(1);

/// A recorder that runs.
#[derive(Debug)]
pub struct Recording {
    stop: EventDoorbell,
    /// Rings when there is a summary. Never cleared.
    ended: EventDoorbell,
    summaries: Receiver<Summary>,
    summary: Option<Summary>,
}

impl Recording {
    /// Begins a recording of all packets of the interface `name`, whose frames have `frame_bytes`
    /// together, to a file; what comes back with it is to see them.
    ///
    /// # Errors
    /// What the system says; the file is none to write a capture to.
    pub(crate) fn begin(
        file: OwnedFd,
        name: &str,
        frame_bytes: usize,
    ) -> io::Result<(Mirrors, Self)> {
        let mut mirrors = Mirrors::default();
        let sniffer = mirrors.add(CaptureSettings::default(), frame_bytes, None)?;
        let recording = Self::start(Recorder::new(sniffer, file, name, None, None)?)?;
        Ok((mirrors, recording))
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// What the system says.
    pub fn start(recorder: Recorder) -> io::Result<Self> {
        let (stop, ended) = (EventDoorbell::new()?, EventDoorbell::new()?);
        let (tell, summaries) = channel();
        let (asked, end) = (stop.clone(), ended.clone());
        thread::Builder::new().name("capture".to_owned()).spawn(move || {
            let summary = recorder.run(asked.as_fd());
            // Nobody is there who wants it, if this fails.
            let _ = tell.send(summary);
            end.ring();
        })?;
        Ok(Self { stop, ended, summaries, summary: None })
    }

    /// What came of it, once it has ended.
    pub fn summary(&mut self) -> Option<&Summary> {
        if self.summary.is_none() {
            self.summary = self.summaries.try_recv().ok();
        }
        self.summary.as_ref()
    }

    /// Why it ended early, as far as [`Recording::summary`] has seen.
    pub fn error(&self) -> Option<&io::Error> {
        self.summary.as_ref()?.error.as_ref()
    }

    /// Becomes readable when it ends.
    pub fn ended(&self) -> EventDoorbell {
        self.ended.clone()
    }

    /// Has what passed until now written, and waits for that: at most for `limit`, or until one of
    /// `fds` is readable. `None` if it was not done by then.
    ///
    /// # Errors
    /// What poll(2) says.
    pub fn finish(
        &mut self,
        fds: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> io::Result<Option<&Summary>> {
        self.stop.ring();
        if self.summary().is_none() {
            let all = [&[self.ended.as_fd()], fds].concat();
            wait_readable(&all, Some(limit))?;
        }
        Ok(self.summary())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // There is nobody to tell of an error.
        let _ = self.finish(&[], DROP_PATIENCE);
    }
}
