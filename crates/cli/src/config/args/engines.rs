//! The command line of `towpath engines`.

use clap::{Args, ValueEnum};

/// Make container engines and virtual machine monitors use towpath.
///
/// These programs start pasta, slirp4netns or passt. `install` makes links of such names to this
/// towpath, for the user who runs it, and the settings by which ENGINE finds them; `remove` removes
/// both. As root, they are for all users. Neither changes files that `install` did not make. What
/// runs already keeps its network until it is started again.
///
/// `check` reports which program ENGINE, or each installed engine, uses. Each line is `ok`,
/// `warning` (it works, but with another program) or `failure`; the engine; what was found; and,
/// after `fix:`, what to do. If this machine lacks something, lines of `towpath doctor` say what.
/// Exit code: 0 if there is no failure, else 1.
#[derive(Debug, Args)]
#[command(after_help = crate::exit::help("engines"))]
pub(crate) struct EnginesArguments {
    /// What to do.
    #[arg(value_name = "ACTION")]
    pub(crate) action: EnginesAction,

    /// The program that is to use towpath.
    #[arg(value_name = "ENGINE", required_if_eq_any([("action", "install"), ("action", "remove")]))]
    pub(crate) engine: Option<Engine>,

    /// With install and remove: only print what would be done.
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// With check: write JSON, one object with `version`, `works`, which is true if there is no
    /// failure, and `checks`, a list of objects with `check`, `status`, `value` and `fix`, a text
    /// or null.
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) json: bool,
}

/// What `towpath engines` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EnginesAction {
    Install,
    Remove,
    Check,
}

/// A program that starts another one as its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// podman; buildah shares its settings
    Podman,
    /// buildah; podman shares its settings
    Buildah,
    /// rootlesskit, as nerdctl and BuildKit start it
    Rootlesskit,
    /// Docker without root
    Docker,
    /// QEMU's -netdev passt
    Qemu,
    /// libvirt's passt back end
    Libvirt,
}

impl Engine {
    /// Returns the name of the engine on command lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Engine::Podman => "podman",
            Engine::Buildah => "buildah",
            Engine::Rootlesskit => "rootlesskit",
            Engine::Docker => "docker",
            Engine::Qemu => "qemu",
            Engine::Libvirt => "libvirt",
        }
    }
}
