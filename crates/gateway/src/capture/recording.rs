//! A recording: a [`Recorder`] on a thread of its own that can be stopped within a bounded time.
//!
//! The thread only writes to a file that is already open. A stuck disk or reader blocks that
//! thread, never the captured port: [`Recording::finish`] waits with a limit, and what is not
//! written by then is missing from the file.

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

/// How long dropping a recording waits for its thread.
const DROP_PATIENCE: Duration = Duration::from_secs(1);

/// A running recorder.
#[derive(Debug)]
pub struct Recording {
    stop: EventDoorbell,
    /// Rings when the summary is available. Never cleared.
    ended: EventDoorbell,
    summaries: Receiver<Summary>,
    summary: Option<Summary>,
}

impl Recording {
    /// Begins a recording of all packets of the interface `name` to `file`. The packets come from
    /// frames of `frame_bytes` in total. The caller shows each packet to the returned mirrors.
    ///
    /// # Errors
    /// The error of the system call that failed; or a capture cannot be written to `file`.
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
    /// The error of the system call that failed.
    pub fn start(recorder: Recorder) -> io::Result<Self> {
        let (stop, ended) = (EventDoorbell::new()?, EventDoorbell::new()?);
        let (tell, summaries) = channel();
        let (asked, end) = (stop.clone(), ended.clone());
        thread::Builder::new().name("capture".to_owned()).spawn(move || {
            let summary = recorder.run(asked.as_fd());
            // A failure means that the receiver is gone.
            let _ = tell.send(summary);
            end.ring();
        })?;
        Ok(Self { stop, ended, summaries, summary: None })
    }

    /// Returns the summary, once the recording has ended.
    pub fn summary(&mut self) -> Option<&Summary> {
        if self.summary.is_none() {
            self.summary = self.summaries.try_recv().ok();
        }
        self.summary.as_ref()
    }

    /// Returns why the recording ended early, according to the last [`Recording::summary`].
    pub fn error(&self) -> Option<&io::Error> {
        self.summary.as_ref()?.error.as_ref()
    }

    /// Returns a doorbell that becomes readable when the recording ends.
    pub fn ended(&self) -> EventDoorbell {
        self.ended.clone()
    }

    /// Stops the recording and waits until all packets that passed before are written. Waits for
    /// `limit` at most, or until one of `fds` is readable. Returns `None` if the recording has not
    /// ended by then.
    ///
    /// # Errors
    /// The error of poll(2).
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
        // Drop cannot report an error.
        let _ = self.finish(&[], DROP_PATIENCE);
    }
}
