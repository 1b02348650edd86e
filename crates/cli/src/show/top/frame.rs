//! What is shown of two samples: sums, tables and drops.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::control::ask::plain;
use crate::show::top::sample::{Flow, Sample, number};
use crate::show::top::table::{Cell, Column, Row, Table};
use crate::show::top::units::{age, bits, micros, percent, short};

/// What is shown of an instance.
#[derive(Debug, Default)]
pub(super) struct Frame {
    /// Process number and command.
    pub(super) title: String,
    /// Sums, each a short text.
    pub(super) sums: Vec<String>,
    /// What was dropped, by reason: those that grow first. Empty if nothing was.
    pub(super) drops: Vec<String>,
    /// Ports, if it is a network, and flows.
    pub(super) tables: Vec<Table>,
}

const fn text(title: &'static str, width: usize, rank: u8) -> Column {
    Column { title, width, grows: false, is_number: false, rank }
}

const fn wide(title: &'static str, width: usize, rank: u8) -> Column {
    Column { title, width, grows: true, is_number: false, rank }
}

const fn figure(title: &'static str, width: usize, rank: u8) -> Column {
    Column { title, width, grows: false, is_number: true, rank }
}

const FLOW_COLUMNS: &[Column] = &[
    text("PROTO", 6, 3),
    wide("PROGRAM", 15, 4),
    wide("PEER", 15, 0),
    figure("IN b/s", 7, 1),
    figure("OUT b/s", 8, 2),
    figure("RTT", 6, 6),
    figure("RETR", 5, 7),
    figure("AGE", 7, 8),
    text("STATE", 11, 5),
    figure("IN B", 6, 9),
    figure("OUT B", 6, 10),
    text("BY", 7, 12),
    figure("W", 2, 11),
];

const PORT_COLUMNS: &[Column] = &[
    wide("PORT", 8, 0),
    figure("IN b/s", 7, 1),
    figure("OUT b/s", 8, 2),
    figure("DROP/s", 7, 3),
    figure("WAIT", 5, 5),
    text("STATE", 9, 4),
    figure("IN p/s", 7, 6),
    figure("OUT p/s", 8, 7),
    figure("SUPER", 6, 8),
    wide("ATTACHMENT", 10, 9),
];

const INSTANCE_COLUMNS: &[Column] = &[
    figure("PID", 7, 0),
    figure("IN b/s", 7, 1),
    figure("OUT b/s", 8, 2),
    figure("FLOWS", 6, 4),
    figure("DROP/s", 7, 5),
    wide("COMMAND", 14, 3),
];

/// The column by which each table is sorted at first.
pub(super) fn first_order(table: &str) -> usize {
    match table {
        "flows" => 3,
        _ => 1,
    }
}

impl Frame {
    /// Returns what is shown of an instance; without an earlier sample, rates are zero.
    pub(super) fn new(before: Option<&Sample>, now: &Sample) -> Self {
        let rates = Rates::new(before, now);
        let stats = &now.stats;
        let title = format!("pid {}  {}", stats["pid"], plain(&stats["command"]));
        let mut tables = Vec::new();
        if let Some(ports) = &now.ports {
            tables.push(port_table(ports, &rates));
        }
        tables.push(flow_table(now, &rates));
        Self { title, sums: sums(now, &rates), drops: drops(&rates), tables }
    }
}

/// Two samples, and the time between them.
struct Rates<'a> {
    before: Option<&'a Sample>,
    now: &'a Sample,
    seconds: f64,
    flows: HashMap<&'a str, &'a Flow>,
}

impl<'a> Rates<'a> {
    fn new(before: Option<&'a Sample>, now: &'a Sample) -> Self {
        let seconds = before.map_or(0.0, |before| (now.at - before.at).as_secs_f64());
        let flows = before.into_iter().flat_map(|before| &before.flows);
        let flows = flows.map(|flow| (flow.id.as_str(), flow)).collect();
        Self { before, now, seconds, flows }
    }

    /// Returns the increase of a counter. If it is lower than before, it began anew.
    fn passed(&self, counter: impl Fn(&Value) -> u64) -> f64 {
        let Some(before) = self.before else { return 0.0 };
        let (before, now) = (counter(&before.stats), counter(&self.now.stats));
        now.checked_sub(before).unwrap_or(now) as f64
    }

    /// Returns the rate of a counter, per second.
    fn of(&self, counter: impl Fn(&Value) -> u64) -> f64 {
        if self.seconds > 0.0 { self.passed(counter) / self.seconds } else { 0.0 }
    }

    /// Returns the rates of a flow in bytes per second: out and in. A flow that was not in the
    /// sample before is measured by the instance.
    fn of_flow(&self, flow: &Flow) -> (f64, f64) {
        let value = |name: &str| number(&flow.value[name]);
        match self.flows.get(flow.id.as_str()) {
            Some(before) if self.seconds > 0.0 => {
                let rate = |name: &str| {
                    let passed = value(name).saturating_sub(number(&before.value[name]));
                    passed as f64 / self.seconds
                };
                (rate("bytes-out"), rate("bytes-in"))
            }
            _ => {
                // Less than a tick of the clock is no time to measure a rate in.
                let seconds = value("moved-us").max(1000) as f64 / 1e6;
                (value("moved-out") as f64 / seconds, value("moved-in") as f64 / seconds)
            }
        }
    }
}

/// Returns the sum of the numbers in a value.
fn total(value: &Value) -> u64 {
    match value {
        Value::Object(parts) => parts.values().map(total).sum(),
        value => number(value),
    }
}

/// Returns the number of flows past the stack.
fn joined_flows(stats: &Value) -> u64 {
    number(&stats["joined"]["flows"]) + number(&stats["joined"]["udp_flows"])
}

/// Returns the sum of a counter of all ports.
fn of_ports(stats: &Value, name: &str) -> u64 {
    let ports = stats["ports"].as_object().into_iter().flatten();
    ports.map(|(_, port)| total(&port[name])).sum()
}

fn sums(now: &Sample, rates: &Rates<'_>) -> Vec<String> {
    let stats = &now.stats;
    let mut sums = Vec::new();
    let mut direction = |name: &str, bytes: f64, packets: f64, of_them: f64| {
        let part = percent(of_them, packets);
        sums.push(format!("{name} {}b/s {} p/s {part} super", bits(bytes), short(packets)));
    };
    if now.ports.is_some() {
        let rate = |name: &str| rates.of(|stats| of_ports(stats, name));
        direction("in", rate("bytes_in"), rate("packets_in"), rate("super_packets_in"));
        direction("out", rate("bytes_out"), rate("packets_out"), rate("super_packets_out"));
    } else {
        for (name, way, bytes, joined) in [
            ("in", "to_program", "bytes_in", "bytes_in"),
            ("out", "from_program", "bytes_out", "bytes_out"),
        ] {
            let bytes = rates.of(|stats| number(&stats[bytes]) + number(&stats["joined"][joined]));
            let packets = rates.of(|stats| number(&stats["packets"][way]));
            let of_them = rates.of(|stats| number(&stats["packets"][format!("super_{way}")]));
            direction(name, bytes, packets, of_them);
        }
    }
    let carried = rates.passed(|stats| number(&stats["carried"]));
    let copied = rates.passed(|stats| total(&stats["copied"]));
    let now_copied = if carried > 0.0 { copied / carried } else { 0.0 };
    let all_copied = stats["copies_per_byte"].as_f64().unwrap_or(0.0);
    sums.push(format!("copies/byte {now_copied:.4} ({all_copied:.4} in all)"));
    let flows = &stats["flows"];
    let joined = joined_flows(stats);
    sums.push(format!(
        "flows tcp {} udp {} echo {} joined {joined}",
        number(&flows["tcp"]),
        number(&flows["udp"]),
        number(&flows["echo"])
    ));
    let again = rates.of(|stats| number(&stats["packets"]["retransmitted"]));
    sums.push(format!("retransmitted {}/s", short(again)));
    let lent = &stats["lent"];
    let oldest = micros(number(&lent["oldest_us"]));
    sums.push(format!("lent {}B for {oldest}", short(number(&lent["bytes"]) as f64)));
    if now.ports.is_some() {
        sums.push(format!("stations {}", number(&stats["stations"])));
    }
    if let Some(workers) = stats["workers"].as_object() {
        let serving = workers.values().filter(|worker| worker["parked"] != true).count();
        sums.push(format!("workers {serving} of {}", workers.len()));
    }
    if (now.flows.len() as u64) < now.flows_open {
        sums.push(format!("{} of {} flows listed", now.flows.len(), now.flows_open));
    }
    sums
}

/// Returns what was dropped by reason, of the gateway and of all ports.
pub(super) fn dropped(stats: &Value) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    let mut add = |prefix: &str, counts: &Value| {
        for (reason, count) in counts.as_object().into_iter().flatten() {
            *all.entry(format!("{prefix}{}", reason.escape_debug())).or_default() += number(count);
        }
    };
    add("", &stats["dropped"]);
    for (_, port) in stats["ports"].as_object().into_iter().flatten() {
        add("port.", &port["dropped"]);
    }
    add("gateway.", &stats["gateway"]["dropped"]);
    all
}

/// Returns the drops by reason, those that grow first, without those that are zero.
fn drops(rates: &Rates<'_>) -> Vec<String> {
    let before = rates.before.map(|before| dropped(&before.stats));
    let mut all: Vec<(f64, u64, String)> = dropped(&rates.now.stats)
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| {
            let before = before
                .as_ref()
                .map_or(count, |before| before.get(&reason).copied().unwrap_or(0).min(count));
            let rate =
                if rates.seconds > 0.0 { (count - before) as f64 / rates.seconds } else { 0.0 };
            (rate, count, reason)
        })
        .collect();
    all.sort_by(|one, other| {
        other.0.total_cmp(&one.0).then(other.1.cmp(&one.1)).then_with(|| one.2.cmp(&other.2))
    });
    let line = |(rate, count, reason): &(f64, u64, String)| {
        let count = short(*count as f64);
        if *rate > 0.0 {
            format!("{reason} {count} +{}/s", short(*rate))
        } else {
            format!("{reason} {count}")
        }
    };
    all.iter().map(line).collect()
}

fn flow_table(now: &Sample, rates: &Rates<'_>) -> Table {
    let row = |flow: &Flow| {
        let value = &flow.value;
        let (out, into) = rates.of_flow(flow);
        let count = |name: &str| number(&value[name]);
        let bytes = |name: &str| Cell::number(count(name) as f64, short(count(name) as f64));
        let rtt = value["tcp"]["rtt-us"].as_u64();
        let again = value["tcp"]["retransmitted"].as_u64();
        let peer = if value["peer"].is_null() { "*".to_owned() } else { plain(&value["peer"]) };
        let cells = vec![
            Cell::text(plain(&value["protocol"])),
            Cell::text(plain(&value["program"])),
            Cell::text(peer),
            Cell::number(into, bits(into)),
            Cell::number(out, bits(out)),
            Cell::number(rtt.map_or(-1.0, |us| us as f64), rtt.map_or("-".into(), micros)),
            Cell::number(
                again.map_or(-1.0, |count| count as f64),
                again.map_or("-".into(), |count| short(count as f64)),
            ),
            Cell::number(count("age-us") as f64, age(count("age-us"))),
            Cell::text(plain(&value["state"])),
            bytes("bytes-in"),
            bytes("bytes-out"),
            Cell::text(plain(&value["begun-by"])),
            Cell::number(flow.worker as f64, flow.worker.to_string()),
        ];
        Row { id: flow.id.clone(), cells, details: flow_details(flow, out, into) }
    };
    Table { name: "flows", columns: FLOW_COLUMNS, rows: now.flows.iter().map(row).collect() }
}

/// Returns all that is known of a flow.
fn flow_details(flow: &Flow, out: f64, into: f64) -> Vec<(String, String)> {
    let mut details = vec![
        ("rate in".to_owned(), format!("{}b/s", bits(into))),
        ("rate out".to_owned(), format!("{}b/s", bits(out))),
    ];
    let skipped = ["moved-out", "moved-in", "moved-us", "id", "tcp"];
    for (name, value) in flow.value.as_object().into_iter().flatten() {
        if !skipped.contains(&name.as_str()) {
            details.push(detail(name, value));
        }
    }
    details.push(("worker".to_owned(), flow.worker.to_string()));
    for (name, value) in flow.value["tcp"].as_object().into_iter().flatten() {
        details.push(detail(name, value));
    }
    details
}

/// Returns name and value for people: times with their units.
fn detail(name: &str, value: &Value) -> (String, String) {
    let plain_name = name.escape_debug().to_string();
    match (name.strip_suffix("-us"), value) {
        (_, Value::Null) => (plain_name.trim_end_matches("-us").to_owned(), "-".to_owned()),
        (None, value) if name.ends_with("-rate") => {
            (plain_name, format!("{}b/s", bits(number(value) as f64)))
        }
        (Some("age"), value) => ("age".to_owned(), age(number(value))),
        (Some(time), value) => (time.escape_debug().to_string(), micros(number(value))),
        (None, value) => (plain_name, plain(value)),
    }
}

fn port_table(ports: &[Value], rates: &Rates<'_>) -> Table {
    let row = |port: &Value| {
        let name = port["name"].as_str().unwrap_or_default();
        let counter =
            |figure: &'static str| move |stats: &Value| total(&stats["ports"][name][figure]);
        let rate = |figure: &'static str| rates.of(counter(figure));
        let (into, out) = (rate("bytes_in"), rate("bytes_out"));
        let (packets_in, packets_out) = (rate("packets_in"), rate("packets_out"));
        let large = rate("super_packets_in") + rate("super_packets_out");
        let all = packets_in + packets_out;
        let dropped = rate("dropped");
        let state = match (port["failure"].is_null(), port["connected"].as_bool()) {
            (false, _) => "failed",
            (true, Some(true)) => "connected",
            _ => "waiting",
        };
        let waiting = number(&port["waiting"]);
        let cells = vec![
            Cell::text(name.escape_debug().to_string()),
            Cell::number(into, bits(into)),
            Cell::number(out, bits(out)),
            Cell::number(dropped, short(dropped)),
            Cell::number(waiting as f64, waiting.to_string()),
            Cell::text(state),
            Cell::number(packets_in, short(packets_in)),
            Cell::number(packets_out, short(packets_out)),
            Cell::number(if all > 0.0 { large / all } else { 0.0 }, percent(large, all)),
            Cell::text(plain(&port["attachment"])),
        ];
        let mut details = Vec::new();
        for (name, value) in port.as_object().into_iter().flatten() {
            details.push((name.escape_debug().to_string(), plain(value)));
        }
        flat(&mut details, "", &rates.now.stats["ports"][name]);
        Row { id: name.to_owned(), cells, details }
    };
    Table { name: "ports", columns: PORT_COLUMNS, rows: ports.iter().map(row).collect() }
}

/// Adds the counters of a value, with names that have dots between their parts.
fn flat(details: &mut Vec<(String, String)>, prefix: &str, value: &Value) {
    for (name, value) in value.as_object().unwrap_or(&Map::new()) {
        let name = format!("{prefix}{}", name.escape_debug());
        match value {
            Value::Object(_) => flat(details, &format!("{name}."), value),
            value => details.push((name, plain(value))),
        }
    }
}

/// Returns the list of instances; `before` has the samples of the update before.
pub(super) fn instance_table(
    before: &HashMap<PathBuf, Sample>,
    now: &[(PathBuf, Sample)],
) -> Table {
    let row = |(path, sample): &(PathBuf, Sample)| {
        let rates = Rates::new(before.get(path), sample);
        let stats = &sample.stats;
        let is_network = !stats["ports"].is_null();
        let bytes = |name: &'static str| {
            rates.of(move |stats| match is_network {
                true => of_ports(stats, name),
                false => number(&stats[name]) + number(&stats["joined"][name]),
            })
        };
        let (into, out) = (bytes("bytes_in"), bytes("bytes_out"));
        let flows = total(&stats["flows"]) + joined_flows(stats);
        let lost = rates.of(|stats| dropped(stats).values().sum());
        let cells = vec![
            Cell::number(-(number(&stats["pid"]) as f64), number(&stats["pid"]).to_string()),
            Cell::number(into, bits(into)),
            Cell::number(out, bits(out)),
            Cell::number(flows as f64, flows.to_string()),
            Cell::number(lost, short(lost)),
            Cell::text(plain(&stats["command"])),
        ];
        Row { id: path.to_string_lossy().into_owned(), cells, details: Vec::new() }
    };
    Table { name: "instances", columns: INSTANCE_COLUMNS, rows: now.iter().map(row).collect() }
}

#[cfg(test)]
pub(super) mod tests;
