//! Readiness for a service manager, as sd_notify(3) defines it: a datagram to the socket that the
//! environment variable `NOTIFY_SOCKET` names.

use std::env;
use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use anyhow::{Context, bail};

/// The variable that names the socket.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// A connection to the service manager, made before this process confines itself: afterwards the
/// socket cannot be found any more.
pub(crate) struct Notifier(Option<UnixDatagram>);

impl Notifier {
    /// Connects to the service manager that started this process, if one waits for readiness.
    ///
    /// # Errors
    /// The variable is not valid, or the socket cannot be reached.
    pub(crate) fn new() -> anyhow::Result<Self> {
        match env::var_os(VARIABLE).filter(|name| !name.is_empty()) {
            Some(name) => {
                let connected = connect(&name)
                    .with_context(|| format!("cannot use {VARIABLE}={}", name.display()))?;
                Ok(Self(Some(connected)))
            }
            None => Ok(Self(None)),
        }
    }

    /// Reports that everything works.
    ///
    /// # Errors
    /// The service manager does not take the datagram.
    pub(crate) fn ready(self) -> anyhow::Result<()> {
        let Some(socket) = self.0 else { return Ok(()) };
        socket.send(b"READY=1").with_context(|| format!("cannot send to {VARIABLE}"))?;
        Ok(())
    }
}

fn connect(name: &OsStr) -> anyhow::Result<UnixDatagram> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        [b'/', ..] => SocketAddr::from_pathname(name)?,
        _ => bail!("expected an absolute path, or '@' and a name"),
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: datagrams arrive at sockets with a path and without.
    #[test]
    fn both_kinds_of_names() {
        let name = format!("towpath-notify-{}", std::process::id());
        let path = env::temp_dir().join(&name);
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (receiver, shown) in [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into_os_string()),
            (UnixDatagram::bind_addr(&abstract_name).unwrap(), format!("@{name}").into()),
        ] {
            Notifier(Some(connect(&shown).unwrap())).ready().unwrap();
            let mut buffer = [0; 16];
            assert_eq!(receiver.recv(&mut buffer).unwrap(), 7);
            assert_eq!(&buffer[..7], b"READY=1");
        }
        std::fs::remove_file(&path).unwrap();
        for wrong in ["relative", "vsock:2:1", "/no/such/socket", "@no-such-towpath"] {
            assert!(connect(OsStr::new(wrong)).is_err(), "{wrong}");
        }
    }
}
