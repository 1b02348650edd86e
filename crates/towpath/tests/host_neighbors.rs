//! Neighbours of a host on a TAP device, with the kernel as the other station, in a network
//! namespace of its own. Without the privilege to create one, a test reports that and passes.

use nix::sched::{CloneFlags, unshare};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::thread;
use std::time::Duration;
use towpath::host::{AddressError, Config, DropReason, Host, MacAddr, TcpListener, TcpStream};

/// How long a state of the kernel or of the host is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
const OURS4: [u8; 4] = [10, 9, 8, 2];
const OURS6: &str = "fd00:9::2";

/// Runs `test` on a thread with its own network, of which the host has one end of a TAP device, and
/// the kernel has the given addresses at the other end.
fn in_a_network(kernel: &'static [&'static str], test: impl FnOnce(&Host) + Send + 'static) {
    let thread = thread::spawn(move || {
        if let Err(errno) = unshare(CloneFlags::CLONE_NEWNET) {
            println!("skipped: no network namespace: {errno}");
            return;
        }
        let ours6 = OURS6.parse().expect("an address");
        let addresses = vec![(OURS4.into(), 24), (ours6, 64)];
        let host = match Host::on_tap_named(&Config { addresses, ..Config::default() }, "tap0") {
            Ok(host) => host,
            Err(error) => {
                println!("skipped: {error}");
                return;
            }
        };
        ip(&["link", "set", "tap0", "up"]);
        for address in kernel {
            ip(&["address", "add", address, "dev", "tap0"]);
        }
        test(&host);
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs `ip` in the namespace of this thread; returns what it prints.
fn ip(arguments: &[&str]) -> String {
    let done = Command::new("ip").args(arguments).output().expect("ip runs");
    assert!(done.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Waits until `holds`; returns whether it does.
fn wait_until(mut holds: impl FnMut() -> bool) -> bool {
    const PAUSE: Duration = Duration::from_millis(20);
    for _ in 0..PATIENCE.as_millis() / PAUSE.as_millis() {
        if holds() {
            return true;
        }
        thread::sleep(PAUSE);
    }
    false
}

fn dropped(host: &Host, reason: DropReason) -> u64 {
    host.drops().iter().find(|(of, _)| *of == reason).map_or(0, |(_, count)| *count)
}

/// A connection attempt to an address of the link without a station ends like one of the kernel.
#[test]
fn connecting_to_an_absent_station_fails() {
    in_a_network(&["10.9.8.1/24", "fd00:9::1/64"], |host| {
        for absent in ["10.9.8.77", "fd00:9::77"] {
            let absent: IpAddr = absent.parse().expect("an address");
            let error = TcpStream::connect(host, SocketAddr::new(absent, 80)).expect_err("absent");
            assert_eq!(error.kind(), ErrorKind::HostUnreachable, "{absent}: {error}");
        }
        assert!(dropped(host, DropReason::NeighborUnreachable) > 0);
    });
}

/// The kernel and the host find each other in both families, and the kernel's entry of the host is
/// confirmed.
#[test]
fn the_kernel_and_the_host_find_each_other() {
    in_a_network(&["10.9.8.1/24", "fd00:9::1/64"], |host| {
        let is_ready = || ip(&["-6", "address", "show", "tentative"]).is_empty();
        assert!(wait_until(is_ready), "the kernel's address is usable");
        for kernel in ["10.9.8.1", "fd00:9::1"] {
            let kernel: IpAddr = kernel.parse().expect("an address");
            let listener = std::net::TcpListener::bind((kernel, 80)).expect("listens");
            let mut stream =
                TcpStream::connect(host, SocketAddr::new(kernel, 80)).expect("connects");
            let (mut peer, _) = listener.accept().expect("accepted");
            peer.write_all(b"hello").expect("sent");
            let mut text = [0; 5];
            stream.read_exact(&mut text).expect("received");
            assert_eq!(&text, b"hello");
        }
        // The kernel probes, or a connection confirms its entry.
        let is_reachable = || {
            let known = ip(&["neighbour", "show", "dev", "tap0", "nud", "reachable"]);
            known.contains("10.9.8.2 ") && known.contains("fd00:9::2 ")
        };
        assert!(wait_until(is_reachable), "{}", ip(&["neighbour", "show"]));
        assert_eq!(host.address_conflicts(), []);
    });
}

/// The kernel has the host's addresses: the host's probes find that out, and it withdraws them.
#[test]
fn a_host_withdraws_addresses_that_the_kernel_has() {
    in_a_network(&["10.9.8.2/24"], |host| {
        assert!(wait_until(|| !host.address_conflicts().is_empty()), "a conflict is reported");
        let conflicts = host.address_conflicts();
        assert_eq!((conflicts[0].address, conflicts[0].is_withdrawn), (OURS4.into(), true));
        assert!(dropped(host, DropReason::AddressConflict) > 0);
    });
}

/// The kernel wants the host's IPv6 address: its probe is answered, and it does not use the
/// address.
#[test]
fn the_kernel_is_told_that_an_address_is_taken() {
    in_a_network(&["10.9.8.1/24", "fd00:9::1/64"], |host| {
        // The host's own probes are over when it has announced its address, which the kernel shows
        // by having an entry for it only if it asked before.
        let is_ready = || ip(&["-6", "address", "show", "tentative"]).is_empty();
        assert!(wait_until(is_ready), "the kernel's own address is usable");
        thread::sleep(Duration::from_secs(3));
        ip(&["address", "add", "fd00:9::2/64", "dev", "tap0"]);
        let has_failed = || ip(&["-6", "address", "show", "dadfailed"]).contains("fd00:9::2");
        assert!(wait_until(has_failed), "the kernel found the duplicate");
        assert!(host.address_conflicts().iter().all(|conflict| !conflict.is_withdrawn));
    });
}

/// The kernel reaches an address that the host adds while it runs, and follows a new link-layer
/// address at once. A removed address is not answered for any more.
#[test]
fn addresses_change_while_the_host_runs() {
    in_a_network(&["10.9.8.1/24"], |host| {
        let new: IpAddr = "10.9.8.3".parse().expect("an address");
        host.add_address(new, 24).expect("a free address");
        assert_eq!(host.add_address(new, 24), Err(AddressError::Known(new)));
        assert!(host.addresses().contains(&(new, 24)));
        let listener = TcpListener::bind(host, SocketAddr::new(new, 80)).expect("listens");
        let connect = || {
            let stream = std::net::TcpStream::connect((new, 80)).expect("connects");
            listener.accept().expect("accepted");
            stream
        };
        let entry = || ip(&["neighbour", "show", "10.9.8.3", "dev", "tap0"]);
        connect();
        assert!(entry().contains(&host.mac().to_string()), "{}", entry());
        let mac = MacAddr([2, 0, 0, 0, 7, 7]);
        host.set_mac(mac).expect("a station's address");
        assert!(wait_until(|| entry().contains("02:00:00:00:07:07")), "{}", entry());
        connect();
        assert!(host.remove_address(new) && !host.remove_address(new));
        assert!(!host.addresses().contains(&(new, 24)));
        ip(&["neighbour", "flush", "dev", "tap0"]);
        let (to, patience) = (SocketAddr::new(new, 80), Duration::from_secs(4));
        std::net::TcpStream::connect_timeout(&to, patience).expect_err("nobody answers");
    });
}
