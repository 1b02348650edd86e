//! Reports which program each installed engine uses, and whether it works.

use std::fs;
use std::path::{Path, PathBuf};

use super::containers::Settings;
use super::folders::{self, Folders};
use super::{plan, probe};
use crate::config::args::Engine;
use crate::doctor;
use crate::doctor::finding::{Finding, Status};
use crate::exit::{Ending, Failure};

/// The first podman and buildah that start pasta by default.
const PODMAN_WITH_PASTA: probe::Version = (5, 0);
const BUILDAH_WITH_PASTA: probe::Version = (1, 35);
/// The first QEMU with `-netdev passt`.
const QEMU_WITH_PASST: probe::Version = (10, 1);

/// Reports on one engine, or on all that are installed.
pub(super) fn check(engine: Option<Engine>, json: bool) -> Result<Ending, Failure> {
    let folders = Folders::of_user()?;
    // The forks of these come first, as they need a process with one thread.
    let host = doctor::examine();
    let wanted = |other: Engine| engine.is_none_or(|engine| engine == other);
    let all = [
        (Engine::Podman, podman as fn(&Folders, Engine) -> Option<Finding>),
        (Engine::Buildah, podman),
        (Engine::Rootlesskit, rootlesskit),
        (Engine::Docker, docker),
        (Engine::Qemu, qemu),
        (Engine::Libvirt, libvirt),
    ];
    let mut findings = Vec::new();
    for (name, examine) in all.into_iter().filter(|(name, _)| wanted(*name)) {
        match examine(&folders, name) {
            Some(finding) => findings.push(finding),
            None if engine.is_some() => {
                let text = format!("{} was not found", name.name());
                let fix = "install it, or add its folder to the PATH";
                findings.push(Finding::failure(name.name(), text).fix(fix));
            }
            None => {}
        }
    }
    if findings.is_empty() {
        let text =
            "none was found in the PATH: podman, buildah, rootlesskit, Docker, QEMU, libvirt";
        findings.push(Finding::warning("engines", text));
    }
    findings.extend(host.into_iter().filter(|finding| finding.status == Status::Failure));
    doctor::report(&findings, json, "the engines work", "not all engines work")
}

/// A program that an engine starts.
struct Helper {
    path: PathBuf,
    /// The first line of its `--version`, `None` if it does not run.
    version: Option<String>,
    is_towpath: bool,
}

impl Helper {
    fn at(path: PathBuf, folders: &Folders) -> Self {
        let version = probe::version_line(&path);
        let says_so = version.as_deref().is_some_and(|line| line.contains(crate::NAME));
        let is_towpath = says_so || folders::is_same(&path, &folders.towpath);
        Self { path, version, is_towpath }
    }

    /// Returns what it is.
    fn shown(&self) -> String {
        match self.version.as_deref() {
            Some(version) if !version.is_empty() => {
                format!("{} ({version})", self.path.display())
            }
            _ => self.path.display().to_string(),
        }
    }
}

/// Judges what an engine of this name and version starts as `name`.
fn judge(
    engine: Engine,
    version: &str,
    name: &str,
    helper: Option<PathBuf>,
    folders: &Folders,
) -> Finding {
    let check = engine.name();
    let install = format!("run `towpath engines install {check}`");
    let Some(helper) = helper.map(|path| Helper::at(path, folders)) else {
        let made = plan::place(engine, folders).join(name);
        if fs::symlink_metadata(&made).is_ok() {
            let text = format!("{version}: {} leads to no program", made.display());
            return Finding::failure(check, text).fix(install);
        }
        return Finding::failure(check, format!("{version} finds no {name}")).fix(install);
    };
    let shown = helper.shown();
    match (&helper.version, helper.is_towpath) {
        (None, _) => Finding::failure(check, format!("{version} uses {shown}, which does not run"))
            .fix(install),
        (Some(_), true) => Finding::ok(check, format!("{version} uses {shown}")),
        (Some(_), false) if plan::acts_as(name) => {
            Finding::warning(check, format!("{version} uses {shown}, which is not towpath"))
                .fix(install)
        }
        (Some(_), false) => Finding::warning(
            check,
            format!("{version} uses {shown}; towpath does not act as {name}"),
        ),
    }
}

/// Returns the first line of a program's `--version`, or its path.
fn version_of(program: &Path) -> String {
    let line = probe::version_line(program).filter(|line| !line.is_empty());
    line.unwrap_or_else(|| program.display().to_string())
}

/// podman and buildah, which find their helpers alike.
fn podman(folders: &Folders, engine: Engine) -> Option<Finding> {
    let program = probe::in_path(engine.name())?;
    let version = version_of(&program);
    let settings = match Settings::read(folders, Path::new("")) {
        Ok(settings) => settings,
        Err(error) => return Some(Finding::failure(engine.name(), format!("{error:#}"))),
    };
    let since = if engine == Engine::Podman { PODMAN_WITH_PASTA } else { BUILDAH_WITH_PASTA };
    let uses_pasta = match settings.network.as_deref() {
        Some(network) => network == "pasta",
        None => probe::version_in(&version).is_none_or(|version| version >= since),
    };
    let name = if uses_pasta { "pasta" } else { "slirp4netns" };
    let configured = settings.slirp4netns.as_ref().filter(|_| !uses_pasta).map(PathBuf::from);
    let in_folders = || settings.helper(&program, name).filter(|_| uses_pasta);
    let helper = configured.or_else(in_folders).or_else(|| probe::in_path(name));
    if folders.are_of_root && helper.is_none() {
        let text =
            format!("{version} uses bridges of the kernel as root, and finds no {name} as a user");
        let fix = format!("run `towpath engines install {}` for users", engine.name());
        return Some(Finding::warning(engine.name(), text).fix(fix));
    }
    let finding = judge(engine, &version, name, helper, folders);
    let is_lost = |name: &str| {
        let usual = Settings::default().helper(&program, name).is_some();
        usual && settings.helper(&program, name).is_none()
    };
    Some(match finding.status {
        Status::Ok if engine == Engine::Podman && is_lost("netavark") => Finding::failure(
            engine.name(),
            format!("{version} finds no netavark in helper_binaries_dir of containers.conf"),
        )
        .fix("add the folder of netavark to that list, and run `towpath engines install podman`"),
        _ => finding,
    })
}

fn rootlesskit(folders: &Folders, engine: Engine) -> Option<Finding> {
    let program = probe::in_path("rootlesskit")?;
    let version = version_of(&program);
    let name = if plan::knows_pasta(&program) { "pasta" } else { "slirp4netns" };
    let made = Some(plan::place(engine, folders).join(name)).filter(|link| probe::is_program(link));
    let option = made.is_some();
    let finding = judge(engine, &version, name, made.or_else(|| probe::in_path(name)), folders);
    Some(match option {
        true => Finding { value: format!("with --{name}-binary, {}", finding.value), ..finding },
        false => Finding { value: format!("with --net={name}, {}", finding.value), ..finding },
    })
}

fn docker(folders: &Folders, engine: Engine) -> Option<Finding> {
    const ROOTLESS: [&str; 2] =
        ["dockerd-rootless.sh", "/usr/share/docker.io/contrib/dockerd-rootless.sh"];
    let rootless = ROOTLESS.into_iter().find_map(probe::in_path);
    let daemon = probe::in_path("dockerd");
    if folders.are_of_root {
        let text =
            "Docker of root uses bridges of the kernel; run this as the user of rootless Docker";
        return daemon.or(rootless).map(|_| Finding::ok(engine.name(), text));
    }
    let has_unit = plan::unit(folders).is_some();
    rootless.or(daemon.filter(|_| has_unit))?;
    let version = "rootless Docker";
    let text = fs::read_to_string(plan::docker_file(folders)).unwrap_or_default();
    let key = format!("Environment={}=", plan::DOCKER_NETWORK);
    let network = text.lines().find_map(|line| line.strip_prefix(&key));
    Some(match network {
        Some(name) => {
            let made = plan::place(engine, folders).join(name);
            judge(engine, version, name, Some(made).filter(|made| probe::is_program(made)), folders)
        }
        None => {
            let found = ["slirp4netns", "pasta"].map(|name| (name, probe::in_path(name)));
            let first = found.into_iter().find(|(_, path)| path.is_some());
            let (name, path) = first.unwrap_or(("pasta", None));
            let finding = judge(engine, version, name, path, folders);
            match finding.status {
                Status::Ok => finding,
                _ => finding.fix(format!("run `towpath engines install {}`", engine.name())),
            }
        }
    })
}

fn qemu(folders: &Folders, engine: Engine) -> Option<Finding> {
    let program = probe::in_path(&format!("qemu-system-{}", std::env::consts::ARCH))?;
    let version = version_of(&program);
    if probe::version_in(&version).is_some_and(|version| version < QEMU_WITH_PASST) {
        let text = format!("{version} starts no passt; `towpath up` gives it a network");
        return Some(Finding::ok(engine.name(), text));
    }
    let made = plan::place(engine, folders).join("passt");
    let made = Some(made).filter(|made| probe::is_program(made));
    let helper = made.or_else(|| probe::in_path("passt"));
    Some(match helper {
        None if !plan::acts_as("passt") => {
            let text = format!("{version} finds no passt; `towpath up` gives it a network");
            Finding::ok(engine.name(), text)
        }
        helper => judge(engine, &version, "passt", helper, folders),
    })
}

fn libvirt(folders: &Folders, engine: Engine) -> Option<Finding> {
    let program = ["virtqemud", "libvirtd"].into_iter().find_map(probe::in_path)?;
    let version = version_of(&program);
    Some(match probe::in_path("passt") {
        None if !plan::acts_as("passt") => {
            let text = format!("{version} finds no passt; `towpath up` gives guests a network");
            Finding::ok(engine.name(), text)
        }
        helper => judge(engine, &version, "passt", helper, folders),
    })
}
