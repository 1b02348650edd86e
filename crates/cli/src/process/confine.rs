//! Confinement of the serving process, step by step, and reports of what failed.
//!
//! The order matters: [`Confinement::begin`] while everything is still allowed, [`isolate`] while
//! there is one thread, [`seal`] before the first packet of a stranger is parsed.
//!
//! [`isolate`]: Confinement::isolate
//! [`seal`]: Confinement::seal

use std::os::fd::{BorrowedFd, OwnedFd};

use anyhow::Context;
use towpath_gateway::publish::{Protocol, Publish};
use towpath_io::confine::broker::{self, Duties, Ports};
use towpath_io::confine::{self, Mode};
use towpath_io::namespace::init;

use crate::config::args::GatewayArguments;
use crate::messages::Messages;

/// The state of confinement.
pub(crate) struct Confinement {
    is_wanted: bool,
    messages: Messages,
    /// What standard input and output become; opened while files can be opened.
    null: OwnedFd,
}

impl Confinement {
    /// Forks the broker, unless the user wants no confinement. The broker may have to kill `child`.
    pub(crate) fn begin(
        arguments: &GatewayArguments,
        messages: Messages,
        duties: Duties,
        child: Option<BorrowedFd<'_>>,
    ) -> anyhow::Result<Self> {
        let is_wanted = !arguments.no_confinement;
        if is_wanted {
            broker::start(duties, child).context("cannot start the broker process")?;
        } else {
            messages.error(
                "WARNING: --no-confinement: this process keeps all its rights while it processes \
                 untrusted packets; an exploit of a bug in it gets these rights",
            );
        }
        Ok(Self { is_wanted, messages, null: init::null_device()? })
    }

    /// Gives up privileges and access to files.
    pub(crate) fn isolate(&self) -> anyhow::Result<()> {
        if !self.is_wanted {
            return Ok(());
        }
        let refused = confine::isolate()
            .context("cannot give up privileges; --no-confinement serves with them")?;
        if let Some(errno) = refused {
            let rest = match confine::state().has_files() {
                true => "only the system call filter keeps this process from the host's files",
                false => "only Landlock keeps this process from files",
            };
            self.messages.notice(format_args!(
                "confinement: namespaces are not available ({errno}); {rest}"
            ));
        }
        Ok(())
    }

    /// Replaces standard input and output by /dev/null.
    pub(crate) fn release_input_and_output(&self) -> anyhow::Result<()> {
        Ok(init::release_input_and_output(&self.null)?)
    }

    /// Installs the filter: from now on an unneeded system call ends the process.
    pub(crate) fn seal(self, mode: Mode) {
        if !self.is_wanted {
            return;
        }
        if let Err(error) = confine::seal(mode) {
            self.messages.notice(format_args!("confinement: {error}"));
        }
        self.messages.detail(format_args!("confinement: {}", confine::state()));
        #[cfg(debug_assertions)]
        self.attempt();
    }

    /// Does what an attacker in this process would do: for tests, in debug builds only.
    #[cfg(debug_assertions)]
    fn attempt(&self) {
        let Ok(name) = std::env::var("TOWPATH_ATTEMPT") else { return };
        match confine::attempts::attempt(&name) {
            Ok(()) => self.messages.error(format_args!("attempt: {name}: done")),
            Err(error) => self.messages.error(format_args!("attempt: {name}: refused: {error}")),
        }
    }
}

/// Returns the published ports, as far as only the broker may bind them.
pub(crate) fn ports(publish: &[Publish]) -> Ports {
    let of = |protocol| {
        let published = publish.iter().filter(|publish| publish.protocol == protocol);
        published.map(|publish| publish.host_port).collect()
    };
    Ports::These(of(Protocol::Tcp), of(Protocol::Udp))
}
