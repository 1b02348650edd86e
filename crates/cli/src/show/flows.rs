//! `towpath flows`: lists open flows with the path of each, and ends native ones.

use std::fmt::Write as _;
use std::io::Write as _;

use crate::config::args::FlowsArguments;
use crate::control::ask::{self, plain};
use crate::control::{flows, instances};
use crate::exit::{Ending, Failure};
use crate::messages::Messages;
use crate::show::stats;
use crate::show::top::sample::{self, Sample};

/// Lists the flows of one instance, or ends one of them.
pub(crate) fn flows(arguments: &FlowsArguments) -> Result<Ending, Failure> {
    let path = match (arguments.pid, &arguments.socket) {
        (Some(pid), _) => instances::of_process(pid)?,
        (None, Some(path)) => path.clone(),
        (None, None) => stats::only()?,
    };
    if let Some(name) = &arguments.end {
        ask::ask(&path, "DELETE", &flows::end_target(name), None)?;
        return Ok(Ending::Code(0));
    }
    let sample = sample::take(&path)?;
    let listed = sample.flows.len() as u64;
    if listed < sample.flows_open {
        Messages::Normal.notice(format_args!("{listed} of {} flows", sample.flows_open));
    }
    let text = if arguments.json { objects(&sample) } else { table(&sample) };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(Ending::Code(0))
}

/// Returns a JSON object per line.
fn objects(sample: &Sample) -> String {
    let mut text = String::new();
    for flow in &sample.flows {
        let mut value = flow.value.clone();
        value["name"] = flow.id.as_str().into();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{value}");
    }
    text
}

/// Returns a line for each flow.
fn table(sample: &Sample) -> String {
    let mut text = String::new();
    let mut push = |cells: [&str; 8]| {
        let [name, path, protocol, state, program, peer, out, into] = cells;
        let _ = writeln!(
            text,
            "{name:<18} {path:<9} {protocol:<10} {state:<11} {program:<24} {peer:<24} {out:>14} \
             {into:>14}"
        );
    };
    push(["name", "path", "protocol", "state", "program", "peer", "bytes out", "bytes in"]);
    for flow in &sample.flows {
        let cell = |name: &str| plain(&flow.value[name]);
        let peer = if flow.value["peer"].is_null() { "*".to_owned() } else { cell("peer") };
        push([
            &flow.id,
            &cell("path"),
            &cell("protocol"),
            &cell("state"),
            &cell("program"),
            &peer,
            &cell("bytes-out"),
            &cell("bytes-in"),
        ]);
    }
    text
}
