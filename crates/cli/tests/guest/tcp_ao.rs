//! BGP sessions with TCP-AO between processes of towpath in a machine whose kernel has it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::machine::{self, Machine};

/// Hosts, each with its neighbours, and how each signs its sessions.
const HOSTS: [(u8, &[u8], &str); 11] = [
    (11, &[12], KEY_FILE),
    (12, &[11], KEY_FILE),
    // The first one has a new key already, with which it connects in vain.
    (21, &[22], NEW_AND_OLD),
    (22, &[21], OLD),
    (31, &[32], OLD),
    (32, &[31], OTHER_SECRET),
    (41, &[42], OLD),
    (42, &[41], ""),
    // Two keys with one number.
    (51, &[52, 53], OF_EACH_NEIGHBOR),
    (52, &[51], OLD),
    (53, &[51], PASSIVE_WITH_OTHER_SECRET),
];
const KEY_FILE: &str = "\
[[evpn.tcp-ao]]
send-id = 7
algorithm = 'hmac-sha-1-96'
key-file = '/etc/key'
";
const OLD: &str = "\
[[evpn.tcp-ao]]
send-id = 1
algorithm = 'aes-128-cmac-96'
key = 'old'
";
const OTHER_SECRET: &str = "\
[[evpn.tcp-ao]]
send-id = 1
algorithm = 'aes-128-cmac-96'
key = 'other'
";
const OF_EACH_NEIGHBOR: &str = "\
[[evpn.tcp-ao]]
send-id = 1
algorithm = 'aes-128-cmac-96'
key = 'old'
neighbors = ['127.0.0.52']
[[evpn.tcp-ao]]
send-id = 1
algorithm = 'aes-128-cmac-96'
key = 'other'
neighbors = ['127.0.0.53']
";
/// It never connects, as what is sent to its neighbour has the address of the other one.
const PASSIVE_WITH_OTHER_SECRET: &str = "\
passive = true
[[evpn.tcp-ao]]
send-id = 1
algorithm = 'aes-128-cmac-96'
key = 'other'
";
const NEW_AND_OLD: &str = "\
[[evpn.tcp-ao]]
send-id = 2
algorithm = 'hmac-sha-256-96'
key = 'new'
[[evpn.tcp-ao]]
send-id = 1
algorithm = 'aes-128-cmac-96'
key = 'old'
";

/// Goal: hosts that have a key in common get a session, whichever of them connects with it; hosts
/// with another secret or without one do not, as the kernel drops their segments. Neighbours of one
/// host may have different keys.
pub(crate) fn sessions() {
    let directory = Directory::new();
    machine::prepare_ao(&directory.0, &archive(&directory.0.join("files")));
    let mut machine = Machine::boot_ao(&directory.0);
    let connect = HOSTS.iter().filter(|(.., settings)| *settings != PASSIVE_WITH_OTHER_SECRET);
    for (number, others, _) in connect {
        // What is sent to a host's neighbour has its own address.
        for other in *others {
            machine.run(&format!(
                "ip route add local 127.0.0.{other} dev lo src 127.0.0.{number} table local"
            ));
        }
    }
    for (number, ..) in HOSTS {
        machine.start(&format!(
            "mkdir /tmp/{number}; XDG_RUNTIME_DIR=/tmp/{number} \
             towpath up -v /etc/{number}.toml 2>/tmp/{number}/said &"
        ));
    }
    let pairs = [(11, 12), (12, 11), (21, 22), (22, 21), (51, 52), (52, 51), (51, 53), (53, 51)];
    for (number, other) in pairs {
        let news = format!("BGP neighbour 127.0.0.{other}: session established");
        wait_for(&mut machine, &format!("grep -q '{news}' /tmp/{number}/said"));
    }
    assert!(counter(&mut machine, "TCPAOGood") > 12, "signed segments");
    // Of 32, whose secret is another one, and of 42, which has none.
    for name in ["TCPAOBad", "TCPAORequired"] {
        wait_for_counter(&mut machine, name);
    }
    for number in [31, 32, 41, 42] {
        wait_for(&mut machine, &format!("grep -q 'serving' /tmp/{number}/said"));
        machine.run(&format!("! grep -E 'established|cannot' /tmp/{number}/said"));
    }
    // A stranger is not heard.
    machine.run("! nc -w 1 127.0.0.11 1790 < /dev/null");
    machine.kill();
}

/// Waits for a command to succeed, some minutes at most; otherwise shows what the hosts said.
fn wait_for(machine: &mut Machine, command: &str) {
    machine.run(&format!(
        "for i in $(seq 300); do {command} && break; sleep 0.2; done; \
         {command} || {{ cat /tmp/*/said; false; }}"
    ));
}

/// Waits for a counter of the kernel to count.
fn wait_for_counter(machine: &mut Machine, name: &str) {
    for _ in 0..300 {
        if counter(machine, name) > 0 {
            return;
        }
        machine.run("sleep 0.2");
    }
    panic!("{name} is zero");
}

/// A counter of the kernel's TCP: a line has the names, the next one the numbers.
fn counter(machine: &mut Machine, name: &str) -> u64 {
    let lines = machine.run("grep ^TcpExt: /proc/net/netstat");
    let [names, numbers] = &lines[..] else { panic!("{lines:?}") };
    let mut both = names.split(' ').zip(numbers.split(' '));
    let (_, number) = both.find(|(found, _)| *found == name).expect("a kernel with TCP-AO");
    number.parse().expect("a number")
}

/// A directory that is removed when this is dropped.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        let name = format!("towpath-guest-ao-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(path.join("files")).expect("a directory among temporary files");
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns a cpio archive with the command under test, its libraries and files of the hosts.
fn archive(tree: &Path) -> Vec<u8> {
    let put = |file: &str, path: &str| {
        let target = tree.join(path.trim_start_matches('/'));
        fs::create_dir_all(target.parent().expect("in the tree")).expect("a directory");
        fs::copy(file, target).expect("a file");
    };
    let program = env!("CARGO_BIN_EXE_towpath");
    put(program, "bin/towpath");
    let libraries = Command::new("ldd").arg(program).output().expect("a C library has it");
    let libraries = String::from_utf8(libraries.stdout).expect("paths");
    for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        put(library, library);
    }
    let files = tree.join("etc");
    fs::create_dir_all(&files).expect("a directory");
    for (number, others, signature) in HOSTS {
        let neighbors: Vec<_> = others.iter().map(|other| format!("'127.0.0.{other}'")).collect();
        let neighbors = neighbors.join(", ");
        let text = format!(
            "gateway = false\nmemory = '16M'\n\
             [vxlan]\nvni = 100\nlocal = '127.0.0.{number}'\nlearn = false\n\
             [evpn]\nas = 65001\nrouter-id = '127.0.0.{number}'\nneighbors = [{neighbors}]\n\
             listen = '127.0.0.{number}:1790'\nport = 1790\n{signature}"
        );
        fs::write(files.join(format!("{number}.toml")), text).expect("a file");
    }
    let key = files.join("key");
    fs::write(&key, "a secret in a file\n").expect("a file");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("its owner");
    let mut packing = Command::new("sh");
    packing.args(["-c", "find . | busybox cpio -o -H newc"]).current_dir(tree);
    let packed = packing.stderr(Stdio::null()).output().expect("scripts/guest needs busybox");
    assert!(packed.status.success(), "{}", packed.status);
    packed.stdout
}
