//! `towpath up` as a service whose manager waits for readiness.

use std::os::unix::net::UnixDatagram;
use std::process::Stdio;

use rustix::process::Signal;

use super::stats::Folder;
use super::support::*;

/// Goal: the manager learns that the network is ready when its sockets are there.
#[test]
fn a_service_manager_learns_of_readiness() {
    let folder = Folder::new("notify");
    let (manager, guest) = (folder.0.join("manager"), folder.0.join("vm1.sock"));
    let socket = UnixDatagram::bind(&manager).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = towpath(["up", "--vhost-user", &format!("vm1={}", guest.display())]);
    command.env("NOTIFY_SOCKET", &manager).env("XDG_RUNTIME_DIR", &folder.0);
    let network = Guard(command.stderr(Stdio::piped()).spawn().unwrap());
    let mut buffer = [0; 64];
    let count = socket.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..count], b"READY=1");
    assert!(guest.exists(), "a guest can connect");
    network.signal(Signal::TERM);
    let ended = finish(network);
    assert_eq!(ended.status.code(), Some(0), "{}", errors(&ended));
}

#[test]
fn a_service_manager_that_is_gone_is_an_error() {
    for (name, expected) in [
        ("/no/such/manager", "cannot use NOTIFY_SOCKET=/no/such/manager: No such file"),
        ("manager", "cannot use NOTIFY_SOCKET=manager: expected an absolute path, or '@' and"),
    ] {
        let refused = output(towpath(["up"]).env("NOTIFY_SOCKET", name));
        assert_eq!(refused.status.code(), Some(125));
        assert!(errors(&refused).contains(expected), "{}", errors(&refused));
    }
}
