//! Parses options as getopt_long(3) does: clustered short options, `--option value`,
//! `--option=value`, and unambiguous abbreviations of long options. Parsing ends at `--`, and for
//! some programs at the first argument that is not an option.
//!
//! Error texts are those of the C library, since callers compare them.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// An option of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<T: 'static> {
    /// Its letter, or 0.
    pub(super) short: u8,
    /// Its name, without the dashes; empty if it has a letter only.
    pub(super) long: &'static str,
    /// It has an argument.
    pub(super) takes: bool,
    /// What it means.
    pub(super) meaning: T,
}

/// An option on a command line.
#[derive(Debug)]
pub(super) struct Given<T: 'static> {
    /// The definition.
    pub(super) known: &'static Known<T>,
    /// Its argument; empty if it has none.
    pub(super) value: OsString,
}

/// Why a command line cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// A long option that does not exist.
    Unknown(String),
    /// An abbreviation of several options, which follow.
    Ambiguous(String, String),
    /// A long option without an argument has one.
    Value(&'static str),
    /// A long option lacks its argument.
    NoValue(&'static str),
    /// A short option that does not exist.
    UnknownShort(String),
    /// A short option lacks its argument.
    NoValueShort(char),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => write!(f, "unrecognized option '--{name}'"),
            Self::Ambiguous(name, all) => {
                write!(f, "option '--{name}' is ambiguous; possibilities:{all}")
            }
            Self::Value(name) => write!(f, "option '--{name}' doesn't allow an argument"),
            Self::NoValue(name) => write!(f, "option '--{name}' requires an argument"),
            Self::UnknownShort(letter) => write!(f, "invalid option -- '{letter}'"),
            Self::NoValueShort(letter) => write!(f, "option requires an argument -- '{letter}'"),
        }
    }
}

impl std::error::Error for Wrong {}

/// Passes each option of `arguments` to `see`, in their order, until that returns an error; returns
/// the arguments behind the options.
pub(super) fn parse<'a, T, E: From<Wrong>>(
    known: &'static [Known<T>],
    mut arguments: &'a [OsString],
    mut see: impl FnMut(Given<T>) -> Result<(), E>,
) -> Result<&'a [OsString], E> {
    loop {
        match parse_next(known, arguments, &mut see)? {
            Next::Parsed(rest) => arguments = rest,
            Next::Operand => return Ok(arguments),
            Next::End(rest) => return Ok(rest),
        }
    }
}

/// Passes each option of `arguments` to `see`, as [`parse`] does, but also those behind and between
/// other arguments; returns the others.
pub(super) fn parse_anywhere<'a, T, E: From<Wrong>>(
    known: &'static [Known<T>],
    mut arguments: &'a [OsString],
    mut see: impl FnMut(Given<T>) -> Result<(), E>,
) -> Result<Vec<&'a OsString>, E> {
    let mut operands = Vec::new();
    loop {
        match (parse_next(known, arguments, &mut see)?, arguments) {
            (Next::Parsed(rest), _) => arguments = rest,
            (Next::Operand, [operand, rest @ ..]) => {
                operands.push(operand);
                arguments = rest;
            }
            (Next::Operand, []) => return Ok(operands),
            (Next::End(rest), _) => {
                operands.extend(rest);
                return Ok(operands);
            }
        }
    }
}

/// What the next argument is.
enum Next<'a> {
    /// Options, which were parsed; the arguments behind them.
    Parsed(&'a [OsString]),
    /// No option.
    Operand,
    /// The end of all options; the arguments behind it.
    End(&'a [OsString]),
}

fn parse_next<'a, T, E: From<Wrong>>(
    known: &'static [Known<T>],
    arguments: &'a [OsString],
    see: &mut impl FnMut(Given<T>) -> Result<(), E>,
) -> Result<Next<'a>, E> {
    let [first, rest @ ..] = arguments else { return Ok(Next::End(arguments)) };
    let parsed = match first.as_bytes() {
        b"--" => return Ok(Next::End(rest)),
        [b'-', b'-', name @ ..] => parse_long(known, name, rest, see)?,
        [b'-', letters @ ..] if !letters.is_empty() => parse_short(known, letters, rest, see)?,
        _ => return Ok(Next::Operand),
    };
    Ok(Next::Parsed(parsed))
}

/// Parses a long option; returns the arguments behind it.
fn parse_long<'a, T, E: From<Wrong>>(
    known: &'static [Known<T>],
    text: &[u8],
    rest: &'a [OsString],
    see: &mut impl FnMut(Given<T>) -> Result<(), E>,
) -> Result<&'a [OsString], E> {
    let (name, value) = match text.iter().position(|byte| *byte == b'=') {
        Some(at) => (&text[..at], Some(OsStr::from_bytes(&text[at + 1..]).to_owned())),
        None => (text, None),
    };
    let known = find_long(known, name, text)?;
    let (value, rest) = match (known.takes, value, rest) {
        (false, None, rest) => (OsString::new(), rest),
        (false, Some(_), _) => return Err(Wrong::Value(known.long).into()),
        (true, Some(value), rest) => (value, rest),
        (true, None, [value, rest @ ..]) => (value.clone(), rest),
        (true, None, []) => return Err(Wrong::NoValue(known.long).into()),
    };
    see(Given { known, value })?;
    Ok(rest)
}

fn find_long<T>(
    known: &'static [Known<T>],
    name: &[u8],
    text: &[u8],
) -> Result<&'static Known<T>, Wrong> {
    let long = known.iter().filter(|known| !known.long.is_empty());
    if let Some(exact) = long.clone().find(|known| known.long.as_bytes() == name) {
        return Ok(exact);
    }
    let mut begun = long.filter(|known| known.long.as_bytes().starts_with(name));
    match (begun.next(), begun.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(Wrong::Unknown(String::from_utf8_lossy(text).into_owned())),
        (Some(first), Some(second)) => {
            let all = [first, second].into_iter().chain(begun);
            let all = all.map(|known| format!(" '--{}'", known.long)).collect();
            Err(Wrong::Ambiguous(String::from_utf8_lossy(name).into_owned(), all))
        }
    }
}

/// Parses an argument with short options; returns the arguments behind it.
fn parse_short<'a, T, E: From<Wrong>>(
    known: &'static [Known<T>],
    mut letters: &[u8],
    rest: &'a [OsString],
    see: &mut impl FnMut(Given<T>) -> Result<(), E>,
) -> Result<&'a [OsString], E> {
    while let [letter, behind @ ..] = letters {
        let found = known.iter().find(|known| known.short == *letter && *letter != 0);
        let Some(known) = found else {
            let letter = String::from_utf8_lossy(&[*letter]).into_owned();
            return Err(Wrong::UnknownShort(letter).into());
        };
        if !known.takes {
            see(Given { known, value: OsString::new() })?;
            letters = behind;
            continue;
        }
        let (value, rest) = match (behind, rest) {
            ([], [value, rest @ ..]) => (value.clone(), rest),
            ([], []) => return Err(Wrong::NoValueShort(char::from(*letter)).into()),
            (value, rest) => (OsString::from_vec(value.to_vec()), rest),
        };
        see(Given { known, value })?;
        return Ok(rest);
    }
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn known(short: u8, long: &'static str, takes: bool) -> Known<()> {
        Known { short, long, takes, meaning: () }
    }

    const KNOWN: &[Known<()>] = &[
        known(b'q', "quiet", false),
        known(b't', "tcp-ports", true),
        known(0, "tcp-ns", true),
        known(b'f', "", false),
    ];

    /// Returns the options and the other arguments as text.
    fn read(arguments: &[&str]) -> Result<(Vec<String>, usize), Wrong> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let mut seen = Vec::new();
        let rest = parse(KNOWN, &arguments, |given| -> Result<(), Wrong> {
            let (short, long) = (char::from(given.known.short), given.known.long);
            seen.push(format!("{short}{long}={}", given.value.display()).replace('\0', ""));
            Ok(())
        })?;
        Ok((seen, rest.len()))
    }

    #[test]
    fn all_forms_of_options() {
        let seen = |arguments: &[&str]| read(arguments).unwrap();
        let whole = vec!["ttcp-ports=80".to_owned()];
        for form in [
            &["-t80"][..],
            &["-t", "80"],
            &["--tcp-ports=80"],
            &["--tcp-ports", "80"],
            &["--tcp-p", "80"],
            &["--tcp-p=80"],
        ] {
            assert_eq!(seen(form), (whole.clone(), 0), "{form:?}");
        }
        assert_eq!(seen(&["-qft=1", "-q"]).0, ["qquiet=", "f=", "ttcp-ports==1", "qquiet="]);
        assert_eq!(seen(&["-q", "cmd", "-q"]), (vec!["qquiet=".to_owned()], 2));
        assert_eq!(seen(&["--", "-q"]), (vec![], 1));
        assert_eq!(seen(&["-", "-q"]), (vec![], 2), "a dash is an argument");
        assert_eq!(seen(&["-t", "--quiet"]).0, ["ttcp-ports=--quiet"]);
        assert_eq!(seen(&["--tcp-ports="]).0, ["ttcp-ports="]);
    }

    #[test]
    fn options_behind_other_arguments() {
        let read = |arguments: &[&str]| {
            let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
            let mut seen = Vec::new();
            let others = parse_anywhere(KNOWN, &arguments, |given| -> Result<(), Wrong> {
                seen.push(format!("{}={}", given.known.long, given.value.display()));
                Ok(())
            });
            let others = others?.into_iter().map(|other| other.display().to_string()).collect();
            Ok::<(Vec<String>, Vec<String>), Wrong>((seen, others))
        };
        let both = |seen: &[&str], others: &[&str]| {
            let owned = |list: &[&str]| list.iter().map(|one| (*one).to_owned()).collect();
            Ok((owned(seen), owned(others)))
        };
        assert_eq!(read(&["7", "-q", "tap0"]), both(&["quiet="], &["7", "tap0"]));
        assert_eq!(read(&["-t", "1", "7", "-t2"]), both(&["tcp-ports=1", "tcp-ports=2"], &["7"]));
        assert_eq!(read(&["7", "--", "-q", "--"]), both(&[], &["7", "-q", "--"]));
        assert_eq!(read(&["-t", "--", "-"]), both(&["tcp-ports=--"], &["-"]));
        assert_eq!(read(&[]), both(&[], &[]));
        assert_eq!(read(&["7", "-x"]), Err(Wrong::UnknownShort("x".into())));
    }

    #[test]
    fn mistakes_are_named_as_the_c_library_does() {
        let wrong = |arguments: &[&str]| read(arguments).unwrap_err().to_string();
        assert_eq!(wrong(&["--nonsense"]), "unrecognized option '--nonsense'");
        assert_eq!(wrong(&["--nonsense=1"]), "unrecognized option '--nonsense=1'");
        assert_eq!(
            wrong(&["--tcp", "80"]),
            "option '--tcp' is ambiguous; possibilities: '--tcp-ports' '--tcp-ns'"
        );
        assert_eq!(wrong(&["--quiet=yes"]), "option '--quiet' doesn't allow an argument");
        assert_eq!(wrong(&["--tcp-ns"]), "option '--tcp-ns' requires an argument");
        assert_eq!(wrong(&["-qx"]), "invalid option -- 'x'");
        assert_eq!(wrong(&["-qt"]), "option requires an argument -- 't'");
    }
}
