//! Events of front ends (eventfd(2)): told from all else, and signalled, by calls that never wait.
//!
//! Whoever sent an event has the same open file. It can make it blocking and fill it at any moment,
//! between a question whether there is room and the write, so an event is never written to. The
//! kernel's own users of events only add one, which waits for nobody, and a full event stays full.
//! One of them can be asked for by anybody: a request of io_submit(2) names an event that is told
//! when the request is done. Here it asks for the readiness of a file that is always ready, and is
//! done before the call returns: one call for each signal.
//!
//! The kernel refuses such a request if what it names is no event. It looks for that before
//! anything else, at the kind of the open file, and asks nobody who may serve it. So a request that
//! is refused for another reason tells which descriptors are events.
//!
//! One context for all devices of a process, in which they were made: [`prepare`]. Any thread.

use crate::sys::Asynchronous;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::sync::OnceLock;

/// What signals are asked for with.
struct Bell {
    requests: Asynchronous,
    /// Readable for ever.
    ready: OwnedFd,
    /// Of a pipe that nobody reads: it cannot be read from.
    unreadable: OwnedFd,
}

static BELL: OnceLock<Result<Bell, Errno>> = OnceLock::new();

/// Makes what signals need, once in a process.
pub(super) fn prepare() -> io::Result<()> {
    bell().map(drop).map_err(|errno| {
        let text = "the kernel's asynchronous requests (io_setup), by which guests are told, fail";
        io::Error::other(format!("{text}: {errno}; fs.aio-max-nr may be too low"))
    })
}

/// True if `file` is an event.
pub(super) fn is_event(file: impl AsFd) -> bool {
    // Of an event the request is refused with EBADF, as it is to read what cannot be read.
    bell().is_ok_and(|bell| {
        let read = bell.requests.read(bell.unreadable.as_fd(), file.as_fd());
        read == Err(Errno::BADF)
    })
}

/// Tells whoever waits for the event.
pub(super) fn signal(event: impl AsFd) {
    if let Ok(bell) = bell() {
        // No event at all, or no memory for a request: the kernel has none for others either, and
        // the next signal tells of what this one would have told of.
        let _ = bell.requests.poll(bell.ready.as_fd(), event.as_fd());
    }
}

fn bell() -> Result<&'static Bell, Errno> {
    let made = BELL.get_or_init(|| {
        let (_, unreadable) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let ready = eventfd(1, EventfdFlags::CLOEXEC)?;
        Ok(Bell { requests: Asynchronous::new()?, ready, unreadable })
    });
    made.as_ref().map_err(|errno| *errno)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test watches the clock")]
mod tests {
    use super::*;
    use rustix::fs::OFlags;
    use std::time::{Duration, Instant};
    use towpath_packet::sync::{AtomicBool, AtomicU64, Ordering};

    /// Most that somebody can write into an event.
    const FULL: u64 = u64::MAX - 1;

    /// Goal: a signal adds one, and does not wait for an event that is full, whatever its flags
    /// say. Method: it would wait for ever.
    #[test]
    fn a_signal_never_waits() {
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        assert!(is_event(&event));
        for _ in 0..1000 {
            signal(&event);
        }
        let mut count = [0; 8];
        assert_eq!(rustix::io::read(&event, &mut count), Ok(8));
        assert_eq!(u64::from_ne_bytes(count), 1000);
        rustix::io::write(&event, &FULL.to_ne_bytes()).unwrap();
        (0..3).for_each(|_| signal(&event));
        assert_eq!(rustix::io::read(&event, &mut count), Ok(8));
        assert!(u64::from_ne_bytes(count) >= FULL);
    }

    /// Goal: nothing that a front end does to its event between two instructions of ours makes us
    /// wait. Method: a thread fills it and makes it blocking, again and again, and looks each time
    /// whether signals go on.
    #[test]
    fn an_event_that_fills_at_any_moment_holds_nobody_up() {
        const PATIENCE: Duration = Duration::from_secs(20);
        let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let (done, signals) = (AtomicBool::new(false), AtomicU64::new(0));
        let fill = || {
            while !done.load(Ordering::Relaxed) {
                let _ = rustix::io::read(&event, &mut [0; 8]);
                let _ = rustix::io::write(&event, &FULL.to_ne_bytes());
                rustix::fs::fcntl_setfl(&event, OFlags::empty()).unwrap();
                let (seen, since) = (signals.load(Ordering::Relaxed), Instant::now());
                while signals.load(Ordering::Relaxed) < seen + 2 && !done.load(Ordering::Relaxed) {
                    if since.elapsed() > PATIENCE {
                        rustix::io::read(&event, &mut [0; 8]).unwrap();
                        return false;
                    }
                }
                rustix::fs::fcntl_setfl(&event, OFlags::NONBLOCK).unwrap();
            }
            true
        };
        std::thread::scope(|scope| {
            let filler = scope.spawn(fill);
            while signals.fetch_add(1, Ordering::Relaxed) < 100_000 && !filler.is_finished() {
                signal(&event);
            }
            done.store(true, Ordering::Relaxed);
            assert!(filler.join().unwrap(), "signals go on");
        });
    }

    #[test]
    fn what_is_no_event_is_refused() {
        let (reader, writer) = std::io::pipe().unwrap();
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let memory = rustix::fs::memfd_create("m", rustix::fs::MemfdFlags::empty()).unwrap();
        // Asks all that it watches when it is asked itself.
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC);
        let kinds = [reader.into(), writer.into(), socket.into(), null.into(), memory];
        for file in kinds.into_iter().chain(epoll) {
            assert!(!is_event(&file), "{file:?}");
        }
    }
}
