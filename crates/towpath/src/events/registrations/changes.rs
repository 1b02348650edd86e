//! Changes of files and directories, through one inotify instance per queue.
//!
//! The kernel keeps one watch per file, however often it is registered; each registration of the
//! file gets the change.

use crate::events::Token;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;

/// Bytes per read: room for more than a hundred events with names.
const READ_BYTES: usize = 8192;

/// Changes of a file or directory since the last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Changes {
    /// The file, or a file in the directory, was written to or truncated.
    pub modified: bool,
    /// Attributes of the file or of a file in the directory have changed, such as its mode or its
    /// number of links.
    pub attributes: bool,
    /// The file, or a file in the directory, was open for writing and was closed.
    pub written: bool,
    /// A file was created in the directory or moved into it.
    pub created: bool,
    /// A file was removed from the directory or moved out of it.
    pub deleted: bool,
    /// The file or directory was renamed or moved.
    pub moved: bool,
    /// The file or directory, or its file system, is gone: there are no further reports.
    pub removed: bool,
    /// The kernel's event queue overflowed: any change may have happened.
    pub missed: bool,
}

impl Changes {
    fn add(&mut self, events: ReadFlags) {
        let has = |flags: ReadFlags| events.intersects(flags);
        self.modified |= has(ReadFlags::MODIFY);
        self.attributes |= has(ReadFlags::ATTRIB);
        self.written |= has(ReadFlags::CLOSE_WRITE);
        self.created |= has(ReadFlags::CREATE | ReadFlags::MOVED_TO);
        self.deleted |= has(ReadFlags::DELETE | ReadFlags::MOVED_FROM);
        self.moved |= has(ReadFlags::MOVE_SELF);
        self.removed |= has(ReadFlags::DELETE_SELF | ReadFlags::UNMOUNT);
        self.missed |= has(ReadFlags::QUEUE_OVERFLOW);
    }
}

/// Number of an inotify watch.
pub(in crate::events) type Watch = i32;

/// The inotify instance of a queue. See the module documentation.
pub(in crate::events) struct Inotify {
    fd: OwnedFd,
    watches: HashMap<Watch, Vec<Token>>,
}

impl Inotify {
    pub(in crate::events) fn new() -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self { fd, watches: HashMap::new() })
    }

    pub(in crate::events) fn add(&mut self, path: &Path, token: Token) -> io::Result<Watch> {
        let flags = WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::MOVE_SELF
            | WatchFlags::DELETE_SELF;
        let watch = inotify::add_watch(&self.fd, path, flags)?;
        self.watches.entry(watch).or_default().push(token);
        Ok(watch)
    }

    pub(in crate::events) fn remove(&mut self, watch: Watch, token: Token) {
        let Some(tokens) = self.watches.get_mut(&watch) else { return };
        tokens.retain(|other| *other != token);
        if tokens.is_empty() {
            self.watches.remove(&watch);
            // Fails if the file is gone: the kernel has ended the watch already.
            let _ = inotify::remove_watch(&self.fd, watch);
        }
    }

    /// Reads some of the pending events. Calls `each` with the registration and a function that
    /// notes the change. The descriptor stays readable if there are more.
    pub(in crate::events) fn read(&mut self, mut each: impl FnMut(Token, &dyn Fn(&mut Changes))) {
        let mut buffer = [MaybeUninit::uninit(); READ_BYTES];
        let mut reader = Reader::new(&self.fd, &mut buffer);
        while let Ok(event) = reader.next() {
            let (watch, events) = (event.wd(), event.events());
            let note = move |changes: &mut Changes| changes.add(events);
            if events.contains(ReadFlags::QUEUE_OVERFLOW) {
                self.watches.values().flatten().for_each(|&token| each(token, &note));
            } else if let Some(tokens) = self.watches.get(&watch) {
                tokens.iter().for_each(|&token| each(token, &note));
            }
            if events.contains(ReadFlags::IGNORED) {
                self.watches.remove(&watch);
            }
            if reader.is_buffer_empty() {
                break;
            }
        }
    }
}

impl AsFd for Inotify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
