//! towpath in place of passt, with real virtual machines.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::machine::Machine;
use crate::network::{lease, reach_host};

/// Most checks until a socket is there.
const LOOKS_MAX: u32 = 1000;
/// What the machine gets.
const ADDRESSES: [&str; 6] = ["-a", "10.0.2.77", "-n", "24", "-g", "10.0.2.2"];

/// Goal: a machine at each kind of socket gets its address by DHCP, reaches the host's loopback
/// through the gateway's address, is reached at a published port, and ends passt when it ends.
pub(crate) fn of_each_kind() {
    for kind in [&[][..], &["--vhost-user"]] {
        let name = format!("towpath-passt-{}-{}", kind.len(), std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory among temporary files");
        let socket = directory.join("socket");
        let port = free_port();
        let mut passt = start(&directory, &socket, port, kind);
        let mut machine = match kind {
            [] => Machine::boot_stream(&socket, ""),
            _ => Machine::boot(&socket, 1, ""),
        };
        lease(&mut machine, "web");
        machine.run("ip addr show eth0 | grep -q 'inet 10.0.2.77/24'");
        machine.run("grep -q 'nameserver 169.254.1.1' /etc/resolv.conf");
        reach_host(&mut machine);
        machine.start("nc -l -p 7 -e cat &");
        machine.run("while ! netstat -ltn | grep -q :7; do sleep 0.1; done");
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("published");
        client.write_all(b"there and back").expect("the machine reads");
        client.shutdown(std::net::Shutdown::Write).expect("open");
        let mut back = String::new();
        client.read_to_string(&mut back).expect("the machine sends");
        assert_eq!(back, "there and back");
        machine.power_off();
        assert!(passt.0.wait().expect("ours").success(), "it ends with its machine");
        assert!(!socket.exists());
        std::fs::remove_dir_all(directory).expect("ours");
    }
}

/// A running passt, ended when dropped.
struct Passt(Child);

impl Drop for Passt {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts passt; returns when its socket is there.
fn start(directory: &Path, socket: &Path, port: u16, kind: &[&str]) -> Passt {
    let link = directory.join("passt");
    symlink(env!("CARGO_BIN_EXE_towpath"), &link).expect("a new link");
    let mut command = Command::new(link);
    command.args(["-f", "-q", "-1", "-4"]).args(ADDRESSES).args(kind);
    command.args(["-t", &format!("127.0.0.1/{port}:7"), "-s"]).arg(socket);
    let passt = Passt(command.stdin(Stdio::null()).spawn().expect("towpath starts"));
    for _ in 0..LOOKS_MAX {
        if socket.exists() {
            return passt;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("no socket");
}

/// Returns a port of the loopback that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of the loopback");
    listener.local_addr().expect("bound").port()
}
