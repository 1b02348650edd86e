//! Tests of the plugin of netavark: requests, answers and mistakes.

use super::*;

fn call(verb: &str, input: &Value) -> Result<Option<Value>, Value> {
    perform(verb, Some("/proc/self/ns/net"), input.to_string().as_bytes())
}

fn network(options: Value) -> Value {
    json!({
        "name": "lab", "id": "2f25", "driver": "towpath-cni", "dns_enabled": true,
        "internal": false, "ipv6_enabled": false, "options": options,
        "ipam_options": { "driver": "host-local" }, "subnets": [],
    })
}

fn container() -> Value {
    json!({
        "container_id": "752947ff91f9",
        "container_name": "one",
        "port_mappings": [
            { "container_port": 80, "host_ip": "127.0.0.1", "host_port": 8080, "protocol": "tcp",
              "range": 2 },
            { "container_port": 53, "host_ip": "", "host_port": 53, "protocol": "tcp,udp",
              "range": 1 },
        ],
        "network": network(json!({ "network": "/nonexistent/towpath.control" })),
        "network_options": {
            "aliases": ["752947ff91f9"], "interface_name": "eth0",
            "static_ips": ["10.0.2.50"], "static_mac": "02:00:00:00:00:09",
        },
    })
}

#[test]
fn info() {
    let answer = perform("info", None, b"").unwrap().unwrap();
    assert_eq!(answer["api_version"], "1.0.0");
    assert!(answer["version"].is_string());
}

/// Goal: podman keeps the options as they are, and leaves addresses and names to the plugin.
#[test]
fn a_network_is_created() {
    let options = json!({ "network": "/run/net.control", "vlan": "5", "isolated": "yes" });
    let created = call("create", &network(options.clone())).unwrap().unwrap();
    assert_eq!(created["options"], options);
    assert_eq!(created["ipam_options"], json!({ "driver": "none" }));
    assert_eq!((&created["dns_enabled"], &created["name"]), (&json!(false), &json!("lab")));
    assert!(call("create", &network(Value::Null)).is_ok());
    let (path, settings) = super::options(&network(options)).unwrap();
    assert_eq!(path, Some("/run/net.control".into()));
    assert_eq!(Value::Object(settings), json!({ "vlan": 5, "isolated": true }));
}

#[test]
fn a_container_is_understood() {
    let wanted = wanted("/run/netns/a", &container()).unwrap();
    assert_eq!(wanted.key, Prefix::of("lab").key("752947ff91f9", "eth0"));
    assert_eq!(wanted.interface, Some(("/run/netns/a".into(), "eth0".to_owned())));
    assert_eq!(wanted.member.addresses, ["10.0.2.50".parse::<IpAddr>().unwrap()]);
    assert_eq!(wanted.mac.unwrap().to_string(), "02:00:00:00:00:09");
    assert_eq!(wanted.member.name.as_deref(), Some("one"));
    assert_eq!(wanted.member.published.tcp, ["127.0.0.1/8080-8081:80-81", "53:53"]);
    assert_eq!(wanted.member.published.udp, ["53:53"]);
}

#[test]
fn mistakes() {
    let with = |pointer: &str, value: Value| {
        let mut all = container();
        *all.pointer_mut(pointer).expect("a place") = value;
        all
    };
    let mut internal = network(json!({}));
    internal["internal"] = true.into();
    let mut subnets = network(json!({}));
    subnets["subnets"] = json!([{ "subnet": "10.9.0.0/24" }]);
    for (verb, input, why) in [
        ("create", network(json!({ "network": "x" })), "absolute path"),
        ("create", network(json!({ "netwerk": "/x" })), "unknown key 'netwerk'"),
        ("create", network(json!({ "vlan": "4095" })), "'vlan'"),
        ("create", internal, "--internal"),
        ("create", subnets, "--subnet"),
        ("setup", container(), "no network is running at /nonexistent"),
        ("setup", with("/container_id", json!("")), "'container_id'"),
        ("setup", with("/network_options/interface_name", json!(null)), "'interface_name'"),
        ("setup", with("/network_options/static_ips", json!(["x"])), "'static_ips'"),
        ("setup", with("/network_options/static_mac", json!("x")), "'static_mac'"),
        ("setup", with("/port_mappings/0/host_port", json!(0)), "not between 1 and 65535"),
        ("setup", with("/port_mappings/0/host_port", json!(70_000)), "70000 is no port"),
        ("setup", with("/port_mappings/0/protocol", json!("sctp")), "only tcp and udp"),
        ("setup", with("/port_mappings/0/host_ip", json!("x")), "host_ip: 'x'"),
        ("teardown", with("/network/name", json!("")), "'name'"),
    ] {
        let error = call(verb, &input).expect_err(verb);
        assert!(error["error"].as_str().unwrap().contains(why), "{verb} {input}: {error}");
    }
    let error = perform("setup", Some("/x"), b"{").unwrap_err();
    assert!(error["error"].as_str().unwrap().contains("not JSON"), "{error}");
    let error = perform("setup", None, container().to_string().as_bytes()).unwrap_err();
    assert!(error["error"].as_str().unwrap().contains("network namespace"), "{error}");
}

/// Goal: what has gone with its network is detached already.
#[test]
fn teardown_needs_no_network() {
    assert_eq!(call("teardown", &container()), Ok(None));
    let mut wrong = container();
    wrong["port_mappings"][0]["protocol"] = "sctp".into();
    assert_eq!(call("teardown", &wrong), Ok(None));
}
