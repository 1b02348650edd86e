//! Descriptors that a front end wants to be told by: events (eventfd(2)), and nothing else.
//!
//! Telling must never wait. What is no event may block however it is set, so it is refused. An
//! event blocks when its counter is full; it is made non-blocking, but whoever sent it has the same
//! open file and can undo that, so it is asked first. A full counter needs no more telling.
//!
//! What is left is a front end that fills the counter between the question and the write.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, OFlags};

/// Makes a descriptor fit to be signalled; false if it is not of the right kind.
pub(super) fn accept(file: &OwnedFd) -> bool {
    // Anonymous inodes have no type: pipes, sockets, terminals and files have. Those of other kinds
    // than events cannot be written to, and refuse at once.
    let is_anonymous = |mode| FileType::from_raw_mode(mode) == FileType::Unknown;
    rustix::fs::fstat(file).is_ok_and(|stat| is_anonymous(stat.st_mode))
        && rustix::fs::fcntl_getfl(file)
            .and_then(|flags| rustix::fs::fcntl_setfl(file, flags | OFlags::NONBLOCK))
            .is_ok()
}

/// Tells whoever waits for the event.
pub(super) fn signal(event: impl AsFd) {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut asked = [PollFd::new(&event, PollFlags::OUT)];
    let has_room = poll(&mut asked, Some(&at_once)).is_ok_and(|ready| ready > 0)
        && asked[0].revents().contains(PollFlags::OUT);
    if has_room {
        // No event at all, or full by now: the front end's own loss.
        let _ = rustix::io::write(&event, &1u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    /// Most that fits into an event.
    const FULL: u64 = u64::MAX - 1;

    /// Goal: no descriptor that a front end can send makes a signal wait. Method: it would wait for
    /// ever.
    #[test]
    fn a_signal_never_waits() {
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        assert!(accept(&event));
        signal(&event);
        let mut count = [0; 8];
        assert_eq!(rustix::io::read(&event, &mut count), Ok(8));
        assert_eq!(u64::from_ne_bytes(count), 1);
        rustix::io::write(&event, &FULL.to_ne_bytes()).unwrap();
        signal(&event);
        // Undone by the other side, whose open file is the same.
        rustix::fs::fcntl_setfl(&event, OFlags::empty()).unwrap();
        signal(&event);
        assert_eq!(rustix::io::read(&event, &mut count), Ok(8));
        assert_eq!(u64::from_ne_bytes(count), FULL);
    }

    #[test]
    fn what_is_no_event_is_refused() {
        let (reader, writer) = std::io::pipe().unwrap();
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let memory = rustix::fs::memfd_create("m", rustix::fs::MemfdFlags::empty()).unwrap();
        for file in [reader.into(), writer.into(), socket.into(), null.into(), memory] {
            assert!(!accept(&file), "{file:?}");
        }
    }
}
