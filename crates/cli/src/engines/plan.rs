//! What each engine needs to use towpath.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};

use super::change::Change;
use super::containers::{ONLY_FILE, Settings};
use super::folders::Folders;
use super::probe;
use crate::compat;
use crate::config::args::Engine;

/// Links and files of an engine, and what the user has to do beyond.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) changes: Vec<Change>,
    /// Sentences for the user.
    pub(super) notes: Vec<String>,
}

/// The names by which engines start such programs. Those that towpath can act as get links.
const NAMES: [&str; 4] = ["pasta", "slirp4netns", "passt", "pesto"];
/// The names that podman starts.
const OF_PODMAN: [&str; 3] = ["pasta", "slirp4netns", "pesto"];
/// The names that rootlesskit starts.
const OF_ROOTLESSKIT: [&str; 3] = ["pasta", "slirp4netns", "pesto"];

/// The file with settings for podman, below the folder of settings. It is read after those of lower
/// numbers, and after containers.conf itself.
const PODMAN_FILE: &str = "containers/containers.conf.d/50-towpath.conf";
/// The file with settings for Docker, below the folder of settings.
const DOCKER_FILE: &str = "systemd/user/docker.service.d/50-towpath.conf";
/// The variable that Docker chooses the network by.
pub(super) const DOCKER_NETWORK: &str = "DOCKERD_ROOTLESS_ROOTLESSKIT_NET";
/// The `PATH` of services of users, if the service has none.
const SERVICE_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The option of rootlesskit that shows that it can start pasta.
const PASTA_OPTION: &str = "--pasta-binary";

/// Whether towpath can act as this program.
pub(super) fn acts_as(name: &str) -> bool {
    compat::program_of(OsStr::new(name)).is_some()
}

/// Returns what `engine` needs.
///
/// # Errors
/// The engine cannot use towpath, or its settings cannot be read.
pub(super) fn of(engine: Engine, folders: &Folders) -> anyhow::Result<Plan> {
    match engine {
        Engine::Podman | Engine::Buildah => podman(folders),
        Engine::Rootlesskit => rootlesskit(folders),
        Engine::Docker => docker(folders),
        Engine::Qemu => qemu(folders),
        Engine::Libvirt => libvirt(folders),
    }
}

/// Returns all that `install` may have made for `engine`, with other contents perhaps.
pub(super) fn all(engine: Engine, folders: &Folders) -> Vec<Change> {
    let file = |path: PathBuf| Change::File { path, engine: engine.name(), text: String::new() };
    let mut all = links(&place(engine, folders), &NAMES, folders);
    match engine {
        Engine::Podman | Engine::Buildah => all.push(file(folders.config.join(PODMAN_FILE))),
        Engine::Docker => all.push(file(folders.config.join(DOCKER_FILE))),
        Engine::Libvirt => all.retain(|link| link.path().ends_with("passt")),
        Engine::Rootlesskit | Engine::Qemu => {}
    }
    all
}

/// Returns what is left to do after a removal.
pub(super) fn note_of_removal(engine: Engine) -> Option<&'static str> {
    match engine {
        Engine::Docker => Some(RESTART_DOCKER),
        Engine::Rootlesskit => {
            Some("start rootlesskit without --pasta-binary and --slirp4netns-binary")
        }
        Engine::Qemu => Some("start QEMU without path= of -netdev passt"),
        _ => None,
    }
}

/// Returns the folder of an engine's links.
pub(super) fn place(engine: Engine, folders: &Folders) -> PathBuf {
    match engine {
        // podman looks there, without a setting in the case of root.
        Engine::Podman | Engine::Buildah => folders.libexec.join("podman"),
        // libvirt looks in the PATH.
        Engine::Libvirt => folders.bin.clone(),
        Engine::Rootlesskit | Engine::Docker | Engine::Qemu => folders.links_of(engine.name()),
    }
}

/// Returns the file with Docker's settings.
pub(super) fn docker_file(folders: &Folders) -> PathBuf {
    folders.config.join(DOCKER_FILE)
}

/// Returns links in a folder, one for each of the names.
fn links(folder: &Path, names: &[&str], folders: &Folders) -> Vec<Change> {
    let link = |name| Change::Link { path: folder.join(name), target: folders.towpath.clone() };
    names.iter().map(link).collect()
}

/// Returns those of the names that towpath can act as.
fn possible<'a>(names: &[&'a str]) -> Vec<&'a str> {
    names.iter().copied().filter(|name| acts_as(name)).collect()
}

fn podman(folders: &Folders) -> anyhow::Result<Plan> {
    let folder = place(Engine::Podman, folders);
    let names = possible(&OF_PODMAN);
    let mut changes = links(&folder, &names, folders);
    let path = folders.config.join(PODMAN_FILE);
    let settings = Settings::read(folders, &path)?;
    let name = folder.to_str().ok_or_else(|| {
        anyhow!("the path {} is not UTF-8, which podman's settings need", folder.display())
    })?;
    let mut text = String::new();
    if settings.folders.first().map(String::as_str) != Some(name) {
        text.push_str(
            "# The list replaces that of files before this one. Its other folders are those that \
             were in force.\nhelper_binaries_dir = [\n",
        );
        let others = settings.folders.iter().map(String::as_str).filter(|other| *other != name);
        for member in [name].into_iter().chain(others) {
            text.push_str(&format!("    {},\n", quoted(member)));
        }
        text.push_str("]\n");
    }
    if names.contains(&"slirp4netns") {
        let helper = format!("{name}/slirp4netns");
        text.push_str(&format!("network_cmd_path = {}\n", quoted(&helper)));
    }
    if !text.is_empty() {
        let text = format!("[engine]\n{text}");
        changes.push(Change::File { path, engine: "podman", text });
    }
    let mut notes = Vec::new();
    if let Some(only) = env::var_os(ONLY_FILE).filter(|only| !only.is_empty()) {
        notes.push(format!(
            "the environment variable {ONLY_FILE} makes podman read {} only: unset it, or put the \
             settings there",
            only.display()
        ));
    }
    notes.push("containers that run keep their network until they are started again".to_owned());
    Ok(Plan { changes, notes })
}

/// Returns a text as TOML's basic string, whose escapes are those of JSON.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn rootlesskit(folders: &Folders) -> anyhow::Result<Plan> {
    let folder = place(Engine::Rootlesskit, folders);
    let names = possible(&OF_ROOTLESSKIT);
    let mut options = Vec::new();
    for name in ["pasta", "slirp4netns"].into_iter().filter(|name| names.contains(name)) {
        options.push(format!("--net={name} --{name}-binary={}", folder.join(name).display()));
    }
    let notes = vec![
        format!("start rootlesskit with {}", options.join(", or with ")),
        format!("or put {} first in the PATH of the program that starts it", folder.display()),
    ];
    Ok(Plan { changes: links(&folder, &names, folders), notes })
}

/// What makes a change of Docker's settings effective.
const RESTART_DOCKER: &str = "run `systemctl --user daemon-reload` and `systemctl --user restart \
                              docker`, which ends containers that run";

fn docker(folders: &Folders) -> anyhow::Result<Plan> {
    if folders.are_of_root {
        bail!(
            "the Docker daemon of root uses bridges of the kernel and no program like towpath; run \
             this as the user of rootless Docker"
        );
    }
    let folder = place(Engine::Docker, folders);
    let names = possible(&OF_ROOTLESSKIT);
    let variables = docker_variables(docker_network(&names)?);
    let mut changes = links(&folder, &names, folders);
    let path = service_path(folders).unwrap_or_else(|| SERVICE_PATH.to_owned());
    let path = format!("{}:{path}", folder.display());
    if folder.to_str().is_none() || !is_plain(&path) {
        bail!(
            "the PATH {path} has characters that a systemd unit does not take as they are; set {} \
             and this PATH by hand",
            variables.join(", ")
        );
    }
    let lines = variables.iter().map(|variable| format!("Environment={variable}\n"));
    let text = format!(
        "[Service]\n{}# The PATH of docker.service, with the folder of the links in \
         front.\nEnvironment=PATH={path}\n",
        lines.collect::<String>()
    );
    changes.push(Change::File { path: docker_file(folders), engine: "docker", text });
    let mut notes = vec![RESTART_DOCKER.to_owned()];
    if unit(folders).is_none() {
        notes.push(format!(
            "there is no docker.service of this user; if you start dockerd-rootless.sh yourself, \
             set {} and PATH={path}",
            variables.join(", ")
        ));
    }
    Ok(Plan { changes, notes })
}

/// Returns the variables that select a network. When it is named, dockerd-rootless.sh of Docker
/// 20 to 26 defaults to an MTU of 1500, and to a port driver that rootlesskit rejects with pasta.
fn docker_variables(network: &str) -> Vec<String> {
    let mut variables = vec![
        format!("{DOCKER_NETWORK}={network}"),
        "DOCKERD_ROOTLESS_ROOTLESSKIT_MTU=65520".to_owned(),
    ];
    if network == "pasta" {
        variables.push("DOCKERD_ROOTLESS_ROOTLESSKIT_PORT_DRIVER=implicit".to_owned());
    }
    variables
}

/// Returns the network that Docker's rootlesskit can make with towpath. Docker itself prefers
/// slirp4netns. With pasta, some versions do not publish ports at 127.0.0.1, or no ports at all.
fn docker_network(names: &[&'static str]) -> anyhow::Result<&'static str> {
    if names.contains(&"slirp4netns") {
        return Ok("slirp4netns");
    }
    // In the order in which dockerd-rootless.sh looks for them.
    let program = ["docker-rootlesskit", "rootlesskit"].into_iter().find_map(probe::in_path);
    match program.is_none_or(|program| knows_pasta(&program)) {
        true => Ok("pasta"),
        false => bail!(
            "rootlesskit is older than 2.0 and cannot start pasta, and towpath does not act as \
             slirp4netns; install a newer rootlesskit"
        ),
    }
}

/// Whether rootlesskit can start pasta.
pub(super) fn knows_pasta(rootlesskit: &Path) -> bool {
    let help = probe::output(rootlesskit, &["--help"]);
    help.is_some_and(|help| help.contains(PASTA_OPTION))
}

/// Whether a systemd unit takes a text as it is.
fn is_plain(text: &str) -> bool {
    let is_special = |byte: u8| b" \t\n\"'\\%$".contains(&byte) || byte.is_ascii_control();
    !text.is_empty() && !text.bytes().any(is_special)
}

/// Returns the user's docker.service.
pub(super) fn unit(folders: &Folders) -> Option<PathBuf> {
    const NAME: &str = "docker.service";
    let own = folders.config.join("systemd/user");
    let all = [own, "/etc/systemd/user".into(), "/usr/lib/systemd/user".into()];
    all.into_iter().map(|folder: PathBuf| folder.join(NAME)).find(|path| path.is_file())
}

/// Returns the `PATH` that docker.service sets.
fn service_path(folders: &Folders) -> Option<String> {
    let text = fs::read_to_string(unit(folders)?).ok()?;
    let lines = text.lines().rev().filter_map(|line| line.trim().strip_prefix("Environment="));
    let mut values = lines.filter_map(|line| line.trim_matches('"').strip_prefix("PATH="));
    values.next().map(str::to_owned)
}

fn qemu(folders: &Folders) -> anyhow::Result<Plan> {
    needs_passt("QEMU", "`-netdev stream` or vhost-user, as docs/cli.md says")?;
    let folder = place(Engine::Qemu, folders);
    let notes = vec![format!(
        "give QEMU 10.1 or later -netdev passt,id=net,path={}",
        folder.join("passt").display()
    )];
    Ok(Plan { changes: links(&folder, &["passt"], folders), notes })
}

fn libvirt(folders: &Folders) -> anyhow::Result<Plan> {
    needs_passt("libvirt", "a port of vhost-user, as docs/cli.md says")?;
    let folder = place(Engine::Libvirt, folders);
    let mut notes = vec![format!(
        "libvirt takes the first passt in its PATH: {} has to be before the folder of another one",
        folder.display()
    )];
    if !folders.are_of_root {
        notes.push("the daemon of root needs `towpath engines install libvirt` as root".to_owned());
    }
    Ok(Plan { changes: links(&folder, &["passt"], folders), notes })
}

/// Refuses an engine that needs passt if towpath cannot act as passt.
fn needs_passt(engine: &str, instead: &str) -> anyhow::Result<()> {
    if acts_as("passt") {
        return Ok(());
    }
    bail!("{engine} starts passt, as which towpath cannot act; use `towpath up` with {instead}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_units_take_as_it_is() {
        assert!(is_plain("/u/.local/libexec/towpath:/usr/bin"));
        for special in ["", "/a b", "/a%b", "/a\"", "/a\\b", "$HOME/x", "/a\n"] {
            assert!(!is_plain(special), "{special:?}");
        }
    }

    #[test]
    fn strings_of_toml() {
        assert_eq!(quoted("/a b"), "\"/a b\"");
        assert_eq!(quoted("\"\\\n"), "\"\\\"\\\\\\n\"");
    }
}
