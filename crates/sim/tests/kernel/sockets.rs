//! Socket calls of scripts on the kernel's own sockets. None of them waits.

use std::collections::BTreeMap;
use std::mem::{size_of, zeroed};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use towpath_sim::script::{Call, Ends, Fd, Outcome, Value};

/// Congestion control of every socket: the machine's default may pace.
const CONGESTION: &str = "cubic";
/// Flags that only select whether to wait are handled by the player.
const MSG_DONTWAIT: i64 = 0x40;
/// A reset must not end the test with a signal.
const MSG_NOSIGNAL: i64 = 0x4000;
/// Most bytes of TCP_INFO that are read.
const INFO_BYTES: usize = 256;
/// Queries whether the next byte is urgent.
const SIOCATMARK: libc::Ioctl = 0x8905;

/// The open sockets of a script.
#[derive(Default)]
pub(super) struct Sockets {
    open: BTreeMap<Fd, OwnedFd>,
}

impl Sockets {
    pub(super) fn call(&mut self, call: &Call, ends: &Ends, data: &mut [u8]) -> Outcome {
        match call {
            Call::Socket { fd, .. } => self.socket(*fd, ends),
            Call::Bind(fd) => self.raw(*fd, |raw| {
                let (address, len) = socket_address(&ends.local);
                // SAFETY: the address is a local value of that length.
                unsafe { libc::bind(raw, (&raw const address).cast(), len) as isize }
            }),
            Call::Listen(fd, backlog) => self.raw(*fd, |raw| {
                // SAFETY: the call involves no memory.
                unsafe { libc::listen(raw, *backlog) as isize }
            }),
            Call::Accept { listener, fd, .. } => self.accept(*listener, *fd),
            Call::Connect(fd) => self.raw(*fd, |raw| {
                let (address, len) = socket_address(&ends.remote);
                // SAFETY: the address is a local value of that length.
                unsafe { libc::connect(raw, (&raw const address).cast(), len) as isize }
            }),
            Call::Read { fd, flags, .. } => self.raw(*fd, |raw| {
                let flags = (flags | MSG_DONTWAIT) as i32;
                // SAFETY: the memory is exclusively borrowed and as long as stated.
                unsafe { libc::recv(raw, data.as_mut_ptr().cast(), data.len(), flags) }
            }),
            Call::Write { fd, flags, to_remote, .. } => {
                let flags = (flags | MSG_DONTWAIT | MSG_NOSIGNAL) as i32;
                let to = to_remote.then(|| socket_address(&ends.remote));
                self.raw(*fd, |raw| {
                    let (address, len) = match &to {
                        Some((address, len)) => (std::ptr::from_ref(address).cast(), *len),
                        None => (std::ptr::null(), 0),
                    };
                    let (bytes, count) = (data.as_ptr().cast(), data.len());
                    // SAFETY: data and address are borrowed and as long as stated.
                    unsafe { libc::sendto(raw, bytes, count, flags, address, len) }
                })
            }
            Call::Shutdown(fd, how) => self.raw(*fd, |raw| {
                // SAFETY: the call involves no memory.
                unsafe { libc::shutdown(raw, *how as i32) as isize }
            }),
            Call::Close(fd) => match self.open.remove(fd) {
                Some(_) => Outcome::Done(0),
                None => Outcome::Failed(libc::EBADF),
            },
            Call::SetOption { fd, level, name, value } => {
                self.set_option(*fd, *level, *name, value)
            }
            Call::GetOption { fd, level, name, .. } => self.option(*fd, *level, *name),
            Call::Poll { fd, events, .. } => self.poll(*fd, *events),
            Call::AtMark { fd, .. } => self.at_mark(*fd),
            Call::SetNonblocking(..) | Call::GetFlags(_) => Outcome::Done(0),
        }
    }

    fn raw(&self, fd: Fd, act: impl FnOnce(i32) -> isize) -> Outcome {
        let Some(open) = self.open.get(&fd) else { return Outcome::Failed(libc::EBADF) };
        let result = act(open.as_raw_fd());
        if result >= 0 { Outcome::Done(result as i64) } else { last_error() }
    }

    fn socket(&mut self, fd: Fd, ends: &Ends) -> Outcome {
        let family = if ends.local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        // SAFETY: the call involves no memory.
        let raw = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0) };
        if raw < 0 {
            return last_error();
        }
        self.adopt(fd, raw);
        let text = Value::Text(CONGESTION.into());
        self.set_option(fd, libc::IPPROTO_TCP.into(), libc::TCP_CONGESTION.into(), &text);
        self.set_option(fd, libc::SOL_SOCKET.into(), libc::SO_REUSEADDR.into(), &Value::Number(1));
        Outcome::Done(fd)
    }

    fn accept(&mut self, listener: Fd, fd: Fd) -> Outcome {
        let outcome = self.raw(listener, |raw| {
            let (address, len) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: the address is null, so the kernel writes none.
            unsafe { libc::accept4(raw, address, len, libc::SOCK_NONBLOCK) as isize }
        });
        let Outcome::Done(raw) = outcome else { return outcome };
        self.adopt(fd, raw as i32);
        Outcome::Done(fd)
    }

    fn adopt(&mut self, fd: Fd, raw: i32) {
        // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
        let owned = unsafe { OwnedFd::from_raw_fd(raw) };
        self.open.insert(fd, owned);
    }

    fn set_option(&self, fd: Fd, level: i64, name: i64, value: &Value) -> Outcome {
        let bytes = match value {
            Value::Number(value) => (*value as i32).to_ne_bytes().to_vec(),
            Value::Text(text) => text.clone().into_bytes(),
            Value::Linger(on, seconds) => {
                let fields = [i32::from(*on), i32::from(*seconds)];
                fields.iter().flat_map(|field| field.to_ne_bytes()).collect()
            }
        };
        self.raw(fd, |raw| {
            let (data, len) = (bytes.as_ptr().cast(), bytes.len() as u32);
            // SAFETY: the bytes are borrowed and as many as stated.
            unsafe { libc::setsockopt(raw, level as i32, name as i32, data, len) as isize }
        })
    }

    fn option(&self, fd: Fd, level: i64, name: i64) -> Outcome {
        let mut value = 0i32;
        let mut len = size_of::<i32>() as u32;
        let outcome = self.raw(fd, |raw| {
            let data = (&raw mut value).cast();
            // SAFETY: value and length are exclusively borrowed, and the length is the value's.
            unsafe { libc::getsockopt(raw, level as i32, name as i32, data, &raw mut len) as isize }
        });
        match outcome {
            Outcome::Done(result) => Outcome::Reported(result, value.into()),
            other => other,
        }
    }

    fn at_mark(&self, fd: Fd) -> Outcome {
        let mut reported = 0i32;
        let outcome = self.raw(fd, |raw| {
            // SAFETY: the request writes one number, which is exclusively borrowed.
            unsafe { libc::ioctl(raw, SIOCATMARK, &raw mut reported) as isize }
        });
        match outcome {
            Outcome::Done(result) => Outcome::Reported(result, reported.into()),
            other => other,
        }
    }

    fn poll(&self, fd: Fd, events: i64) -> Outcome {
        let mut reported = 0;
        let outcome = self.raw(fd, |raw| {
            let mut asked = libc::pollfd { fd: raw, events: events as i16, revents: 0 };
            // SAFETY: one element is exclusively borrowed.
            let result = unsafe { libc::poll(&raw mut asked, 1, 0) };
            reported = asked.revents.into();
            result as isize
        });
        match outcome {
            Outcome::Done(result) => Outcome::Reported(result, reported),
            other => other,
        }
    }

    /// A field of TCP_INFO.
    pub(super) fn info(&self, fd: Fd, field: &str) -> Option<i64> {
        let (_, at, size) = INFO_FIELDS.iter().find(|(name, ..)| *name == field)?;
        let mut bytes = [0u8; INFO_BYTES];
        let mut len = bytes.len() as u32;
        let outcome = self.raw(fd, |raw| {
            let (data, level, name) =
                (bytes.as_mut_ptr().cast(), libc::IPPROTO_TCP, libc::TCP_INFO);
            // SAFETY: bytes and length are exclusively borrowed, and the length is the bytes'.
            unsafe { libc::getsockopt(raw, level, name, data, &raw mut len) as isize }
        });
        let value = bytes.get(*at..at + size).filter(|_| at + size <= len as usize)?;
        let value = value.iter().rev().fold(0, |sum, byte| sum << 8 | i64::from(*byte));
        (outcome == Outcome::Done(0)).then_some(value)
    }
}

fn last_error() -> Outcome {
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EAGAIN | libc::EINPROGRESS | libc::EALREADY) | None => Outcome::Blocked,
        // A connect that was queried again and is complete.
        Some(libc::EISCONN) => Outcome::Done(0),
        Some(errno) => Outcome::Failed(errno),
    }
}

fn socket_address(address: &SocketAddr) -> (libc::sockaddr_storage, u32) {
    // SAFETY: all zeros are a valid value of this plain structure.
    let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
    let mut bytes = Vec::new();
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u16;
    bytes.extend(family.to_ne_bytes());
    bytes.extend(address.port().to_be_bytes());
    match address {
        SocketAddr::V4(address) => bytes.extend(address.ip().octets()),
        SocketAddr::V6(address) => {
            bytes.extend([0; 4]);
            bytes.extend(address.ip().octets());
        }
    }
    let v4 = address.is_ipv4();
    let len = if v4 { size_of::<libc::sockaddr_in>() } else { size_of::<libc::sockaddr_in6>() };
    bytes.resize(len, 0);
    let target = (&raw mut storage).cast::<u8>();
    // SAFETY: the storage is larger than every address, and both are local.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, len) };
    (storage, len as u32)
}

/// Fields of `struct tcp_info` (linux/tcp.h): name, offset, bytes. All are little-endian on the
/// machines that run this.
const INFO_FIELDS: [(&str, usize, usize); 42] = [
    ("tcpi_state", 0, 1),
    ("tcpi_ca_state", 1, 1),
    ("tcpi_retransmits", 2, 1),
    ("tcpi_probes", 3, 1),
    ("tcpi_backoff", 4, 1),
    ("tcpi_options", 5, 1),
    ("tcpi_rto", 8, 4),
    ("tcpi_ato", 12, 4),
    ("tcpi_snd_mss", 16, 4),
    ("tcpi_rcv_mss", 20, 4),
    ("tcpi_unacked", 24, 4),
    ("tcpi_sacked", 28, 4),
    ("tcpi_lost", 32, 4),
    ("tcpi_retrans", 36, 4),
    ("tcpi_last_ack_sent", 48, 4),
    ("tcpi_pmtu", 60, 4),
    ("tcpi_rtt", 68, 4),
    ("tcpi_rttvar", 72, 4),
    ("tcpi_snd_ssthresh", 76, 4),
    ("tcpi_snd_cwnd", 80, 4),
    ("tcpi_advmss", 84, 4),
    ("tcpi_reordering", 88, 4),
    ("tcpi_total_retrans", 100, 4),
    ("tcpi_bytes_acked", 120, 8),
    ("tcpi_bytes_received", 128, 8),
    ("tcpi_segs_out", 136, 4),
    ("tcpi_segs_in", 140, 4),
    ("tcpi_notsent_bytes", 144, 4),
    ("tcpi_min_rtt", 148, 4),
    ("tcpi_data_segs_in", 152, 4),
    ("tcpi_data_segs_out", 156, 4),
    ("tcpi_delivery_rate", 160, 8),
    ("tcpi_delivered", 192, 4),
    ("tcpi_delivered_ce", 196, 4),
    ("tcpi_bytes_sent", 200, 8),
    ("tcpi_bytes_retrans", 208, 8),
    ("tcpi_dsack_dups", 216, 4),
    ("tcpi_reord_seen", 220, 4),
    ("tcpi_rcv_ooopack", 224, 4),
    ("tcpi_total_rto", 240, 2),
    ("tcpi_total_rto_recoveries", 242, 2),
    ("tcpi_total_rto_time", 244, 4),
];
