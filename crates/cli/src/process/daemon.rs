//! Serving in the background, and the files and streams that go with it.
//!
//! The process that the user started waits until the one in the background serves, or has failed
//! and said why. A pipe connects them: a byte means that the network is ready.

use std::fs::{File, OpenOptions};
use std::io::{PipeWriter, Read, Write, pipe};
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::Context;
use rustix::process::{getpid, setsid};
use towpath_io::namespace::{self, init, reap};
use towpath_io::process_sys::Forked;

use crate::config::args::DaemonArguments;
use crate::exit::{Ending, Failure};

/// What the serving process owes to its surroundings.
pub(crate) struct Surroundings {
    /// Where to report readiness to the process that waits for it.
    starter: Option<PipeWriter>,
    pid_file: Option<File>,
    log_file: Option<File>,
    /// What standard error becomes in the background.
    null: OwnedFd,
}

/// Which process this is.
pub(crate) enum Role {
    /// The one that serves.
    Serving(Surroundings),
    /// The one that was started, after the other one serves.
    Over(Ending),
}

impl Surroundings {
    /// Opens the files that the options name, and continues in the background if they say so.
    ///
    /// # Errors
    /// A file cannot be opened, or the process in the background failed; the user knows the reason
    /// then.
    pub(crate) fn prepare(arguments: &DaemonArguments) -> Result<Role, Failure> {
        let mut options = File::options();
        options.create(true).write(true);
        let open = |options: &OpenOptions, path: &Path, option: &str| {
            let opened = options.open(path);
            opened.with_context(|| format!("option {option}: cannot open {}", path.display()))
        };
        let pid_file = arguments.pid_file.as_deref();
        let pid_file =
            pid_file.map(|path| open(options.truncate(true), path, "--pid-file")).transpose()?;
        let log_file = arguments.log_file.as_deref();
        let log_file = log_file
            .map(|path| open(File::options().create(true).append(true), path, "--log-file"))
            .transpose()?;
        let null = init::null_device()?;
        let mut serving = Surroundings { starter: None, pid_file, log_file, null };
        if !arguments.daemon {
            return Ok(Role::Serving(serving));
        }
        let (mut outlet, inlet) = pipe()?;
        match namespace::fork().context("cannot start a process in the background")? {
            Forked::Child => {
                drop(outlet);
                setsid()?;
                serving.starter = Some(inlet);
                Ok(Role::Serving(serving))
            }
            Forked::Parent(child) => {
                drop((inlet, serving));
                let mut received = [0];
                if outlet.read(&mut received)? == 1 {
                    return Ok(Role::Over(Ending::Code(0)));
                }
                let ending = Ending::from(reap(child.pid)?);
                match ending {
                    Ending::Code(code) => Err(Failure::reported(code)),
                    Ending::Signal(signal) => {
                        let error = anyhow::anyhow!(
                            "the process in the background was killed by signal {signal}"
                        );
                        Err(error.into())
                    }
                }
            }
        }
    }

    /// Writes the PID, releases standard error where messages go elsewhere from now on, and reports
    /// readiness to the process that was started.
    ///
    /// # Errors
    /// Those of the files.
    pub(crate) fn announce(mut self) -> anyhow::Result<()> {
        if let Some(file) = &mut self.pid_file {
            let line = format!("{}\n", getpid());
            file.write_all(line.as_bytes()).context("option --pid-file: cannot write")?;
        }
        match (&self.log_file, &self.starter) {
            (Some(file), _) => init::redirect_error(file)?,
            (None, Some(_)) => init::redirect_error(&self.null)?,
            (None, None) => {}
        }
        if let Some(mut starter) = self.starter {
            // This fails if the other process was killed.
            let _ = starter.write_all(b"1");
        }
        Ok(())
    }
}
