//! Policies of single ports of `towpath up`, for flows to the outside.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};

use serde_json::json;

use super::guest::{Guest, udp_frame};
use super::network::{GATEWAY, Network};
use super::support::*;

/// A guest with an address, and the server that it sends to.
struct Sender<'a> {
    guest: Guest,
    own: Ipv4Addr,
    gateway: [u8; 6],
    server: &'a UdpSocket,
    /// Each datagram comes from a port of its own, so each is a flow.
    port: u16,
}

impl<'a> Sender<'a> {
    fn new(mut guest: Guest, server: &'a UdpSocket) -> Self {
        let own = guest.lease(&[]).unwrap().your_address;
        let gateway = guest.resolve(own, GATEWAY);
        Self { guest, own, gateway, server, port: 4000 }
    }

    fn send(&mut self) -> [u8; 2] {
        self.port += 1;
        let to = (self.gateway, (GATEWAY, self.server.local_addr().unwrap().port()));
        let from = (self.guest.mac, (self.own, self.port));
        self.guest.send(&udp_frame(to, from, &self.port.to_be_bytes()));
        self.port.to_be_bytes()
    }

    /// Sends a datagram, and returns when the server has it.
    fn is_served(&mut self) {
        let sent = self.send();
        let mut buffer = [0; 8];
        let len = self.server.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], sent, "of {}", self.own);
    }

    /// Sends a datagram, and returns when ICMP has said that it is administratively prohibited.
    fn is_refused(&mut self) {
        self.send();
        self.guest.expect("ICMP", |frame| {
            frame[12..14] == [8, 0] && frame[23] == 1 && frame[34..36] == [3, 13]
        });
    }
}

/// Goal: a port has a policy of its own, from the file or while the network runs; the others are
/// under that of the network, or free.
#[test]
fn a_port_has_a_policy_of_its_own() {
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let file = "[[port]]\nname = 'd'\nstream = 'DIR/d'\n[port.egress]\n[[port.egress.rule]]\n\
                id = 'web'\naction = 'allow'\nto = '192.0.2.1'\n";
    let network = Network::start("port-policies", file, &["--map-host-loopback", "10.0.2.2"]);
    let folder = network.folder.0.clone();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let listed = network.done(&["policy", "check", &path("net.toml")]);
    let rule =
        "web: allow 192.0.2.1 all ports\ndefault: deny; closed addresses need override-floor";
    assert_eq!(listed, format!("port d:\n{rule}\n"));
    let mut a = Sender::new(network.guest("a", 1), &server);
    let mut d = Sender::new(network.guest("d", 4), &server);
    d.is_refused();
    a.is_served();
    // Others come to be under a policy while the network runs.
    fs::write(path("none.toml"), "[egress]\n").unwrap();
    let open =
        "[egress]\n[[egress.rule]]\nid = 'server'\naction = 'allow'\noverride-floor = true\n";
    fs::write(path("open.toml"), open).unwrap();
    let control = network.control();
    let pid = control.file_stem().unwrap().to_str().unwrap();
    network.done(&["policy", "set", pid, &path("none.toml"), "--port", "a"]);
    a.is_refused();
    network.done(&["policy", "set", pid, &path("open.toml")]);
    a.is_refused();
    network.done(&["port", "set", "d", "--egress", &path("open.toml")]);
    d.is_served();
    network.done(&["port", "set", "a", "egress", "no"]);
    a.is_served();
    let egress = &network.stats()["egress"];
    assert_eq!(
        egress["ports"],
        json!({ "d": { "default": counts(0, 0), "server": counts(1, 0) } })
    );
    assert_eq!(egress["rules"]["server"], counts(1, 0));
    // A port that is gone leaves nothing to the next one.
    network.done(&["policy", "set", pid, &path("none.toml")]);
    network.done(&["port", "del", "d"]);
    network.done(&["port", "add", "e", "--stream", &path("e")]);
    Sender::new(network.guest("e", 5), &server).is_refused();
    a.is_refused();
    assert_eq!(network.stats()["egress"]["ports"], json!({}));
}

fn counts(allowed: u64, denied: u64) -> serde_json::Value {
    json!({ "allowed": allowed, "denied": denied })
}

/// Bad input: policies that nothing would carry out, that are wrong, or for ports that are not
/// there; nothing changes.
#[test]
fn policies_of_ports_are_refused_where_they_cannot_hold() {
    let network = Network::start("port-policies-wrong", "", &[]);
    let folder = network.folder.0.clone();
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let policy = write("policy.toml", "[egress]\n");
    let wrong = write("wrong.toml", "[egress]\n[[egress.rule]]\naction = 'alow'\n");
    let file = write(
        "file.toml",
        "[[port]]\nname = 'a'\ntap = true\n[port.egress]\n[[port.egress.rule]]\nto = 'x'\n",
    );
    let control = network.control();
    let pid = control.file_stem().unwrap().to_str().unwrap();
    for (arguments, expected) in [
        (&["port", "set", "a", "--egress", &policy][..], "started without a policy"),
        (&["policy", "set", pid, &policy, "--port", "a"], "started without a policy"),
        (&["policy", "set", pid, &policy, "--port", "x"], "there is no port 'x'"),
        (&["port", "set", "a", "--egress", &wrong], "wrong.toml:3:1: 'action': 'alow'"),
        (&["policy", "check", &file], "file.toml:5:1: the rule has no 'action'"),
        (&["port", "set", "a", "egress", "yes"], "'egress': expected a table, got true"),
    ] {
        let output = network.towpath(arguments);
        assert_ne!(output.status.code(), Some(0), "{arguments:?}");
        assert!(errors(&output).contains(expected), "{arguments:?}: {}", errors(&output));
    }
    assert_eq!(network.stats().get("egress"), None);
}
