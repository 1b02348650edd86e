//! The steps that need capabilities: opening the sockets of uplinks and attaching XDP programs. In
//! a confined process the broker takes them.

use super::calls;
use super::error::{Problem, Step, UplinkError};
use super::settings::Mode;
use crate::netlink::Netlink;
use crate::netlink::links::Link;
use crate::outside::{self, Answer, Wanted};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

/// Bytes of frames that may wait in each direction of a socket: 64 super-packets, and as many
/// again for the kernel's own structures around them.
pub const SOCKET_BUFFER_BYTES: usize = 8 << 20;

/// A socket for an interface.
pub(super) struct Opened {
    pub(super) socket: OwnedFd,
    pub(super) index: u32,
    pub(super) mtu: u32,
}

/// An attached XDP program. It is detached when `link` is dropped.
pub(super) struct Attached {
    pub(super) link: OwnedFd,
    pub(super) is_native: bool,
}

/// Opens a packet socket for all frames that arrive at `interface`, with virtio-net headers.
pub(super) fn packet(interface: &str) -> Result<Opened, UplinkError> {
    let opened = match outside::ask(Wanted::Packet, 0, interface.as_bytes(), None) {
        Some(answer) => opened(answer),
        None => packet_here(interface),
    };
    opened.map_err(|problem| problem.of(interface))
}

/// Opens an AF_XDP socket in the network namespace of `interface`. It is not bound yet.
pub(super) fn xdp(interface: &str) -> Result<Opened, UplinkError> {
    let opened = match outside::ask(Wanted::Xdp, 0, interface.as_bytes(), None) {
        Some(answer) => opened(answer),
        None => xdp_here(interface),
    };
    opened.map_err(|problem| problem.of(interface))
}

/// Attaches a program that passes the frames of `queue` of `interface` to `socket`, which is bound.
pub(super) fn attach(
    interface: &str,
    queue: u32,
    mode: Mode,
    socket: BorrowedFd<'_>,
) -> Result<Attached, UplinkError> {
    let number = u64::from(queue) << 8 | mode as u64;
    let attached =
        match outside::ask(Wanted::XdpProgram, number, interface.as_bytes(), Some(socket)) {
            Some(answer) => self::answer(answer).and_then(|(file, [_, _, is_native, _])| {
                let link = file.ok_or(Problem::Os(Step::Attach, Errno::PROTO))?;
                Ok(Attached { link, is_native: is_native != 0 })
            }),
            None => attach_here(interface, queue, mode, socket),
        };
    attached.map_err(|problem| problem.of(interface))
}

/// The broker's part of [`packet`].
pub(crate) fn packet_for(interface: &str) -> Answer {
    opened_answer(packet_here(interface))
}

/// The broker's part of [`xdp`].
pub(crate) fn xdp_for(interface: &str) -> Answer {
    opened_answer(xdp_here(interface))
}

/// The broker's part of [`attach`].
pub(crate) fn attach_for(
    interface: &str,
    number: u64,
    socket: BorrowedFd<'_>,
) -> Result<Answer, Errno> {
    let mode = Mode::ALL.into_iter().find(|mode| *mode as u64 == number & 0xff);
    let queue = u32::try_from(number >> 8).map_err(|_| Errno::INVAL)?;
    Ok(match attach_here(interface, queue, mode.ok_or(Errno::INVAL)?, socket) {
        Ok(Attached { link, is_native }) => {
            Answer { numbers: [0, 0, is_native.into(), 0], file: Some(link), ..Answer::default() }
        }
        Err(problem) => problem_answer(problem),
    })
}

fn packet_here(interface: &str) -> Result<Opened, Problem> {
    let link = find(interface)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Without a protocol it receives nothing until it is bound.
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
        .map_err(|errno| Problem::at(Step::Socket, errno))?;
    let opened = Opened { socket, index: link.index, mtu: link.mtu };
    set_options(&opened).map_err(|errno| Problem::at(Step::Options, errno))?;
    calls::bind_packet(opened.socket.as_fd(), link.index)
        .map_err(|errno| Problem::at(Step::Bind, errno))?;
    Ok(opened)
}

fn set_options(opened: &Opened) -> Result<(), Errno> {
    let socket = opened.socket.as_fd();
    let set = |level, name, value: &[u8]| crate::sys::set_option(socket, level, name, value);
    let on = 1_i32.to_ne_bytes();
    set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, &on)?;
    set(libc::SOL_PACKET, libc::PACKET_AUXDATA, &on)?;
    set(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &on)?;
    // Linux 4.20. Otherwise the port would receive what the host's own stack sends.
    set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &on)?;
    // `struct packet_mreq`: index, type, length of the address, address.
    let mut member = [0; 16];
    member[..4].copy_from_slice(&opened.index.to_ne_bytes());
    member[4..6].copy_from_slice(&(libc::PACKET_MR_PROMISC as u16).to_ne_bytes());
    set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &member)?;
    widen(socket)
}

/// Sets the sizes of the socket's buffers: above the system's limit with CAP_NET_ADMIN, else up to
/// it.
fn widen(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let size = SOCKET_BUFFER_BYTES;
    sockopt::set_socket_recv_buffer_size_force(socket, size)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, size))?;
    sockopt::set_socket_send_buffer_size_force(socket, size)
        .or_else(|_| sockopt::set_socket_send_buffer_size(socket, size))
}

fn xdp_here(interface: &str) -> Result<Opened, Problem> {
    let link = find(interface)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)
        .map_err(|errno| Problem::at(Step::Socket, errno))?;
    widen(socket.as_fd()).map_err(|errno| Problem::at(Step::Options, errno))?;
    Ok(Opened { socket, index: link.index, mtu: link.mtu })
}

fn attach_here(
    interface: &str,
    queue: u32,
    mode: Mode,
    socket: BorrowedFd<'_>,
) -> Result<Attached, Problem> {
    let Link { index, .. } = find(interface)?;
    let loading = |errno| Problem::at(Step::Program, errno);
    let map = calls::create_socket_map(queue.saturating_add(1)).map_err(loading)?;
    calls::put_socket(map.as_fd(), queue, socket).map_err(loading)?;
    let program = calls::load_program(map.as_fd()).map_err(loading)?;
    // The link keeps the program, which keeps the map.
    let attach = |is_native| {
        let link = calls::attach_program(program.as_fd(), index, is_native)?;
        Ok(Attached { link, is_native })
    };
    let generic = || attach(false).map_err(generic_problem);
    match mode {
        Mode::Generic => generic(),
        Mode::Native => attach(true).map_err(native_problem),
        Mode::Auto => attach(true).or_else(|errno| match native_problem(errno) {
            Problem::NoNative(_) => generic(),
            problem => Err(problem),
        }),
    }
}

/// Why a program was not attached in native mode. The kernel and the drivers use several errors for
/// what an interface does not support.
fn native_problem(errno: Errno) -> Problem {
    match Problem::at(Step::Attach, errno) {
        Problem::Os(..) => Problem::NoNative(errno),
        problem => problem,
    }
}

/// Why a program was not attached in generic mode. Every interface supports that, so only a kernel
/// without such links refuses the command itself.
fn generic_problem(errno: Errno) -> Problem {
    match errno {
        Errno::INVAL => Problem::NoLinks,
        errno => Problem::at(Step::Attach, errno),
    }
}

/// Looks up an interface that can be an uplink.
fn find(interface: &str) -> Result<Link, Problem> {
    let found = Netlink::open().and_then(|mut netlink| netlink.link(interface));
    let failed = |errno: Option<Errno>| Problem::Os(Step::Lookup, errno.unwrap_or(Errno::IO));
    let link = found.map_err(|error| failed(error.errno()))?.ok_or(Problem::Missing)?;
    if link.is_ethernet { Ok(link) } else { Err(Problem::NotEthernet) }
}

fn opened_answer(opened: Result<Opened, Problem>) -> Answer {
    match opened {
        Ok(Opened { socket, index, mtu }) => Answer {
            numbers: [0, 0, index.into(), mtu.into()],
            file: Some(socket),
            ..Answer::default()
        },
        Err(problem) => problem_answer(problem),
    }
}

fn opened(answer: Result<Answer, Errno>) -> Result<Opened, Problem> {
    let (file, [_, _, index, mtu]) = self::answer(answer)?;
    let socket = file.ok_or(Problem::Os(Step::Socket, Errno::PROTO))?;
    Ok(Opened { socket, index: index as u32, mtu: mtu as u32 })
}

/// The answer of a broker that failed: a number for the problem, and its error number if it has
/// one.
fn problem_answer(problem: Problem) -> Answer {
    let (number, errno) = match problem {
        Problem::Os(step, errno) => (step as u64, Some(errno)),
        Problem::NoNative(errno) => (NO_NATIVE, Some(errno)),
        plain => {
            let at = PLAIN.iter().position(|known| *known == plain).unwrap_or(PLAIN.len());
            (FIRST_PLAIN + at as u64, None)
        }
    };
    let errno = errno.map_or(0, |errno| errno.raw_os_error() as u64);
    Answer { numbers: [number, errno, 0, 0], ..Answer::default() }
}

/// Reads the answer of a broker.
fn answer(answer: Result<Answer, Errno>) -> Result<(Option<OwnedFd>, [u64; 4]), Problem> {
    let Answer { numbers, file, .. } = answer.map_err(|errno| match errno {
        Errno::PERM => Problem::NotListed,
        errno => Problem::Os(Step::Socket, errno),
    })?;
    let [number, errno, ..] = numbers;
    // Other numbers than those of errors come from no broker of ours.
    let errno = match i32::try_from(errno) {
        Ok(errno @ 1..4096) => Errno::from_raw_os_error(errno),
        _ => Errno::PROTO,
    };
    let plain = || PLAIN.get(number.checked_sub(FIRST_PLAIN)? as usize).copied();
    match (number, Step::from_number(number)) {
        (0, _) => Ok((file, numbers)),
        (_, Some(step)) => Err(Problem::Os(step, errno)),
        (NO_NATIVE, None) => Err(Problem::NoNative(errno)),
        _ => Err(plain().unwrap_or(Problem::Os(Step::Socket, Errno::PROTO))),
    }
}

/// Number of [`Problem::NoNative`] in an answer.
const NO_NATIVE: u64 = 99;
/// Number of the first of [`PLAIN`] in an answer.
const FIRST_PLAIN: u64 = 100;
/// Problems without an error number that a broker reports.
const PLAIN: [Problem; 7] = [
    Problem::Missing,
    Problem::NotEthernet,
    Problem::SocketForbidden,
    Problem::ProgramForbidden,
    Problem::Unsupported,
    Problem::NoLinks,
    Problem::ProgramAttached,
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a confined process reports the same problem as another one.
    #[test]
    fn problems_survive_the_way_through_a_broker() {
        let others = [Problem::Os(Step::Bind, Errno::IO), Problem::NoNative(Errno::OPNOTSUPP)];
        for problem in PLAIN.into_iter().chain(others) {
            assert_eq!(answer(Ok(problem_answer(problem))).unwrap_err(), problem);
        }
        assert_eq!(answer(Err(Errno::PERM)).unwrap_err(), Problem::NotListed);
        let unknown = Answer { numbers: [5000, 0, 0, 0], ..Answer::default() };
        assert!(matches!(answer(Ok(unknown)), Err(Problem::Os(..))));
    }

    /// The kernel and drivers report what they do not support by several errors.
    #[test]
    fn auto_falls_back_only_where_it_helps() {
        for errno in [Errno::OPNOTSUPP, Errno::INVAL, Errno::RANGE, Errno::NOTCONN] {
            assert_eq!(native_problem(errno), Problem::NoNative(errno));
        }
        assert_eq!(native_problem(Errno::BUSY), Problem::ProgramAttached);
        assert_eq!(native_problem(Errno::PERM), Problem::ProgramForbidden);
        assert_eq!(generic_problem(Errno::INVAL), Problem::NoLinks);
    }
}
