//! Control messages of streams: the number of bytes left (`TCP_INQ`), and notices of the error
//! queue.

use crate::errno::Outcome;
use crate::instance::{Instance, State};
use crate::memory::control::{Control, Received, datagram, extended_error, timestamping};
use towpath::layers::net::socket::{Notice, Timestamping};
use towpath::layers::net::tcp::Stamped;

/// `SO_EE_ORIGIN_TIMESTAMPING` of `linux/errqueue.h`.
const ORIGIN_TIMESTAMPING: u8 = 4;
/// `SO_EE_ORIGIN_ZEROCOPY` and `SO_EE_CODE_ZEROCOPY_COPIED`.
const ORIGIN_ZEROCOPY: u8 = 5;
const CODE_ZEROCOPY_COPIED: u8 = 1;
/// Bytes of `struct sockaddr_in`, and of `struct sockaddr_in6`.
const OFFENDER_V4: usize = size_of::<libc::sockaddr_in>();
const OFFENDER_V6: usize = size_of::<libc::sockaddr_in6>();

impl Instance {
    /// Receives into `buffers` as `recvmsg(2)` does, with control messages into `control`.
    pub(crate) fn receive_message(
        &self,
        fd: i32,
        buffers: &mut [&mut [u8]],
        control: &mut [u8],
        flags: i32,
    ) -> Outcome<Received> {
        let mut control = Control::new(control);
        if self.lock().files.socket(fd)?.datagram {
            return self.receive_datagram(fd, buffers, &mut control, flags);
        }
        let len = if flags & libc::MSG_ERRQUEUE != 0 {
            let notice = self.notice(fd)?;
            self.lock().tell(fd, &notice, &mut control)?;
            0
        } else {
            let len = self.receive(fd, buffers, flags)?;
            if flags & libc::MSG_OOB != 0 && len > 0 {
                control.flags |= libc::MSG_OOB;
            }
            self.lock().write_unread(fd, &mut control)?;
            len
        };
        Ok(Received { len, control: control.len, flags: control.flags, source: None })
    }

    /// Takes the oldest notice from the error queue. Never waits for one, as in Linux.
    pub(crate) fn notice(&self, fd: i32) -> Outcome<Notice> {
        self.call(|state| {
            let id = state.id(fd)?;
            Ok(state.engine.protocols.take_notice(id)?)
        })
    }
}

impl State {
    /// Adds the number of bytes left, if the program asked for it (`TCP_INQ`). The end of the
    /// stream counts as one more.
    pub(crate) fn write_unread(&self, fd: i32, control: &mut Control<'_>) -> Outcome<()> {
        let file = self.files.socket(fd)?;
        if let Some(connection) = self.engine.protocols.tcp(file.id).filter(|_| file.reports_unread)
        {
            let left = connection.received_len() as i32 + i32::from(connection.peer_closed());
            control.push(libc::IPPROTO_TCP, libc::TCP_INQ, &left.to_ne_bytes());
        }
        Ok(())
    }

    /// Adds a notice as control messages, in Linux's form.
    pub(crate) fn tell(&self, fd: i32, notice: &Notice, control: &mut Control<'_>) -> Outcome<()> {
        let file = self.files.socket(fd)?;
        let (level, kind, room) = match file.domain {
            libc::AF_INET => (libc::IPPROTO_IP, libc::IP_RECVERR, OFFENDER_V4),
            _ => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, OFFENDER_V6),
        };
        let nobody = (&[][..], room);
        control.flags |= libc::MSG_ERRQUEUE;
        match *notice {
            Notice::Stamp { stamp, cut } => {
                if cut {
                    control.flags |= libc::MSG_TRUNC;
                }
                let options = self.engine.protocols.options(file.id)?;
                if options.timestamping.contains(Timestamping::SOFTWARE) {
                    let time = timestamping(self.clock.wall(stamp.at));
                    control.push(libc::SOL_SOCKET, libc::SCM_TIMESTAMPING, &time);
                }
                let what = number(stamp.what);
                let origin = [ORIGIN_TIMESTAMPING, 0, 0];
                let error = extended_error(libc::ENOMSG, origin, (what, stamp.key), nobody);
                control.push(level, kind, &error);
            }
            Notice::Lent { first, last, copied } => {
                let origin = [ORIGIN_ZEROCOPY, 0, u8::from(copied) * CODE_ZEROCOPY_COPIED];
                let error = extended_error(0, origin, (first, last), nobody);
                control.push(level, kind, &error);
            }
            Notice::Failed(failed) => datagram::push_error(control, file.domain, &failed),
        }
        Ok(())
    }
}

/// The `SCM_TSTAMP_*` number of a time stamp.
fn number(what: Stamped) -> u32 {
    match what {
        Stamped::Sent => 0,
        Stamped::Scheduled => 1,
        Stamped::Acknowledged => 2,
    }
}
