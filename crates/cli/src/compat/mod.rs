//! Command lines of other programs, translated into command lines of towpath.
//!
//! The translation is the whole difference: everything that these programs do is done by towpath's
//! own commands, with their own options. [`explain`] shows them.
//!
//! Each module uses only the modules before it: `getopt → {pasta, pesto, slirp4netns} → passt`.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;

use clap::Parser;

use crate::config::args::Arguments;
use crate::config::hints;
use crate::exit::{self, Ending, Failure};

mod getopt;
mod passt;
mod pasta;
mod pesto;
mod slirp4netns;

/// A program that towpath can act as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Pasta,
    Slirp4netns,
    Passt,
    Pesto,
}

/// What a command line of another program asks for.
#[derive(Debug, PartialEq, Eq)]
enum Translated {
    /// Arguments of towpath, without its name.
    Command(Vec<OsString>),
    /// To print this text.
    Text(String),
}

#[cfg(test)]
impl Translated {
    /// Returns the text, the command line with spaces between the arguments, or the error's text.
    fn shown(result: anyhow::Result<Self>) -> Result<String, String> {
        match result {
            Ok(Self::Command(command)) => {
                let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
                Ok(words.join(" "))
            }
            Ok(Self::Text(text)) => Ok(text),
            Err(error) => Err(format!("{error:#}")),
        }
    }
}

/// Splits arguments at spaces.
#[cfg(test)]
fn split(arguments: &str) -> Vec<OsString> {
    arguments.split_whitespace().map(OsString::from).collect()
}

/// Returns the program whose name is the last part of a path, perhaps with the suffix of a build
/// for certain processors.
pub(crate) fn program_of(path: &OsStr) -> Option<Program> {
    let name = Path::new(path).file_name()?.to_str()?;
    match name.strip_suffix(".avx2").unwrap_or(name) {
        "pasta" => Some(Program::Pasta),
        "slirp4netns" => Some(Program::Slirp4netns),
        "passt" => Some(Program::Passt),
        "pesto" => Some(Program::Pesto),
        _ => None,
    }
}

/// Returns the command line of towpath that does what `program` would do. Returns `None` if there
/// is nothing left to do: a text was printed.
///
/// # Errors
/// A usage error, with the exit code of `program`.
pub(crate) fn arguments(
    program: Program,
    given: &[OsString],
) -> Result<Option<Arguments>, Failure> {
    match translate(program, given)? {
        Translated::Text(text) => {
            std::io::stdout().write_all(text.as_bytes())?;
            Ok(None)
        }
        Translated::Command(command) => {
            let name = OsString::from(crate::NAME);
            let parsed = Arguments::try_parse_from([name].into_iter().chain(command));
            parsed.map(Some).map_err(|error| {
                // The first line says which value is wrong; the rest is about towpath's usage.
                let text = hints::add(error).to_string();
                let first = text.lines().next().unwrap_or_default();
                anyhow::anyhow!("{}", first.strip_prefix("error: ").unwrap_or(first)).into()
            })
        }
    }
}

/// Prints the command line of towpath that does what `program` would do.
///
/// # Errors
/// A usage error, with the exit code of `program`.
pub(crate) fn explain(program: Program, given: &[OsString]) -> Result<Ending, Failure> {
    let text = match translate(program, given)? {
        Translated::Text(text) => text,
        Translated::Command(command) => {
            let mut line = crate::NAME.to_owned();
            for argument in command {
                line.push(' ');
                line.push_str(&quoted(&argument.to_string_lossy()));
            }
            line + "\n"
        }
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(Ending::Code(0))
}

fn translate(program: Program, given: &[OsString]) -> Result<Translated, Failure> {
    match program {
        Program::Pasta => {
            exit::act_as("pasta");
            Ok(pasta::translate(given)?)
        }
        Program::Slirp4netns => {
            exit::act_as("slirp4netns");
            Ok(slirp4netns::translate(given)?)
        }
        Program::Passt => {
            exit::act_as("passt");
            Ok(passt::translate(given)?)
        }
        Program::Pesto => {
            exit::act_as("pesto");
            Ok(pesto::translate(given)?)
        }
    }
}

/// Quotes an argument for a shell, if it needs that.
fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=%,~@+".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_plain) && !text.starts_with('~') {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_by_name() {
        let program = |path: &str| program_of(OsStr::new(path));
        for path in ["pasta", "/usr/bin/pasta", "pasta.avx2", "./pasta"] {
            assert_eq!(program(path), Some(Program::Pasta), "{path}");
        }
        assert_eq!(program("/usr/bin/slirp4netns"), Some(Program::Slirp4netns));
        for path in ["passt", "/usr/bin/passt.avx2"] {
            assert_eq!(program(path), Some(Program::Passt), "{path}");
        }
        assert_eq!(program("/usr/bin/pesto"), Some(Program::Pesto));
        for path in ["towpath", "", "/", "pasta/x", "pastas", "mypasta", "pasta.sh", ".avx2"] {
            assert_eq!(program(path), None, "{path}");
        }
    }

    #[test]
    fn arguments_are_quoted_for_the_shell() {
        assert_eq!(quoted("--mtu=1500"), "--mtu=1500");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("~1-3"), "'~1-3'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }
}
