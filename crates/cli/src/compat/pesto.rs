//! pesto(1), which changes the ports of a running pasta: its options, and the command lines of
//! towpath that do the same.
//!
//! Ports to add become `towpath publish add`, ports to delete `towpath publish del`, and a socket
//! alone `towpath ls published`.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{anyhow, bail};

use super::Translated;
use super::getopt::{self, Given, Known};
use Meaning::{Ignored, Ports, Refused};

/// What an option means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// The ports that follow are added or deleted.
    Verb(&'static str),
    /// Ports, passed on under this name.
    Ports(&'static str),
    Help,
    Version,
    /// It has no effect, for this reason.
    Ignored(&'static str),
    /// It is refused: this is what to do instead.
    Refused(&'static str),
}

const fn known(short: u8, long: &'static str, takes: u8, meaning: Meaning) -> Known<Meaning> {
    Known { short, long, takes: takes != 0, meaning }
}

/// Why options about messages have no effect.
const FEW_MESSAGES: &str = "there are no messages but errors";
/// What to do about ports of the host's loopback.
const AT_START: &str = "these ports are given when towpath starts: --host-tcp-ports and \
                        --host-udp-ports";

/// All options: letter, name, number of arguments, meaning.
const KNOWN: &[Known<Meaning>] = &[
    known(b'A', "add", 0, Meaning::Verb("add")),
    known(b'D', "delete", 0, Meaning::Verb("del")),
    known(b't', "tcp-ports", 1, Ports("--tcp-ports")),
    known(b'u', "udp-ports", 1, Ports("--udp-ports")),
    known(b'T', "tcp-ns", 1, Refused(AT_START)),
    known(b'U', "udp-ns", 1, Refused(AT_START)),
    known(b'd', "debug", 0, Ignored(FEW_MESSAGES)),
    known(b'q', "quiet", 0, Ignored(FEW_MESSAGES)),
    known(b'h', "help", 0, Meaning::Help),
    known(0, "version", 0, Meaning::Version),
];

/// Translates the arguments behind the program's name.
pub(super) fn translate(arguments: &[OsString]) -> anyhow::Result<Translated> {
    let (mut verb, mut text) = (None, None);
    let mut ports = Vec::new();
    let rest = getopt::parse(KNOWN, arguments, |given| -> anyhow::Result<()> {
        let Given { known, value } = given;
        match known.meaning {
            // What follows --help and --version does not matter.
            _ if text.is_some() => {}
            Meaning::Help => text = Some(help()),
            Meaning::Version => {
                text = Some(format!("pesto (towpath {})\n", env!("CARGO_PKG_VERSION")));
            }
            Meaning::Verb(new) if verb.is_some_and(|verb| verb != new) => {
                bail!("options --add and --delete exclude each other; call pesto once for each")
            }
            Meaning::Verb(new) => verb = Some(new),
            Ports(_) if value == "none" => {}
            Ports(name) => {
                let mut option = OsString::from(name);
                option.push("=");
                option.push(value);
                ports.push(option);
            }
            Ignored(_) => {}
            Refused(instead) => bail!("option --{} is not supported; {instead}", known.long),
        }
        Ok(())
    })?;
    if let Some(text) = text {
        return Ok(Translated::Text(text));
    }
    let socket = match rest {
        [socket] => Path::new(socket),
        [] => bail!("the path of the control socket is missing; give it behind the options"),
        [_, extra, ..] => {
            bail!(
                "'{}' is unexpected behind the control socket; options come first",
                extra.display()
            )
        }
    };
    let mut option = OsString::from("--socket=");
    option.push(socket);
    let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
    let mut command = match verb {
        None if ports.is_empty() => words(&["ls", "published"]),
        _ if ports.is_empty() => bail!("no ports are given; give them by -t or -u"),
        None => return Err(anyhow!("--add or --delete is missing; it says what to do with ports")),
        Some("add") => words(&["publish", "add", "program", "--if-absent"]),
        Some(_) => words(&["publish", "del", "program"]),
    };
    command.push(option);
    command.append(&mut ports);
    Ok(Translated::Command(command))
}

fn help() -> String {
    let mut text = String::from(
        "Usage: pesto --add|--delete [-t SPEC]... [-u SPEC]... SOCKET\n\
         \x20      pesto SOCKET\n\n\
         This is towpath, which acts as pesto because it was started by that name. SOCKET is that\n\
         of `pasta --conf-path` or `towpath --control-socket`; alone, its ports are listed.\n\
         SPEC is PORT[-PORT][:PORT[-PORT]], optionally with ADDRESS/ before it.\n\
         `towpath as --explain pesto ...` shows what it makes of these options:\n\n",
    );
    for known in KNOWN.iter().filter(|known| !matches!(known.meaning, Refused(_))) {
        let short = match known.short {
            0 => "    ".to_owned(),
            letter => format!("-{}, ", char::from(letter)),
        };
        let value = if known.takes { " SPEC" } else { "" };
        let note = match known.meaning {
            Ignored(reason) => format!("    no effect: {reason}"),
            _ => String::new(),
        };
        text.push_str(&format!("  {short}--{}{value}{note}\n", known.long));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::split;
    use super::*;

    fn read(arguments: &str) -> Result<String, String> {
        Translated::shown(translate(&split(arguments)))
    }

    /// Goal: the calls of podman and rootlesskit become what they mean.
    #[test]
    fn calls_of_container_engines() {
        for (call, expected) in [
            (
                "--add -t 0.0.0.0/8080 -t [::]/8080 -u 0.0.0.0/53-54 /run/pasta.sock",
                "publish add program --if-absent --socket=/run/pasta.sock \
                 --tcp-ports=0.0.0.0/8080 --tcp-ports=[::]/8080 --udp-ports=0.0.0.0/53-54",
            ),
            (
                "--delete -t 0.0.0.0/8080 /run/pasta.sock",
                "publish del program --socket=/run/pasta.sock --tcp-ports=0.0.0.0/8080",
            ),
            (
                "-A --tcp-ports=127.0.0.1/8080:80 s",
                "publish add program --if-absent --socket=s --tcp-ports=127.0.0.1/8080:80",
            ),
            (
                "-D --udp-ports=127.0.0.1/53:53 s",
                "publish del program --socket=s --udp-ports=127.0.0.1/53:53",
            ),
            ("s", "ls published --socket=s"),
        ] {
            assert_eq!(read(call).unwrap(), expected, "{call}");
        }
        assert!(read("--version").unwrap().starts_with("pesto (towpath "));
        assert!(read("-q --help -x").is_err(), "as getopt does");
        assert!(read("--help").unwrap().contains("--delete"));
    }

    #[test]
    fn mistakes_are_named() {
        for (wrong, expected) in [
            ("", "the path of the control socket is missing"),
            ("--add -t 80", "the path of the control socket is missing"),
            ("--add s", "no ports are given"),
            ("--add -t none s", "no ports are given"),
            ("-t 80 s", "--add or --delete is missing"),
            ("--add --delete -t 80 s", "options --add and --delete exclude each other"),
            ("--add -t 80 s extra", "'extra' is unexpected"),
            ("--nonsense s", "unrecognized option '--nonsense'"),
            ("-T 80 s", "option --tcp-ns is not supported"),
            ("-t", "option requires an argument -- 't'"),
        ] {
            let error = read(wrong).expect_err(wrong);
            assert!(error.starts_with(expected), "{wrong}: {error}");
        }
    }
}
