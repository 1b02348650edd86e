//! `towpath attach`: it makes and removes the interface, and ends with its namespace.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::support::*;

/// Starts a process that waits in a new network namespace; returns it and the namespace's name.
fn new_namespace() -> (Guard, String) {
    let mut command = Command::new("unshare");
    command.args(["--net", "sleep", "1000"]).stdin(Stdio::null());
    let child = Guard(command.spawn().unwrap());
    let ours = network_namespace(std::process::id().try_into().unwrap());
    let pid = child.pid().as_raw_pid();
    wait_for("a new namespace", || network_namespace(pid) != ours);
    let pid = pid.to_string();
    (child, pid)
}

/// Starts `towpath attach` with `arguments` and waits until it is ready.
fn attach(arguments: &[&str]) -> Guard {
    let script = "exec 3>&1 1>&2; exec \"$0\" attach --ready-fd 3 \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, TOWPATH]).args(arguments);
    let mut child = Guard(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut reported = String::new();
    child.0.stdout.take().unwrap().read_to_string(&mut reported).unwrap();
    assert_eq!(reported, "1");
    child
}

pub(super) fn addresses(namespace: &str) -> String {
    let mut command = Command::new("nsenter");
    text(&output(command.args([&format!("--net={namespace}"), "ip", "-o", "addr"])))
}

#[test]
fn serves_a_process_until_it_ends() {
    skip_if!(no_root());
    let (program, pid) = new_namespace();
    let namespace = format!("/proc/{pid}/ns/net");
    let towpath = attach(&[&pid, "--ifname", "net7", "--subnet", "192.0.2.0/24"]);
    let shown = addresses(&namespace);
    assert!(shown.contains("net7    inet 192.0.2.15/24"), "{shown}");
    assert!(shown.contains("127.0.0.1/8"), "{shown}");
    program.signal(Signal::TERM);
    drop(program);
    assert_eq!(finish(towpath).status.code(), Some(0));
}

#[test]
fn the_interface_goes_with_towpath() {
    skip_if!(no_root());
    let (_program, pid) = new_namespace();
    let namespace = format!("/proc/{pid}/ns/net");
    for (signal, code) in [(Signal::TERM, Some(0)), (Signal::INT, Some(0)), (Signal::KILL, None)] {
        let towpath = attach(&[&pid]);
        assert!(addresses(&namespace).contains("tap0"));
        towpath.signal(signal);
        assert_eq!(finish(towpath).status.code(), code);
        wait_for("the interface to go", || !addresses(&namespace).contains("tap0"));
    }
}

/// Goal: towpath refuses to serve its own network namespace: its sockets would lead into its own
/// device. It gives no advice how to make room for that.
#[test]
fn its_own_namespace_is_refused() {
    skip_if!(no_root());
    // In a namespace of the test's own.
    let script = "ip link add d0 type veth peer name d1; ip link set d0 up; ip link set d1 up; \
                  ip address add 192.0.2.1/24 dev d0; \
                  ip route add default via 192.0.2.2 || exit 9; \
                  sleep 1000 & \"$0\" attach $!; echo $?; \
                  \"$0\" attach --netns /proc/self/ns/net; echo $?; kill $!";
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", script, TOWPATH]);
    let output = output(&mut command);
    let reported = errors(&output);
    assert_eq!(text(&output), "125\n125\n", "{reported}");
    assert!(!reported.contains("ip route del"), "{reported}");
    assert_eq!(
        reported.matches("is the network namespace of towpath itself").count(),
        2,
        "{reported}"
    );
    assert!(!reported.contains("tap0"), "{reported}");
}

/// A namespace that a file keeps alive, as `ip netns add` makes it.
pub(super) struct NamedNamespace(pub(super) String);

impl NamedNamespace {
    /// Mounts the namespace of a process that has ended, in a folder with this name in it.
    pub(super) fn new(name: &str) -> Self {
        let directory = format!("/tmp/towpath-test-{}-{name}", std::process::id());
        fs::create_dir_all(&directory).unwrap();
        let named = NamedNamespace(directory);
        fs::write(named.file(), "").unwrap();
        let (_program, pid) = new_namespace();
        let mount = ["--bind", &format!("/proc/{pid}/ns/net"), &named.file()];
        assert!(output(Command::new("mount").args(mount)).status.success());
        named
    }

    pub(super) fn file(&self) -> String {
        format!("{}/net", self.0)
    }
}

impl Drop for NamedNamespace {
    fn drop(&mut self) {
        // Both fail if the test has unmounted and removed it already.
        let _ = Command::new("umount").args(["--quiet", &self.file()]).status();
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn serves_a_path_until_it_is_removed() {
    skip_if!(no_root());
    let named = NamedNamespace::new("netns");
    let (file, other) = (named.file(), format!("{}/other", named.0));
    fs::write(&other, "").unwrap();
    let mut towpath = attach(&["--netns", &file]);
    assert!(addresses(&file).contains("10.0.2.15/24"));
    fs::remove_file(&other).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(
        towpath.0.try_wait().unwrap().is_none(),
        "the removal of another file is no reason to end"
    );
    assert!(output(Command::new("umount").arg(&file)).status.success());
    fs::remove_file(&file).unwrap();
    assert_eq!(finish(towpath).status.code(), Some(0));
}

#[test]
fn a_user_may_attach_to_an_own_namespace_and_to_no_other() {
    skip_if!(no_root());
    let copy = PublicCopy::new("attach");
    let (_program, foreign) = new_namespace();
    let script = format!(
        "$USER_RUN unshare --user --net sleep 1000 & \
         for i in $(seq 500); do \
           [ \"$(readlink /proc/$!/ns/net)\" = \"$(readlink /proc/$$/ns/net)\" ] || break; \
           sleep 0.01; \
         done; \
         $USER_RUN timeout -s INT 0.5 {0} attach $!; echo $?; \
         $USER_RUN {0} attach {foreign}; echo $?; kill $!",
        copy.path()
    );
    let output = output(&mut as_user(&script));
    let reported = errors(&output);
    // timeout(1) exits with 124 after it had to interrupt.
    assert_eq!(text(&output), "124\n125\n", "{reported}");
    let refused = format!("towpath: no permission to enter the network namespace /proc/{foreign}/");
    assert!(reported.starts_with(&refused), "{reported}");
}
