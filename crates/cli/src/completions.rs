//! Completions for shells, made from the same definitions as `--help`.

use clap::{Command, ValueEnum};
use clap_complete::shells;

/// A shell for which there are completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Returns the script that teaches the shell to complete `command`.
pub(crate) fn script(shell: Shell, command: Command) -> Vec<u8> {
    let mut command = visible(&command);
    let mut script = Vec::new();
    match shell {
        Shell::Bash => {
            clap_complete::generate(shells::Bash, &mut command, crate::NAME, &mut script)
        }
        Shell::Zsh => clap_complete::generate(shells::Zsh, &mut command, crate::NAME, &mut script),
        Shell::Fish => {
            clap_complete::generate(shells::Fish, &mut command, crate::NAME, &mut script)
        }
    }
    script
}

/// Returns the command without its hidden subcommands.
fn visible(command: &Command) -> Command {
    let shown = command.get_subcommands().filter(|action| !action.is_hide_set());
    Command::new(crate::NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .about(command.get_about().cloned().unwrap_or_default())
        .args(command.get_arguments().cloned())
        .subcommands(shown.cloned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::config::args::Arguments;

    #[test]
    fn each_shell_learns_what_is_visible() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(script(*shell, Arguments::command())).unwrap();
            for word in ["doctor", "completions", "map-host-loopback", "queue-pairs"] {
                assert!(script.contains(word), "{shell:?}: {word} is missing");
            }
            assert!(!script.contains("manual pages to"), "{shell:?} knows a hidden command");
        }
    }
}
