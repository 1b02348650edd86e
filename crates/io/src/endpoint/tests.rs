//! Listening sockets and the files they leave behind.

use super::*;
use std::os::unix::net::{UnixListener, UnixStream};

/// A directory for one test, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("towpath-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("vm.sock")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_listener_accepts_and_removes_its_file() {
    let folder = Folder::new("accepts");
    let listener = Listener::bind(&folder.socket()).unwrap();
    assert!(listener.accept().unwrap().is_none());
    let _front_end = UnixStream::connect(folder.socket()).unwrap();
    assert!(listener.accept().unwrap().is_some());
    drop(listener);
    assert!(!folder.socket().exists());
}

#[test]
fn a_file_left_behind_is_taken_over() {
    let folder = Folder::new("stale");
    drop(UnixListener::bind(folder.socket()).unwrap());
    assert!(folder.socket().exists());
    let listener = Listener::bind(&folder.socket()).unwrap();
    let _front_end = UnixStream::connect(folder.socket()).unwrap();
    assert!(listener.accept().unwrap().is_some());
}

#[test]
fn a_socket_in_use_and_other_files_are_left_alone() {
    let folder = Folder::new("in-use");
    let other = UnixListener::bind(folder.socket()).unwrap();
    let refused = Listener::bind(&folder.socket()).unwrap_err();
    assert_eq!(refused, EndpointError::InUse(folder.socket()));
    drop(other);
    let file = folder.0.join("file");
    std::fs::write(&file, "kept").unwrap();
    assert_eq!(Listener::bind(&file).unwrap_err(), EndpointError::NotASocket(file.clone()));
    assert_eq!(std::fs::read(&file).unwrap(), b"kept");
}

/// Another process has removed the file and listens there now: its file stays.
#[test]
fn the_file_of_a_successor_is_left_alone() {
    let folder = Folder::new("successor");
    let listener = Listener::bind(&folder.socket()).unwrap();
    std::fs::remove_file(folder.socket()).unwrap();
    let _successor = UnixListener::bind(folder.socket()).unwrap();
    drop(listener);
    assert!(folder.socket().exists());
}

#[test]
fn impossible_paths_are_refused() {
    for path in ["", &"/".repeat(109), "a\0b"] {
        let path = PathBuf::from(path);
        assert_eq!(Listener::bind(&path).unwrap_err(), EndpointError::Path(path.clone()));
        assert_eq!(connect(&path).unwrap_err(), EndpointError::Path(path));
    }
    let nowhere = PathBuf::from("/nowhere/vm.sock");
    assert_eq!(Listener::bind(&nowhere).unwrap_err(), EndpointError::NoFolder(nowhere.clone()));
}

#[test]
fn a_client_waits_for_the_front_end() {
    let folder = Folder::new("client");
    assert!(connect(&folder.socket()).unwrap().is_none(), "no file");
    let front_end = UnixListener::bind(folder.socket()).unwrap();
    assert!(connect(&folder.socket()).unwrap().is_some());
    drop(front_end);
    assert!(connect(&folder.socket()).unwrap().is_none(), "no listener");
}

#[test]
fn connections_are_connected_stream_sockets() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let connection = Connection::new(ours.into()).unwrap();
    let other = connection.clone();
    assert_eq!(connection, other);
    let socket = connection.take().unwrap();
    assert!(rustix::fs::fcntl_getfl(&socket).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
    assert!(other.take().is_none(), "the socket is taken once");
    let folder = Folder::new("connections");
    let listening = UnixListener::bind(folder.socket()).unwrap();
    assert_eq!(Connection::new(listening.into()), Err(Errno::NOTCONN));
    let (datagrams, _theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
    assert_eq!(Connection::new(datagrams.into()), Err(Errno::PROTOTYPE));
    let file = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(Connection::new(file.into()), Err(Errno::NOTSOCK));
}

#[test]
fn sockets_in_use_are_recognised() {
    let folder = Folder::new("in-use");
    assert!(!is_in_use(&folder.socket()), "there is none");
    let listener = UnixListener::bind(folder.socket()).unwrap();
    assert!(is_in_use(&folder.socket()));
    drop(listener);
    assert!(!is_in_use(&folder.socket()), "no process listens");
}
