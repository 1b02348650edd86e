//! Tests of the configuration: what is read, and what each mistake is reported as.

use super::*;
use serde_json::json;

fn parse(more: Value, arguments: &str) -> Result<Configuration, Error> {
    let mut value = json!({ "cniVersion": "1.1.0", "name": "lab", "type": "towpath-cni" });
    let (Some(all), Value::Object(more)) = (value.as_object_mut(), more) else { unreachable!() };
    all.extend(more);
    Configuration::parse(value, Some(arguments))
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// Goal: all that a runtime passes is understood, and what it says about a container comes before
/// what is the same for all.
#[test]
fn a_whole_configuration() {
    let given = json!({
        "network": "/run/net.control",
        "settings": { "isolated": true, "vlan": 10 },
        "hostInterface": "towpath0",
        "capabilities": { "ips": true },
        "args": { "cni": { "ips": ["10.0.2.1"] } },
        "dns": { "nameservers": ["192.0.2.1"], "domain": "a.example", "options": ["ndots:1"] },
        "prevResult": { "cniVersion": "1.1.0" },
        "cni.dev/valid-attachments": [{ "containerID": "c1", "ifname": "eth0" }],
        "runtimeConfig": {
            "portMappings": [
                { "hostPort": 8080, "containerPort": 80, "protocol": "tcp" },
                { "hostPort": 53, "containerPort": 5353, "protocol": "UDP", "hostIP": "::1" },
                { "hostPort": 22, "containerPort": 22, "hostIP": "" },
            ],
            "ips": ["10.0.2.50/24", "fd00::50"],
            "mac": "02:00:00:00:00:09",
            "dns": { "servers": ["192.0.2.2"], "searches": ["b.example"] },
            "bandwidth": {
                "ingressRate": 1_000_000, "ingressBurst": 2_147_483_647,
                "egressRate": 8000, "egressBurst": 0,
            },
        },
    });
    let arguments =
        "IgnoreUnknown=1;K8S_POD_NAME=web;K8S_POD_UID=1;OTHER=x;IP=10.0.2.9;MAC=02:00:00:00:00:01";
    let read = parse(given, arguments).unwrap();
    assert_eq!((read.name.as_str(), read.sockets), ("lab", None));
    assert_eq!(read.network, Some("/run/net.control".into()));
    let settings = json!({
        "isolated": true,
        "vlan": 10,
        "bandwidth-in": "1000000bit/268435456",
        "bandwidth-out": "8000bit/65536",
    });
    assert_eq!(Value::Object(read.settings), settings);
    let host = read.host.unwrap();
    assert_eq!(
        (host.name.as_str(), Value::Object(host.settings)),
        ("towpath0", json!({ "vlan": 10 }))
    );
    assert_eq!(read.published.tcp, ["8080:80", "22:22"]);
    assert_eq!(read.published.udp, ["::1/53:5353"]);
    assert_eq!(read.addresses, ips(&["10.0.2.50", "fd00::50"]));
    assert_eq!(read.mac.unwrap().to_string(), "02:00:00:00:00:09");
    assert_eq!(read.container_name.as_deref(), Some("web"));
    let dns = Dns {
        servers: vec!["192.0.2.2".to_owned()],
        domain: Some("a.example".to_owned()),
        search: vec!["b.example".to_owned()],
        options: vec!["ndots:1".to_owned()],
    };
    assert_eq!(read.dns, dns);
    assert!(read.previous.is_some());
    assert!(read.valid.unwrap().contains(&("c1".to_owned(), "eth0".to_owned())));
}

/// Goal: below `runtimeConfig` names may begin with a capital letter, and `null` is an empty list,
/// as containerd's CRI plugin writes them.
#[test]
fn what_the_cri_plugin_writes() {
    let given = json!({ "runtimeConfig": {
        "portMappings": [
            { "HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": "::1" },
        ],
        "dns": { "Servers": ["192.0.2.2"], "Searches": null, "Options": ["ndots:5"] },
        "ips": null,
        "bandwidth": {
            "IngressRate": 10_000_000, "IngressBurst": u32::MAX,
            "EgressRate": 8000, "EgressBurst": u32::MAX,
        },
    } });
    let read = parse(given, "").unwrap();
    assert_eq!(read.published.tcp, ["::1/8080:80"]);
    assert_eq!(read.dns.servers, ["192.0.2.2"]);
    assert_eq!(read.dns.search, [""; 0]);
    assert_eq!(read.dns.options, ["ndots:5"]);
    assert_eq!(read.settings.len(), 2);
}

/// Goal: without the later ones, earlier addresses count; null is like nothing.
#[test]
fn addresses_in_three_places() {
    let args = json!({ "args": { "cni": { "ips": ["10.0.2.1/24"] } }, "prevResult": null });
    assert_eq!(parse(args.clone(), "").unwrap().addresses, ips(&["10.0.2.1"]));
    let read = parse(args, "IP=10.0.2.9,fd00::9;MAC=02:00:00:00:00:01").unwrap();
    assert_eq!(read.addresses, ips(&["10.0.2.9", "fd00::9"]));
    assert_eq!(read.mac.unwrap().to_string(), "02:00:00:00:00:01");
    assert!(read.previous.is_none());
}

/// Goal: no bound, 0 and null ask for nothing and leave the settings of all containers alone; a
/// bound takes the place of theirs.
#[test]
fn bandwidths() {
    let settings = |runtime: Value| {
        let settings = json!({ "bandwidth-in": "5Mbit", "bandwidth-out": "6Mbit" });
        let given = json!({ "settings": settings, "runtimeConfig": { "bandwidth": runtime } });
        Value::Object(parse(given, "").unwrap().settings)
    };
    let all = json!({ "bandwidth-in": "5Mbit", "bandwidth-out": "6Mbit" });
    let zero = json!({ "ingressRate": 0, "ingressBurst": 0, "egressRate": 0 });
    for none in [json!({}), json!(null), zero] {
        assert_eq!(settings(none), all);
    }
    let one = json!({ "ingressRate": 9_000_000, "ingressBurst": 9 });
    assert_eq!(settings(one), json!({ "bandwidth-in": "9000000bit/2", "bandwidth-out": "6Mbit" }));
}

/// Goal: a mistake names its field.
#[test]
fn bandwidths_that_are_wrong() {
    for (bounds, why) in [
        (
            json!({ "ingressRate": "8000" }),
            "runtimeConfig.bandwidth: 'ingressRate': expected 0, or a number from 8 to",
        ),
        (json!({ "egressRate": -1 }), "'egressRate': expected 0"),
        (json!({ "egressRate": 7 }), "got 7"),
        (json!({ "ingressRate": 1e18 }), "'ingressRate'"),
        (
            json!({ "egressRate": 8000, "egressBurst": 1.5 }),
            "'egressBurst': expected 0, or a number from 1 to",
        ),
        (
            json!({ "ingressBurst": 8000 }),
            "'runtimeConfig.bandwidth.ingressBurst': 8000 bits need a rate; give ingressRate",
        ),
        (json!([]), "'bandwidth'"),
    ] {
        let given = json!({ "runtimeConfig": { "bandwidth": bounds } });
        let found = parse(given.clone(), "").expect_err(&given.to_string());
        assert_eq!(found.code, error::CONFIGURATION, "{given}: {found:?}");
        assert!(found.message.contains(why), "{given}: {found:?}");
    }
    let unknown = json!({ "runtimeConfig": { "bandwidth": { "ingress": 1 } } });
    let found = parse(unknown, "").expect_err("a failure");
    assert_eq!(found.code, error::UNSUPPORTED, "{found:?}");
}

#[test]
fn virtual_machines_have_a_folder() {
    let read = parse(json!({ "device": "vhost-user", "socketDir": "/run/vm" }), "").unwrap();
    assert_eq!(read.sockets, Some("/run/vm".into()));
}

/// Goal: what is wrong or not supported is refused, with the code of the specification and a
/// message that names it.
#[test]
fn mistakes() {
    let mapping = |mapping: Value| json!({ "runtimeConfig": { "portMappings": [mapping] } });
    for (given, code, why) in [
        (json!({ "name": "" }), error::CONFIGURATION, "'name'"),
        (json!({ "name": "a/b" }), error::CONFIGURATION, "'name'"),
        (json!({ "name": "-a" }), error::CONFIGURATION, "'name'"),
        (json!({ "name": 7 }), error::CONFIGURATION, "'name'"),
        (json!({ "netwrok": "/x" }), error::UNSUPPORTED, "did you mean 'network'?"),
        (json!({ "network": "x" }), error::CONFIGURATION, "absolute path, got 'x'"),
        (json!({ "network": 1 }), error::CONFIGURATION, "'network': expected a string"),
        (json!({ "ipam": { "type": "host-local" } }), error::UNSUPPORTED, "host-local"),
        (json!({ "device": "veth" }), error::CONFIGURATION, "tap or vhost-user, got 'veth'"),
        (json!({ "device": "vhost-user" }), error::CONFIGURATION, "need each other"),
        (json!({ "socketDir": "/run" }), error::CONFIGURATION, "need each other"),
        (json!({ "hostInterface": "a/b" }), error::CONFIGURATION, "'a/b' cannot be the name"),
        (json!({ "hostInterface": "tow%d" }), error::CONFIGURATION, "'tow%d' cannot be the name"),
        (json!({ "settings": [] }), error::CONFIGURATION, "'settings': expected an object"),
        (json!({ "prevResult": "x" }), error::CONFIGURATION, "'prevResult'"),
        (json!({ "dns": { "servers": [] } }), error::UNSUPPORTED, "unknown key 'servers'"),
        (json!({ "dns": { "nameservers": 1 } }), error::CONFIGURATION, "'nameservers'"),
        (json!({ "runtimeConfig": 1 }), error::CONFIGURATION, "'runtimeConfig'"),
        (json!({ "runtimeConfig": { "ips": "10.0.2.9" } }), error::CONFIGURATION, "a list"),
        (json!({ "runtimeConfig": { "ips": ["10.0.2"] } }), error::CONFIGURATION, "10.0.2"),
        (json!({ "runtimeConfig": { "mac": "02" } }), error::CONFIGURATION, "'mac': '02'"),
        (json!({ "runtimeConfig": { "aliases": {} } }), error::UNSUPPORTED, "'aliases'"),
        (mapping(json!({ "containerPort": 80 })), error::CONFIGURATION, "hostPort"),
        (mapping(json!({ "hostPort": 0, "containerPort": 80 })), error::CONFIGURATION, "hostPort"),
        (
            mapping(json!({ "hostPort": 80, "containerPort": 65_536 })),
            error::CONFIGURATION,
            "containerPort: expected a number from 1 to 65535",
        ),
        (
            mapping(json!({ "hostPort": 80, "containerPort": 80, "hostIP": "x" })),
            error::CONFIGURATION,
            "hostIP",
        ),
        (
            mapping(json!({ "hostPort": 80, "containerPort": 80, "protocol": "sctp" })),
            error::UNSUPPORTED,
            "only tcp and udp",
        ),
        (json!({ "cni.dev/valid-attachments": [{}] }), error::CONFIGURATION, "valid-attachments"),
    ] {
        let found = parse(given.clone(), "").expect_err(&given.to_string());
        assert_eq!(found.code, code, "{given}: {found:?}");
        assert!(found.message.contains(why), "{given}: {found:?}");
    }
    for (arguments, why) in [
        ("IP", "expected KEY=VALUE, got 'IP'"),
        ("IP=10.0.2", "IP: expected addresses"),
        ("MAC=02", "MAC: expected an address"),
        ("FOO=BAR", "unknown key 'FOO'"),
        ("IgnoreUnknown=0;FOO=BAR", "unknown key 'FOO'"),
    ] {
        let found = parse(json!({}), arguments).expect_err(arguments);
        assert_eq!(found.code, error::ENVIRONMENT, "{found:?}");
        assert!(found.message.contains(why), "{found:?}");
    }
}
