//! The command lines of `towpath doctor`, `towpath completions` and `towpath man`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use crate::completions::Shell;

/// Report what this machine permits, and how to fix what it does not.
///
/// Checks what `towpath run` needs by doing it: makes the namespaces, the interface and the
/// confinement in processes that end at once, and leaves nothing behind. Run it as the user who
/// will run towpath. Each line is a check: `ok`, `warning` (towpath works with less) or `failure`
/// (`towpath run` does not work); its name; what was found; and, after `fix:`, what to do.
///
/// The checks are `kernel`, the version of Linux; `tun`, the device file of TAP devices;
/// `namespaces`, and which switch forbids them; `mounts`, resolv.conf and /proc inside;
/// `interface`, making and configuring it; `offload`, the features of TAP devices that work;
/// `limits`, low ports and ping inside; `start` of the gateway; `confinement` of the serving
/// process; `descriptors`, and the flows that they allow; `resolvers` for DNS; `ping` to other
/// hosts; `control`, the folder by which `towpath stats` finds instances; `vhost-user`, `memory`
/// and `kvm` for virtual machines; `io_uring`, for the event queues of the libraries only.
///
/// Exit code: 0 if there is no failure, so that `towpath run` works here, else 1.
#[derive(Debug, Args)]
#[command(after_help = crate::exit::help("doctor"))]
pub(crate) struct DoctorArguments {
    /// Write JSON: one object with `version`, `works`, which is true if there is no failure, and
    /// `checks`, a list of objects with `check`, `status`, `value` and `fix`, a text or null.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Write the completions of a shell to standard output.
///
/// `make install` installs them. By hand, for bash: `source <(towpath completions bash)`; for zsh,
/// a file named _towpath in a folder of $fpath; for fish,
/// ~/.config/fish/completions/towpath.fish.
#[derive(Debug, Args)]
#[command(after_help = crate::exit::help("completions"))]
pub(crate) struct CompletionsArguments {
    /// The shell.
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

/// Write the manual pages to a folder.
#[derive(Debug, Args)]
pub(crate) struct ManArguments {
    /// The folder, which exists.
    #[arg(value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) folder: PathBuf,
}
