//! The thread that asks instances, so that keys are never late.

#![allow(clippy::disallowed_methods, reason = "nothing of the data path is here")]

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::control::instances;
use crate::show::top::sample::{self, Sample};

/// Time between the first two samples of an instance: rates are shown soon.
const FIRST_INTERVAL: Duration = Duration::from_millis(300);

/// What is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// All instances.
    All,
    /// The instance behind this socket.
    One(PathBuf),
}

/// A command to the thread.
#[derive(Debug)]
pub(super) enum Command {
    /// Ask this one from now on, also after a pause.
    Watch(Target),
    /// Ask nothing until the next command.
    Pause(bool),
}

/// What the thread has found.
#[derive(Debug)]
pub(super) enum Found {
    /// All instances that run, and a sample of each that answers.
    All(Vec<(PathBuf, Sample)>),
    One(Box<Sample>),
    /// The instance has ended.
    Ended,
    /// Asking failed; it is tried again.
    Failed(String),
}

/// Asks until the other end of a channel is closed. `send` returns false if it is.
pub(super) fn collect(
    mut target: Target,
    interval: Duration,
    commands: &Receiver<Command>,
    send: impl Fn(Target, Found) -> bool,
) {
    let (mut is_paused, mut is_first) = (false, true);
    loop {
        let mut has_ended = false;
        if !is_paused {
            let found = find(&target);
            has_ended = matches!(found, Found::Ended);
            if !send(target.clone(), found) {
                return;
            }
        }
        let wait = if std::mem::take(&mut is_first) { FIRST_INTERVAL } else { interval };
        let command = if is_paused || has_ended {
            commands.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            commands.recv_timeout(wait.min(interval))
        };
        match command {
            Ok(Command::Watch(other)) => (target, is_first, is_paused) = (other, true, false),
            Ok(Command::Pause(pause)) => is_paused = pause,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn find(target: &Target) -> Found {
    match target {
        Target::All => match instances::running() {
            Ok(running) => {
                // An instance that does not answer is left out; it may have just ended.
                let one = |(_, path): (i32, PathBuf)| {
                    sample::counters(&path).ok().map(|sample| (path, sample))
                };
                Found::All(running.into_iter().filter_map(one).collect())
            }
            Err(error) => Found::Failed(format!("{error:#}")),
        },
        Target::One(path) => find_one(path),
    }
}

/// Asks one instance.
pub(super) fn find_one(path: &Path) -> Found {
    match sample::take(path) {
        Ok(sample) => Found::One(Box::new(sample)),
        Err(error) => match instances::answers(path) {
            Ok(false) => Found::Ended,
            _ => Found::Failed(format!("{error:#}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::mpsc::channel;

    use super::*;

    /// Goal: an instance that has ended is reported once; another one is watched on request, even
    /// after a pause; a closed channel ends the thread.
    #[test]
    fn commands_are_followed() {
        let (commands, wanted) = channel();
        let one = |name: &str| Target::One(PathBuf::from(format!("/no/such/{name}")));
        commands.send(Command::Pause(true)).unwrap();
        commands.send(Command::Watch(one("b"))).unwrap();
        commands.send(Command::Pause(true)).unwrap();
        drop(commands);
        let found = RefCell::new(Vec::new());
        collect(one("a"), Duration::from_secs(3600), &wanted, |target, what| {
            assert!(matches!(what, Found::Ended), "{what:?}");
            found.borrow_mut().push(target);
            true
        });
        assert_eq!(*found.borrow(), [one("a"), one("b")]);
        // The other end takes nothing any more.
        let (_commands, wanted) = channel();
        collect(one("a"), Duration::from_secs(3600), &wanted, |_, _| false);
    }
}
