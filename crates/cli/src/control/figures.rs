//! The counters of an instance as JSON; the manual page describes the names.

use serde_json::{Map, Value, json};
use towpath_gateway::egress::meter::Metered;
use towpath_gateway::egress::policies::ByRule;
use towpath_gateway::egress::summary::{Bound, Summary};
use towpath_gateway::flows::LentToHost;
use towpath_gateway::report::{Report, WorkerShare};
use towpath_io::confine;

/// Longest command line that is reported, in characters.
const COMMAND_CHARS_MAX: usize = 1024;

/// Returns the counters as an object.
pub(crate) fn object(report: &Report) -> Value {
    let command: Vec<_> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let named = |pairs: &mut dyn Iterator<Item = (&'static str, u64)>| {
        let counted = pairs.map(|(name, count)| (name.to_string(), count.into()));
        Value::Object(counted.collect::<Map<_, _>>())
    };
    let (tcp, udp, echo) = report.flows;
    let (stack, gateway) = (&report.stack, &report.gateway);
    let mut object = json!({
        "pid": std::process::id(),
        "version": env!("CARGO_PKG_VERSION"),
        "command": command.join(" ").chars().take(COMMAND_CHARS_MAX).collect::<String>(),
        "confinement": confine::state().to_string(),
        "bytes_out": gateway.bytes_out,
        "bytes_in": gateway.bytes_in,
        "carried": report.carried,
        "copied": named(&mut report.copied.iter().copied()),
        "copies_per_byte": report.copies_per_byte(),
        "lent": {
            "bytes": report.lent.bytes,
            "loans": report.loans(),
            "oldest_us": report.lent.oldest.map_or(0, |oldest| oldest.as_micros() as u64),
            "total": report.carried,
            "copied_after_all": report.copied_bytes(),
            "hit_rate": report.hit_rate(),
            "recalled": report.recalled,
        },
        "lent_to_host": lent_to_host(report),
        "flows": { "tcp": tcp, "udp": udp, "echo": echo },
        "joined": joined(report),
        "packets": {
            "from_program": stack.packets_in,
            "to_program": stack.packets_out,
            "super_from_program": stack.super_packets_in,
            "super_to_program": stack.super_packets_out,
            "retransmitted": stack.retransmitted,
        },
        "taken": {
            "packets": report.packets_taken,
            "frames": report.frames_taken.0 + report.frames_taken.1,
        },
        "dropped": named(&mut report.losses()),
    });
    if let Some(native) = &report.native {
        object["native"] = json!({
            "flows": native.open,
            "listeners": native.listeners,
            "begun": native.begun,
            "refused": native.refused,
            "denied": native.denied,
            "ended": native.ended,
            "bytes_out": native.bytes_out,
            "bytes_in": native.bytes_in,
            "interface": named(&mut native.interface()),
        });
    }
    if let Some(summary) = &report.egress {
        object["egress"] = egress(summary);
    }
    if !report.workers.is_empty() {
        object["workers"] = workers(&report.workers);
    }
    object
}

/// Returns the counters of flows that bypass the stack.
fn joined(report: &Report) -> Value {
    let gateway = &report.gateway;
    json!({
        "flows": report.joined,
        "begun": gateway.joined,
        "refused": gateway.joined_refused,
        "udp_flows": report.joined_udp,
        "udp_begun": gateway.joined_udp,
        "udp_refused": gateway.joined_udp_refused,
        "bytes_out": gateway.joined_bytes_out,
        "bytes_in": gateway.joined_bytes_in,
    })
}

/// Returns what a policy has decided.
fn egress(summary: &Summary) -> Value {
    let Summary { generation, counters, by_rule, by_ports, bounds } = summary;
    let rule = |(id, [allowed, denied]): &(String, [u64; 2])| {
        (id.clone(), json!({ "allowed": allowed, "denied": denied }))
    };
    let rules = |by_rule: &ByRule| Value::Object(by_rule.iter().map(rule).collect());
    let ports = by_ports.iter().map(|(port, by_rule)| (port.clone(), rules(by_rule)));
    let bound = |Bound { port, id, done }: &Bound| {
        let Metered { delayed_bytes, dropped, over_quota } = done;
        json!({
            "port": port, "rule": id,
            "delayed_bytes": delayed_bytes, "dropped": dropped, "over_quota": over_quota,
        })
    };
    json!({
        "policy": generation,
        "allowed": counters.allowed,
        "denied": counters.denied,
        "questions_refused": counters.questions_refused,
        "answers_refused": counters.answers_refused,
        "audit_lost": counters.audit_lost,
        "rules": rules(by_rule),
        "ports": Value::Object(ports.collect()),
        "bounds": bounds.iter().map(bound).collect::<Vec<_>>(),
    })
}

/// Returns what was lent to the host's kernel.
fn lent_to_host(report: &Report) -> Value {
    let LentToHost { bytes, calls, copied, refused } = report.gateway.lent;
    json!({
        "bytes": bytes,
        "calls": calls,
        "copied_after_all": copied,
        "refused": refused,
        "frame_bytes": report.held_by_host,
    })
}

/// Returns the counters of each of several workers, by its number.
fn workers(shares: &[WorkerShare]) -> Value {
    let one = |(index, share): (usize, &WorkerShare)| {
        let (tcp, udp, echo) = share.flows;
        let object = json!({
            "bytes_out": share.bytes_out,
            "bytes_in": share.bytes_in,
            "flows": { "tcp": tcp, "udp": udp, "echo": echo },
            "packets": { "from_program": share.packets_in, "to_program": share.packets_out },
            "handed_over": share.handed_over,
            "flows_taken": share.flows_taken,
            "parked": share.parked,
        });
        (index.to_string(), object)
    };
    Value::Object(shares.iter().enumerate().map(one).collect())
}
