//! What the numbers of descriptors stand for.
//!
//! The table is an array, one word for each number, because every `read` and `write` of the program
//! looks into it. A number with an entry other than [`Entry::Kernel`] is reserved in the kernel, so
//! no other file gets it meanwhile. Any thread may call, also in a signal handler.

use towpath::layers::packet::sync::{AtomicU32, AtomicUsize, Ordering};

/// Numbers in the table: as many as the kernel permits by default (`fs.nr_open`).
pub(crate) const NUMBERS_MAX: usize = 1 << 20;

/// What a number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A file of the kernel, or nothing.
    Kernel,
    /// A socket of the stack.
    Socket,
    /// A file that this library uses itself. The program did not open it.
    Own,
    /// An epoll set of the kernel, with a set of the stack for the sockets in it.
    Set(i32),
}

/// Words of the entries; a set of the stack has its number and `SET`.
const KERNEL: u32 = 0;
const SOCKET: u32 = 1;
const OWN: u32 = 2;
const SET: u32 = 3;

static ENTRIES: [AtomicU32; NUMBERS_MAX] = [const { AtomicU32::new(KERNEL) }; NUMBERS_MAX];
/// The entries from here on have always been [`Entry::Kernel`].
static END: AtomicUsize = AtomicUsize::new(0);

fn place(fd: i32) -> Option<&'static AtomicU32> {
    ENTRIES.get(usize::try_from(fd).ok()?)
}

/// What a number stands for.
#[inline]
pub(crate) fn entry(fd: i32) -> Entry {
    // Relaxed: only the word itself is used. A thread that uses a descriptor got its number from
    // the call that made it, which had changed the entry before.
    match place(fd).map_or(KERNEL, |place| place.load(Ordering::Relaxed)) {
        KERNEL => Entry::Kernel,
        SOCKET => Entry::Socket,
        OWN => Entry::Own,
        set => Entry::Set((set - SET) as i32),
    }
}

/// True for a socket of the stack.
#[inline]
pub(crate) fn is_socket(fd: i32) -> bool {
    entry(fd) == Entry::Socket
}

/// Changes an entry. False if the number is beyond the table.
pub(crate) fn set(fd: i32, entry: Entry) -> bool {
    let Some(place) = place(fd) else { return false };
    let word = match entry {
        Entry::Kernel => KERNEL,
        Entry::Socket => SOCKET,
        Entry::Own => OWN,
        Entry::Set(inner) => SET + inner as u32,
    };
    // Relaxed: see `entry`. The end is a bound only.
    END.fetch_max(fd as usize + 1, Ordering::Relaxed);
    place.store(word, Ordering::Relaxed);
    true
}

/// The numbers from here on are the kernel's.
pub(crate) fn end() -> i32 {
    // Relaxed: see `entry`.
    END.load(Ordering::Relaxed) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: entries are what they were set to, and every other number is the kernel's.
    #[test]
    fn entries_are_found() {
        let all = [Entry::Socket, Entry::Own, Entry::Set(0), Entry::Set(i32::MAX - 3)];
        for (fd, entry_set) in (500..).zip(all) {
            assert!(set(fd, entry_set));
            assert_eq!(entry(fd), entry_set);
            assert!(end() > fd);
        }
        assert!(set(501, Entry::Kernel));
        let last = NUMBERS_MAX as i32 - 1;
        for fd in [-1, i32::MIN, 0, 501, 504, last, last + 1, i32::MAX] {
            assert_eq!(entry(fd), Entry::Kernel, "{fd}");
        }
        assert!(!set(last + 1, Entry::Socket) && !set(-1, Entry::Socket));
    }
}
