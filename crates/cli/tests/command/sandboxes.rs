//! towpath under programs of Debian 12 that make sandboxes: bubblewrap with a network by pasta, and
//! rootlesskit, which starts slirp4netns. `make test-engines` has many more cases.
//!
//! A network namespace stands for the host: its loopback is reached from inside, and nothing else.

use std::path::Path;
use std::process::{Command, Output};

use super::stats::Folder;
use super::support::*;

/// Returns why a test cannot run, if a program is missing or towpath cannot act as another.
fn lacks(program: &str, personality: &str) -> Option<String> {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    if !found.is_ok_and(|found| found.status.success()) {
        return Some(format!("{program} is not installed"));
    }
    let probe = output(&mut towpath(["as", personality, "--version"]));
    (probe.status.code() != Some(0)).then(|| format!("towpath does not act as {personality}"))
}

/// Runs a script as root on a host of its own, with an interface and a server on its loopback, at
/// port 7080. In it, `$USER_RUN` runs a command as user 1000, $LINK is a link of towpath, and $DIR
/// is a folder of the user.
fn on_host(folder: &Folder, copy: &PublicCopy, link: &str, script: &str) -> Output {
    let directory = folder.0.display();
    let path = Path::new(&copy.path()).with_file_name(link);
    std::os::unix::fs::symlink(copy.path(), &path).unwrap();
    let prepare = format!(
        "set -e; ip link set lo up; ip link add d0 type veth peer name d1; ip link set d1 up; \
         ip link set d0 up; ip address add 192.0.2.1/24 dev d0; \
         ip route add default via 192.0.2.2; \
         DIR={directory} LINK={}; mkdir $DIR/www; \
         echo hello >$DIR/www/index.html; \
         chown -R 1000:1000 $DIR; export XDG_RUNTIME_DIR=$DIR HOME=$DIR USER=sandbox; \
         busybox httpd -f -p 127.0.0.1:7080 -h $DIR/www & SERVER=$!; \
         trap 'kill $SERVER' EXIT; {script}",
        path.display()
    );
    let inner = as_user(&prepare);
    let mut command = Command::new("unshare");
    command.args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.arg(inner.get_program()).args(inner.get_args());
    output(&mut command)
}

/// Goal: a sandbox of bubblewrap gets its network from towpath in place of pasta, which ends with
/// it.
#[test]
fn bubblewrap_with_pasta() {
    skip_if!(no_root());
    skip_if!(lacks("bwrap", "pasta"));
    let (folder, copy) = (Folder::new("bwrap"), PublicCopy::new("bwrap"));
    // The sandbox waits for a byte until its network is there; its PID is that of its init.
    let script = r#"mkfifo $DIR/info $DIR/go; chown 1000:1000 $DIR/info $DIR/go
        $USER_RUN bwrap --unshare-net --unshare-user --dev-bind / / --die-with-parent \
            --info-fd 8 --block-fd 9 curl -sS -m 10 http://192.0.2.2:7080/ \
            8>$DIR/info 9<>$DIR/go & SANDBOX=$!
        PID=$(grep -o '"child-pid": [0-9]*' <$DIR/info | grep -o '[0-9]*$')
        $USER_RUN $LINK --config-net -t none -u none -T none -U none --pid $DIR/pid $PID
        echo x >$DIR/go; wait $SANDBOX
        for _ in $(seq 100); do [ -e /proc/$(cat $DIR/pid)/exe ] || exit 0; sleep 0.05; done
        echo left; exit 9"#;
    let shown = on_host(&folder, &copy, "pasta", script);
    assert_eq!(text(&shown), "hello\n", "{}", errors(&shown));
    assert_eq!(shown.status.code(), Some(0), "{}", errors(&shown));
}

/// Goal: rootlesskit 1.1 gets its network from towpath in place of slirp4netns.
#[test]
fn rootlesskit_with_slirp4netns() {
    skip_if!(no_root());
    skip_if!(lacks("rootlesskit", "slirp4netns"));
    skip_if!(lacks("newuidmap", "slirp4netns"));
    let (folder, copy) = (Folder::new("rootlesskit"), PublicCopy::new("rootlesskit"));
    // The user needs a name, and subordinate IDs.
    let script = r#"mkdir $DIR/etc
        echo root:x:0:0::/root:/bin/sh >$DIR/etc/passwd
        echo sandbox:x:1000:1000::/:/bin/sh >>$DIR/etc/passwd
        echo sandbox:100000:65536 >$DIR/etc/sub
        mount --bind $DIR/etc/passwd /etc/passwd
        for file in /etc/subuid /etc/subgid; do mount --bind $DIR/etc/sub $file; done
        $USER_RUN rootlesskit --net=slirp4netns --slirp4netns-binary=$LINK --mtu=65520 \
            sh -c 'ip -oneline address show dev tap0; curl -sS -m 10 http://10.0.2.2:7080/'
        for _ in $(seq 100); do pidof slirp4netns >/dev/null || exit 0; sleep 0.05; done
        echo left; exit 9"#;
    let shown = on_host(&folder, &copy, "slirp4netns", script);
    let printed = text(&shown);
    assert!(printed.contains("inet 10.0.2.100/24"), "{printed}{}", errors(&shown));
    assert!(printed.ends_with("\nhello\n"), "{printed}{}", errors(&shown));
    assert_eq!(shown.status.code(), Some(0), "{}", errors(&shown));
}
