//! The stack of this process, from its settings to its end.
//!
//! The settings are read when the library is loaded; wrong ones end the program. The stack is
//! attached when the program makes its first Internet socket. If that fails, this and all later
//! such calls fail with `ENETDOWN`: the program never gets a socket of the kernel instead.
//!
//! A forked child has a copy of the parent's stack without its thread, and cannot use it. A child
//! of `vfork` shares even the memory of the parent, and must change nothing in it.
//!
//! A signal handler may interrupt a call that has a lock. Calls that it makes fail with `EDEADLK`,
//! as do those of the thread after the handler has left by `longjmp`: they would never return.

use crate::next::Outcome;
use crate::options::{Link, Options, VARIABLE};
use crate::table::{self, Entry};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{Pid, Resource, getpid, getrlimit};
use std::fmt::Display;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Once, OnceLock};
use towpath::driver::{AnyDevice, boxed};
use towpath::layers::io::stream::StreamPort;
use towpath::layers::io::tap::Tap;
use towpath::layers::packet::sync::{AtomicBool, Ordering};
use towpath_capi::{Errno, Held, Instance};

/// Exit code of a program whose settings are wrong, as of the command.
const WRONG_SETTINGS: i32 = 2;
/// Printed at the first call within another one.
const WITHIN: &[u8] = b"towpath: TOWPATH_PRELOAD: a signal handler has interrupted a call on a \
socket and makes another one, or it has left that call by longjmp; calls of this thread on sockets \
fail with EDEADLK until the interrupted call ends, which it never does if it was left; let the \
handler only set a flag, or block the signal during calls\n";
/// Numbers below are usually for files of the program. Each start occupies them for a moment.
const OWN_FILES_FROM: u64 = 512;

static OPTIONS: OnceLock<Options> = OnceLock::new();
/// `None` if the stack could not be attached.
static STACK: OnceLock<Option<Stack>> = OnceLock::new();

/// An attached stack.
struct Stack {
    instance: Arc<Instance>,
    /// The process that attached it.
    pid: Pid,
}

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The process that attached the stack, or one that has none.
    Owner,
    /// A forked child of it.
    Fork,
    /// A child that shares the memory of its parent.
    Vfork,
}

/// Reads the settings. Ends the program if they are wrong.
pub(crate) fn options() -> &'static Options {
    OPTIONS.get_or_init(|| {
        let text = std::env::var_os(VARIABLE);
        let read = match text.as_ref().map(|text| text.to_str()) {
            Some(Some(text)) => Options::parse(text),
            Some(None) => Err("the text is not UTF-8".into()),
            None => Err("it is not set, but this library is preloaded; set it, for example to \
                         tap:tap0,address=192.0.2.2/24,gateway=192.0.2.1"
                .into()),
        };
        read.unwrap_or_else(|message| {
            report(&message);
            std::process::exit(WRONG_SETTINGS)
        })
    })
}

/// Checks that this thread has no lock of the library. `EDEADLK` otherwise, and a message at the
/// first time: without a call that allocates, as the handler may have interrupted one.
pub(crate) fn check_not_within() -> Outcome<()> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !Held::is_any() {
        return Ok(());
    }
    // Relaxed: the flag orders nothing.
    if !TOLD.swap(true, Ordering::Relaxed) {
        // Nothing can be done about a closed standard error.
        let _ = rustix::io::write(io::stderr(), WITHIN);
    }
    Err(Errno(libc::EDEADLK))
}

/// The stack, which is attached at the first call. `ENETDOWN` if that is not possible, `EPERM` in a
/// forked child, `EDEADLK` within another call.
pub(crate) fn attached() -> Outcome<&'static Arc<Instance>> {
    static CHILD: Once = Once::new();
    check_not_within()?;
    let stack = match STACK.get() {
        Some(stack) => stack,
        None => {
            let _held = Held::count();
            STACK.get_or_init(attach)
        }
    };
    match stack {
        Some(stack) if stack.instance.is_ours() => Ok(&stack.instance),
        Some(_) => {
            CHILD.call_once(|| {
                report(&format_args!(
                    "process {} is a forked child; it cannot use the sockets of its parent, nor \
                     make new ones, which fails with EPERM; a program that it executes can",
                    getpid().as_raw_pid()
                ));
            });
            Err(Errno(libc::EPERM))
        }
        None => Err(Errno(libc::ENETDOWN)),
    }
}

/// The pointer with which the functions of `towpath.h` take the stack; null if there is none. These
/// functions themselves refuse a forked child and a call within another one, which is reported
/// here.
pub(crate) fn pointer() -> *const Instance {
    let _ = check_not_within();
    let stack = STACK.get().and_then(Option::as_ref);
    stack.map_or(std::ptr::null(), |stack| Arc::as_ptr(&stack.instance))
}

/// Who calls.
pub(crate) fn caller() -> Caller {
    match STACK.get() {
        Some(Some(stack)) if !stack.instance.is_ours() => Caller::Fork,
        Some(Some(stack)) if stack.pid != getpid() => Caller::Vfork,
        _ => Caller::Owner,
    }
}

/// Closes all sockets and gives unsent data time to arrive, at the end of the program.
pub(crate) fn finish() {
    if let Some(Some(stack)) = STACK.get()
        && caller() == Caller::Owner
        && check_not_within().is_ok()
    {
        // The stack closes the numbers, which must not come back to it.
        for fd in (0..table::end()).filter(|fd| table::is_socket(*fd)) {
            table::set(fd, Entry::Kernel);
        }
        stack.instance.close_and_wait();
    }
}

/// Prints a message for the user.
fn report(message: &dyn Display) {
    // Nothing can be done about a closed standard error.
    let _ = writeln!(io::stderr(), "towpath: {VARIABLE}: {message}");
}

fn attach() -> Option<Stack> {
    let options = options();
    match attach_to(options) {
        Ok(instance) => Some(Stack { instance, pid: getpid() }),
        Err(message) => {
            report(&format_args!("{message}; sockets of this program fail with ENETDOWN"));
            None
        }
    }
}

fn attach_to(options: &Options) -> Result<Arc<Instance>, String> {
    let config = &options.config;
    let system = |Errno(number)| {
        format!("the stack does not start: {}", io::Error::from_raw_os_error(number))
    };
    let placeholder = placeholder().map_err(system)?;
    let occupied = occupy(&placeholder);
    let made = match &options.link {
        Link::Tap(name) => {
            let tap =
                Tap::create(name).map_err(|error| format!("TAP interface {name}: {error}"))?;
            Instance::attach(config, tap)
        }
        Link::Stream(path) => {
            let device = connect(path, config.host.mtu)
                .map_err(|error| format!("stream socket {}: {error}", path.display()))?;
            Instance::attach_device(config, device)
        }
    };
    let own = made.and_then(|instance| {
        let placeholder = rustix::io::fcntl_dupfd_cloexec(&placeholder, own_files_from())?;
        instance.reserve_with(placeholder, own_files_from());
        Ok((instance.own_files()?, instance))
    });
    let (files, instance) = own.map_err(system)?;
    files.into_iter().for_each(hide);
    drop(occupied);
    Ok(instance)
}

/// What reserves the numbers of sockets: itself a socket, which is never connected. A system call
/// that reaches it fails, and `fstat` reports a socket.
fn placeholder() -> Outcome<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Files of this library have numbers from here on, so that programs can put files of their own at
/// low numbers, as shells do: 512, or half of what the process may have.
pub(crate) fn own_files_from() -> i32 {
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    (most / 2).min(OWN_FILES_FROM) as i32
}

/// Occupies the free numbers below: files that are opened meanwhile get higher ones.
fn occupy(file: &OwnedFd) -> Vec<OwnedFd> {
    let (end, mut occupied) = (own_files_from(), Vec::new());
    while let Ok(number) = rustix::io::fcntl_dupfd_cloexec(file, 0)
        && number.as_raw_fd() < end
    {
        occupied.push(number);
    }
    occupied
}

/// Hides a file of this library from the program, which then cannot close it.
pub(crate) fn hide(fd: i32) {
    // A number beyond the table is not protected.
    table::set(fd, Entry::Own);
}

/// Connects to a socket that takes a stream of frames.
fn connect(path: &Path, mtu: u16) -> io::Result<AnyDevice> {
    let socket = UnixStream::connect(path)?;
    socket.set_nonblocking(true)?;
    hide(socket.as_raw_fd());
    let port = StreamPort::from_socket(OwnedFd::from(socket), mtu).map_err(io::Error::other)?;
    Ok(boxed(port))
}
