//! The services against independent clients, on a TAP device in the test's own network namespace:
//! the kernel's autoconfiguration by router advertisements, and the DHCP clients of busybox and
//! ISC. A test whose program is not installed reports that it is skipped.
#![allow(clippy::disallowed_methods, reason = "tests bound how long they wait")]

use nix::sched::{CloneFlags, unshare};
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use towpath_gateway::services::{self, Config, Disabled, Ipv4, Ipv6, Services};
use towpath_io::reactor::{Events, Interest, Reactor};
use towpath_io::tap::Tap;
use towpath_net::stack::Context;
use towpath_net::time;
use towpath_net::wire::MacAddr;
use towpath_packet::pool::MemoryConfig;
use towpath_packet::{Burst, Device, Ledger, Memory};

/// Longer than any step takes, so that a hanging test ends.
const PATIENCE: Duration = Duration::from_secs(120);
const GATEWAY_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const PREFIX: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 7, 0, 0, 0, 0);

fn config() -> Config {
    let host = |last: u16| Ipv6Addr::from(u128::from(PREFIX) | u128::from(last));
    Config {
        mac: GATEWAY_MAC,
        mtu: 1400,
        domain: Some("lan.example".parse().expect("a name")),
        search: vec!["lan.example".parse().expect("a name"), "example".parse().expect("a name")],
        ipv4: Some(Ipv4 {
            gateway: [10, 9, 7, 2].into(),
            network: [10, 9, 7, 2].into(),
            prefix_len: 24,
            dns: vec![[10, 9, 7, 3].into()],
            pool: [10, 9, 7, 50].into()..=[10, 9, 7, 50].into(),
        }),
        ipv6: Some(Ipv6 {
            gateway: host(2),
            network: host(2),
            prefix_len: 64,
            dns: vec![host(3)],
            autonomous: true,
            pool: Some(host(0x1000)..=host(0x1000)),
        }),
        hosts: vec![],
        lease_time: services::LEASE_TIME_DEFAULT,
        leases_per_port_max: services::LEASES_PER_PORT_DEFAULT,
        disabled: Disabled::default(),
        seed: 1,
    }
}

/// A directory of the test's own, removed with it.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("towpath-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    /// Writes a script that a DHCP client calls with its parameters, which appends them to
    /// `learned`.
    fn script(&self) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let (path, learned) = (self.0.join("script"), self.learned());
        let text = format!("#!/bin/sh\nexport argument=\"$1\"\nenv >> {}\n", learned.display());
        std::fs::write(&path, text).expect("a script");
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, executable).expect("executable");
        path
    }

    fn learned(&self) -> PathBuf {
        self.0.join("learned")
    }

    fn has_learned(&self, line: &str) -> bool {
        let text = std::fs::read_to_string(self.learned()).unwrap_or_default();
        text.lines().any(|other| other == line)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A client that ends with the test.
struct Client(Child);

impl Client {
    fn start(program: &str, arguments: &[&str]) -> Option<Self> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(child) => Some(Self(child)),
            Err(error) => {
                println!("skipped: {program}: {error}");
                None
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Services at the other end of a TAP device.
struct Bench {
    tap: Tap,
    services: Services,
    reactor: Reactor,
    memory: Memory,
    ledger: Ledger,
    start: Instant,
}

impl Bench {
    fn new(config: Config) -> Option<Self> {
        let tap = match Tap::create("tap0") {
            Ok(tap) => tap,
            Err(error) => {
                println!("skipped: {error}");
                return None;
            }
        };
        let up = Command::new("ip").args(["link", "set", "tap0", "up"]).status();
        if !up.is_ok_and(|status| status.success()) {
            println!("skipped: no ip(8)");
            return None;
        }
        let reactor = Reactor::new().expect("epoll");
        reactor.add(&tap, 0, Interest::READ, false).expect("added");
        let sizes = MemoryConfig { packets: 256, small_frames: 256, large_frames: 64 };
        let (services, memory) = (Services::new(config), Memory::new(sizes));
        Some(Self { tap, services, reactor, memory, ledger: Ledger::new(), start: Instant::now() })
    }

    /// Serves until `done` returns true, which must happen in time.
    fn serve_until(&mut self, what: &str, mut done: impl FnMut() -> bool) {
        let (mut received, mut replies) = (Burst::new(), Burst::new());
        let mut events = Events::new();
        let end = Instant::now() + PATIENCE;
        while !done() {
            assert!(Instant::now() < end, "{what}: {:?}", self.services.counters());
            let wait = Some(Duration::from_millis(20));
            self.reactor.wait(wait, &mut events).expect("waits");
            let now = time::Instant::START + self.start.elapsed();
            let mut cx = Context { memory: &mut self.memory, ledger: &self.ledger, now };
            self.tap.receive(&mut received, &mut cx).expect("reads");
            while let Some(mut packet) = received.pop() {
                self.services.intercept(1, &mut packet, &mut cx, &mut replies);
            }
            self.services.on_deadline(&mut cx, &mut replies);
            self.tap.transmit(&mut replies, &mut cx).expect("writes");
        }
    }
}

/// Runs `test` on a thread with its own network namespace.
fn in_a_network(test: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(move || match unshare(CloneFlags::CLONE_NEWNET) {
        Ok(()) => test(),
        Err(errno) => println!("skipped: no network namespace: {errno}"),
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Goal: the kernel configures itself by the advertisement: address, default route, MTU. After the
/// last advertisement it removes the route.
#[test]
fn the_kernel_follows_advertisements() {
    in_a_network(|| {
        let Some(mut bench) = Bench::new(config()) else { return };
        let routes = || {
            let output = Command::new("ip").args(["-6", "route", "show", "default"]).output();
            String::from_utf8_lossy(&output.expect("ip runs").stdout).into_owned()
        };
        let addresses = || {
            let text = std::fs::read_to_string("/proc/thread-self/net/if_inet6");
            text.expect("addresses")
        };
        bench.serve_until("an address", || addresses().contains("fd00000000000007"));
        let router = services::link_local(GATEWAY_MAC).to_string();
        assert!(routes().contains(&format!("via {router}")), "{}", routes());
        assert!(routes().contains("mtu 1400") || mtu_of_tap0() == "1400", "{}", routes());
        let now = time::Instant::START + bench.start.elapsed();
        let mut cx = Context { memory: &mut bench.memory, ledger: &bench.ledger, now };
        let mut last = Burst::new();
        bench.services.shut_down(&mut cx, &mut last);
        bench.tap.transmit(&mut last, &mut cx).expect("writes");
        bench.serve_until("no route", || routes().is_empty());
    });
}

/// Returns the MTU that IPv6 uses on the interface.
fn mtu_of_tap0() -> String {
    let path = "/proc/sys/net/ipv6/conf/tap0/mtu";
    std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// Goal: busybox's client gets a lease with everything that it asks for, and releases it.
#[test]
fn busybox_gets_a_lease() {
    in_a_network(|| {
        let Some(mut bench) = Bench::new(config()) else { return };
        let directory = Directory::new("udhcpc");
        let script = directory.script();
        let script = script.to_str().expect("a path");
        let options =
            ["-f", "-n", "-R", "-i", "tap0", "-s", script, "-F", "vm1", "-t", "4", "-T", "20"];
        let wanted = ["-O", "search", "-O", "mtu"];
        let arguments = [&["udhcpc"], &options[..], &wanted].concat();
        let Some(client) = Client::start("busybox", &arguments) else { return };
        bench.serve_until("bound", || directory.has_learned("argument=bound"));
        for line in [
            "ip=10.9.7.50",
            "mask=24",
            "router=10.9.7.2",
            "dns=10.9.7.3",
            "domain=lan.example",
            "search=lan.example example",
            "mtu=1400",
            "lease=43200",
            "serverid=10.9.7.2",
        ] {
            assert!(directory.has_learned(line), "{line}: {}", read(&directory.learned()));
        }
        let id = rustix::process::Pid::from_child(&client.0);
        rustix::process::kill_process(id, rustix::process::Signal::TERM)
            .expect("it gets the signal");
        bench.serve_until("deconfigured", || directory.has_learned("argument=deconfig"));
        assert_eq!(bench.services.counters().acks, 1);
    });
}

/// Goal: ISC's client gets leases of both families.
#[test]
fn dhclient_gets_leases() {
    for (family, lines) in [
        ("-4", &["reason=BOUND", "new_ip_address=10.9.7.50", "new_domain_name=lan.example"][..]),
        ("-6", &["reason=BOUND6", "new_ip6_address=fd00:0:0:7::1000"][..]),
    ] {
        in_a_network(move || {
            let Some(mut bench) = Bench::new(config()) else { return };
            let directory = Directory::new(&format!("dhclient{family}"));
            // The client for IPv6 asks from an address that is no longer tentative.
            let link = || {
                let text = std::fs::read_to_string("/proc/thread-self/net/if_inet6");
                text.is_ok_and(|text| {
                    text.lines().any(|line| {
                        line.starts_with("fe80") && line.contains(" 80 ") && line.ends_with("tap0")
                    })
                })
            };
            bench.serve_until("a link-local address", link);
            let (script, leases, pid) =
                (directory.script(), directory.0.join("leases"), directory.0.join("pid"));
            let arguments = [
                family,
                "-d",
                "-1",
                "-sf",
                script.to_str().expect("a path"),
                "-lf",
                leases.to_str().expect("a path"),
                "-pf",
                pid.to_str().expect("a path"),
                "-cf",
                "/dev/null",
                "tap0",
            ];
            let Some(_client) = Client::start("dhclient", &arguments) else { return };
            bench.serve_until(family, || lines.iter().all(|line| directory.has_learned(line)));
        });
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
