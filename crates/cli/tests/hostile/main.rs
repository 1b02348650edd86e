//! Hostile input from inside the namespace: towpath does not panic, its memory is bounded, drops
//! are counted by reason, nothing unexpected reaches the host, and an honest flow stays whole.
//!
//! # Method
//!
//! Each attack runs in a network namespace that plays the host ([`host`]). There, `towpath run
//! --stats` starts this same executable as its program. It sends frames with a packet socket on the
//! program's interface ([`injector`], [`attack`]) while it moves honest bytes both ways
//! ([`honest`]), and prints how many frames should be dropped for which reason; the counters of
//! `--stats` must agree. Frames with virtio-net headers that the kernel would not let through are
//! fed to the worker by a socket in place of the device ([`device`]).
//!
//! Seeds: `TOWPATH_SEED=N` repeats a run; every run prints its seed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "tests measure time")]

mod attack;
mod device;
mod frame;
#[path = "../command/front_end.rs"]
mod front_end;
mod honest;
mod host;
mod injector;
mod killed;
mod line;
mod random;
mod roles;
mod run;
mod shares;
mod siege;
mod slow;
mod sys;
mod turns;

use std::process::ExitCode;
use std::thread;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// First argument of this executable when it is the program of a run.
const INJECT: &str = "--inject";
/// First argument when it is a worker with a socket for a device.
const DEVICE: &str = "--device";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    match &arguments[1..] {
        [role, name, seed] if role == INJECT => {
            let attack = attack::ALL.iter().find(|attack| attack.name == name).expect("an attack");
            injector::main(attack, seed.parse().expect("a seed"));
            return ExitCode::SUCCESS;
        }
        [role, name, host] if role == slow::ROLE => {
            slow::main(name, host);
            return ExitCode::SUCCESS;
        }
        [role, how, path] if role == killed::ROLE => {
            killed::traffic::main(how, path);
            return ExitCode::SUCCESS;
        }
        [role, how, name] if role == siege::ROLE => {
            siege::main(how, name);
            return ExitCode::SUCCESS;
        }
        [role, seed] if role == DEVICE => {
            device::main(seed.parse().expect("a seed"));
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let seed = std::env::var("TOWPATH_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut arguments = Arguments::from_args();
    // Tests compare times, and each run keeps two processors busy.
    arguments.test_threads = Some(1);
    let trials = trials(seed);
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trials(seed: u64) -> Vec<Trial> {
    let reason = cannot_run();
    let trial = |name: &'static str, test: Box<dyn FnOnce() -> Result<(), Failed> + Send>| {
        Trial::ignorable_test(name, move || {
            if let Some(reason) = reason {
                eprintln!("skipped: {name}: {reason}");
                return Ok(Completion::ignored_with(reason));
            }
            // A thread of its own, because the thread moves into another namespace for good.
            let result = thread::spawn(test).join();
            result.unwrap_or_else(|_| Err("it panicked".into())).map(|()| Completion::Completed)
        })
    };
    let attacks = attack::ALL
        .iter()
        .map(|attack| trial(attack.name, Box::new(move || run::run(attack, seed))));
    let mut trials: Vec<Trial> = attacks.collect();
    trials.push(trial(device::NAME, Box::new(move || device::run(seed))));
    trials.push(trial(turns::NAME, Box::new(turns::run)));
    trials.push(trial(line::NAME, Box::new(line::run)));
    trials.push(trial(shares::NAME, Box::new(move || shares::run(seed))));
    trials.push(trial(killed::NAME, Box::new(move || killed::run(seed))));
    if std::env::var_os(siege::SECONDS_VARIABLE).is_some() {
        // It compares times for so long that the machine must be otherwise idle.
        trials.push(trial(siege::NAME, Box::new(siege::run)));
    }
    for name in slow::NAMES {
        trials.push(trial(name, Box::new(move || slow::run(name))));
    }
    trials
}

/// Returns why none of this can run here, if it cannot.
fn cannot_run() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("packet sockets and network namespaces need root");
    }
    let device = std::fs::File::options().read(true).write(true).open("/dev/net/tun");
    if device.is_err() {
        return Some("/dev/net/tun cannot be opened");
    }
    let probe = thread::spawn(|| {
        sys::enter_network()?;
        let output = std::process::Command::new("ip")
            .args(["link", "add", "probe0", "type", "veth", "peer", "name", "probe1"])
            .output()?;
        if output.status.success() { Ok(()) } else { Err(std::io::Error::other("no veth")) }
    });
    match probe.join() {
        Ok(Ok(())) => None,
        _ => Some("no network namespace, or no `ip` to make a pair of interfaces in it"),
    }
}
