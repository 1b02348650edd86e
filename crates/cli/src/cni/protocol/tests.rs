//! Tests of the protocol of CNI: verbs, versions, results and errors.

use super::*;
use crate::cni::namespace::Address;
use crate::cni::network::{Description, Version};

/// The control socket of a network that does not run.
const NOWHERE: &str = "/nonexistent/towpath.control";

fn environment(command: &str) -> Environment {
    let text = |text: &str| Some(text.to_owned());
    Environment {
        command: text(command),
        container: text("c1"),
        namespace: text("/proc/self/ns/net"),
        interface: text("eth0"),
        arguments: None,
    }
}

fn configuration(version: &str) -> Value {
    json!({ "cniVersion": version, "name": "lab", "type": "towpath-cni", "network": NOWHERE })
}

fn call(environment: &Environment, configuration: &Value) -> Result<Option<Value>, Value> {
    perform(environment, configuration.to_string().as_bytes())
}

/// Goal: a failure has the version, the code and a message, also if nothing can be read.
#[test]
fn failures() {
    let new = configuration("1.1.0");
    for (command, given, code, why) in [
        ("ADD", new.clone(), 11, "no network is running at /nonexistent"),
        ("CHECK", new.clone(), 7, "'prevResult' is missing"),
        ("GC", new.clone(), 7, "'cni.dev/valid-attachments' is missing"),
        ("STATUS", new.clone(), 50, "no network is running"),
        ("REMOVE", new, 4, "CNI_COMMAND: 'REMOVE'"),
        ("CHECK", configuration("0.3.1"), 1, "version 0.3.1 of the protocol has no CHECK"),
        ("GC", configuration("1.0.0"), 1, "has no GC"),
        ("STATUS", configuration("0.4.0"), 1, "has no STATUS"),
        ("ADD", configuration("0.2.0"), 1, "expected one of 0.3.1, 0.4.0, 1.0.0, 1.1.0"),
        ("ADD", configuration("2.0.0"), 1, "version 2.0.0 is not supported"),
        ("DEL", json!({ "name": "lab" }), 1, "version 0.1.0 is not supported"),
        ("ADD", json!({ "cniVersion": "1.0.0" }), 7, "'name'"),
    ] {
        let failure = call(&environment(command), &given).expect_err(command);
        assert_eq!(failure["code"], code, "{command}: {failure}");
        assert!(failure["msg"].as_str().unwrap().contains(why), "{command}: {failure}");
        let version = given["cniVersion"].as_str().unwrap_or("0.1.0");
        assert_eq!(failure["cniVersion"], version);
    }
    let failure = perform(&environment("ADD"), b"{").unwrap_err();
    assert_eq!((&failure["code"], &failure["cniVersion"]), (&json!(6), &json!("1.1.0")));
}

#[test]
fn variables_that_are_wrong() {
    for (name, value) in [
        ("CNI_CONTAINERID", None),
        ("CNI_CONTAINERID", Some("-c")),
        ("CNI_CONTAINERID", Some("a b")),
        ("CNI_IFNAME", None),
        ("CNI_IFNAME", Some("a/b")),
        ("CNI_IFNAME", Some("..")),
        ("CNI_IFNAME", Some("a-name-of-16-byte")),
        ("CNI_NETNS", None),
    ] {
        let mut environment = environment("ADD");
        let variable = match name {
            "CNI_CONTAINERID" => &mut environment.container,
            "CNI_IFNAME" => &mut environment.interface,
            _ => &mut environment.namespace,
        };
        *variable = value.map(str::to_owned);
        let failure = call(&environment, &configuration("1.1.0")).unwrap_err();
        assert_eq!(failure["code"], 4, "{name}: {failure}");
        assert!(failure["msg"].as_str().unwrap().contains(name), "{failure}");
    }
}

/// Goal: what has gone with its network is detached already.
#[test]
fn del_and_gc_need_no_network() {
    let mut without = environment("DEL");
    without.namespace = None;
    for environment in [environment("DEL"), without] {
        assert_eq!(call(&environment, &configuration("0.3.1")), Ok(None));
    }
    // A configuration with which nothing can be added.
    let mut given = configuration("1.1.0");
    given["runtimeConfig"] = json!({ "bandwidth": { "ingressRate": 1 } });
    given["ipam"] = json!({ "type": "host-local" });
    given["hostInterface"] = json!("a/b");
    assert_eq!(call(&environment("DEL"), &given), Ok(None));
    assert_eq!(call(&environment("ADD"), &given).unwrap_err()["code"], 2);
    given["cni.dev/valid-attachments"] = json!([]);
    assert_eq!(call(&environment("GC"), &given), Ok(None));
}

#[test]
fn versions() {
    let answer = call(&environment("VERSION"), &json!({ "cniVersion": "0.9.0" })).unwrap().unwrap();
    assert_eq!(answer["supportedVersions"], json!(VERSIONS));
    assert_eq!(answer["cniVersion"], "0.9.0");
}

fn attached() -> Attached {
    let v4 = ("10.0.2.20".parse().unwrap(), "10.0.2.2".parse().unwrap());
    let v6 = ("fd00::20".parse().unwrap(), "fd00::2".parse().unwrap());
    let version = |gateway, prefix_len, dns: &str| Version {
        gateway,
        prefix_len,
        dns: vec![dns.parse().unwrap()],
        is_leased: false,
    };
    Attached {
        mac: "02:00:00:00:00:01".parse().unwrap(),
        mtu: 1500,
        addresses: vec![
            Address { address: v4.0, prefix_len: 24, gateway: v4.1 },
            Address { address: v6.0, prefix_len: 64, gateway: v6.1 },
        ],
        network: Description {
            mtu: 1500,
            vtep: None,
            gso_max_size: None,
            versions: vec![version(v4.1, 24, "10.0.2.3"), version(v6.1, 64, "fd00::3")],
            domain: Some("lab.example".to_owned()),
            search: vec!["lab.example".to_owned()],
        },
    }
}

fn result(version: &str, attached: Attached, previous: Option<Value>) -> Value {
    let (interface, namespace) = ("eth0", "/run/netns/a");
    let (socket, dns) = (None, Dns::default());
    let result = Attachment { version, interface, namespace, attached, socket, dns };
    result.with(previous.map(|previous| previous.as_object().unwrap().clone()))
}

/// Goal: results have the form of their version.
#[test]
fn results_of_versions() {
    let new = json!({
        "cniVersion": "1.1.0",
        "interfaces": [
            { "name": "eth0", "mac": "02:00:00:00:00:01", "mtu": 1500, "sandbox": "/run/netns/a" },
        ],
        "ips": [
            { "address": "10.0.2.20/24", "gateway": "10.0.2.2", "interface": 0 },
            { "address": "fd00::20/64", "gateway": "fd00::2", "interface": 0 },
        ],
        "routes": [
            { "dst": "0.0.0.0/0", "gw": "10.0.2.2" },
            { "dst": "::/0", "gw": "fd00::2" },
        ],
        "dns": {
            "nameservers": ["10.0.2.3", "fd00::3"],
            "domain": "lab.example",
            "search": ["lab.example"],
            "options": [],
        },
    });
    assert_eq!(result("1.1.0", attached(), None), new);
    let old = result("0.4.0", attached(), None);
    assert_eq!((&old["ips"][0]["version"], &old["ips"][1]["version"]), (&json!("4"), &json!("6")));
    assert!(old["interfaces"][0].get("mtu").is_none(), "{old}");
    let middle = result("1.0.0", attached(), None);
    assert!(
        middle["ips"][0].get("version").is_none() && middle["interfaces"][0].get("mtu").is_none()
    );
}

/// Goal: a previous result is passed on, and indexes count from it.
#[test]
fn a_previous_result_stays() {
    let previous = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{ "name": "other0" }],
        "ips": [{ "address": "192.0.2.1/24", "interface": 0 }],
        "dns": { "nameservers": ["192.0.2.53"] },
    });
    let merged = result("1.1.0", attached(), Some(previous));
    assert_eq!(merged["cniVersion"], "1.1.0");
    assert_eq!(merged["interfaces"][0]["name"], "other0");
    assert_eq!(merged["ips"][1]["interface"], 1);
    assert_eq!(
        addresses_of(&merged, "eth0"),
        Ok(vec!["10.0.2.20".parse().unwrap(), "fd00::20".parse().unwrap()])
    );
    assert_eq!(addresses_of(&merged, "other0"), Ok(vec!["192.0.2.1".parse().unwrap()]));
    let wrong = json!({ "ips": [{ "address": "x" }] });
    assert_eq!(addresses_of(&wrong, "eth0").unwrap_err().code, error::CONFIGURATION);
}

/// Goal: without IPv6 in the container, its resolver is not offered. A virtual machine's interface
/// has its socket.
#[test]
fn resolvers_that_are_reached_and_sockets() {
    let mut without = attached();
    without.addresses.truncate(1);
    let attachment = Attachment {
        version: "1.1.0",
        interface: "eth0",
        namespace: "/run/netns/a",
        attached: without,
        socket: Some("/run/vm/c.sock".into()),
        dns: Dns { search: vec!["own.example".to_owned()], ..Dns::default() },
    };
    let value = attachment.with(None);
    assert_eq!(value["dns"]["nameservers"], json!(["10.0.2.3"]));
    assert_eq!(value["dns"]["search"], json!(["own.example"]));
    assert_eq!(value["interfaces"][0]["socketPath"], "/run/vm/c.sock");
}
