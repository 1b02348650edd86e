//! Scripts on the kernel of this machine, and the same scripts on this project's stack.
//!
//! # Method
//!
//! Each script of tests/scripts is played twice: in real time on the kernel, whose sockets are in a
//! network namespace and whose segments pass a TAP device; and in virtual time on the stack. Both
//! must do what the script requires. The segments that left are compared after normalising: the
//! player has already removed initial sequence numbers, timestamp offsets and ports; IP identifiers
//! are not compared; and [`normal`] removes what depends on configuration. [`KERNEL_LEFT_OUT`] are
//! not played here.
//!
//! Needs the permission to create network namespaces; without it all scripts are reported as
//! ignored.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod machine;
mod sockets;

use std::path::Path;
use std::process::ExitCode;
use std::{fs, thread};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use machine::{Machine, enter_namespace};
use towpath_sim::script::{self, Observed, Script, Segment, TcpOption, Tolerance};

/// Scripts that are not played on the kernel, with the reason.
const KERNEL_LEFT_OUT: [(&str, &str); 3] = [
    ("keepalive", "takes four hours of real time"),
    ("keepalive_off_is_quiet", "takes ten hours of real time"),
    ("ipv6", "the device of this test answers for IPv4 neighbours only"),
];

/// Attempts for each script on the kernel, because a busy machine is late sometimes.
const ATTEMPTS: u32 = 12;
/// Priority of this process, if it may be set: the highest one of time-sharing scheduling.
const PRIORITY: i32 = -20;
/// The PSH bit.
const PSH: u8 = 0x08;
/// Largest time difference of a segment between the two traces, in microseconds: timers of the
/// kernel are rounded up by an eighth, and the machine may be busy.
const APART_MAX: u64 = 40_000;

/// Removes what differs by configuration or by deliberate choice:
///
/// - the window, which follows the sizes of buffers;
/// - options of SYNs, among them the window scale, for the same reason;
/// - SACK blocks beyond the first: reporting duplicate data (RFC 2883) is a setting;
/// - values of timestamps: the kernel's clock is real;
/// - PSH: RFC 9293 §3.9.1.2 leaves open which segments of a write have it.
fn normal(segment: &Segment) -> Segment {
    let syn = segment.flags & 2 != 0;
    let mut options = segment.options.clone().unwrap_or_default();
    options.retain(|option| !syn && matches!(option, TcpOption::Timestamps(..)));
    for option in &mut options {
        if let TcpOption::Timestamps(value, _) = option {
            *value = None;
        }
    }
    Segment { flags: segment.flags & !PSH, window: None, options: Some(options), ..segment.clone() }
}

/// Describes the first difference between two traces.
fn compare(kernel: &[Observed], ours: &[Observed]) -> Result<(), Failed> {
    let start = |trace: &[Observed]| trace.first().map_or(0, |first| first.at);
    for (number, (theirs, ours_now)) in kernel.iter().zip(ours).enumerate() {
        let (wanted, actual) = (normal(&theirs.segment), normal(&ours_now.segment));
        if wanted != actual {
            let what = format!("segment {number}: the kernel sent {wanted}, the stack {actual}");
            return Err(what.into());
        }
        let since = [theirs.at - start(kernel), ours_now.at - start(ours)];
        // Delays add up over a script: each one is at most an eighth.
        if since[0].abs_diff(since[1]) > APART_MAX + since[0] / 8 {
            let what = format!("segment {number}, {wanted}: after {since:?} microseconds");
            return Err(what.into());
        }
    }
    if kernel.len() == ours.len() {
        return Ok(());
    }
    Err(format!("the kernel sent {} segments, the stack {}", kernel.len(), ours.len()).into())
}

fn play(path: &Path) -> Result<(), Failed> {
    let text = fs::read_to_string(path)?;
    let fail = |whose: &str, error: script::Error| {
        Failed::from(format!("{}:{}: on {whose}: {}", path.display(), error.line, error.what))
    };
    let script = Script::parse(&text).map_err(|error| fail("paper", error))?;
    let mut kernel = Machine::new();
    let theirs = script.run(&mut kernel, Tolerance::REAL);
    let theirs = theirs.map_err(|error| fail("the kernel", error))?;
    let mut stack = script::Machine::new(script.v6);
    let ours = script.run(&mut stack, Tolerance::VIRTUAL);
    compare(&theirs, &ours.map_err(|error| fail("the stack", error))?)
}

fn isolated(path: &Path) -> Result<Completion, Failed> {
    // A separate thread, because it moves into another namespace permanently.
    let attempt = || {
        let path = path.to_path_buf();
        let run = move || match enter_namespace() {
            Err(reason) => Ok(Completion::ignored_with(reason)),
            Ok(()) => play(&path).map(|()| Completion::Completed),
        };
        thread::spawn(run).join().unwrap_or_else(|_| Err("it panicked".into()))
    };
    let mut result = attempt();
    for _ in 1..ATTEMPTS {
        if result.is_ok() {
            break;
        }
        result = attempt();
    }
    result
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Times are compared, so scripts run one at a time and with a high priority.
    arguments.test_threads = Some(1);
    let _ = rustix::process::setpriority_process(None, PRIORITY);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scripts");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "pkt"));
    files.sort();
    let trials = files.into_iter().map(|path| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let left_out = KERNEL_LEFT_OUT.iter().find(|(known, _)| *known == name);
        let reason = left_out.map(|(_, reason)| *reason);
        Trial::ignorable_test(name, move || match reason {
            Some(reason) => Ok(Completion::ignored_with(reason)),
            None => isolated(&path),
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
