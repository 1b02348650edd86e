//! `towpath-cni` with a running `towpath up`: the containers are network namespaces, and the test
//! is the engine that starts the plugin.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::evpn::{Lab, wait_for};
use super::support::{
    Family, Host, Namespace, Pattern, Process, Server, TOWPATH, Test, command, inside, retry, run,
};
use super::uplinks::Network;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("cni", &["nsenter"], |host| containers(host, Owner::Root)),
        Test::new("cni_of_ordinary_user", &["nsenter"], |host| containers(host, Owner::Other))
            .needs_root(),
        Test::new("cni_reaches_containers_from_the_host", &["nsenter"], host_interface),
        Test::new("cni_for_virtual_machines", &[], virtual_machines),
        Test::new("cni_on_two_hosts", &["nsenter"], on_two_hosts).needs_root(),
        Test::new("netavark_plugin", &["nsenter"], netavark),
    ]
}

/// Whose network it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Root,
    Other,
}

/// A user without rights.
const OTHER: u32 = 65_534;
/// Bytes of a transfer.
const TRANSFER: u64 = 8 << 20;
/// Port on which a container listens, and the port of the host that leads to it. The host is the
/// test's own namespace.
const PORT: u16 = 7;
const PUBLISHED: u16 = 8007;

/// A network and the plugin.
struct Engine {
    /// The network, if this has started it.
    towpath: Option<Process>,
    folder: PathBuf,
    control: String,
    plugin: PathBuf,
}

/// A container.
struct Container {
    namespace: Namespace,
    id: &'static str,
}

impl Engine {
    fn start(host: &Host, owner: Owner, options: &[&str]) -> Self {
        let folder = folder(host, "engine");
        for open in [host.file(""), folder.clone()] {
            run("chmod", ["755", open.to_str().expect("text")]);
        }
        // The build folder may be closed to other users.
        let program = folder.join("towpath");
        fs::copy(TOWPATH, &program).expect("a copy");
        let plugin = folder.join("towpath-cni");
        symlink(&program, &plugin).expect("a link");
        let control = folder.join("net.control").to_str().expect("text").to_owned();
        let mut words = Vec::new();
        if owner == Owner::Other {
            chown(&folder, Some(OTHER), Some(OTHER)).expect("root");
            words.extend(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
        }
        words.extend([program.to_str().expect("text"), "up", "--control-socket", &control]);
        words.extend(options);
        let mut up = command(words[0], &words[1..]);
        up.env("XDG_RUNTIME_DIR", &folder);
        let towpath = Some(Process::start(up));
        let engine = Self { towpath, folder, control, plugin };
        retry("the control socket", || Path::new(&engine.control).exists().then_some(()));
        retry("the network", || engine.call("STATUS", None, json!({})).is_ok().then_some(()));
        engine
    }

    /// An engine beside a network that runs.
    fn of(host: &Host, name: &str, control: String) -> Self {
        let folder = folder(host, name);
        let plugin = folder.join("towpath-cni");
        symlink(TOWPATH, &plugin).expect("a link");
        Self { towpath: None, folder, control, plugin }
    }

    /// Starts the plugin with more keys in its configuration; returns its answer, or its error.
    fn call(&self, verb: &str, container: Option<&Container>, more: Value) -> Result<Value, Value> {
        self.call_at(verb, container, "eth0", more)
    }

    /// Does that for another interface of the container.
    fn call_at(
        &self,
        verb: &str,
        container: Option<&Container>,
        interface: &str,
        more: Value,
    ) -> Result<Value, Value> {
        answer(self.verb(verb, container, interface, &more))
    }

    /// Returns the plugin as an engine starts it.
    fn verb(
        &self,
        verb: &str,
        container: Option<&Container>,
        interface: &str,
        more: &Value,
    ) -> Command {
        let mut configuration = json!({
            "cniVersion": "1.1.0", "name": "lab", "type": "towpath-cni", "network": self.control,
        });
        let all = configuration.as_object_mut().expect("an object");
        all.extend(more.as_object().expect("an object").clone());
        let mut plugin = self.plugin(&configuration, &[]);
        plugin.env("CNI_COMMAND", verb).env("CNI_PATH", &self.folder);
        if let Some(container) = container {
            plugin.env("CNI_CONTAINERID", container.id).env("CNI_IFNAME", interface);
            plugin.env("CNI_NETNS", container.path());
        }
        plugin
    }

    /// Returns the plugin with this input.
    fn plugin(&self, input: &Value, arguments: &[&str]) -> Command {
        let file = self.folder.join("input");
        fs::write(&file, input.to_string()).expect("a file");
        let mut sh = command("sh", ["-c", r#"input=$1; shift; exec "$0" "$@" <"$input""#]);
        sh.arg(&self.plugin).arg(&file).args(arguments);
        sh
    }

    /// Returns what the network has: ports, leases, or published ports.
    fn listed(&self, what: &str) -> String {
        run(TOWPATH, ["ls", what, "--socket", &self.control])
    }

    fn assert_empty(&self) {
        for what in ["ports", "leases", "published"] {
            assert_eq!(self.listed(what), "", "{what}");
        }
    }

    fn end(self) {
        let towpath = self.towpath.expect("it was started");
        towpath.signal(Signal::TERM);
        towpath.finish().success();
    }
}

fn folder(host: &Host, name: &str) -> PathBuf {
    let folder = host.file(name);
    fs::create_dir(&folder).expect("a folder");
    folder
}

impl Container {
    fn new(id: &'static str) -> Self {
        Self { namespace: Namespace::new(), id }
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.namespace.holder())
    }

    fn run<const N: usize>(&self, program: &str, words: [&str; N]) -> String {
        self.namespace.run(|| run(program, words))
    }

    /// Starts one of the tests' own programs inside.
    fn start(&self, role: &str, arguments: &[&str]) -> Process {
        let namespace = format!("--net={}", self.path());
        let role = inside(role, arguments);
        Process::start(command("nsenter", [namespace.into()].into_iter().chain(role)))
    }

    fn reaches(&self, address: &str) {
        self.namespace.run(|| reaches(address));
    }
}

/// Asserts that an address answers to this thread's namespace.
fn reaches(address: &str) {
    retry(&format!("an answer of {address}"), || {
        let ping = ["-c", "1", "-W", "2", "-q", address];
        command("ping", ping).output().expect("ping").status.success().then_some(())
    });
}

/// Runs the plugin; its output must be nothing or JSON.
fn answer(plugin: Command) -> Result<Value, Value> {
    parse(Process::start(plugin))
}

/// Waits for the plugin; its output must be nothing or JSON.
fn parse(plugin: Process) -> Result<Value, Value> {
    let output = plugin.finish();
    let value = match output.stdout.as_str() {
        "" => Value::Null,
        text => serde_json::from_str(text).unwrap_or_else(|_| panic!("no JSON: {text}")),
    };
    assert_eq!(output.stderr, "");
    if output.status.success() { Ok(value) } else { Err(value) }
}

/// Returns an address of a result, without the length of its prefix.
fn address(result: &Value, index: usize) -> &str {
    let text = result["ips"][index]["address"].as_str().expect("an address");
    text.split('/').next().expect("a part")
}

/// Goal: containers reach each other, the host, and are reached by a published port. What they have
/// is checked, collected and removed, and nothing is left.
fn containers(host: &mut Host, owner: Owner) {
    let options = ["--map-host-loopback", "10.0.2.2"];
    let engine = Engine::start(host, owner, &options);
    let (one, two) = (Container::new("one"), Container::new("two"));
    let first = engine.call("ADD", Some(&one), json!({})).expect("a success");
    let runtime = json!({ "runtimeConfig": {
        "ips": ["10.0.2.99/24"],
        "mac": "02:00:00:00:00:99",
        "portMappings": [{ "hostPort": PUBLISHED, "containerPort": PORT, "protocol": "tcp" }],
    }});
    let second = engine.call("ADD", Some(&two), runtime.clone()).expect("a success");
    assert_eq!(address(&second, 0), "10.0.2.99");
    assert_eq!(second["interfaces"][0]["mac"], "02:00:00:00:00:99");
    let link = two.run("ip", ["link", "show", "eth0"]);
    assert!(link.contains("02:00:00:00:00:99") && link.contains("mtu 1500"), "{link}");
    for index in [0, 1] {
        one.reaches(address(&second, index));
        two.reaches(address(&first, index));
    }
    download(&one);
    echo_through_published_port(&two);

    let again = engine.call("ADD", Some(&one), json!({})).expect_err("a failure");
    assert!(
        again["msg"].as_str().expect("a text").contains("has an interface eth0 already"),
        "{again}"
    );
    let check = |container, result: &Value, more: &Value| {
        let mut more = more.clone();
        more["prevResult"] = result.clone();
        engine.call("CHECK", Some(container), more)
    };
    assert_eq!(check(&one, &first, &json!({})), Ok(Value::Null));
    assert_eq!(check(&two, &second, &runtime), Ok(Value::Null));
    two.run("ip", ["address", "del", "10.0.2.99/24", "dev", "eth0"]);
    let missing = check(&two, &second, &runtime).expect_err("a failure");
    assert!(
        missing["msg"].as_str().expect("a text").contains("has no address 10.0.2.99"),
        "{missing}"
    );

    second_interface(&engine, &one);
    let valid = json!([{ "containerID": "two", "ifname": "eth0" }]);
    engine.call("GC", None, json!({ "cni.dev/valid-attachments": valid })).expect("a success");
    assert_eq!(engine.listed("ports").lines().count(), 1);
    let links = one.run("ip", ["-brief", "link"]);
    assert!(!links.contains("eth0"), "{links}");

    // The device ends with its namespace.
    let path = two.path();
    let Container { namespace, id } = two;
    drop(namespace);
    retry("the port to be reported as gone", || {
        engine.listed("ports").contains("the TAP interface was deleted").then_some(())
    });
    assert!(!Path::new(&path).exists());
    // Made anew without DEL, it is attached at the same port.
    let two = Container { namespace: Namespace::new(), id };
    engine.call("ADD", Some(&two), runtime.clone()).expect("a success");
    assert_eq!(engine.listed("ports").lines().count(), 1);
    two.reaches("10.0.2.2");
    for _ in 0..2 {
        engine.call("DEL", Some(&two), runtime.clone()).expect("a success");
    }
    engine.assert_empty();
    refused(&engine, &one);
    let (folder, control, plugin) =
        (engine.folder.clone(), engine.control.clone(), engine.plugin.clone());
    engine.end();
    let ended = Engine { towpath: None, folder, control, plugin };
    ended.call("DEL", Some(&one), json!({})).expect("a success");
    assert_eq!(ended.call("STATUS", None, json!({})).expect_err("a failure")["code"], 50);
}

/// Goal: a container's second interface leads to the same network, and outside once the first one
/// is gone.
fn second_interface(engine: &Engine, container: &Container) {
    engine.call_at("ADD", Some(container), "eth1", json!({})).expect("a success");
    let routes = container.run("ip", ["-4", "route", "show", "default"]);
    let devices: Vec<_> = routes.lines().map(|line| line.contains("dev eth1")).collect();
    assert_eq!(devices, [false, true], "{routes}");
    container.run("ip", ["link", "set", "eth0", "down"]);
    container.reaches("10.0.2.2");
    download(container);
    engine.call_at("DEL", Some(container), "eth1", json!({})).expect("a success");
    container.run("ip", ["link", "set", "eth0", "up"]);
}

/// Goal: what the network refuses leaves nothing, neither there nor in the container.
fn refused(engine: &Engine, container: &Container) {
    let mapping = |host: u16| json!({ "hostPort": host, "containerPort": PORT });
    for (more, why) in [
        (json!({ "runtimeConfig": { "ips": ["192.0.2.1"] } }), "192.0.2.1 is not an address"),
        (json!({ "runtimeConfig": { "ips": ["10.0.2.2"] } }), "10.0.2.2 is reserved"),
        (json!({ "settings": { "vlan": 4095 } }), "'vlan'"),
        (json!({ "settings": { "mtu": 1 } }), "'mtu'"),
        (
            json!({ "runtimeConfig": { "portMappings": vec![mapping(PUBLISHED); 2] } }),
            "given twice",
        ),
    ] {
        let error = engine.call("ADD", Some(container), more).expect_err("a failure");
        assert!(error["msg"].as_str().expect("a text").contains(why), "{error}");
        engine.assert_empty();
        let links = container.run("ip", ["-brief", "link"]);
        assert!(!links.contains("eth0"), "{links}");
    }
}

/// Goal: by the interface that the first containers make, the host and the containers reach each
/// other, and nothing else changes for the host. It stays without containers, is made anew after
/// it was deleted, and takes no other interface's place.
fn host_interface(host: &mut Host) {
    let engine = Engine::start(host, Owner::Root, &[]);
    let key = json!({ "hostInterface": "lab0" });
    let routes = || run("ip", ["route", "show", "default"]);
    let before = routes();
    let (one, two) = (Container::new("one"), Container::new("two"));
    let both = [&one, &two].map(|container| engine.verb("ADD", Some(container), "eth0", &key));
    let both = both.map(Process::start);
    let both = both.map(|plugin| parse(plugin).expect("a success"));
    let shown = run("ip", ["-4", "-brief", "address", "show", "dev", "lab0"]);
    let own = shown.split_whitespace().nth(2).expect("an address");
    let own = own.strip_suffix("/24").expect("the prefix of the network");
    for (container, result) in [(&one, &both[0]), (&two, &both[1])] {
        container.reaches(own);
        for index in [0, 1] {
            reaches(address(result, index));
        }
    }
    assert_eq!(routes(), before);
    let accept_ra = fs::read_to_string("/proc/sys/net/ipv6/conf/lab0/accept_ra").expect("a file");
    assert_eq!(accept_ra, "0\n");

    let mut none = key.clone();
    none["cni.dev/valid-attachments"] = json!([]);
    engine.call("GC", None, none).expect("a success");
    assert_eq!(engine.listed("ports").lines().count(), 1);
    run("ip", ["link", "del", "lab0"]);
    retry("the port to be reported as gone", || {
        engine.listed("ports").contains("the TAP interface was deleted").then_some(())
    });
    let result = engine.call("ADD", Some(&one), key).expect("a success");
    reaches(address(&result, 0));

    let used = json!({ "hostInterface": "lo" });
    let refused = engine.call("ADD", Some(&two), used).expect_err("a failure");
    let why = refused["msg"].as_str().expect("a text");
    assert!(why.contains("an interface lo, which does not lead to the network"), "{refused}");
    engine.end();
}

/// Downloads from a server on the host's loopback.
fn download(container: &Container) {
    let v4 = Family::V4;
    let server = Server::start(v4.loopback(), |stream| Pattern::new(TRANSFER).write_to(&stream));
    let address = SocketAddr::new(v4.gateway(), server.port()).to_string();
    let download = container.start("download", &[&address, &TRANSFER.to_string()]);
    assert_eq!(download.finish().success(), format!("read {TRANSFER}\n"));
}

fn echo_through_published_port(container: &Container) {
    let mut server = container.start("echo-server", &[&PORT.to_string()]);
    server.wait_for_text("listening");
    let at = SocketAddr::new(IpAddr::from([127, 0, 0, 1]), PUBLISHED);
    let mut stream = TcpStream::connect(at).expect("a published port");
    stream.write_all(b"towpath").expect("written");
    stream.shutdown(Shutdown::Write).expect("shut down");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("read");
    assert_eq!(text, "towpath");
    server.signal(Signal::KILL);
    server.finish();
}

/// Goal: a virtual machine gets a port with a socket, at which its monitor finds the network. The
/// bounds of its bandwidth are those of the port, and CHECK misses one that was taken away.
fn virtual_machines(host: &mut Host) {
    let engine = Engine::start(host, Owner::Root, &[]);
    let machine = Container::new("vm");
    let device = json!({
        "device": "vhost-user",
        "socketDir": engine.folder,
        "runtimeConfig": { "bandwidth": { "egressRate": 8_000_000, "egressBurst": 800_000 } },
    });
    let result = engine.call("ADD", Some(&machine), device.clone()).expect("a success");
    let socket = result["interfaces"][0]["socketPath"].as_str().expect("a path").to_owned();
    std::os::unix::net::UnixStream::connect(&socket).expect("a socket");
    let links = machine.run("ip", ["-brief", "link"]);
    assert!(!links.contains("eth0"), "{links}");
    let mut check = device.clone();
    check["prevResult"] = result;
    engine.call("CHECK", Some(&machine), check.clone()).expect("a success");
    let ports = engine.listed("ports");
    let port = ports.split_whitespace().nth(1).expect("a name");
    run(TOWPATH, ["port", "set", port, "bandwidth-out", "no", "--socket", &engine.control]);
    let unbounded = engine.call("CHECK", Some(&machine), check).expect_err("a failure");
    let why = unbounded["msg"].as_str().expect("a text");
    assert!(why.ends_with("is null; expected 8000000bit/100000"), "{unbounded}");
    engine.call("DEL", Some(&machine), device).expect("a success");
    assert!(!Path::new(&socket).exists());
    engine.assert_empty();
    engine.end();
}

/// Goal: containers of two hosts that share a range have different addresses, of which both hosts
/// know, and reach each other. An address that a container of the other host has is refused.
/// Method: both have one name, from which follow the ports' names and so the first addresses that
/// are tried; the first one is attached before the hosts know each other. The machine is one, too:
/// only the ends of the tunnels distinguish the stations.
fn on_two_hosts(host: &mut Host) {
    let lab = Lab::new(host);
    let [first, second] = [11, 12].map(|number| lab.join(number));
    let networks = [(&first, 11, 12), (&second, 12, 11)].map(|host| lab.beside("", host, ""));
    let engines =
        [11, 12].map(|number| Engine::of(host, &format!("engine{number}"), lab.control(number)));
    let containers = [Container::new("one"), Container::new("one")];
    let add =
        |at: usize| engines[at].call("ADD", Some(&containers[at]), json!({})).expect("a success");
    let results = [add(0), add(1)];
    let addresses = [0, 1].map(|at| address(&results[at], 0));
    assert_ne!(addresses[0], addresses[1]);
    let stations = [0, 1].map(|at| results[at]["interfaces"][0]["mac"].as_str().expect("a text"));
    assert_ne!(stations[0], stations[1]);
    for (at, other) in [(0, 1), (1, 0)] {
        containers[at].reaches(addresses[other]);
        let shown = containers[at].run("ip", ["-details", "link", "show", "eth0"]);
        assert!(shown.contains("gso_max_size 61833 "), "{shown}");
        let (station, there) = (stations[other], 11 + other);
        let known = format!("station {station} VNI 100 at 192.0.2.{there} {}", addresses[other]);
        wait_for(&networks[at], "evpn", &[&known]);
    }
    let (two, taken) =
        (Container::new("two"), json!({ "runtimeConfig": { "ips": [addresses[1]] } }));
    let refused = engines[0].call("ADD", Some(&two), taken).expect_err("a failure");
    let why = format!("{} is in use at another host, by {}", addresses[1], stations[1]);
    assert!(refused["msg"].as_str().expect("a text").contains(&why), "{refused}");
    assert_eq!(refused["code"], 101);
    for (engine, container) in engines.iter().zip(&containers) {
        engine.call("DEL", Some(container), json!({})).expect("a success");
        assert_eq!(engine.listed("leases"), "");
    }
    networks.into_iter().for_each(Network::end);
}

/// Goal: netavark's calls attach and detach a container.
fn netavark(host: &mut Host) {
    let engine = Engine::start(host, Owner::Root, &[]);
    let container = Container::new("one");
    let input = json!({
        "container_id": "one", "container_name": "web", "port_mappings": null,
        "network": { "name": "lab", "options": { "network": engine.control, "mtu": "1400" } },
        "network_options": { "interface_name": "eth0", "static_ips": null, "static_mac": null },
    });
    let call = |verb| answer(engine.plugin(&input, &[verb, &container.path()]));
    let status = call("setup").expect("a success");
    let net = status["interfaces"]["eth0"]["subnets"][0]["ipnet"].as_str().expect("a network");
    let shown = container.run("ip", ["address", "show", "eth0"]);
    assert!(shown.contains(net) && shown.contains("mtu 1400"), "{shown}");
    assert!(engine.listed("leases").contains(" web "), "{}", engine.listed("leases"));
    container.reaches("10.0.2.2");
    assert!(call("setup").expect_err("a failure")["error"].is_string());
    for _ in 0..2 {
        assert_eq!(call("teardown"), Ok(Value::Null));
    }
    engine.assert_empty();
    engine.end();
}
