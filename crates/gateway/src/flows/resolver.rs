//! The host's resolvers: those that the user named, or those in the current /etc/resolv.conf.

use crate::resolv::{DNS_PORT, name_servers};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use towpath_io::outside;
use towpath_net::time::Instant;

/// Least interval between two checks of the file. A check reads the file, through the broker if
/// there is one: inotify(7) would not show a file that is mounted over another, and the kernel
/// limits its use for each user.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// A resolver that has not answered for this long is asked last.
const PATIENCE: Duration = Duration::from_millis(900);
/// Largest resolv.conf that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The resolvers, and which of them is preferred.
pub(super) struct Resolvers {
    addresses: Vec<SocketAddr>,
    /// `None` if the user named the resolvers.
    file: Option<PathBuf>,
    checked_at: Option<Instant>,
    /// Index of the resolver that is asked first.
    preferred: usize,
    /// Time of the oldest query that the preferred resolver has not answered, with no answer since.
    silent_since: Option<Instant>,
}

impl Resolvers {
    pub(super) fn new(named: Option<Vec<IpAddr>>) -> Self {
        let file = named.is_none().then(|| PathBuf::from("/etc/resolv.conf"));
        let addresses = named.unwrap_or_default();
        let addresses = addresses.into_iter().map(|ip| SocketAddr::new(ip, DNS_PORT)).collect();
        Self { addresses, file, checked_at: None, preferred: 0, silent_since: None }
    }

    /// Returns one resolver, at any port.
    #[cfg(test)]
    pub(super) fn at(resolver: SocketAddr) -> Self {
        Self { addresses: vec![resolver], ..Self::new(Some(Vec::new())) }
    }

    /// Returns the current resolvers.
    pub(super) fn current(&mut self, now: Instant) -> &[SocketAddr] {
        let due = self.checked_at.is_none_or(|at| now.since(at) >= CHECK_INTERVAL);
        if due {
            self.checked_at = Some(now);
            self.look();
        }
        &self.addresses
    }

    /// Returns the resolver to try after `tried` others, beginning with the one that answered last.
    /// Programs repeat a query from another port when no answer comes, so the experience of one
    /// mapping says little.
    pub(super) fn after(&mut self, tried: usize, now: Instant) -> Option<SocketAddr> {
        let count = self.current(now).len();
        if tried >= count {
            return None;
        }
        if self.silent_since.is_some_and(|since| now.since(since) >= PATIENCE) {
            self.prefer_next();
        }
        self.addresses.get((self.preferred + tried) % count).copied()
    }

    /// Returns another port of the first resolver, for DNS over TLS. It is always the same one,
    /// because its certificate names it.
    pub(super) fn first_at(&mut self, port: u16, now: Instant) -> Option<SocketAddr> {
        let mut first = *self.current(now).first()?;
        first.set_port(port);
        Some(first)
    }

    /// A query was sent to a resolver.
    pub(super) fn asked(&mut self, resolver: SocketAddr, now: Instant) {
        if self.addresses.get(self.preferred) == Some(&resolver) {
            self.silent_since.get_or_insert(now);
        }
    }

    /// A resolver has answered.
    pub(super) fn answered(&mut self, resolver: SocketAddr) {
        if self.addresses.get(self.preferred) == Some(&resolver) {
            self.silent_since = None;
        }
    }

    /// A resolver cannot be reached.
    pub(super) fn failed(&mut self, resolver: SocketAddr) {
        if self.addresses.get(self.preferred) == Some(&resolver) {
            self.prefer_next();
        }
    }

    fn prefer_next(&mut self) {
        self.preferred = (self.preferred + 1) % self.addresses.len().max(1);
        self.silent_since = None;
    }

    /// Reads the file. A file that is missing or unreadable for a moment, such as while it is
    /// replaced, changes nothing; neither does one that is too large.
    fn look(&mut self) {
        let Some(path) = &self.file else { return };
        let text = match outside::resolv_conf() {
            Some(answer) => answer.ok(),
            None => read(path),
        };
        let Some(text) = text else { return };
        let addresses = name_servers(&text, interface_index);
        if self.addresses != addresses {
            self.addresses = addresses;
            (self.preferred, self.silent_since) = (0, None);
        }
    }
}

/// Reads a file of at most [`FILE_BYTES_MAX`].
fn read(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).ok()?;
    let is_short = bytes.len() as u64 <= FILE_BYTES_MAX;
    is_short.then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the index of the interface that a zone names.
fn interface_index(zone: &str) -> Option<u32> {
    let (family, kind) = (AddressFamily::INET, SocketType::DGRAM);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).ok()?;
    name_to_index(socket, zone).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_or_dead_resolver_is_asked_last() {
        let named = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().expect("an address"));
        let mut resolvers = Resolvers::new(Some(named.into()));
        let at = |millis| Instant::START + Duration::from_millis(millis);
        let [one, two] = named.map(|ip| SocketAddr::new(ip, DNS_PORT));
        assert_eq!(resolvers.after(0, at(0)), Some(one));
        assert_eq!((resolvers.after(1, at(0)), resolvers.after(2, at(0))), (Some(two), None));
        resolvers.asked(one, at(0));
        resolvers.answered(one);
        resolvers.asked(one, at(1000));
        resolvers.asked(one, at(1800));
        assert_eq!(resolvers.after(0, at(1899)), Some(one));
        assert_eq!(resolvers.after(0, at(1900)), Some(two));
        resolvers.failed(one);
        assert_eq!(resolvers.after(0, at(1900)), Some(two), "another one failed");
        assert_eq!(resolvers.first_at(853, at(1900)), Some(SocketAddr::new(one.ip(), 853)));
        resolvers.failed(two);
        assert_eq!(resolvers.after(0, at(1900)), Some(one));
    }

    #[test]
    fn follows_the_file() {
        let dir = std::env::temp_dir().join(format!("towpath-resolver-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let path = dir.join("resolv.conf");
        std::fs::write(&path, "nameserver 192.0.2.1\n").expect("a file");
        let mut resolvers = Resolvers::new(None);
        resolvers.file = Some(path.clone());
        let at = |checks| Instant::START + CHECK_INTERVAL * checks;
        assert_eq!(resolvers.current(at(0))[0].ip().to_string(), "192.0.2.1");
        // Same length, and perhaps the same time.
        std::fs::write(&path, "nameserver 192.0.2.2\n").expect("a file");
        assert_eq!(resolvers.current(at(0))[0].ip().to_string(), "192.0.2.1");
        assert_eq!(resolvers.current(at(1))[0].ip().to_string(), "192.0.2.2");
        let long = "#".repeat(FILE_BYTES_MAX as usize) + "\nnameserver 192.0.2.3\n";
        std::fs::write(&path, long).expect("a file");
        assert_eq!(resolvers.current(at(2))[0].ip().to_string(), "192.0.2.2", "too long");
        std::fs::write(&path, b"\xff\nnameserver 192.0.2.4\n").expect("a file");
        assert_eq!(resolvers.current(at(3))[0].ip().to_string(), "192.0.2.4", "not text");
        std::fs::remove_dir_all(&dir).expect("removed");
        assert_eq!(resolvers.current(at(4))[0].ip().to_string(), "192.0.2.4");
    }
}
