//! `towpath engines`: what it makes and removes for a user and for root, what it leaves alone, and
//! its report on engines.
//!
//! The user is number 1000, whose home directory is a temporary folder. Its `PATH` has only
//! stand-ins for engines: scripts that print a version.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use super::stats::Folder;
use super::support::*;

const USER: u32 = 1000;
const DROP_IN: &str = "config/containers/containers.conf.d/50-towpath.conf";
const PASTA: &str = ".local/libexec/podman/pasta";

/// Puts something into a home directory.
type Prepare = fn(&Home);

/// A home directory, with a copy of the command.
struct Home {
    folder: Folder,
    copy: PublicCopy,
}

impl Home {
    fn new(name: &str) -> Self {
        let name = format!("engines-{name}");
        let home = Self { folder: Folder::new(&name), copy: PublicCopy::new(&name) };
        fs::create_dir(home.path("bin")).unwrap();
        home.give();
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    /// Gives all files to the user.
    fn give(&self) {
        let owned = |path: &Path| chown(path, Some(USER), Some(USER)).unwrap();
        owned(&self.folder.0);
        for (path, kind) in tree(&self.folder.0) {
            if kind != "link" {
                owned(&self.path(&path));
            }
        }
    }

    /// Writes a file of the user.
    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self.give();
    }

    /// Adds a program to the `PATH` that prints a text, whatever its arguments are.
    fn program(&self, name: &str, prints: &str) {
        self.script(&format!("bin/{name}"), &format!("echo '{prints}'"));
    }

    fn script(&self, name: &str, script: &str) {
        self.write(name, &format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Runs `towpath engines` as the user.
    fn engines(&self, arguments: &str) -> Output {
        self.engines_with("", arguments)
    }

    /// Runs `towpath engines` as the user, with more environment variables.
    fn engines_with(&self, variables: &str, arguments: &str) -> Output {
        let home = self.folder.0.display();
        let variables = format!("HOME={home} XDG_CONFIG_HOME={home}/config {variables}");
        let script = format!(
            "exec $USER_RUN env -i PATH={home}/bin {variables} {} engines {arguments}",
            self.copy.path()
        );
        output(&mut as_user(&script))
    }

    /// Runs `towpath engines` as the user; returns what it prints.
    fn done(&self, arguments: &str) -> String {
        let output = self.engines(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments}: {}", errors(&output));
        text(&output)
    }

    /// Returns all files, with their contents or targets.
    fn state(&self) -> Vec<(String, String)> {
        tree(&self.folder.0)
    }
}

/// Returns the paths below a folder, each with its kind, or the text of a file.
fn tree(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next).unwrap().map(Result::unwrap) {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let what = match (kind.is_dir(), kind.is_symlink()) {
                (true, _) => "folder".to_owned(),
                (_, true) => "link".to_owned(),
                _ => fs::read_to_string(&path).unwrap(),
            };
            if kind.is_dir() {
                open.push(path.clone());
            }
            found.push((path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned(), what));
        }
    }
    found.sort();
    found
}

/// Whether towpath can act as a program.
fn acts_as(name: &str) -> bool {
    output(&mut towpath(["as", name, "--version"])).status.code() == Some(0)
}

/// Asserts that a command failed with this message.
fn assert_refused(output: &Output, expected: &str) {
    assert_eq!(output.status.code(), Some(125), "{}", text(output));
    assert_eq!(text(output), "");
    assert!(errors(output).contains(expected), "{}", errors(output));
}

/// Goal: for podman of a user there are a link and a file with settings, which a second time stay,
/// and nothing is left when they are removed.
#[test]
fn podman_of_a_user() {
    skip_if!(no_root());
    let home = Home::new("podman");
    let before = home.state();
    let shown = home.done("install podman --dry-run");
    assert!(shown.starts_with("would create "), "{shown}");
    assert!(shown.contains("    helper_binaries_dir = ["), "{shown}");
    assert_eq!(home.state(), before, "only printed");
    let shown = home.done("install podman");
    let link = home.path(PASTA);
    assert!(shown.contains(&format!("created {}, a link to ", link.display())), "{shown}");
    assert_eq!(fs::read_link(&link).unwrap(), Path::new(&home.copy.path()));
    let settings = fs::read_to_string(home.path(DROP_IN)).unwrap();
    assert!(settings.starts_with("# Made by `towpath engines install podman`;"), "{settings}");
    let folder = link.parent().unwrap().to_str().unwrap().to_owned();
    let first = settings.find(&format!("\"{folder}\",")).expect("the user's folder");
    for usual in ["/usr/local/libexec/podman", "/usr/libexec/podman", "/usr/lib/podman"] {
        let at = settings.find(&format!("\"{usual}\",")).expect("podman's folders");
        assert!(at > first, "{settings}");
    }
    let installed = home.state();
    let again = home.done("install buildah");
    assert!(again.contains("unchanged: ") && !again.contains("created "), "{again}");
    assert_eq!(home.state(), installed);
    let shown = home.done("remove podman --dry-run");
    assert!(shown.contains("would remove "), "{shown}");
    assert_eq!(home.state(), installed, "only printed");
    let shown = home.done("remove podman");
    assert!(shown.contains(&format!("removed {}\n", link.display())), "{shown}");
    let left: Vec<_> = home.state().into_iter().map(|(path, _)| path).collect();
    assert_eq!(left, [".local", ".local/libexec", "bin", "config"]);
    assert_eq!(home.done("remove podman"), "nothing of towpath is installed for podman\n");
}

/// Goal: a list that the user has set is kept behind towpath's folder, and the user's files stay.
#[test]
fn settings_of_the_user_are_kept() {
    skip_if!(no_root());
    let home = Home::new("kept");
    let own = "[engine]\nhelper_binaries_dir = [\"/opt/a \\\"b\\\"\"] # mine\n";
    home.write("config/containers/containers.conf", own);
    home.write(
        "config/containers/containers.conf.d/10-more.conf",
        "[engine]\nhelper_binaries_dir = [\"/opt/c\", {append=true}]\n",
    );
    home.done("install podman");
    let settings = fs::read_to_string(home.path(DROP_IN)).unwrap();
    let list: Vec<&str> = settings.lines().filter(|line| line.starts_with("    ")).collect();
    let first = home.path(PASTA).parent().unwrap().display().to_string();
    assert_eq!(list[0], format!("    \"{first}\","));
    assert_eq!(list[1..], ["    \"/opt/a \\\"b\\\"\",", "    \"/opt/c\","]);
    assert_eq!(fs::read_to_string(home.path("config/containers/containers.conf")).unwrap(), own);
    home.done("remove podman");
    assert!(home.path("config/containers/containers.conf.d/10-more.conf").exists());
    // With towpath's folder in front already, a list needs no further file for pasta.
    let listed = format!("[engine]\nhelper_binaries_dir = [\"{first}\", \"/usr/lib/podman\"]\n");
    home.write("config/containers/containers.conf.d/20-own.conf", &listed);
    home.done("install podman");
    assert_eq!(home.path(DROP_IN).exists(), acts_as("slirp4netns"));
    home.write("config/containers/containers.conf.d/30-wrong.conf", "[engine");
    let wrong = home.engines("install podman");
    assert_refused(&wrong, "30-wrong.conf: ");
    let file = home.path("config/containers/containers.conf");
    let only = home
        .engines_with(&format!("CONTAINERS_CONF={}", file.display()), "install podman --dry-run");
    let note = "the environment variable CONTAINERS_CONF makes podman read ";
    assert!(text(&only).contains(note), "{}{}", text(&only), errors(&only));
}

/// Goal: what others made is neither replaced nor removed, and then nothing is changed at all.
#[test]
fn things_of_others_stay() {
    skip_if!(no_root());
    let cases: [(&str, Prepare, &str); 5] = [
        ("file", |home| home.write(PASTA, "x"), "exists and is no link to towpath; rename it"),
        ("folder", |home| home.write(&format!("{PASTA}/x"), ""), "exists and is no link to"),
        (
            "link",
            |home| {
                fs::create_dir_all(home.path(PASTA).parent().unwrap()).unwrap();
                symlink("/usr/bin/pasta", home.path(PASTA)).unwrap();
            },
            "is a link to /usr/bin/pasta, which is not towpath; remove or rename the link",
        ),
        (
            "settings",
            |home| home.write(DROP_IN, "[engine]\n"),
            "exists and was not made by towpath; rename it",
        ),
        (
            "folder-of-settings",
            |home| home.write(&format!("{DROP_IN}/x"), ""),
            "exists and is no file; rename it",
        ),
    ];
    for (name, prepare, expected) in cases {
        let home = Home::new(name);
        prepare(&home);
        home.give();
        let before = home.state();
        let refused = home.engines("install podman");
        assert_refused(&refused, "cannot install towpath for podman, nothing is changed: ");
        assert!(errors(&refused).contains(expected), "{name}: {}", errors(&refused));
        assert_eq!(home.state(), before, "{name}");
        let kept = home.done("remove podman");
        assert!(kept.contains("kept ") && kept.contains(expected), "{name}: {kept}");
        assert_eq!(home.state(), before, "{name}");
    }
}

/// Goal: a link that an earlier version made leads to this towpath afterwards; where a folder
/// cannot be made, nothing is left.
#[test]
fn older_links_are_replaced_and_failures_leave_nothing() {
    skip_if!(no_root());
    let home = Home::new("older");
    fs::create_dir_all(home.path(PASTA).parent().unwrap()).unwrap();
    symlink("/opt/old/bin/towpath", home.path(PASTA)).unwrap();
    home.write(DROP_IN, "# Made by `towpath engines install podman`, long ago\n");
    let shown = home.done("install podman");
    assert!(shown.contains("replaced ") && !shown.contains("unchanged"), "{shown}");
    assert_eq!(fs::read_link(home.path(PASTA)).unwrap(), Path::new(&home.copy.path()));
    home.done("remove podman");
    // A file in place of a folder.
    home.write("config/containers/containers.conf.d", "");
    let before = home.state();
    assert_refused(&home.engines("install podman"), "cannot make the folder ");
    assert_eq!(home.state(), before);
}

/// Goal: rootlesskit gets links, and Docker's service a file that selects one and keeps its `PATH`.
#[test]
fn rootlesskit_and_docker() {
    skip_if!(no_root());
    let home = Home::new("docker");
    let shown = home.done("install rootlesskit");
    let pasta = home.path(".local/libexec/towpath/rootlesskit/pasta");
    let option = format!("--net=pasta --pasta-binary={}", pasta.display());
    assert!(shown.contains(&option), "{shown}");
    assert!(fs::symlink_metadata(&pasta).unwrap().is_symlink());
    let settings = "config/systemd/user/docker.service.d/50-towpath.conf";
    let shown = home.done("install docker --dry-run");
    assert!(shown.contains("there is no docker.service of this user"), "{shown}");
    home.write(
        "config/systemd/user/docker.service",
        "[Service]\nEnvironment=PATH=/opt/bin:/usr/bin\nExecStart=/opt/bin/dockerd-rootless.sh\n",
    );
    let shown = home.done("install docker");
    assert!(shown.contains("`systemctl --user restart docker`"), "{shown}");
    let folder = home.path(".local/libexec/towpath/docker");
    let made = fs::read_to_string(home.path(settings)).unwrap();
    let lines: Vec<&str> = made.lines().filter(|line| !line.starts_with('#')).collect();
    let path = format!("Environment=PATH={}:/opt/bin:/usr/bin", folder.display());
    let variables = ["NET=slirp4netns", "MTU=65520"];
    let variables =
        variables.map(|line| format!("Environment=DOCKERD_ROOTLESS_ROOTLESSKIT_{line}"));
    assert_eq!(lines[0], "[Service]");
    assert_eq!(lines[1..3], variables);
    assert_eq!(lines[3..], [path.as_str()]);
    for engine in ["docker", "rootlesskit"] {
        home.done(&format!("remove {engine}"));
    }
    assert!(!home.path(settings).exists() && !folder.exists() && !pasta.exists());
    assert!(home.path("config/systemd/user/docker.service").exists());
    home.write("config/systemd/user/docker.service", "[Service]\nEnvironment=PATH=%h/bin\n");
    assert_refused(&home.engines("install docker"), "does not take as they are");
}

/// Goal: engines that start passt get a link if towpath can act as passt, else say what to use.
#[test]
fn machines_need_passt() {
    skip_if!(no_root());
    let home = Home::new("passt");
    for (engine, link) in
        [("qemu", ".local/libexec/towpath/qemu/passt"), ("libvirt", ".local/bin/passt")]
    {
        let output = home.engines(&format!("install {engine}"));
        if acts_as("passt") {
            assert!(fs::symlink_metadata(home.path(link)).unwrap().is_symlink());
            home.done(&format!("remove {engine}"));
        } else {
            assert_refused(&output, "starts passt, as which towpath cannot act; use `towpath up`");
        }
        assert!(fs::symlink_metadata(home.path(link)).is_err());
    }
}

/// Goal: root's links are in the folder in which podman looks for all users.
#[test]
fn root_installs_for_all_users() {
    skip_if!(no_root());
    let script = "mount -t tmpfs none /usr/local; mount -t tmpfs none /etc; \
                  \"$0\" engines install podman || exit; readlink /usr/local/libexec/podman/pasta; \
                  \"$0\" engines remove podman; \"$0\" engines install docker; echo $?; \
                  find /usr/local /etc; mkdir /usr/local/bin; \
                  printf '#!/bin/sh\\necho podman version 5.4.2\\n' >/usr/local/bin/podman; \
                  chmod 755 /usr/local/bin/podman; \
                  PATH=/usr/local/bin \"$0\" engines check podman";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, TOWPATH]);
    let shown = output(&mut command);
    let made = text(&shown);
    assert!(made.contains("created /usr/local/libexec/podman/pasta, a link to "), "{made}");
    assert!(made.contains(&format!("\n{TOWPATH}\n")), "{made}");
    assert!(made.contains("removed /usr/local/libexec/podman/pasta\n"), "{made}");
    assert!(made.contains("\n125\n/usr/local\n/usr/local/libexec\n/etc\n"), "{made}");
    assert!(errors(&shown).contains("the Docker daemon of root uses bridges of the kernel"));
    let check = "5.4.2 uses bridges of the kernel as root, and finds no pasta as a user; fix: ";
    assert!(made.contains(check), "{made}");
    assert_eq!(shown.status.code(), Some(0), "{made}");
}

/// Returns the findings of `check`, and its exit code.
fn checks(home: &Home) -> (Vec<(String, String, String)>, Option<i32>) {
    let output = home.engines("check --json");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["works"].as_bool(), Some(output.status.code() == Some(0)), "{report}");
    let field = |check: &Value, name: &str| check[name].as_str().unwrap_or_default().to_owned();
    let all = report["checks"].as_array().expect("checks").iter();
    let all = all.map(|check| {
        let value = format!("{}; {}", field(check, "value"), field(check, "fix"));
        (field(check, "check"), field(check, "status"), value)
    });
    (all.collect(), output.status.code())
}

/// Asserts what `check` reports about the engine `name`.
fn assert_check(home: &Home, name: &str, status: &str, value: &str) {
    let (all, code) = checks(home);
    let (_, found, shown) = all.iter().find(|(check, ..)| check == name).expect("a finding");
    assert_eq!(found, status, "{shown}");
    assert!(shown.contains(value), "{shown}");
    assert_eq!(code, Some(if status == "failure" { 1 } else { 0 }), "{all:?}");
}

/// Goal: `check` follows podman to the program that it starts.
#[test]
fn podman_is_checked() {
    skip_if!(no_root());
    let home = Home::new("check");
    assert_check(&home, "engines", "warning", "none was found in the PATH: podman,");
    let missing = home.engines("check podman");
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing).starts_with("failure  podman       podman was not found; fix: install"));
    home.program("podman", "podman version 5.4.2");
    assert_check(&home, "podman", "failure", "podman version 5.4.2 finds no pasta; run `towpath");
    home.program("pasta", "pasta 2025_05_03");
    let other = "/bin/pasta (pasta 2025_05_03), which is not towpath; run `towpath engines install";
    assert_check(&home, "podman", "warning", other);
    home.script("bin/pasta", "exit 1");
    assert_check(&home, "podman", "failure", "which does not run");
    home.done("install podman");
    let used = format!("uses {} (pasta (towpath ", home.path(PASTA).display());
    assert_check(&home, "podman", "ok", &used);
    home.program("buildah", "buildah version 1.39.3 (image-spec 1.1.0)");
    assert_check(&home, "buildah", "ok", &used);
    // A variable comes before all lists.
    let variable = format!("CONTAINERS_HELPER_BINARY_DIR={}", home.path("bin").display());
    let shown = home.engines_with(&variable, "check podman");
    assert!(text(&shown).contains("/bin/pasta, which does not run"), "{}", text(&shown));
    // The link stays when towpath goes.
    fs::remove_file(home.path(PASTA)).unwrap();
    symlink("/no/such/towpath", home.path(PASTA)).unwrap();
    fs::remove_file(home.path("bin/pasta")).unwrap();
    assert_check(&home, "podman", "failure", "/podman/pasta leads to no program; run `towpath");
    home.write("config/containers/containers.conf.d/60-wrong.conf", "=");
    assert_check(&home, "podman", "failure", "60-wrong.conf: ");
}

/// Goal: podman 4 is known to start slirp4netns, unless its settings say otherwise.
#[test]
fn podman_4_starts_slirp4netns() {
    skip_if!(no_root());
    let home = Home::new("podman4");
    home.program("podman", "podman version 4.3.1");
    home.program("slirp4netns", "slirp4netns version 1.2.0");
    let status = "uses";
    let (all, code) = checks(&home);
    assert_eq!((all[0].1.as_str(), code), ("warning", Some(0)), "{all:?}");
    assert!(all[0].2.contains(status) && all[0].2.contains("/bin/slirp4netns"), "{all:?}");
    home.write(
        "config/containers/containers.conf",
        "[network]\ndefault_rootless_network_cmd = \"pasta\"\n",
    );
    assert_check(&home, "podman", "failure", "podman version 4.3.1 finds no pasta");
    home.write(
        "config/containers/containers.conf",
        "[engine]\nnetwork_cmd_path = \"/no/such/slirp4netns\"\n",
    );
    assert_check(&home, "podman", "failure", "/no/such/slirp4netns, which does not run");
}

#[test]
fn other_engines_are_checked() {
    skip_if!(no_root());
    let home = Home::new("others");
    home.program("rootlesskit", "rootlesskit version 2.0.2, --pasta-binary");
    assert_check(&home, "rootlesskit", "failure", "finds no pasta; run `towpath engines install");
    home.done("install rootlesskit");
    assert_check(&home, "rootlesskit", "ok", "with --pasta-binary, rootlesskit version 2.0.2");
    home.program("dockerd-rootless.sh", "");
    assert_check(&home, "docker", "failure", "rootless Docker finds no pasta");
    home.done("install docker");
    assert_check(&home, "docker", "ok", "/.local/libexec/towpath/docker/slirp4netns (slirp4netns");
    let qemu = format!("qemu-system-{}", std::env::consts::ARCH);
    home.program(&qemu, "QEMU emulator version 7.2.19");
    assert_check(&home, "qemu", "ok", "7.2.19 starts no passt; `towpath up` gives it a network");
    home.program("libvirtd", "libvirtd (libvirt) 9.0.0");
    home.program("passt", "passt 2023");
    assert_check(&home, "libvirt", "warning", "libvirtd (libvirt) 9.0.0 uses ");
}

/// Goal: where user namespaces do not work, `check` says so with the words of the doctor.
#[test]
fn the_machine_is_checked_too() {
    skip_if!(no_root());
    let home = Home::new("machine");
    let script = format!(
        "rm /dev/net/tun; exec $USER_RUN env -i PATH=/x HOME=/x {} engines check",
        home.copy.path()
    );
    let shown = output(&mut as_user(&script));
    assert_eq!(shown.status.code(), Some(1), "{}", errors(&shown));
    let shown = text(&shown);
    assert!(shown.contains("failure  tun ") && shown.contains("modprobe tun"), "{shown}");
    assert!(shown.ends_with("not all engines work: 1 failure, 1 warning\n"), "{shown}");
}

#[test]
fn wrong_usage_of_engines() {
    super::each_ends_with_2(&[
        (&["engines"], "<ACTION>"),
        (&["engines", "instal"], "[possible values: install, remove, check]"),
        (&["engines", "install"], "<ENGINE>"),
        (&["engines", "remove"], "<ENGINE>"),
        (&["engines", "install", "lxc"], "[possible values: podman, buildah, rootlesskit, docker,"),
        (&["engines", "install", "podman", "docker"], "unexpected argument 'docker'"),
    ]);
    let unsuitable: [(&[&str], &str); 3] = [
        (&["engines", "install", "podman", "--json"], "--json is for `towpath engines check`"),
        (&["engines", "check", "--dry-run"], "`check` changes nothing"),
        (&["engines", "check", "--dry-run", "--json"], "cannot be used with"),
    ];
    for (arguments, expected) in unsuitable {
        let output = output(&mut towpath(arguments.iter().copied()));
        assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
        assert!(errors(&output).contains(expected), "{}", errors(&output));
    }
    skip_if!(no_root());
    let home = Home::new("usage");
    for (variables, expected) in [
        ("-u HOME", "HOME is not set; set it to your home directory"),
        ("HOME=", "HOME is not set"),
        ("HOME=x/y", "HOME is 'x/y', which is no absolute path"),
        ("HOME=/x XDG_CONFIG_HOME=x", "XDG_CONFIG_HOME is 'x', which is no absolute path"),
    ] {
        let script =
            format!("exec $USER_RUN env {variables} {} engines install podman", home.copy.path());
        assert_refused(&output(&mut as_user(&script)), expected);
    }
}
