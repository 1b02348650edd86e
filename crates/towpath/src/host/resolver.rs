//! Targets of connections: addresses, or names that the host's resolver resolves.

use std::fmt;
use std::io;
use std::net::{self, IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::sync::Arc;

/// An address, several addresses, or a name and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// One address.
    Address(SocketAddr),
    /// Several addresses; the first that works is used.
    Addresses(Vec<SocketAddr>),
    /// A name, for a [`Resolver`], and a port.
    Name(String, u16),
}

/// Types that name a target to connect, bind or send to: addresses, and texts such as
/// `"192.0.2.1:80"`, `"[2001:db8::1]:80"` or `"example.org:80"`, like [`std::net::ToSocketAddrs`].
/// The [`Resolver`] of the host resolves names
/// ([`Config::resolver`](crate::host::Config::resolver)).
pub trait ToSocketAddrs {
    /// Returns the target without resolving it. Does not block.
    ///
    /// # Errors
    /// `InvalidInput` for a text without a port, or if the port is not a number up to 65535.
    fn to_target(&self) -> io::Result<Target>;
}

/// Finds the addresses of names for a host. Clones share the function.
#[derive(Clone)]
pub struct Resolver(Arc<Resolve>);

type Resolve = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

impl Resolver {
    /// Creates a resolver that calls `resolve` with a name and a port. Blocking calls run it on
    /// their own thread; those of [`towpath::tokio`](crate) on tokio's thread pool for blocking
    /// work.
    pub fn new(
        resolve: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(resolve))
    }

    /// Returns the addresses of a target, in the order in which to try them.
    ///
    /// # Errors
    /// The errors of the function; `NotFound` if it returns no address.
    pub fn resolve(&self, target: Target) -> io::Result<Vec<SocketAddr>> {
        let (name, port) = match target {
            Target::Address(address) => return Ok(vec![address]),
            Target::Addresses(addresses) => return Ok(addresses),
            Target::Name(name, port) => (name, port),
        };
        let addresses = (self.0)(&name, port)?;
        if addresses.is_empty() {
            let text = format!("{name}: the resolver has no address of this name");
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        Ok(addresses)
    }
}

/// The system's resolver, getaddrinfo(3), which uses the network of the machine itself.
impl Default for Resolver {
    fn default() -> Self {
        Self::new(|name, port| Ok(net::ToSocketAddrs::to_socket_addrs(&(name, port))?.collect()))
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

macro_rules! addresses {
    ($($kind:ty),+) => {$(
        impl ToSocketAddrs for $kind {
            fn to_target(&self) -> io::Result<Target> {
                Ok(Target::Address((*self).into()))
            }
        }
    )+};
}

addresses!(
    SocketAddr,
    SocketAddrV4,
    SocketAddrV6,
    (IpAddr, u16),
    (Ipv4Addr, u16),
    (Ipv6Addr, u16),
    ([u8; 4], u16),
    ([u16; 8], u16)
);

impl ToSocketAddrs for [SocketAddr] {
    fn to_target(&self) -> io::Result<Target> {
        Ok(Target::Addresses(self.to_vec()))
    }
}

impl ToSocketAddrs for Vec<SocketAddr> {
    fn to_target(&self) -> io::Result<Target> {
        self.as_slice().to_target()
    }
}

impl ToSocketAddrs for (&str, u16) {
    fn to_target(&self) -> io::Result<Target> {
        let (name, port) = *self;
        Ok(match name.parse::<IpAddr>() {
            Ok(address) => Target::Address((address, port).into()),
            Err(_) => Target::Name(name.to_owned(), port),
        })
    }
}

impl ToSocketAddrs for (String, u16) {
    fn to_target(&self) -> io::Result<Target> {
        (&*self.0, self.1).to_target()
    }
}

impl ToSocketAddrs for str {
    fn to_target(&self) -> io::Result<Target> {
        if let Ok(address) = self.parse::<SocketAddr>() {
            return Ok(Target::Address(address));
        }
        let invalid = |what: &str| {
            let text =
                format!("{self:?}: {what}; expected HOST:PORT, where HOST is a name or an address");
            io::Error::new(io::ErrorKind::InvalidInput, text)
        };
        let (name, port) = self.rsplit_once(':').ok_or_else(|| invalid("the port is missing"))?;
        let port = port.parse().map_err(|_| invalid("the port is not a number from 0 to 65535"))?;
        if name.is_empty() {
            return Err(invalid("the name is missing"));
        }
        (name, port).to_target()
    }
}

impl ToSocketAddrs for String {
    fn to_target(&self) -> io::Result<Target> {
        self.as_str().to_target()
    }
}

impl<T: ToSocketAddrs + ?Sized> ToSocketAddrs for &T {
    fn to_target(&self) -> io::Result<Target> {
        (**self).to_target()
    }
}

/// Tries the addresses of a target until one works; otherwise returns the last error.
pub(in crate::host) fn first_of<T>(
    resolver: &Resolver,
    target: impl ToSocketAddrs,
    mut attempt: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let target = target.to_target()?;
    if let Target::Address(address) = target {
        return attempt(address);
    }
    let mut failure = None;
    for address in resolver.resolve(target)? {
        match attempt(address) {
            Ok(done) => return Ok(done),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(no_address))
}

/// The error of a target without addresses.
pub(crate) fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "no address is given")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Result<Target, io::ErrorKind> {
        text.to_target().map_err(|error| error.kind())
    }

    #[test]
    fn texts_are_addresses_or_names_with_a_port() {
        let address = |text: &str| Ok(Target::Address(text.parse().unwrap()));
        assert_eq!(target("192.0.2.1:80"), address("192.0.2.1:80"));
        assert_eq!(target("[2001:db8::1]:443"), address("[2001:db8::1]:443"));
        assert_eq!(target("example.org:80"), Ok(Target::Name("example.org".into(), 80)));
        for wrong in ["", "example.org", "example.org:", ":80", "example.org:65536", "a:-1"] {
            assert_eq!(target(wrong), Err(io::ErrorKind::InvalidInput), "{wrong:?}");
        }
        assert_eq!(("192.0.2.1", 7).to_target().unwrap(), target("192.0.2.1:7").unwrap());
        assert_eq!(([192, 0, 2, 1], 7).to_target().unwrap(), target("192.0.2.1:7").unwrap());
    }

    /// Goal: addresses are tried in order, a name goes to the resolver, and the last error is
    /// returned.
    #[test]
    fn the_first_address_that_works_is_taken() {
        let resolver = Resolver::new(|name, port| match name {
            "two" => Ok(vec![([192, 0, 2, 1], port).into(), ([192, 0, 2, 2], port).into()]),
            "none" => Ok(Vec::new()),
            _ => Err(io::ErrorKind::PermissionDenied.into()),
        });
        let mut tried = Vec::new();
        let second: SocketAddr = ([192, 0, 2, 2], 80).into();
        let found = first_of(&resolver, "two:80", |address| {
            tried.push(address);
            if address == second { Ok(address) } else { Err(io::ErrorKind::TimedOut.into()) }
        });
        assert_eq!((found.unwrap(), tried.len()), (second, 2));
        let fails = |text: &str| {
            let failed = |_| Err::<(), _>(io::ErrorKind::ConnectionRefused.into());
            first_of(&resolver, text, failed).unwrap_err().kind()
        };
        assert_eq!(fails("two:80"), io::ErrorKind::ConnectionRefused);
        assert_eq!(fails("none:80"), io::ErrorKind::NotFound);
        assert_eq!(fails("other:80"), io::ErrorKind::PermissionDenied);
        let nothing = first_of(&resolver, Vec::new(), |_| Ok(())).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::InvalidInput);
    }
}
