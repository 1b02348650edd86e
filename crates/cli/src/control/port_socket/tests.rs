//! Requests on a socket, to an instance that only notes what is published.

use super::*;
use std::fs;
use std::io::{ErrorKind, Read, Write};

use towpath_gateway::flows::StartError;
use towpath_gateway::publish::{PortChange, Protocol, Publish};

/// An instance that notes what is published. Port 1 is always in use.
#[derive(Default)]
struct Noted {
    ports: BTreeMap<u16, Publish>,
}

impl Publishing for Noted {
    fn publish(&mut self, publish: &Publish) -> Result<PublishId, StartError> {
        let port = publish.host_port;
        if port == 1 {
            let address = (Ipv4Addr::UNSPECIFIED, port).into();
            return Err(StartError::PortInUse { protocol: "TCP", address });
        }
        self.ports.insert(port, publish.clone());
        Ok(PublishId(port.into()))
    }

    fn unpublish(&mut self, id: PublishId) -> bool {
        self.ports.remove(&(id.0 as u16)).is_some()
    }

    fn change_ports(&mut self, _: Vec<PortChange>) -> Result<(), (usize, StartError)> {
        unreachable!("requests change one port at a time")
    }

    fn published(&self) -> Vec<(PublishId, &Publish)> {
        self.ports.iter().map(|(port, publish)| (PublishId((*port).into()), publish)).collect()
    }
}

/// A socket in a folder that goes with it.
struct Bench {
    socket: PortSocket,
    path: PathBuf,
    instance: Noted,
}

impl Bench {
    fn new(name: &str) -> Self {
        let folder = format!("towpath-port-socket-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("api");
        let socket = PortSocket::new(&path, Some(Ipv4Addr::new(10, 0, 2, 100))).unwrap();
        Self { socket, path, instance: Noted::default() }
    }

    fn serve(&mut self) {
        self.socket.serve(&mut self.instance).unwrap();
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    }

    /// Returns the answer to a request that is sent whole.
    fn ask(&mut self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        self.serve();
        self.read(&mut stream)
    }

    /// Returns what a client gets until the end of its connection.
    fn read(&mut self, stream: &mut UnixStream) -> String {
        let mut answer = Vec::new();
        for _ in 0..1_000_000 {
            let mut buffer = [0; 4096];
            match stream.read(&mut buffer) {
                Ok(0) => return String::from_utf8(answer).unwrap(),
                Ok(count) => answer.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.serve(),
                Err(error) => panic!("{error}"),
            }
        }
        panic!("no end after {} bytes", answer.len());
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.path.parent().unwrap());
    }
}

fn add(port: u16) -> String {
    format!(
        "{{\"execute\":\"add_hostfwd\",\"arguments\":{{\"proto\":\"tcp\",\"host_port\":{port},\
         \"guest_port\":80}}}}"
    )
}

fn remove(id: u64) -> String {
    format!("{{\"execute\":\"remove_hostfwd\",\"arguments\":{{\"id\":{id}}}}}")
}

const LIST: &str = "{\"execute\":\"list_hostfwd\"}";

#[test]
fn numbers_are_not_given_twice() {
    let mut bench = Bench::new("numbers");
    assert_eq!(bench.ask(&add(80)), hostfwd::added(1));
    assert_eq!(bench.ask(&add(81)), hostfwd::added(2));
    assert!(bench.ask(&add(1)).contains("slirp_add_hostfwd failed: TCP port 0.0.0.0:1 is in use"));
    assert_eq!(bench.ask(&remove(2)), hostfwd::removed());
    assert_eq!(bench.ask(&remove(2)), hostfwd::refusal(hostfwd::UNKNOWN_ID));
    assert_eq!(bench.ask(&add(82)), hostfwd::added(3));
    assert!(bench.instance.ports.keys().eq(&[80, 82]));
    let listed = bench.ask(LIST);
    assert!(listed.contains("{\"id\":1,") && listed.contains("{\"id\":3,"), "{listed}");
    assert!(!listed.contains("\"id\":2"), "{listed}");
}

/// Goal: clients that send nothing, or a part, keep no other client waiting, and more of them than
/// there are places displace the oldest.
#[test]
fn silent_clients() {
    let mut bench = Bench::new("silent");
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        silent.push(bench.connect());
        bench.serve();
    }
    silent[1].write_all(b"{\"execute\":").unwrap();
    assert_eq!(bench.ask(LIST), "{\"entries\":[]}");
    assert_eq!(bench.read(&mut silent[0]), "", "the oldest is displaced");
    silent[1].write_all(b"\"list_hostfwd\"}").unwrap();
    assert_eq!(bench.read(&mut silent[1]), "{\"entries\":[]}");
    drop(silent);
    bench.serve();
    assert!(bench.socket.clients.is_idle());
}

#[test]
fn a_connection_ends_after_some_ticks() {
    let mut bench = Bench::new("ticks");
    let mut silent = bench.connect();
    bench.serve();
    assert!(!bench.socket.clients.is_idle());
    bench.socket.clients.time_out().unwrap();
    assert_eq!(bench.read(&mut silent), "");
    bench.serve();
    assert!(bench.socket.clients.is_idle());
}

/// Goal: at the limit of ports another one is refused; a list of all is sent in parts.
#[test]
fn the_limit_of_ports() {
    let mut bench = Bench::new("limit");
    for id in 1..=FORWARDS_MAX {
        let request = hostfwd::Forward {
            protocol: Protocol::Tcp,
            host: Ipv4Addr::UNSPECIFIED,
            host_port: 1000 + id as u16,
            guest: Ipv4Addr::new(10, 0, 2, 100),
            guest_port: 80,
        };
        let answer = bench.socket.ports.perform(Request::Add(request), &mut bench.instance);
        assert_eq!(answer, hostfwd::added(id as u64));
    }
    assert!(bench.ask(&add(90)).contains("16384 ports are published"));
    assert_eq!(bench.ask(LIST).matches("\"id\"").count(), FORWARDS_MAX);
    assert_eq!(bench.ask(&remove(7)), hostfwd::removed());
    assert_eq!(bench.ask(&add(90)), hostfwd::added(FORWARDS_MAX as u64 + 1));
}

#[test]
fn the_file_goes_with_the_socket() {
    let Bench { socket, path, .. } = &Bench::new("file");
    assert_eq!(socket.file().map(|(path, _)| path).as_ref(), Some(path));
    assert!(PortSocket::new(path, None).is_err(), "in use");
    assert!(path.exists());
    let other = path.with_file_name("other");
    drop(PortSocket::new(&other, None).unwrap());
    assert!(!other.exists());
}
