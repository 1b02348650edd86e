//! Real programs: ssh, scp, git.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::support::{
    Family, Host, NONE, Pattern, Process, Test, Towpath, at_each_mtu, command, find_program, run,
    url_host,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for family in Family::BOTH {
        let programs = &["ssh", "scp", "sshd", "ssh-keygen"];
        tests.extend(at_each_mtu(family, || {
            let name = format!("ssh_{}", family.name());
            Test::new(name, programs, move |host| ssh(host, family)).needs_root()
        }));
        tests.extend(at_each_mtu(family, || {
            let name = format!("git_clone_{}", family.name());
            Test::new(name, &["git"], move |host| git_clone(host, family))
        }));
    }
    tests
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// Starts an sshd on the host's loopback, port 2222.
fn start_sshd(host: &Host, family: Family) -> Process {
    let address = format!("{}:2222", url_host(family.loopback()));
    let [program, words @ ..] = &sshd(host, &address);
    let mut sshd = Process::start(command(program, words));
    sshd.wait_for_text("Server listening");
    sshd
}

/// Returns the command of an sshd that accepts the key `user_key`. Its private /run has the
/// directory that sshd requires.
pub(super) fn sshd(host: &Host, address: &str) -> [String; 7] {
    for key in ["host_key", "user_key"] {
        run("ssh-keygen", ["-q", "-t", "ed25519", "-N", "", "-f", text(&host.file(key))]);
    }
    let at = |name| text(&host.file(name)).to_owned();
    let config = format!(
        "ListenAddress {address}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\n\
         StrictModes no\nPermitRootLogin yes\nSubsystem sftp internal-sftp\n",
        at("host_key"),
        at("user_key.pub"),
    );
    host.write("sshd_config", config);
    let script =
        "mount -t tmpfs none /run && mkdir -m 0755 /run/sshd && exec \"$0\" -D -e -f \"$1\"";
    let sshd = find_program("sshd").expect("sshd");
    let words = ["unshare", "--mount", "sh", "-c", script, text(&sshd), &at("sshd_config")];
    words.map(str::to_owned)
}

/// Goal: ssh returns a command's output and status, with and without a terminal; scp copies in both
/// directions.
/// Method: sshd on the host's loopback; SHA-256 of the copies.
fn ssh(host: &mut Host, family: Family) {
    let _sshd = start_sshd(host, family);
    let options = format!(
        "-F none -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
         -o LogLevel=ERROR -i {}",
        text(&host.file("user_key"))
    );
    let address = family.gateway();
    let ssh = format!("ssh {options} -p 2222 root@{address}");
    let scp = format!("scp {options} -P 2222");
    let remote = format!("root@{}:", url_host(address));
    let (here, there, back) = (host.file("here"), host.file("there"), host.file("back"));
    fs::write(&here, Pattern::new(16 << 20).bytes()).expect("a file");
    let (here, there, back) = (text(&here), text(&there), text(&back));
    let script = format!(
        "{ssh} 'echo out; echo err >&2; exit 7'; echo status $?\n\
         {ssh} -tt 'tty >/dev/null && read -r line && echo got $line; exit 9' <<end\nword\nend\n\
         echo status $?\n\
         {scp} {here} {remote}{there} && {scp} {remote}{there} {back}; echo status $?\n"
    );
    let output = Towpath::with_loopback(NONE).run(["sh", "-c", &script]);
    let written = output.stdout.replace('\r', "");
    assert!(output.stderr.contains("err\n"), "{}", output.stderr);
    assert!(written.contains("out\nstatus 7\n"), "{written}\n{}", output.stderr);
    assert!(written.contains("got word\nstatus 9\nstatus 0\n"), "{written}\n{}", output.stderr);
    let sums = run("sha256sum", [here, there, back]);
    let sums: Vec<&str> = sums.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(sums.len() == 3 && sums[0] == sums[1] && sums[0] == sums[2], "{sums:?}");
}

/// Returns git without the user's settings.
fn git(host: &Host, arguments: &[&str]) -> Command {
    let mut git = command("git", arguments);
    git.env("HOME", host.file("")).env("GIT_CONFIG_NOSYSTEM", "1");
    git
}

/// Goal: git clones over its own protocol.
/// Method: `git daemon` on the host's loopback with a repository of a few MiB; `git fsck`.
fn git_clone(host: &mut Host, family: Family) {
    let (origin, clone) = (host.file("base/origin"), host.file("clone"));
    let (origin, clone) = (text(&origin), text(&clone));
    fs::create_dir_all(origin).expect("a directory");
    let name = ["-c", "user.name=e2e", "-c", "user.email=e2e@example.org", "-C", origin];
    let in_origin = |arguments: &[&str]| {
        let all: Vec<&str> = name.iter().chain(arguments).copied().collect();
        Process::start(git(host, &all)).finish().success()
    };
    in_origin(&["init", "-q"]);
    for number in 0..8 {
        let bytes = Pattern::seeded(500_000, number).bytes();
        fs::write(Path::new(origin).join(format!("file{number}")), bytes).expect("a file");
        in_origin(&["add", "."]);
        in_origin(&["commit", "-q", "-m", "one more"]);
    }
    let listen = format!("--listen={}", family.loopback());
    let base = format!("--base-path={}", text(&host.file("base")));
    let daemon = ["daemon", "--export-all", "--verbose", "--reuseaddr", &listen, &base];
    let mut daemon = Process::start(git(host, &daemon));
    daemon.wait_for_text("Ready to rumble");
    let url = format!("git://{}/origin", url_host(family.gateway()));
    let script = format!("git clone -q {url} {clone} && git -C {clone} fsck --full --strict");
    let mut towpath = Towpath::with_loopback(NONE).command(["sh", "-c", &script]);
    towpath.env("HOME", host.file("")).env("GIT_CONFIG_NOSYSTEM", "1");
    Process::start(towpath).finish().success();
    let head = |repository| {
        Process::start(git(host, &["-C", repository, "rev-parse", "HEAD"])).finish().success()
    };
    assert_eq!(head(origin), head(clone));
}
