//! The tests' own programs: this executable, started inside of a towpath as `e2e inside ROLE
//! ARGUMENT...`.

pub(crate) mod soak;
mod tcp;
mod udp;

use std::process::ExitCode;

pub(crate) use tcp::{QUESTION_BYTES, STOP};
pub(crate) use udp::{ALL_CAME, WORD_BYTES, receive_numbered, send_numbered};

/// Plays a role if this process was started for one.
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

/// Errors are text; only people read the output of a role.
type Outcome = Result<(), Box<dyn std::error::Error>>;

fn run(role: &str, arguments: &[&str]) -> Outcome {
    match (role, arguments) {
        ("connect", addresses) => tcp::connect(addresses),
        ("hold", [address, count]) => tcp::hold(address, count.parse()?),
        ("ask-in-turn", [address, count]) => tcp::ask_in_turn(address, count.parse()?),
        ("rest", [address, count]) => tcp::rest(address, count.parse()?),
        ("short", [address, count]) => tcp::short(address, count.parse()?),
        ("two-parts", [address, count]) => tcp::two_parts(address, count.parse()?),
        ("limited", [address, count]) => tcp::limited(address, count.parse()?),
        ("half-close", [address, bytes]) => tcp::half_close(address, bytes.parse()?),
        ("peer-first", [address, bytes]) => tcp::peer_first(address, bytes.parse()?),
        ("await-reset", [address]) => tcp::await_reset(address),
        ("reset", [address]) => tcp::reset(address),
        ("slow-reader", [address, bytes]) => tcp::slow_reader(address, bytes.parse()?),
        ("upload", [address, bytes]) => tcp::upload(address, bytes.parse()?),
        ("send", [address, bytes]) => tcp::send(address, bytes.parse()?),
        ("download", [address, bytes]) => tcp::download(address, bytes.parse()?),
        ("both", [up, down, bytes]) => tcp::both(up, down, bytes.parse()?),
        ("echo-server", [port]) => tcp::echo_server(&format!("[::]:{port}")),
        ("echo-server-at", [address]) => tcp::echo_server(address),
        ("reset-server", [port]) => tcp::reset_server(port.parse()?),
        ("late-server", [port]) => tcp::late_server(port.parse()?),
        ("soak", [flows, seconds, seed, addresses @ ..]) => {
            soak::run(flows.parse()?, seconds.parse()?, seed.parse()?, addresses)
        }
        ("udp-refused", [address]) => udp::refused(address),
        ("udp-echo", [address, sizes @ ..]) => udp::echo(address, sizes),
        ("udp-send", [address, size, count, segments]) => {
            udp::send(address, size.parse()?, count.parse()?, segments.parse()?)
        }
        ("udp-receive", [address, size, count, segments]) => {
            udp::receive(address, size.parse()?, count.parse()?, segments.parse()?)
        }
        ("udp-server", [port]) => udp::server(port.parse()?),
        ("udp-silent", addresses) => udp::silent(addresses),
        ("urgent", [address]) => Ok(crate::urgent::exchange(address)?),
        _ => Err(format!("no such role: {role} {arguments:?}").into()),
    }
}
