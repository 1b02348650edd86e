//! Ports on which programs of a network namespace listen, as they come and go.
//!
//! # Theory of operation
//!
//! The kernel reports no event when a program begins to listen. A process inside the namespace, the
//! *watcher*, reads the tables of sockets in /proc/net every [`INTERVAL`] and sends a message for
//! each port that was opened or closed. It ends when towpath closes its end of the channel. A
//! program inside that runs as the same user may kill the watcher: then ports stay as they are.
//!
//! UDP sockets count as listening while they are not connected. UDP ports that the kernel assigns
//! by itself do not count: they belong to clients.
//!
//! Limits: [`LINES_MAX`] sockets of each table are looked at; listening TCP sockets come first.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use super::channel::{Channel, ChannelError, Message, wait_readable};
use super::init::release_standard_streams;
use crate::process_sys::{Forked, end_with_only, fork_into};

/// Interval between two looks.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// Most sockets of a table that are looked at.
pub const LINES_MAX: usize = 1 << 17;
/// Longest line of a table; they have about 150 bytes.
const LINE_BYTES_MAX: u64 = 512;

/// Which ports are reported.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// TCP ports.
    pub tcp: bool,
    /// UDP ports.
    pub udp: bool,
    /// The addresses of the sockets.
    pub reach: Reach,
    /// TCP ports that are not reported.
    pub except: Vec<u16>,
    /// UDP ports that are not reported.
    pub except_udp: Vec<u16>,
}

/// Which sockets count, by the address that they are bound to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Those that others than the loopback reach.
    #[default]
    Beyond,
    /// Those that the loopback reaches.
    Loopback,
    /// All.
    Any,
}

/// A set of ports.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Ports(Box<[u64; PORTS / BITS]>);

/// Starts the watcher in the current network namespace. The process must have one thread.
///
/// # Errors
/// Those of fork, and of opening files in /proc.
pub fn watch(channel: &Channel, wanted: &Wanted) -> io::Result<()> {
    const NO_NAMESPACES: i32 = 0;
    if let Forked::Child = fork_into(NO_NAMESPACES)? {
        end_with_only([channel.as_fd()], || i32::from(report(channel, wanted).is_err()));
    }
    Ok(())
}

fn report(channel: &Channel, wanted: &Wanted) -> io::Result<()> {
    release_standard_streams()?;
    let tables = Tables::open(wanted)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let mut known = [Ports::none(), Ports::none()];
    loop {
        let now = tables.read(wanted)?;
        for (is_udp, (before, after)) in [false, true].into_iter().zip(known.iter().zip(&now)) {
            for (port, is_open) in before.changes(after) {
                match channel.send(&Message::Port { port, is_udp, is_open }) {
                    Ok(()) => {}
                    Err(ChannelError::Closed) => return Ok(()),
                    Err(error) => return Err(io::Error::other(error)),
                }
            }
        }
        known = now;
        if wait_readable(&[channel.as_fd()], Some(INTERVAL))?.is_some() {
            return Ok(());
        }
    }
}

/// The kernel's tables of sockets.
pub(super) struct Tables {
    tcp: Vec<File>,
    udp: Vec<File>,
    ephemeral: RangeInclusive<u16>,
}

impl Tables {
    pub(super) fn open(wanted: &Wanted) -> io::Result<Self> {
        let open = |is_wanted: bool, names: [&str; 2]| {
            // A kernel without IPv6 lacks the second one.
            let paths = names.iter().map(|name| format!("/proc/self/net/{name}"));
            let found = paths.filter(|_| is_wanted).map(File::open).filter_map(Result::ok);
            found.collect::<Vec<File>>()
        };
        let (tcp, udp) = (open(wanted.tcp, ["tcp", "tcp6"]), open(wanted.udp, ["udp", "udp6"]));
        if wanted.tcp && tcp.is_empty() || wanted.udp && udp.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Self { tcp, udp, ephemeral: ephemeral_ports() })
    }

    /// Returns the files; the last one repeatedly if there are fewer. There is at least one.
    pub(super) fn files(&self) -> [BorrowedFd<'_>; 4] {
        let last = self.tcp.len() + self.udp.len() - 1;
        [0, 1, 2, 3].map(|index: usize| {
            let index = index.min(last);
            let udp = index.checked_sub(self.tcp.len());
            udp.map_or_else(|| &self.tcp[index], |index| &self.udp[index]).as_fd()
        })
    }

    /// Returns the ports of TCP and of UDP.
    pub(super) fn read(&self, wanted: &Wanted) -> io::Result<[Ports; 2]> {
        let (mut tcp, mut udp) = (Ports::none(), Ports::none());
        for table in &self.tcp {
            read_table(table, false, wanted, &mut tcp)?;
        }
        for table in &self.udp {
            read_table(table, true, wanted, &mut udp)?;
        }
        wanted.except.iter().for_each(|port| tcp.remove(*port));
        wanted.except_udp.iter().for_each(|port| udp.remove(*port));
        self.ephemeral.clone().for_each(|port| udp.remove(port));
        Ok([tcp, udp])
    }
}

/// Adds the ports of a table.
fn read_table(
    mut table: &File,
    is_udp: bool,
    wanted: &Wanted,
    ports: &mut Ports,
) -> io::Result<()> {
    table.seek(SeekFrom::Start(0))?;
    let mut reader = BufReader::new(table);
    let mut line = String::new();
    // The first line has the names of the columns, and is no socket.
    for _ in 0..=LINES_MAX {
        line.clear();
        if io::Read::take(&mut reader, LINE_BYTES_MAX).read_line(&mut line)? == 0 {
            break;
        }
        if let Some((address, port)) = parse(&line, is_udp)
            && wanted.reach.includes(address)
        {
            ports.add(port);
        }
    }
    Ok(())
}

/// Returns address and port of a line of a table, if that socket listens.
fn parse(line: &str, is_udp: bool) -> Option<(IpAddr, u16)> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
    let (address, port) = local.split_once(':')?;
    let (_, remote_port) = remote.split_once(':')?;
    let is_listening = if is_udp { remote_port == "0000" } else { state == TCP_LISTEN };
    let port = u16::from_str_radix(port, 16).ok().filter(|port| *port > 0 && is_listening)?;
    // Each group of four bytes is a number in the order of this machine.
    let word = |at: usize| {
        let digits = address.get(8 * at..8 * at + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    let address = match address.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(at)?);
            }
            Ipv6Addr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some((address, port))
}

/// Returns the ephemeral ports of the current network namespace, which the kernel assigns by
/// itself; the kernel's default range if the setting cannot be read.
pub fn ephemeral_ports() -> RangeInclusive<u16> {
    const DEFAULT: RangeInclusive<u16> = 32_768..=60_999;
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let text = text.unwrap_or_default();
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(first)), Some(Ok(last))) => first..=last,
        _ => DEFAULT,
    }
}

impl Reach {
    fn includes(self, address: IpAddr) -> bool {
        match self {
            Self::Beyond => !address.is_loopback(),
            Self::Loopback => address.is_loopback() || address.is_unspecified(),
            Self::Any => true,
        }
    }
}

impl Ports {
    pub(super) fn none() -> Self {
        Self(Box::new([0; PORTS / BITS]))
    }

    pub(super) fn add(&mut self, port: u16) {
        self.0[usize::from(port) / BITS] |= 1 << (usize::from(port) % BITS);
    }

    pub(super) fn remove(&mut self, port: u16) {
        self.0[usize::from(port) / BITS] &= !(1 << (usize::from(port) % BITS));
    }

    pub(super) fn has(&self, port: u16) -> bool {
        self.0[usize::from(port) / BITS] & 1 << (usize::from(port) % BITS) != 0
    }

    /// Returns the ports that differ, and whether they are in `after`.
    pub(super) fn changes<'a>(&'a self, after: &'a Self) -> impl Iterator<Item = (u16, bool)> + 'a {
        let differs = |port: &u16| self.has(*port) != after.has(*port);
        (0..=u16::MAX).filter(differs).map(|port| (port, after.has(port)))
    }
}

/// Number of ports.
const PORTS: usize = 1 << 16;
/// Bits of a part of a set.
const BITS: usize = u64::BITS as usize;
/// State of a listening TCP socket in a table.
const TCP_LISTEN: &str = "0A";

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn lines_of_the_kernels_tables() {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when";
        assert_eq!(parse(head, false), None);
        let listens = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000";
        assert_eq!(parse(listens, false), Some((Ipv4Addr::LOCALHOST.into(), 8080)));
        let connected = "   1: 0F02000A:1F90 0202000A:C350 01 00000000:00000000 00:00000000";
        assert_eq!(parse(connected, false), None);
        assert_eq!(parse(connected, true), None);
        let datagrams = "  97: 00000000:0035 00000000:0000 07 00000000:00000000 00:00000000";
        assert_eq!(parse(datagrams, true), Some((Ipv4Addr::UNSPECIFIED.into(), 53)));
        let v6 = "   0: B80D0120000000000000000001000000:0050 \
                  00000000000000000000000000000000:0000 0A";
        let address: Ipv6Addr = "2001:db8::1".parse().unwrap();
        assert_eq!(parse(v6, false), Some((address.into(), 80)));
        for wrong in ["", "0:", "0: x:1 0:0 0A", "0: 0100007F:0000 0:0 0A", "0: 0100007F:1F90 0"] {
            assert_eq!(parse(wrong, false), None, "{wrong}");
        }
    }

    #[test]
    fn changes_of_ports() {
        let (mut before, mut after) = (Ports::none(), Ports::none());
        [1, 80, 65_535].iter().for_each(|port| before.add(*port));
        [80, 443, 64].iter().for_each(|port| after.add(*port));
        after.remove(64);
        let changes: Vec<_> = before.changes(&after).collect();
        assert_eq!(changes, [(1, false), (443, true), (65_535, false)]);
    }

    /// Goal: a socket of this process is in the kernel's tables as they are read here.
    #[test]
    fn own_sockets_are_found() {
        let all = Wanted { tcp: true, udp: true, reach: Reach::Any, ..Wanted::default() };
        let mut tables = Tables::open(&all).unwrap();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = tcp.local_addr().unwrap().port();
        assert!(tables.read(&all).unwrap()[0].has(port));
        let others = Wanted { reach: Reach::Beyond, ..all.clone() };
        assert!(!tables.read(&others).unwrap()[0].has(port));
        let others = Wanted { except: vec![port], ..all.clone() };
        assert!(!tables.read(&others).unwrap()[0].has(port));
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = udp.local_addr().unwrap().port();
        assert!(!tables.read(&all).unwrap()[1].has(port), "assigned by the kernel");
        tables.ephemeral = 1..=1;
        assert!(tables.read(&all).unwrap()[1].has(port));
        let others = Wanted { except_udp: vec![port], ..all.clone() };
        assert!(!tables.read(&others).unwrap()[1].has(port));
        let only_udp = Tables::open(&Wanted { tcp: false, ..all }).unwrap();
        assert_eq!(only_udp.files().len(), 4);
    }
}
