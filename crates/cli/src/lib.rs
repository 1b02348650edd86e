//! The `towpath` command.
//!
//! `run` starts a program in namespaces of its own, and `attach` serves an existing namespace; both
//! pass a TAP device to the worker, which moves the packets. `up` serves a network of virtual
//! machines; `ls`, `port`, `lease` and `publish` show and change it, `policy` checks and replaces
//! its policy, and `capture` records it.
//! `doctor` reports what the machine permits. `compat` translates command lines of other programs,
//! and `engines` makes container engines use it. `cni` attaches containers to a network.
//! All code here runs in one thread until the worker starts, because it forks.
//!
//! Each module uses only the modules before it: `exit → {completions, man, messages} → config →
//! control → show → process → doctor → compat → engines → cni`.
#![deny(unsafe_code)]

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::{CommandFactory, Parser};
use towpath_io::namespace::signals;

use config::args::{Action, Arguments, AsArguments};
use config::{hints, settings};
use exit::{Ending, Failure};
use messages::Messages;

mod cni;
mod compat;
mod completions;
mod config;
mod control;
mod doctor;
mod engines;
mod exit;
mod man;
mod messages;
mod process;
mod show;

/// The name of the command.
pub const NAME: &str = "towpath";

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let given: Vec<OsString> = std::env::args_os().collect();
    if given.first().is_some_and(|name| cni::is_meant(name)) {
        return cni::main(&given[1..]);
    }
    let done = match given.first().and_then(|name| compat::program_of(name)) {
        Some(program) => act_for(program, &given[1..]),
        // A usage error ends the process here, with code 2.
        None => act(Arguments::try_parse().unwrap_or_else(|error| hints::add(error).exit())),
    };
    match done {
        Ok(ending) => end(ending),
        Err(failure) => ExitCode::from(tell(failure)),
    }
}

/// Does what the command line says.
fn act(arguments: Arguments) -> Result<Ending, Failure> {
    match arguments.action {
        Action::As(arguments) => act_as(&arguments),
        Action::Engines(arguments) => engines::engines(&arguments),
        Action::Run(arguments) => process::run::run(&arguments),
        Action::Attach(arguments) => process::attach::attach(&arguments),
        Action::Up(arguments) => process::up::up(*arguments),
        Action::Ls(arguments) => control::ports::list(&arguments),
        Action::Port(arguments) => control::ports::change(&arguments),
        Action::Workers(arguments) => control::ports::set_workers(&arguments),
        Action::Lease(arguments) => control::ports::lease(&arguments),
        Action::Publish(arguments) => control::ports::publish(&arguments),
        Action::Policy(arguments) => control::policy::policy(&arguments),
        Action::Capture(arguments) => control::capture::capture(&arguments),
        Action::Stats(arguments) => show::stats::stats(&arguments),
        Action::Flows(arguments) => show::flows::flows(&arguments),
        Action::Doctor(arguments) => doctor::doctor(&arguments),
        Action::Completions(arguments) => write_completions(arguments.shell),
        Action::Man(arguments) => write_manual(&arguments.folder),
        Action::Top(arguments) => show::top::top(&arguments),
    }
}

/// Acts as the program that the command line names.
fn act_as(arguments: &AsArguments) -> Result<Ending, Failure> {
    let [name, rest @ ..] = arguments.command.as_slice() else {
        unreachable!("the command line requires a program")
    };
    let Some(program) = compat::program_of(name) else {
        settings::usage_error(&anyhow!(
            "'{}' is not a program that towpath can act as; expected pasta, passt, pesto or \
             slirp4netns",
            name.display()
        ));
    };
    if arguments.explain {
        return compat::explain(program, rest);
    }
    act_for(program, rest)
}

/// Does what a command line of another program says.
fn act_for(program: compat::Program, given: &[OsString]) -> Result<Ending, Failure> {
    match compat::arguments(program, given)? {
        Some(arguments) => act(arguments),
        None => Ok(Ending::Code(0)),
    }
}

/// Ends a forked child, which must never return into its parent's code.
fn end_child(done: Result<Ending, Failure>) -> ! {
    let code = match done {
        Ok(ending) => ending.code(),
        Err(failure) => tell(failure),
    };
    std::process::exit(code.into())
}

/// Reports a failure to the user; returns the exit code.
fn tell(failure: Failure) -> u8 {
    if let Some(error) = failure.error {
        Messages::Quiet.error(format_args!("{error:#}"));
    }
    exit::failure_code(failure.code)
}

/// Ends an interrupted program by the signal itself: only then do shells stop a script or a loop.
fn end(ending: Ending) -> ExitCode {
    if ending == Ending::Signal(signals::INTERRUPT_NUMBER) {
        signals::end_by_interrupt();
    }
    ExitCode::from(ending.code())
}

fn write_completions(shell: completions::Shell) -> Result<Ending, Failure> {
    std::io::stdout().write_all(&completions::script(shell, Arguments::command()))?;
    Ok(Ending::Code(0))
}

fn write_manual(folder: &Path) -> Result<Ending, Failure> {
    for (name, page) in man::pages(Arguments::command())? {
        let path = folder.join(name);
        std::fs::write(&path, page)
            .with_context(|| format!("cannot write to {}", path.display()))?;
    }
    Ok(Ending::Code(0))
}
