//! The kernel's zero-copy sends (`MSG_ZEROCOPY`), on sockets that the caller created.
//!
//! Lent memory must stay valid and unchanged until the kernel reports its return. It is `'static`
//! here, so that callers cannot get this wrong. Returns are reported as ranges of call numbers;
//! each socket counts the calls that lent memory from zero.
//!
//! A call blocks if its socket is blocking. Follows Documentation/networking/msg_zerocopy.rst.

use super::message::{ADDRESS_BYTES, Control, array, control_messages};
use super::set_int;
use crate::gather::Gather;
use crate::sys;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::io;

/// `SO_EE_ORIGIN_ZEROCOPY`, from linux/errqueue.h.
const ORIGIN_ZEROCOPY: u8 = 5;
/// `SO_EE_CODE_ZEROCOPY_COPIED`.
const CODE_COPIED: u8 = 1;

/// Calls whose memory has returned to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentReturn {
    /// Number of the first of these calls.
    pub first: u32,
    /// Number of the last of these calls.
    pub last: u32,
    /// True if the kernel copied the bytes instead of borrowing them.
    pub copied: bool,
}

impl LentReturn {
    /// Number of calls in the range.
    pub fn calls(&self) -> u32 {
        self.last.wrapping_sub(self.first).wrapping_add(1)
    }
}

/// Lets [`send_lent`] lend memory on this socket (`SO_ZEROCOPY`).
pub fn enable_lending(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_int(socket, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1)
}

/// Segments what this datagram socket sends into datagrams of `bytes` each (`UDP_SEGMENT`).
pub fn segment_datagrams(socket: BorrowedFd<'_>, bytes: u16) -> io::Result<()> {
    set_int(socket, libc::SOL_UDP, libc::UDP_SEGMENT, bytes.into())
}

/// Lets the kernel deliver several datagrams of one sender as one message (`UDP_GRO`).
pub fn coalesce_datagrams(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_int(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// Sends without copying; returns the number of bytes sent. Each successful call gets the next call
/// number, even if it sent only a part.
///
/// # Errors
/// Those of `send(2)`. `ENOBUFS` if too many returns are unread or too much memory is lent.
pub fn send_lent(socket: BorrowedFd<'_>, bytes: &'static [u8]) -> io::Result<usize> {
    let mut gather = Gather::<1>::new();
    gather.push_bytes(bytes);
    let flags = libc::MSG_ZEROCOPY | libc::MSG_NOSIGNAL;
    Ok(sys::send_gather(socket, &gather, &[], &[], flags)?)
}

/// Returns the next reported return; `None` if there is none yet. Never waits.
pub fn take_return(socket: BorrowedFd<'_>) -> io::Result<Option<LentReturn>> {
    let mut address = [0; ADDRESS_BYTES];
    let mut control = Control::new();
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    loop {
        match sys::receive_message(socket, &mut [], &mut address, &mut control.0, flags) {
            // Other entries, such as ICMP errors, are skipped.
            Ok(received) => match decode(&control.0[..received.control_len]) {
                Some(returned) => return Ok(Some(returned)),
                None => continue,
            },
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Decodes a return from `control` messages (`sock_extended_err`).
fn decode(control: &[u8]) -> Option<LentReturn> {
    let is_error = |level, kind| {
        (level, kind) == (libc::IPPROTO_IP, libc::IP_RECVERR)
            || (level, kind) == (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
    };
    let message =
        control_messages(control).find(|message| is_error(message.level, message.kind))?;
    let [origin, _, code, _] = array(message.data, 4)?;
    let first = u32::from_ne_bytes(array(message.data, 8)?);
    let last = u32::from_ne_bytes(array(message.data, 12)?);
    let copied = code & CODE_COPIED != 0;
    (origin == ORIGIN_ZEROCOPY).then_some(LentReturn { first, last, copied })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::{Events, Interest, Reactor};
    use rustix::fd::AsFd;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::thread;
    use std::time::Duration;

    /// Goal: lent bytes arrive, and the return of each call is reported once.
    #[test]
    fn the_kernel_reports_every_call() {
        const CALLS: u32 = 8;
        const BYTES: usize = 64 << 10;
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (mut peer, _) = listener.accept().expect("a connection");
        let reader = thread::spawn(move || {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).map(|_| all)
        });
        enable_lending(stream.as_fd()).expect("Linux 4.14");
        let memory: &'static [u8] = (0..BYTES).map(|at| at as u8).collect::<Vec<_>>().leak();
        let mut sent = 0;
        for _ in 0..CALLS {
            sent += send_lent(stream.as_fd(), memory).expect("sent");
        }
        let mut reactor = Reactor::new().expect("epoll");
        reactor.add(&stream, 0, Interest::READ, false).expect("add");
        let mut reported = 0;
        while reported < CALLS {
            let Some(returned) = take_return(stream.as_fd()).expect("a queue") else {
                let mut events = Events::new();
                reactor.wait(Some(Duration::from_secs(30)), &mut events).expect("wait");
                assert!(events.len() == 1, "{reported} of {CALLS} returns");
                continue;
            };
            assert_eq!(returned.first, reported, "in order: one connection has one path");
            reported += returned.calls();
        }
        assert_eq!(take_return(stream.as_fd()).expect("a queue"), None);
        drop((reactor, stream));
        let all = reader.join().expect("no panic").expect("read");
        assert_eq!(all.len(), sent);
        assert!(all.iter().enumerate().all(|(at, byte)| *byte == at as u8));
    }

    #[test]
    fn what_is_no_return_is_not_read_as_one() {
        let mut entry = Vec::from(0_u32.to_ne_bytes());
        entry.extend([ORIGIN_ZEROCOPY, 0, CODE_COPIED, 0]);
        entry.extend(u32::MAX.to_ne_bytes());
        entry.extend(1_u32.to_ne_bytes());
        let message = |entry: &[u8]| {
            let len = size_of::<usize>() + 8 + entry.len();
            let mut control = Vec::from(len.to_ne_bytes());
            control.extend(libc::IPPROTO_IP.to_ne_bytes());
            control.extend(libc::IP_RECVERR.to_ne_bytes());
            control.extend(entry);
            control
        };
        let returned = decode(&message(&entry)).expect("a return");
        assert_eq!(returned, LentReturn { first: u32::MAX, last: 1, copied: true });
        assert_eq!(returned.calls(), 3, "numbers wrap");
        for len in 0..entry.len() {
            assert_eq!(decode(&message(&entry[..len])), None);
        }
        entry[4] = libc::SO_EE_ORIGIN_ICMP;
        assert_eq!(decode(&message(&entry)), None);
        assert_eq!(decode(&[]), None);
    }
}
