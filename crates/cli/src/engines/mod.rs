//! `towpath engines`: makes container engines and virtual machine monitors use towpath in place of
//! pasta, slirp4netns and passt, undoes that, and reports what they use.
//!
//! What is installed is a list of [`changes`](change): links and small files. Everything is
//! compared with what exists before anything is changed, and only what towpath made is replaced or
//! removed: a link to a program named towpath, and a file whose first line says so.
//!
//! Each module uses only the modules before it: `probe → folders → {change, containers} → plan →
//! check`.

use std::io::Write;

use anyhow::Context;

use crate::config::args::{Engine, EnginesAction, EnginesArguments};
use crate::config::settings;
use crate::exit::{Ending, Failure};

use change::{Change, State};
use folders::Folders;
use plan::Plan;

mod change;
mod check;
mod containers;
mod folders;
mod plan;
mod probe;

/// Does what the command line says.
pub(crate) fn engines(arguments: &EnginesArguments) -> Result<Ending, Failure> {
    if arguments.json && arguments.action != EnginesAction::Check {
        settings::usage_error(&anyhow::anyhow!("--json is for `towpath engines check`"));
    }
    if arguments.dry_run && arguments.action == EnginesAction::Check {
        settings::usage_error(&anyhow::anyhow!(
            "--dry-run is for `towpath engines install` and `towpath engines remove`; `check` \
             changes nothing"
        ));
    }
    match (arguments.action, arguments.engine) {
        (EnginesAction::Check, engine) => check::check(engine, arguments.json),
        (EnginesAction::Install, Some(engine)) => install(engine, arguments.dry_run),
        (EnginesAction::Remove, Some(engine)) => remove(engine, arguments.dry_run),
        (_, None) => unreachable!("the command line requires an engine"),
    }
}

/// Makes the links and files of an engine.
fn install(engine: Engine, dry_run: bool) -> Result<Ending, Failure> {
    let folders = Folders::of_user()?;
    let Plan { changes, notes } = plan::of(engine, &folders)?;
    let states: Vec<State> =
        changes.iter().map(Change::state).collect::<Result<_, _>>().with_context(|| {
            format!("cannot install towpath for {}, nothing is changed", engine.name())
        })?;
    if !dry_run {
        apply(&changes, &states, &folders)?;
    }
    let mut out = std::io::stdout().lock();
    for (change, state) in changes.iter().zip(states) {
        let verb = match (state, dry_run) {
            (State::Same, _) => "unchanged:",
            (State::Absent, true) => "would create",
            (State::Absent, false) => "created",
            (State::Older, true) => "would replace",
            (State::Older, false) => "replaced",
        };
        writeln!(out, "{verb} {change}")?;
        if dry_run && state != State::Same {
            for line in change.text().lines() {
                writeln!(out, "    {line}")?;
            }
        }
    }
    for note in notes {
        writeln!(out, "{note}")?;
    }
    Ok(Ending::Code(0))
}

/// Makes what is not there yet; all or nothing.
fn apply(changes: &[Change], states: &[State], folders: &Folders) -> anyhow::Result<()> {
    for (index, (change, state)) in changes.iter().zip(states).enumerate() {
        if *state == State::Same {
            continue;
        }
        if let Err(error) = change.apply() {
            let made = changes.iter().zip(states).take(index);
            for (change, _) in made.filter(|(_, state)| **state == State::Absent) {
                // The first error says what is wrong.
                let _ = change.revert(folders.floor(change.path()));
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Removes the links and files of an engine, and folders that are empty then.
fn remove(engine: Engine, dry_run: bool) -> Result<Ending, Failure> {
    let folders = Folders::of_user()?;
    let mut out = std::io::stdout().lock();
    let mut count = 0_usize;
    for change in plan::all(engine, &folders) {
        match change.state() {
            Ok(State::Absent) => {}
            Ok(_) => {
                if !dry_run {
                    change.revert(folders.floor(change.path()))?;
                }
                let verb = if dry_run { "would remove" } else { "removed" };
                writeln!(out, "{verb} {}", change.path().display())?;
                count += 1;
            }
            // It belongs to others.
            Err(error) => writeln!(out, "kept {}: {error:#}", change.path().display())?,
        }
    }
    if count == 0 {
        writeln!(out, "nothing of towpath is installed for {}", engine.name())?;
    } else if let Some(note) = plan::note_of_removal(engine) {
        writeln!(out, "{note}")?;
    }
    Ok(Ending::Code(0))
}
