//! Network namespaces that play the host and other machines.
//!
//! A process holds each namespace. It ends when its standard input closes, so also when the test is
//! killed. Threads enter namespaces; the main thread never does.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{Process, command, retry, run};

/// The host's address on the link to [`Outside`].
pub(crate) const THIS_V4: &str = "192.0.2.1";
pub(crate) const THIS_V6: &str = "2001:db8:1::1";
/// [`Outside`]'s addresses.
pub(crate) const OUTSIDE_V4: &str = "192.0.2.2";
pub(crate) const OUTSIDE_V6: &str = "2001:db8:1::2";

/// [`Far`]'s addresses.
pub(crate) const FAR_V4: &str = "198.19.0.2";
pub(crate) const FAR_V6: &str = "2001:db8:e::2";

/// Executes this program again as root of a user namespace, if it is not root and that is possible.
pub(crate) fn become_root() {
    const DONE: &str = "TOWPATH_E2E_NAMESPACE";
    if rustix::process::geteuid().is_root() || std::env::var_os(DONE).is_some() {
        return;
    }
    let namespaces = ["--user", "--map-root-user", "--net", "--mount"];
    let mut probe = Command::new("unshare");
    if !probe.args(namespaces).arg("true").output().is_ok_and(|probe| probe.status.success()) {
        return;
    }
    let own = std::env::current_exe().expect("own program");
    let mut anew = Command::new("unshare");
    anew.args(namespaces).arg(own).args(std::env::args_os().skip(1)).env(DONE, "1");
    // exec returns only with an error; then the tests report why they cannot run.
    let _ = anew.exec();
}

/// Returns true for real root, not only root of a user namespace with a single user.
pub(super) fn is_real_root() -> bool {
    let users = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let count = users.split_ascii_whitespace().nth(2).and_then(|count| count.parse::<u32>().ok());
    rustix::process::geteuid().is_root() && count.is_some_and(|count| count > 1000)
}

/// Returns why no test can run here, if none can.
pub(super) fn unsupported() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("this needs root or user namespaces".into());
    }
    if let Err(error) = File::options().read(true).write(true).open("/dev/net/tun") {
        return Some(format!("/dev/net/tun: {error}"));
    }
    let made = Command::new("unshare").args(["--net", "true"]).output();
    match made {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().into()),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

/// A network namespace.
pub(crate) struct Namespace {
    holder: Child,
    name: String,
}

impl Namespace {
    pub(crate) fn new() -> Self {
        let mut holder = Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare");
        // An answer means that the namespace exists.
        let mut answer = [0];
        let mut stdin = holder.stdin.take().expect("piped");
        stdin.write_all(b".").expect("a reader");
        holder.stdout.as_mut().expect("piped").read_exact(&mut answer).expect("an answer");
        holder.stdin = Some(stdin);
        let name = network_namespace(holder.id().cast_signed()).expect("a namespace");
        Self { holder, name }
    }

    /// Moves this thread into the namespace, with all that it starts.
    fn enter(&self) {
        let file = File::open(format!("/proc/{}/ns/net", self.holder.id())).expect("a namespace");
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("setns");
    }

    /// Runs `act` in the namespace.
    pub(crate) fn run<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                self.enter();
                act()
            });
            there.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Returns the process that holds it.
    pub(crate) fn holder(&self) -> u32 {
        self.holder.id()
    }

    /// Returns the processes in the namespace, except for the holder.
    fn processes(&self) -> Vec<i32> {
        let holder = self.holder.id().cast_signed();
        let all = processes_in(&self.name).into_iter();
        all.filter(|pid| *pid != holder).collect()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// Returns the name of a process's network namespace.
pub(crate) fn network_namespace(pid: i32) -> Option<String> {
    let link = fs::read_link(format!("/proc/{pid}/ns/net")).ok()?;
    Some(link.to_str()?.into())
}

/// Returns the processes whose network namespace has this name.
pub(crate) fn processes_in(namespace: &str) -> Vec<i32> {
    let processes = fs::read_dir("/proc").expect("/proc");
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| network_namespace(*pid).as_deref() == Some(namespace)).collect()
}

/// The host of a test: a network namespace and a directory.
pub(crate) struct Host {
    namespace: Namespace,
    outside: Option<Outside>,
    directory: PathBuf,
}

impl Host {
    /// Makes the namespace and moves this thread there.
    pub(super) fn new(test: &str) -> Self {
        let namespace = Namespace::new();
        namespace.enter();
        let name = format!("towpath-e2e-{}-{test}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).expect("a directory");
        let host = Self { namespace, outside: None, directory };
        run("ip", ["link", "set", "lo", "up"]);
        host.set("net/ipv4/tcp_congestion_control", "cubic");
        host
    }

    /// Changes a kernel setting of this namespace; returns false if the kernel forbids it.
    pub(crate) fn set(&self, name: &str, value: &str) -> bool {
        fs::write(Path::new("/proc/sys").join(name), value).is_ok()
    }

    /// Returns the path of a file in the test's own directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.file(name);
        fs::write(&path, content).expect("a file");
        path
    }

    /// Returns another machine on the link, made at the first call.
    pub(crate) fn outside(&mut self) -> &Outside {
        self.outside.get_or_insert_with(Outside::new)
    }

    /// Asserts that no process and no new interface is left.
    pub(super) fn assert_nothing_left(&self) {
        retry("all processes of the test to end", || {
            self.namespace.processes().is_empty().then_some(())
        });
        let links = run("ip", ["-o", "link"]);
        let known = |line: &str| line.contains(": lo:") || line.contains(": out0@");
        assert!(links.lines().all(known), "an interface is left:\n{links}");
    }

    /// Returns the sockets of this namespace, without listeners and those in TIME-WAIT.
    pub(crate) fn sockets(&self) -> String {
        run("ss", ["-Htun", "state", "connected", "exclude", "time-wait"])
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Another machine, linked with the host.
pub(crate) struct Outside {
    namespace: Namespace,
}

impl Outside {
    fn new() -> Self {
        let namespace = Namespace::new();
        let holder = namespace.holder();
        let here = format!(
            "link add out0 type veth peer name in0 netns {holder}\n\
             address add {THIS_V4}/24 dev out0\naddress add {THIS_V6}/64 dev out0 nodad\n\
             link set out0 up\n\
             route add 198.51.100.0/24 via {OUTSIDE_V4}\n\
             route add 2001:db8:b::/64 via {OUTSIDE_V6}\n\
             route add unreachable 203.0.113.0/24\n\
             route add unreachable 2001:db8:c::/64\n"
        );
        let there = format!(
            "link set lo up\n\
             address add {OUTSIDE_V4}/24 dev in0\naddress add {OUTSIDE_V6}/64 dev in0 nodad\n\
             link set in0 up\n\
             route add blackhole 198.51.100.0/24\n\
             route add blackhole 2001:db8:b::/64\n"
        );
        let outside = Self { namespace };
        batch(&here);
        outside.run(|| batch(&there));
        retry("the link to come up", || {
            let ping = command("ping", ["-c1", "-w2", "-i0.05", "-q", OUTSIDE_V6]);
            Process::start(ping).finish().status.success().then_some(())
        });
        outside
    }

    /// Returns a command that runs on the machine.
    pub(crate) fn command<const N: usize>(&self, program: &str, words: [&str; N]) -> Command {
        let there = format!("--net=/proc/{}/ns/net", self.namespace.holder());
        let mut command = super::command("nsenter", [there.as_str(), program]);
        command.args(words);
        command
    }

    /// Runs `act` on the machine.
    pub(crate) fn run<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        self.namespace.run(act)
    }
}

/// MTU of the link between the router and [`Far`].
pub(crate) const FAR_MTU: usize = 1300;

/// A machine behind [`Outside`], which becomes a router.
pub(crate) struct Far {
    _namespace: Namespace,
}

impl Far {
    pub(crate) fn new(host: &mut Host) -> Self {
        let far = Namespace::new();
        let holder = far.holder();
        let there = format!(
            "link add far0 mtu {FAR_MTU} type veth peer name in0 mtu {FAR_MTU} netns {holder}\n\
             address add 198.19.0.1/24 dev far0\n\
             address add 2001:db8:e::1/64 dev far0 nodad\n\
             link set far0 up\n\
             route add prohibit 198.19.1.0/24\n\
             route add prohibit 2001:db8:f::/64\n"
        );
        host.outside().run(|| {
            batch(&there);
            // Each hop answers each probe.
            let settings = [
                ("ipv4/ip_forward", "1"),
                ("ipv6/conf/all/forwarding", "1"),
                ("ipv4/icmp_ratelimit", "0"),
                ("ipv6/icmp/ratelimit", "0"),
            ];
            for (name, value) in settings {
                let path = Path::new("/proc/sys/net").join(name);
                fs::write(&path, value).expect("a setting of this namespace");
            }
        });
        far.run(|| {
            batch(&format!(
                "link set lo up\n\
                 address add {FAR_V4}/24 dev in0\naddress add {FAR_V6}/64 dev in0 nodad\n\
                 link set in0 up\n\
                 route add default via 198.19.0.1\nroute add default via 2001:db8:e::1\n"
            ));
            for name in ["ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"] {
                let path = Path::new("/proc/sys/net").join(name);
                fs::write(&path, "0").expect("a setting of this namespace");
            }
        });
        batch(&format!(
            "route add 198.19.0.0/23 via {OUTSIDE_V4}\n\
             route add 2001:db8:e::/64 via {OUTSIDE_V6}\n\
             route add 2001:db8:f::/64 via {OUTSIDE_V6}\n"
        ));
        retry("the far host to answer", || {
            [FAR_V4, FAR_V6]
                .iter()
                .all(|to| {
                    let ping = command("ping", ["-c1", "-w2", "-i0.05", "-q", to]);
                    Process::start(ping).finish().status.success()
                })
                .then_some(())
        });
        Self { _namespace: far }
    }
}

/// Runs commands of `ip`, one per line.
pub(crate) fn batch(commands: &str) {
    let mut ip = command("ip", ["-force", "-batch", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("ip");
    ip.stdin.take().expect("piped").write_all(commands.as_bytes()).expect("written");
    let output = ip.wait_with_output().expect("ip");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip: {errors}\n{commands}");
}
