//! Events of front ends (eventfd(2)): recognises and signals them by calls that never block.
//!
//! The sender of an event descriptor has the same open file. It can make it blocking and fill it at
//! any moment, even between a check for room and the write, so this process never writes to an
//! event. The kernel's own users of eventfds add one without waiting, and a full eventfd stays
//! full. One of them is available to every process: a request of io_submit(2) names an eventfd that
//! is signalled when the request completes. Here the request polls a file that is always readable,
//! and completes before the call returns: one call per signal.
//!
//! The kernel refuses such a request if the named descriptor is not an eventfd. It checks this
//! first, by the type of the open file, and asks no file server. So a request that is refused for
//! another reason shows that the descriptor is an eventfd.
//!
//! One context serves all devices of the process that called [`prepare`]. Any thread.

use crate::sys::Asynchronous;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::sync::OnceLock;

/// Context for signalling.
struct Bell {
    requests: Asynchronous,
    /// An eventfd that is always readable.
    ready: OwnedFd,
    /// The write end of a pipe, which cannot be read from.
    unreadable: OwnedFd,
}

static BELL: OnceLock<Result<Bell, Errno>> = OnceLock::new();

/// Creates the context, once per process.
pub(super) fn prepare() -> io::Result<()> {
    bell().map(drop).map_err(|errno| io::Error::other(refusal(errno)))
}

/// Says why there is no context, and what to do. Only io_setup(2) fails with `EAGAIN`.
fn refusal(errno: Errno) -> String {
    let remedy = match errno {
        Errno::AGAIN => "; the sysctl fs.aio-max-nr is too low for another io_setup(2)",
        Errno::MFILE => "; raise the limit of open files (ulimit -n)",
        _ => "",
    };
    format!("cannot set up notifications of guests: {errno}{remedy}")
}

/// True if `file` is an eventfd.
pub(super) fn is_event(file: impl AsFd) -> bool {
    // For an eventfd, the read request fails with EBADF, because its file cannot be read.
    bell().is_ok_and(|bell| {
        let read = bell.requests.read(bell.unreadable.as_fd(), file.as_fd());
        read == Err(Errno::BADF)
    })
}

/// Signals an event.
pub(super) fn signal(event: impl AsFd) {
    if let Ok(bell) = bell() {
        // Fails if it is not an eventfd, or without memory for the request; then the kernel has
        // none for others either, and the next signal also stands for this one.
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

    /// The largest value of an eventfd.
    const FULL: u64 = u64::MAX - 1;

    /// Goal: a remedy is for its own cause alone.
    #[test]
    fn a_refusal_names_its_remedy() {
        for (errno, remedy) in [
            (Errno::AGAIN, Some("fs.aio-max-nr")),
            (Errno::MFILE, Some("ulimit -n")),
            (Errno::NFILE, None),
            (Errno::NOSYS, None),
        ] {
            let text = refusal(errno);
            assert!(text.contains(&errno.to_string()), "{text}");
            for one in ["fs.aio-max-nr", "ulimit -n"] {
                assert_eq!(text.contains(one), remedy == Some(one), "{text}");
            }
        }
    }

    /// Goal: a signal adds one, and does not block on a full eventfd, whatever its flags are.
    /// Method: it would block forever.
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

    /// Goal: nothing that a front end does to its event between two of our instructions blocks us.
    /// Method: a thread repeatedly fills it and makes it blocking, and checks each time that
    /// signals continue.
    #[test]
    fn an_event_that_fills_at_any_moment_blocks_no_thread() {
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
        // Polling an epoll set polls all files in it.
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC);
        let kinds = [reader.into(), writer.into(), socket.into(), null.into(), memory];
        for file in kinds.into_iter().chain(epoll) {
            assert!(!is_event(&file), "{file:?}");
        }
    }
}
