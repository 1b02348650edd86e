//! Files and directories that change, by one inotify instance of the queue.
//!
//! The kernel has one watch for each file, however often it is registered; each registration of the
//! file hears of it.

use crate::events::Token;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;

/// Bytes that are read at a time: more than a hundred events with names.
const READ_BYTES: usize = 8192;

/// What became of a file or directory since it was last told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Changes {
    /// It was written to or cut, or a file in the directory was.
    pub modified: bool,
    /// Its attributes have changed, such as its mode or its number of links; or those of a file in
    /// the directory.
    pub attributes: bool,
    /// Somebody who had it open for writing, or a file in the directory, has closed it.
    pub written: bool,
    /// A file was made in the directory or moved into it.
    pub created: bool,
    /// A file was removed from the directory or moved out of it.
    pub deleted: bool,
    /// It has another name now, or is elsewhere.
    pub moved: bool,
    /// It is gone, or its file system is: nothing more is told.
    pub removed: bool,
    /// There were more changes than the kernel keeps; whatever there may be has happened.
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

/// Number of a watch.
pub(in crate::events) type Watch = i32;

/// See the module's documentation.
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
            // The kernel has ended it already if the file is gone.
            let _ = inotify::remove_watch(&self.fd, watch);
        }
    }

    /// Reads some of what there is, and calls `each` with what to note for whom. It is readable
    /// still if there is more.
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
