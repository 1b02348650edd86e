//! Writes a capture to a file, on a thread of its own.
//!
//! Payload is written from where it lies. A regular file waits for its disk. A pipe never blocks
//! the call that has memory pinned: when the pipe is full, the thread unpins the memory, waits for
//! room, and continues where it stopped. So lent memory returns at the end of its term even if the
//! pipe is not read. If the pipe takes nothing for [`STALL_TERM`], all waiting packets are dropped.
//!
//! A descriptor that becomes readable, such as a closed connection, requests the end. Packets that
//! passed before are still written, as far as the file takes them within [`FINISH_PATIENCE`].

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use towpath_io::pcapng::{self, Statistics, Writer};

use super::{Sniffed, Sniffer};

/// How long a file may take nothing before the packets that wait for it are dropped.
pub const STALL_TERM: Duration = Duration::from_secs(1);
/// Longest time to finish a capture whose file takes nothing or little.
pub const FINISH_PATIENCE: Duration = Duration::from_secs(5);
/// Packets written between two checks for a requested end.
const LOOK_EVERY: u64 = 64;

/// Writes the packets of a [`Sniffer`] to a file.
pub struct Recorder {
    sniffer: Sniffer,
    writer: Writer<OwnedFd>,
    count_max: Option<u64>,
    /// Set once the end is requested.
    finish_by: Option<Instant>,
}

/// The result of a recording.
#[derive(Debug)]
pub struct Summary {
    /// Packets in the file.
    pub written: u64,
    /// Counters of the capture; packets that were accepted and not written count as dropped.
    pub statistics: Statistics,
    /// Why the recording ended early.
    pub error: Option<io::Error>,
}

/// How waiting for room in a full file ended.
enum Wait {
    Ready,
    Asked,
    TimedOut,
}

impl Recorder {
    /// Begins a capture file: a regular file, a pipe or a terminal. `name` is the name of the port;
    /// the recording ends after `count_max` packets.
    ///
    /// # Errors
    /// The file is of another kind, or cannot be written.
    pub fn new(
        sniffer: Sniffer,
        file: OwnedFd,
        name: &str,
        snap_bytes: Option<u32>,
        count_max: Option<u64>,
    ) -> io::Result<Self> {
        let writer = Writer::new(pcapng::writable(file)?, name, snap_bytes)?;
        Ok(Self { sniffer, writer, count_max, finish_by: None })
    }

    /// Writes until `count_max` packets are written, the port is gone, `until` is readable, or
    /// writing fails. Then closes the file.
    pub fn run(mut self, until: BorrowedFd<'_>) -> Summary {
        let mut error = self.record(until).err();
        if error.is_none() {
            self.sniffer.stop();
            error = self.finish().err();
        }
        let written = self.writer.packets();
        Summary { written, statistics: self.statistics(), error }
    }

    fn record(&mut self, until: BorrowedFd<'_>) -> io::Result<()> {
        loop {
            if self.is_full() {
                return Ok(());
            }
            if self.writer.packets().is_multiple_of(LOOK_EVERY) && is_readable(until)? {
                return Ok(());
            }
            if let Some(sniffed) = self.sniffer.next() {
                if !self.write(&sniffed, Some(until))? {
                    return Ok(());
                }
            } else if self.sniffer.is_closed() {
                return Ok(());
            } else if self.sniffer.may_sleep() {
                let bell = PollFd::new(&self.sniffer, PollFlags::IN);
                let mut fds = [bell, PollFd::from_borrowed_fd(until, PollFlags::IN)];
                wait(&mut fds, None)?;
                let is_asked = !fds[1].revents().is_empty();
                self.sniffer.clear();
                if is_asked {
                    return Ok(());
                }
            }
        }
    }

    fn is_full(&self) -> bool {
        self.count_max.is_some_and(|max| self.writer.packets() >= max)
    }

    /// Writes a packet; returns false if it was abandoned. Without `until` the end has been
    /// requested, and only a partly written packet is waited for.
    fn write(&mut self, sniffed: &Sniffed, mut until: Option<BorrowedFd<'_>>) -> io::Result<bool> {
        loop {
            if self.writer.write_some(&sniffed.as_seen())? {
                self.sniffer.count_written();
                return Ok(true);
            }
            if until.is_none() && !self.writer.is_within_block() {
                return Ok(false);
            }
            match self.wait_for_room(until)? {
                Wait::Ready => {}
                Wait::Asked => until = None,
                Wait::TimedOut if until.is_some() => {
                    self.sniffer.discard();
                    until = until.filter(|_| !self.sniffer.is_closed());
                }
                Wait::TimedOut => return Ok(false),
            }
        }
    }

    /// Writes the packets on the way and the last block.
    fn finish(&mut self) -> io::Result<()> {
        while !self.is_full()
            && !self.finish_time().is_zero()
            && !self.writer.is_within_block()
            && let Some(sniffed) = self.sniffer.next()
            && self.write(&sniffed, None)?
        {}
        let unread =
            || io::Error::new(io::ErrorKind::TimedOut, "the capture file accepts no more data");
        if self.writer.is_within_block() {
            return Err(unread());
        }
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let nanoseconds = since_epoch.map_or(0, |elapsed| elapsed.as_nanos() as u64);
        let statistics = self.statistics();
        while !self.writer.end(&statistics, nanoseconds)? {
            if let Wait::TimedOut = self.wait_for_room(None)? {
                return if self.writer.has_begun() { Ok(()) } else { Err(unread()) };
            }
        }
        Ok(())
    }

    fn statistics(&self) -> Statistics {
        let statistics = self.sniffer.statistics();
        let dropped = statistics.accepted.saturating_sub(self.writer.packets());
        Statistics { dropped, ..statistics }
    }

    /// Returns what remains of [`FINISH_PATIENCE`], which begins with the first call.
    #[expect(clippy::disallowed_methods, reason = "the end is bounded on the clock of the system")]
    fn finish_time(&mut self) -> Duration {
        let now = Instant::now();
        self.finish_by.get_or_insert(now + FINISH_PATIENCE).saturating_duration_since(now)
    }

    /// Waits until the file has room. Nothing is pinned meanwhile.
    fn wait_for_room(&mut self, until: Option<BorrowedFd<'_>>) -> io::Result<Wait> {
        let limit = if until.is_some() { STALL_TERM } else { self.finish_time() };
        let file = PollFd::new(self.writer.file(), PollFlags::OUT);
        let (mut both, mut one);
        let fds: &mut [PollFd<'_>] = match until {
            Some(until) => {
                both = [file, PollFd::from_borrowed_fd(until, PollFlags::IN)];
                &mut both
            }
            None => {
                one = [file];
                &mut one
            }
        };
        let count = wait(fds, Some(limit))?;
        let is_asked = fds.get(1).is_some_and(|until| !until.revents().is_empty());
        Ok(match count {
            0 => Wait::TimedOut,
            _ if is_asked => Wait::Asked,
            // Room, or an error that the next write returns.
            _ => Wait::Ready,
        })
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    Ok(wait(&mut fds, Some(Duration::ZERO))? > 0)
}

/// Calls `poll`, and repeats the call if a signal interrupts it.
fn wait(fds: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<usize> {
    let limit = limit.map(|limit| Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: limit.subsec_nanos().into(),
    });
    loop {
        match poll(fds, limit.as_ref()) {
            Err(Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}
