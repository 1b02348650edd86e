//! The tests' own programs: this very executable, started inside of a towpath as
//! `e2e inside ROLE ARGUMENT...`.

use std::process::ExitCode;

/// Plays a role if that is what this process was started for.
pub(crate) fn play() -> Option<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (word, rest) = arguments.split_first()?;
    let (role, rest) = rest.split_first()?;
    if word != "inside" {
        return None;
    }
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    Some(match run(role, &rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{role}: {error}");
            ExitCode::FAILURE
        }
    })
}

/// What went wrong, as text; a role's only reader is a person.
type Outcome = Result<(), Box<dyn std::error::Error>>;

fn run(role: &str, _arguments: &[&str]) -> Outcome {
    Err(format!("no such role: {role}").into())
}
