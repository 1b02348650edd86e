//! Control messages in C's layout, and the results of calls that receive messages.

pub(crate) mod datagram;

use super::address::Name;
use crate::errno::{Errno, Outcome};
use std::time::Duration;

/// Results of a call that received a message, besides its bytes.
#[derive(Default)]
pub(crate) struct Received {
    /// Bytes of data.
    pub(crate) len: usize,
    /// Bytes of control data.
    pub(crate) control: usize,
    /// `MSG_*` flags of the message.
    pub(crate) flags: i32,
    /// The source of a datagram; for a message about an error, its destination.
    pub(crate) source: Option<Name>,
}

/// Control messages, appended as long as there is room.
pub(crate) struct Control<'a> {
    room: &'a mut [u8],
    /// Bytes used.
    pub(crate) len: usize,
    /// `MSG_*` flags of the message.
    pub(crate) flags: i32,
}

/// `TOWPATH_SO_ZEROCOPY_TERM` of `towpath.h`.
pub(crate) const TOWPATH_SO_ZEROCOPY_TERM: i32 = 0x7001;
/// Bytes of `struct cmsghdr`.
pub(crate) const HEADER: usize = size_of::<libc::cmsghdr>();

impl<'a> Control<'a> {
    /// An empty list.
    pub(crate) fn new(room: &'a mut [u8]) -> Self {
        Self { room, len: 0, flags: 0 }
    }

    /// Appends a message, truncated where the room ends, as in Linux.
    pub(crate) fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        let room = &mut self.room[self.len..];
        if room.len() < HEADER {
            self.flags |= libc::MSG_CTRUNC;
            return;
        }
        let count = data.len().min(room.len() - HEADER);
        if count < data.len() {
            self.flags |= libc::MSG_CTRUNC;
        }
        let len = HEADER + count;
        room[..8].copy_from_slice(&len.to_ne_bytes());
        room[8..12].copy_from_slice(&level.to_ne_bytes());
        room[12..HEADER].copy_from_slice(&kind.to_ne_bytes());
        room[HEADER..len].copy_from_slice(&data[..count]);
        self.len += len.next_multiple_of(size_of::<usize>()).min(room.len());
    }
}

/// Calls `act` with level, kind and data of each control message that a caller passed.
pub(crate) fn each_message(
    mut bytes: &[u8],
    mut act: impl FnMut(i32, i32, &[u8]) -> Outcome<()>,
) -> Outcome<()> {
    while bytes.len() >= HEADER {
        let word = |at: usize| bytes[at..at + 4].first_chunk::<4>().map(|b| i32::from_ne_bytes(*b));
        let len = bytes.first_chunk::<8>().map_or(0, |len| usize::from_ne_bytes(*len));
        if !(HEADER..=bytes.len()).contains(&len) {
            return Err(Errno::INVAL);
        }
        act(word(8).unwrap_or(0), word(12).unwrap_or(0), &bytes[HEADER..len])?;
        bytes = &bytes[len.next_multiple_of(size_of::<usize>()).min(bytes.len())..];
    }
    Ok(())
}

/// `struct scm_timestamping`: the software time stamp, and two hardware time stamps of zero.
pub(crate) fn timestamping(time: Duration) -> Vec<u8> {
    let mut bytes = (time.as_secs() as i64).to_ne_bytes().to_vec();
    bytes.extend(i64::from(time.subsec_nanos()).to_ne_bytes());
    bytes.resize(3 * size_of::<libc::timespec>(), 0);
    bytes
}

/// Bytes of `struct sock_extended_err`.
const EXTENDED_ERROR: usize = 16;

/// A `struct sock_extended_err`, followed by the address of the node that reported the error, in
/// `room` bytes. An empty `offender` gives zeros.
pub(crate) fn extended_error(
    errno: i32,
    [origin, kind, code]: [u8; 3],
    (info, data): (u32, u32),
    (offender, room): (&[u8], usize),
) -> Vec<u8> {
    let mut bytes = errno.to_ne_bytes().to_vec();
    bytes.extend([origin, kind, code, 0]);
    bytes.extend(info.to_ne_bytes());
    bytes.extend(data.to_ne_bytes());
    bytes.extend(offender);
    bytes.resize(EXTENDED_ERROR + room, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_follow_each_other_and_are_cut_where_the_room_ends() {
        let mut room = [0xff; 64];
        let mut control = Control::new(&mut room);
        control.push(6, 36, &7i32.to_ne_bytes());
        assert_eq!((control.len, control.flags), (24, 0), "CMSG_SPACE of four bytes");
        control.push(0, 11, &[1; 32]);
        assert_eq!((control.len, control.flags), (64, libc::MSG_CTRUNC));
        control.push(0, 11, &[]);
        assert_eq!(control.len, 64);
        assert_eq!(room[..8], 20usize.to_ne_bytes());
        assert_eq!(room[24..32], 40usize.to_ne_bytes(), "as long as what is there");
    }
}
