//! The life of sockets: creating, binding, listening, accepting, connecting and closing; their
//! addresses, and the flags of their descriptors.

use crate::errno::{Errno, Outcome};
use crate::instance::{Instance, State};
use crate::memory::address::{self, Given};
use crate::table::{ControlWanted, SocketFile, Watchers, What};
use rustix::fd::{AsRawFd, OwnedFd};
use std::net::SocketAddr;
use towpath::layers::net::socket::{Error, Family, Linger, Shutdown, SocketId};

/// Flags in the type argument of `socket(2)`.
pub(super) const TYPE_FLAGS: i32 = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;

impl Instance {
    /// Makes a socket: `SOCK_STREAM`, `SOCK_DGRAM` or `SOCK_RAW` of `AF_INET` or `AF_INET6`, or a
    /// packet socket, with the flags of `socket(2)`.
    pub fn socket(&self, domain: i32, kind: i32, protocol: i32) -> Outcome<i32> {
        let family = match domain {
            libc::AF_PACKET => return self.call(|state| state.packet_socket(kind, protocol)),
            libc::AF_INET => Family::V4,
            libc::AF_INET6 => Family::V6,
            _ => return Err(Errno(libc::EAFNOSUPPORT)),
        };
        if kind & !TYPE_FLAGS == libc::SOCK_RAW {
            return self.call(|state| state.raw_socket(family, domain, kind, protocol));
        }
        let own = match kind & !TYPE_FLAGS {
            libc::SOCK_STREAM => libc::IPPROTO_TCP,
            libc::SOCK_DGRAM => libc::IPPROTO_UDP,
            _ => return Err(Errno(libc::ESOCKTNOSUPPORT)),
        };
        if protocol != 0 && protocol != own {
            return Err(Errno(libc::EPROTONOSUPPORT));
        }
        self.call(|state| {
            let id = match own {
                libc::IPPROTO_TCP => state.engine.protocols.stream(family)?,
                _ => state.engine.protocols.datagram(family)?,
            };
            if state.choosing.by_default {
                let now = state.now();
                state.engine.protocols.set_options(id, now, |options| options.lent_auto = true)?;
            }
            state.add_socket(id, domain, kind)
        })
    }

    /// Binds to an address.
    pub fn bind(&self, fd: i32, address: &[u8]) -> Outcome<()> {
        self.call(|state| {
            let family = state.family(fd)?;
            if state.packet(fd).is_some() {
                return state.bind_packet(fd, address);
            }
            match address::parse(address, family)? {
                Given::Address(address) => {
                    Ok(state.engine.protocols.bind(state.id(fd)?, address)?)
                }
                // As in Linux, where IPv4 treats it as the unspecified address.
                Given::Unspecified => Err(Errno(libc::EAFNOSUPPORT)),
            }
        })
    }

    /// Makes a socket listen for connections.
    pub fn listen(&self, fd: i32, backlog: i32) -> Outcome<()> {
        self.call(|state| {
            let (id, now) = (state.id(fd)?, state.now());
            Ok(state.engine.protocols.listen(id, backlog, now)?)
        })
    }

    /// Accepts the next connection: its descriptor and its peer. Waits if the descriptor blocks.
    pub fn accept(&self, fd: i32, flags: i32) -> Outcome<(i32, SocketAddr)> {
        if flags & !TYPE_FLAGS != 0 {
            return Err(Errno::INVAL);
        }
        let timeout = self.lock().timeout(fd, 0, false)?;
        self.block_on(fd, timeout, |state| {
            let file = state.files.socket(fd)?;
            let (id, domain) = (file.id, file.domain);
            let now = state.now();
            let (accepted, remote) = state.engine.protocols.accept(id, now)?;
            let fd = state.add_socket(accepted, domain, flags);
            if fd.is_err() {
                state.engine.protocols.close(accepted, now)?;
            }
            Ok((fd?, remote))
        })
    }

    /// Connects. Waits for the result if the descriptor blocks.
    pub fn connect(&self, fd: i32, address: &[u8]) -> Outcome<()> {
        let (timeout, given) = {
            let mut state = self.lock();
            let timeout = state.timeout(fd, 0, true)?;
            state.refuse_packet(fd)?;
            let given = address::family(address)?;
            let id = state.id(fd)?;
            if state.engine.protocols.is_datagram(id) && given != libc::AF_UNSPEC {
                state.engine.protocols.bind_by_itself(id)?;
            }
            let given = match given {
                // Datagram sockets of IPv6 accept IPv4 addresses.
                libc::AF_INET if state.files.socket(fd)?.datagram => {
                    let to = address::parse_destination(address, state.family(fd)?)?;
                    to.map_or(Given::Unspecified, Given::Address)
                }
                _ => address::parse(address, state.family(fd)?)?,
            };
            (timeout, given)
        };
        let Given::Address(remote) = given else {
            return self.call(|state| {
                let (id, now) = (state.id(fd)?, state.now());
                Ok(state.engine.protocols.disconnect(id, now)?)
            });
        };
        let mut pending = Errno(libc::EINPROGRESS);
        let mut first = true;
        let outcome = self.block_on(fd, timeout, |state| {
            let (id, now) = (state.id(fd)?, state.now());
            let outcome = state.engine.protocols.connect(id, remote, now);
            let goes_on = match outcome {
                Err(Error::InProgress) => true,
                Err(Error::Already) => {
                    if first {
                        pending = Errno(libc::EALREADY);
                    }
                    true
                }
                _ => false,
            };
            first = false;
            if goes_on { Err(Errno::AGAIN) } else { Ok(outcome?) }
        });
        match outcome {
            Err(Errno::AGAIN) => Err(pending),
            outcome => outcome,
        }
    }

    /// Shuts down one or both directions: `SHUT_RD`, `SHUT_WR` or `SHUT_RDWR`.
    pub fn shutdown(&self, fd: i32, how: i32) -> Outcome<()> {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => {
                self.lock().id(fd)?;
                return Err(Errno::INVAL);
            }
        };
        self.call(|state| {
            let (id, now) = (state.id(fd)?, state.now());
            Ok(state.engine.protocols.shutdown(id, how, now)?)
        })
    }

    /// Closes a descriptor, whose number is free at once. A socket with `SO_LINGER` waits even if
    /// the descriptor does not block, as in Linux.
    pub fn close(&self, fd: i32) -> Outcome<()> {
        let (number, what) = self.remove(fd)?;
        drop(number);
        what.map_or(Ok(()), |what| self.close_file(what))
    }

    /// Closes a descriptor and returns what reserves its number, so that the caller can put another
    /// file in its place. A file that has other numbers stays open.
    pub fn release(&self, fd: i32) -> Outcome<OwnedFd> {
        let (number, what) = self.remove(fd)?;
        what.map_or(Ok(()), |what| self.close_file(what))?;
        Ok(number)
    }

    /// Removes a number from the table. Calls that wait on it fail with `EBADF`.
    fn remove(&self, fd: i32) -> Outcome<(OwnedFd, Option<What>)> {
        self.call(|state| {
            let removed = state.files.remove(fd)?;
            state.notify();
            Ok(removed)
        })
    }

    /// Closes a file that has no number any more.
    fn close_file(&self, what: What) -> Outcome<()> {
        let What::Socket(file) = what else { return Ok(()) };
        let linger = self.lock().engine.protocols.options(file.id).map(|options| options.linger);
        if let Ok(Linger::Wait(time)) = linger {
            self.call(|state| {
                let now = state.now();
                let _ = state.engine.protocols.shutdown(file.id, Shutdown::Write, now);
            });
            // The result does not depend on whether all data was acknowledged in time.
            let _ = self.block(Some(time), |state| {
                if state.engine.protocols.is_sending(file.id) { Err(Errno::AGAIN) } else { Ok(()) }
            });
        }
        self.call(|state| {
            let now = state.now();
            Ok(state.engine.protocols.close(file.id, now)?)
        })
    }

    /// Adds a number to a descriptor's file, as `dup(2)` does. `number` reserves it in the kernel.
    pub fn add_number(&self, fd: i32, number: OwnedFd) -> Outcome<()> {
        self.lock().files.add_number(fd, number)
    }

    /// The local address.
    pub fn local(&self, fd: i32) -> Outcome<SocketAddr> {
        let state = self.lock();
        Ok(state.engine.protocols.local(state.id(fd)?)?)
    }

    /// The address of the peer.
    pub fn remote(&self, fd: i32) -> Outcome<SocketAddr> {
        let state = self.lock();
        state.refuse_packet(fd)?;
        Ok(state.engine.protocols.remote(state.id(fd)?)?)
    }

    /// `F_GETFL` and `F_SETFL` of `O_NONBLOCK`. `F_GETFD` and `F_SETFD` have no effect.
    pub fn fcntl(&self, fd: i32, command: i32, argument: i32) -> Outcome<i32> {
        let mut state = self.lock();
        let file = state.files.socket_mut(fd)?;
        match command {
            libc::F_GETFL => Ok(libc::O_RDWR | if file.nonblocking { libc::O_NONBLOCK } else { 0 }),
            libc::F_SETFL => {
                file.nonblocking = argument & libc::O_NONBLOCK != 0;
                Ok(0)
            }
            libc::F_GETFD => Ok(libc::FD_CLOEXEC),
            libc::F_SETFD => Ok(0),
            _ => Err(Errno::INVAL),
        }
    }

    /// True if the descriptor belongs to this instance.
    pub fn has(&self, fd: i32) -> bool {
        self.lock().files.contains(fd)
    }
}

impl State {
    /// Adds a socket, with the flags of `socket(2)`.
    pub(crate) fn add_socket(&mut self, id: SocketId, domain: i32, flags: i32) -> Outcome<i32> {
        self.add_file(What::Socket(SocketFile {
            id,
            nonblocking: flags & libc::SOCK_NONBLOCK != 0,
            domain,
            datagram: self.engine.protocols.is_datagram(id),
            control_wanted: ControlWanted::default(),
            receive_timeout: None,
            send_timeout: None,
            reports_unread: false,
            watchers: Watchers::default(),
            chooser: None,
        }))
    }

    /// Adds a descriptor.
    pub(crate) fn add_file(&mut self, what: What) -> Outcome<i32> {
        let number = self.files.reserve(&what)?;
        // The kernel gives a number that is in the table only if the program has closed it.
        if let Some(What::Socket(stale)) = self.files.remove_stale(number.as_raw_fd()) {
            let now = self.now();
            let _ = self.engine.protocols.close(stale.id, now);
        }
        Ok(self.files.add(number, what))
    }
}
