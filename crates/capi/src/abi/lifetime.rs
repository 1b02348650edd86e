//! Making, driving and ending instances, and other calls without a counterpart in POSIX.
#![allow(unsafe_code)]

use super::extensible::read_grown;
use super::shapes::TowpathConfig;
use super::{give, give_done, on, set_errno};
use crate::calls::poll::milliseconds;
use crate::errno::{Errno, Outcome};
use crate::instance::{Config, Instance};
use crate::memory::pointers::{bytes, bytes_mut, file, text};
use libc::{c_char, c_int, c_uint, c_void, size_t};
use rustix::fd::BorrowedFd;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;
use towpath::layers::io::tap::Tap;

/// The version of this library as a number, like `TOWPATH_VERSION` in its header.
#[unsafe(no_mangle)]
pub extern "C" fn towpath_version() -> c_uint {
    VERSION
}

const VERSION: c_uint = {
    number(env!("CARGO_PKG_VERSION_MAJOR")) << 16
        | number(env!("CARGO_PKG_VERSION_MINOR")) << 8
        | number(env!("CARGO_PKG_VERSION_PATCH"))
};

/// Parses a decimal number.
const fn number(text: &str) -> c_uint {
    let (bytes, mut value, mut at) = (text.as_bytes(), 0, 0);
    while at < bytes.len() {
        assert!(bytes[at].is_ascii_digit(), "versions are numbers");
        value = value * 10 + (bytes[at] - b'0') as c_uint;
        at += 1;
    }
    value
}

exported! {
    /// Waits for at most `timeout` milliseconds until all data has arrived. `towpath.h` has the
    /// details.
    fn towpath_finish(of, timeout: c_int) -> c_int {
        give_done(of.finish(milliseconds(timeout)))
    }

    /// Recalls the memory of the calls `first` to `last`. `towpath.h` has the details.
    fn towpath_recall(of, fd: c_int, first: u32, last: u32) -> c_int {
        give_done(on(of, fd, of.recall(fd, first, last)))
    }

    /// Limits what sockets lend. `towpath.h` has the details.
    fn towpath_limit_lent(of, notices: size_t, memory: size_t) -> c_int {
        of.limit_lent(notices, memory);
        0
    }

    /// Fills a `struct towpath_stats` of `size` bytes. `towpath.h` has the details.
    fn towpath_get_stats(of, stats: *mut c_void, size: size_t) -> c_int {
        // SAFETY: the caller vouches for it.
        let room = unsafe { bytes_mut(stats, size) };
        give_done(room.and_then(|room| of.write_stats(room)))
    }

    /// Hands an IP packet to the instance, as if its device had received it. Returns 0, or -1 with
    /// `ENOBUFS` if there is no memory for it.
    fn towpath_input(of, packet: *const c_void, len: size_t) -> c_int {
        // SAFETY: the caller vouches for it.
        let packet = unsafe { bytes(packet, len) };
        give_done(packet.and_then(|packet| of.input(packet)))
    }

    /// Takes the next IP packet that the instance sends, truncated to `len` bytes. Returns its
    /// length, or 0 if there is none.
    fn towpath_output(of, packet: *mut c_void, len: size_t) -> isize {
        // SAFETY: the caller vouches for it.
        let room = unsafe { bytes_mut(packet, len) };
        give(room.map(|room| match of.output() {
            Some(packet) => {
                let count = packet.len().min(room.len());
                room[..count].copy_from_slice(&packet[..count]);
                count
            }
            None => 0,
        }))
    }

    /// Runs the timers that are due. Returns the milliseconds until the next timer, rounded up, or
    /// -1 if there is none.
    fn towpath_run_timers(of) -> c_int {
        match of.run_timers() {
            Some(wait) => c_int::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX),
            None => -1,
        }
    }
}

/// Makes an instance whose packets the caller moves, with `towpath_input`, `towpath_output` and
/// `towpath_run_timers`. `addresses` lists its addresses as text, separated by spaces, each with
/// its prefix length (`192.0.2.1/24`). `mtu` is the size of the largest IP packet. Returns null,
/// with `errno` set, if an argument is invalid.
///
/// # Safety
/// `addresses` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_new(addresses: *const c_char, mtu: c_int) -> *const Instance {
    // SAFETY: the caller vouches for it.
    let made = unsafe { text(addresses) }.and_then(|addresses| {
        let mtu = u16::try_from(mtu).map_err(|_| Errno::INVAL)?;
        let mut config = Config::with_addresses(addresses)?;
        config.host.mtu = mtu;
        Instance::new(&config)
    });
    give_instance(made.map(Arc::new))
}

/// Makes an instance on the TAP interface `name` of this network namespace, and a thread that
/// drives it. Creates the interface if it does not exist. Returns null, with `errno` set, on
/// errors.
///
/// # Safety
/// `name` is null or a string. `config` is null or a structure as long as its first field says,
/// with strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_attach(
    name: *const c_char,
    config: *const TowpathConfig,
) -> *const Instance {
    // SAFETY: the caller vouches for it.
    let made = unsafe { text(name) }.and_then(|name| {
        // SAFETY: the caller vouches for it.
        let config = unsafe { read_config(config) }?;
        Instance::attach(&config, Tap::create(name)?)
    });
    give_instance(made)
}

/// Makes an instance on a file of `/dev/net/tun` that the caller has attached to an interface with
/// `IFF_TAP | IFF_NO_PI | IFF_VNET_HDR`. The instance uses a duplicate. Returns null, with `errno`
/// set, on errors.
///
/// # Safety
/// `config` is null or a structure as long as its first field says, with strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_attach_fd(
    fd: c_int,
    config: *const TowpathConfig,
) -> *const Instance {
    // SAFETY: the caller does not close the file during the call.
    let made = unsafe { file(fd) }.and_then(|fd: BorrowedFd<'_>| {
        // SAFETY: the caller vouches for it.
        let config = unsafe { read_config(config) }?;
        let own = rustix::io::fcntl_dupfd_cloexec(fd, 0)?;
        Instance::attach(&config, Tap::adopt(own)?)
    });
    give_instance(made)
}

/// Ends an instance: closes its sockets, gives unsent data time to arrive, and ends its thread.
/// Does nothing in the child of a fork, where the instance belongs to the parent, and on a thread
/// that has the lock, which the end would need.
///
/// # Safety
/// `instance` is null, or was made by this library and is not used by any thread any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_free(instance: *const Instance) {
    if !instance.is_null() {
        // SAFETY: the caller vouches for it, and `give_instance` made the pointer with `into_raw`.
        let instance = ManuallyDrop::new(unsafe { Arc::from_raw(instance) });
        // In a child the thread, for which the end would wait, exists only in the parent.
        if instance.check_caller().is_ok() {
            let instance = ManuallyDrop::into_inner(instance);
            instance.close_and_wait();
            instance.end();
        }
    }
}

/// The instance as a pointer for C; null with `errno` set for errors.
fn give_instance(made: Outcome<Arc<Instance>>) -> *const Instance {
    match made {
        Ok(instance) => Arc::into_raw(instance),
        Err(errno) => {
            set_errno(errno);
            std::ptr::null()
        }
    }
}

/// Reads a configuration. Fields that this library does not know must be zero (`E2BIG`); fields
/// that the program does not know count as zero.
///
/// # Safety
/// `config` is null or names as many bytes as its first field says, with strings.
unsafe fn read_config(config: *const TowpathConfig) -> Outcome<Config> {
    if config.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller vouches at least for the first field, which is the size.
    let size = unsafe { config.cast::<size_t>().read() };
    // SAFETY: the caller vouches for `size` bytes.
    let given = unsafe { read_grown(config, size) }?;
    if given.reserved != [0; 6] || !(0..=1).contains(&given.zerocopy_auto) || given.mac[0] & 1 != 0
    {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller vouches for it.
    let mut config = Config::with_addresses(unsafe { text(given.addresses) }?)?;
    if !given.gateways.is_null() {
        // SAFETY: the caller vouches for it.
        config = config.with_gateways(unsafe { text(given.gateways) }?)?;
    }
    if given.memory != 0 {
        config.host.memory = given.memory;
    }
    if given.mtu != 0 {
        config.host.mtu = u16::try_from(given.mtu).map_err(|_| Errno::INVAL)?;
    }
    if given.file_cache != 0 {
        config.host.file_cache = given.file_cache;
    }
    if given.linger != 0 {
        config.linger = Duration::from_millis(u64::try_from(given.linger).unwrap_or(0));
    }
    config.lends_auto = given.zerocopy_auto != 0;
    config.host.mac = (given.mac != [0; 6]).then_some(given.mac);
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::super::extensible::Extensible;
    use super::*;

    const FIRST: usize = TowpathConfig::FIRST;

    /// Goal: fields that a program does not know count as zero, whatever lies behind its structure.
    /// A structure shorter than the first version is rejected.
    #[test]
    fn a_configuration_is_as_long_as_the_program_knows_it() {
        let given = |size| TowpathConfig {
            size,
            addresses: c"192.0.2.1/24".as_ptr(),
            gateways: std::ptr::null(),
            memory: 2 << 20,
            mtu: 0,
            mac: [0; 6],
            reserved: [0; 6],
            file_cache: 12_345,
            linger: -1,
            zerocopy_auto: 1,
        };
        let read = |size| {
            let given = given(size);
            // SAFETY: it has at least `size` bytes; its one pointer to a string is valid.
            unsafe { read_config(&raw const given) }
        };
        let usual = Config::default().host.file_cache;
        for (size, files) in [(FIRST, usual), (size_of::<TowpathConfig>(), 12_345)] {
            let config = read(size).expect("a configuration");
            let host = &config.host;
            assert_eq!((host.file_cache, host.memory, host.mtu), (files, 2 << 20, 1500));
            assert_eq!(config.linger.is_zero(), size == size_of::<TowpathConfig>());
            assert_eq!(config.lends_auto, size == size_of::<TowpathConfig>());
        }
        for size in [0, 8, FIRST - 1] {
            assert_eq!(read(size).err(), Some(Errno::INVAL), "{size}");
        }
    }
}
