//! Links and MTUs of ports that change while `towpath up` serves guests.
//!
//! The guests are rings in this process, or stream sockets, so the tests need no privilege.

use std::fs;
use std::os::unix::net::UnixStream;
use std::process::Output;

use serde_json::{Value, json};

use super::control;
use super::front_end::{Guest, memory};
use super::stats::Folder;
use super::support::*;
use super::vhost::Network;

/// Bytes of a frame: more than a small MTU.
const FRAME: usize = 1000;
/// Changes of an MTU, and of a link, under traffic.
const MTU_CHANGES: u32 = 400;
const LINK_CHANGES: u8 = 40;
/// Growth of the process during all of that, in KiB: less than 3 for each change.
const GROWTH_KIB_MAX: u64 = 1024;

impl Network {
    fn towpath(&self, arguments: &[&str]) -> Output {
        output(towpath(arguments.iter().copied()).env("XDG_RUNTIME_DIR", &self.folder.0))
    }

    fn set(&self, port: &str, setting: &str, value: &str) {
        control::assert_done(&self.towpath(&["port", "set", port, setting, value]));
    }

    /// A value that is not valid.
    fn refuses(&self, port: &str, setting: &str, value: &str, why: &str) {
        let output = self.towpath(&["port", "set", port, setting, value]);
        assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
        assert!(errors(&output).contains(why), "{}", errors(&output));
    }

    fn post(&self, operations: &Value) -> u16 {
        let socket = self.folder.sockets().join(format!("{}.control", self.running.0.id()));
        control::post(&socket, &json!({ "operations": operations }).to_string()).0
    }

    /// Returns a port as it is listed.
    fn listed(&self, name: &str) -> Value {
        let listed = text(&self.towpath(&["ls", "--json"]));
        let ports = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        ports.into_iter().find(|port| port["name"] == name).expect("it is listed")
    }

    fn dropped(&self, port: &str, reason: &str) -> u64 {
        let pid = self.running.0.id().to_string();
        let stats = text(&self.towpath(&["stats", "--json", &pid]));
        let stats: Value = serde_json::from_str(&stats).unwrap();
        // Absent until it occurs.
        stats["ports"][port]["dropped"][reason].as_u64().unwrap_or(0)
    }

    /// Connects a guest to a port as soon as it has a socket and no other guest.
    fn guest(&self, port: &str) -> Guest {
        let mut guest = None;
        wait_for("the port to take a guest", || {
            let socket = UnixStream::connect(self.path(port)).ok();
            guest = socket.and_then(|socket| Guest::over(socket, memory()));
            guest.is_some()
        });
        guest.expect("it is connected")
    }
}

/// Returns a broadcast frame.
fn frame(number: u8) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, number, 0x88, 0xb5]);
    frame.resize(FRAME, number);
    frame
}

/// Sends until a frame has passed in each direction.
fn exchange(one: &mut Guest, two: &mut Guest, number: u8) {
    let (mut there, mut back) = (false, false);
    wait_for("a frame each way", || {
        one.send(&frame(number));
        two.send(&frame(number | 0x80));
        there |= two.has_received(|found| found == frame(number));
        back |= one.has_received(|found| found == frame(number | 0x80));
        there && back
    });
}

/// Goal: a link that is set down disconnects its front end and removes its socket; packets to it
/// are dropped with their reason. When it is set up, the next front end is served. A change that is
/// taken back disconnects no front end.
#[test]
fn a_link_goes_down_and_up() {
    let network = Network::start("link");
    let (mut one, mut two) = (network.guest("one"), network.guest("two"));
    exchange(&mut one, &mut two, 1);
    let impossible = json!([{ "set": "one", "link": "down", "mtu": 600 }, { "del": "three" }]);
    assert_eq!(network.post(&impossible), 409);
    exchange(&mut one, &mut two, 2);
    let listed = network.listed("one");
    assert_eq!((&listed["link"], &listed["mtu"]), (&"up".into(), &1500.into()));
    network.set("one", "link", "down");
    wait_for("its socket to go", || !network.path("one").exists());
    let listed = network.listed("one");
    assert_eq!((&listed["link"], &listed["connected"]), (&"down".into(), &false.into()));
    assert!(text(&network.towpath(&["ls"])).contains(" one             link down "));
    wait_for("drops with their reason", || {
        two.send(&frame(3));
        network.dropped("one", "link_down") > 0
    });
    network.set("one", "link", "up");
    let mut next = network.guest("one");
    exchange(&mut next, &mut two, 4);
    network.refuses("one", "link", "left", "expected up or down");
    let said = network.finish();
    assert!(said.contains("towpath: one: the session ended: the link was set down\n"), "{said}");
    assert!(said.contains("  dropped         link_down "), "{said}");
}

/// Goal: a network that ends with its machine continues while the machine's link is down, and ends
/// when the machine has gone.
#[test]
fn a_link_that_is_down_does_not_end_a_network() {
    let options = ["--no-gateway", "--one-off"];
    let ports = [("--vhost-user", "one")];
    let mut network = Network::start_as(Folder::new("one-off-link"), &options, &ports);
    let one = network.guest("one");
    network.set("one", "link", "down");
    wait_for("its socket to go", || !network.path("one").exists());
    network.set("one", "link", "up");
    drop(one);
    let next = network.guest("one");
    assert!(network.running.0.try_wait().unwrap().is_none(), "it still runs");
    drop(next);
    wait_for("the end", || network.running.0.try_wait().unwrap().is_some());
}

/// Goal: the MTU of a port changes at once, without a new connection.
#[test]
fn an_mtu_changes_while_packets_flow() {
    let network = Network::start("mtu");
    let (mut one, mut two) = (network.guest("one"), network.guest("two"));
    exchange(&mut one, &mut two, 1);
    network.set("one", "mtu", "600");
    assert_eq!(network.listed("one")["mtu"], 600);
    one.has_received(|_| true);
    wait_for("drops with their reason", || {
        two.send(&frame(2));
        network.dropped("one", "too_large") > 0
    });
    assert!(!one.has_received(|found| found == frame(2)), "it is too large");
    network.set("one", "mtu", "9000");
    exchange(&mut one, &mut two, 3);
    network.refuses("one", "mtu", "575", "expected a number from 576 to 65520");
    network.finish();
}

/// Goal: changes of MTU and link under traffic leave neither descriptors nor memory behind.
#[test]
fn changes_under_traffic_leave_nothing() {
    let network = Network::start("changes");
    let mut two = network.guest("two");
    let pid = network.running.0.id();
    let files = || fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let memory = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap()
    };
    let mut change = |round: u8| {
        let mut one = network.guest("one");
        exchange(&mut one, &mut two, round & 0x7f);
        for step in 0..MTU_CHANGES / u32::from(LINK_CHANGES) {
            one.send(&frame(1));
            two.send(&frame(2));
            let mtu = if step % 2 == 0 { 9000 } else { 600 };
            assert_eq!(network.post(&json!([{ "set": "one", "mtu": mtu }])), 200);
        }
        assert_eq!(network.post(&json!([{ "set": "one", "mtu": 1500, "link": "down" }])), 200);
        wait_for("its socket to go", || !network.path("one").exists());
        two.send(&frame(3));
        assert_eq!(network.post(&json!([{ "set": "one", "link": "up" }])), 200);
    };
    (0..5).for_each(&mut change);
    let (files_before, memory_before) = (files(), memory());
    (0..LINK_CHANGES).for_each(&mut change);
    wait_for("descriptors to be closed", || files() <= files_before);
    assert!(memory() <= memory_before + GROWTH_KIB_MAX, "{memory_before} KiB, now {}", memory());
    network.finish();
}

/// Goal: at a stream socket, which has no words for a link, packets are dropped both ways while the
/// connection continues.
#[test]
fn a_link_at_a_stream_socket() {
    let network = control::Network::start("stream-link");
    let mut guests = ["a", "b"].map(|port| {
        let path = network.folder.0.join(format!("{port}.sock"));
        UnixStream::connect(path).unwrap()
    });
    let dropped = || {
        let pid = network.running.0.id().to_string();
        let stats: Value =
            serde_json::from_str(&text(&network.towpath(&["stats", "--json", &pid]))).unwrap();
        ["a", "b"].map(|port| stats["ports"][port]["dropped"]["link_down"].as_u64().unwrap_or(0))
    };
    control::assert_done(&network.towpath(&["port", "set", "a", "link", "down"]));
    for (from, expected) in [(0, [1, 0]), (1, [2, 0])] {
        control::send_frame(&mut guests[from]);
        wait_for("the drop", || dropped() == expected);
    }
    let up = ["port", "set", "a", "link", "up", "mtu", "1400"];
    control::assert_done(&network.towpath(&up));
    control::send_frame(&mut guests[0]);
    guests[1].set_read_timeout(Some(PATIENCE)).unwrap();
    std::io::Read::read_exact(&mut guests[1], &mut [0; 64]).unwrap();
    assert_eq!(dropped(), [2, 0]);
}
