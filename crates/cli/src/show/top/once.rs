//! `towpath top --once`: one interval, for scripts.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::bail;
use serde_json::{Value, json};

use crate::exit::{Ending, Failure};
use crate::show::top::collect::{Found, find_one};
use crate::show::top::frame::{self, Frame};
use crate::show::top::sample::Sample;
use crate::show::top::table::Order;
use crate::show::watch;

/// Width of the tables in characters.
const WIDTH: usize = 160;

/// Writes what an instance moves in an interval.
pub(super) fn once(path: &Path, interval: Duration, json: bool) -> Result<Ending, Failure> {
    let before = sample(path)?;
    thread::sleep(interval);
    let now = sample(path)?;
    let text = match json {
        true => format!("{}\n", object(&before, &now)),
        false => text(&Frame::new(Some(&before), &now)),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(Ending::Code(0))
}

fn sample(path: &Path) -> anyhow::Result<Sample> {
    match find_one(path) {
        Found::One(sample) => Ok(*sample),
        Found::Failed(why) => bail!("{why}"),
        Found::Ended | Found::All(_) => bail!("no towpath answers at {}", path.display()),
    }
}

fn text(frame: &Frame) -> String {
    let mut text = format!("{}\n{}\n", frame.title, frame.sums.join("\n"));
    for drop in &frame.drops {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "dropped {drop}");
    }
    for table in &frame.tables {
        let order = Order { by: frame::first_order(table.name), is_reversed: false };
        let rows = table.view(order, "");
        let fitted = table.fit(&rows, WIDTH);
        let _ = writeln!(text, "\n{}", table.titles(&fitted, order).trim_end());
        for row in rows {
            let _ = writeln!(text, "{}", table.line(&fitted, row).trim_end());
        }
    }
    text
}

/// Returns the rates, as `stats --watch` has them, with flows and drops.
fn object(before: &Sample, now: &Sample) -> Value {
    let elapsed = now.at - before.at;
    let mut object = watch::rates(&before.stats, &now.stats, elapsed);
    let earlier: HashMap<&str, &Value> =
        before.flows.iter().map(|flow| (flow.id.as_str(), &flow.value)).collect();
    let flows = now.flows.iter().map(|flow| {
        let mut value = flow.value.clone();
        let seconds = elapsed.as_secs_f64();
        for (rate, bytes, moved) in
            [("rate-out", "bytes-out", "moved-out"), ("rate-in", "bytes-in", "moved-in")]
        {
            let all = value[bytes].as_u64().unwrap_or(0);
            let passed = match earlier.get(flow.id.as_str()) {
                Some(earlier) => all.saturating_sub(earlier[bytes].as_u64().unwrap_or(0)),
                None => value[moved].as_u64().unwrap_or(0),
            };
            value[rate] = watch::round(passed as f64 / seconds);
        }
        value["worker"] = flow.worker.into();
        value["id"] = flow.id.as_str().into();
        value
    });
    object["flow_list"] = flows.collect();
    object["flows_open"] = now.flows_open.into();
    object["copies_per_byte"] = now.stats["copies_per_byte"].clone();
    let earlier = frame::dropped(&before.stats);
    let dropped = frame::dropped(&now.stats).into_iter().map(|(reason, total)| {
        let passed = total.saturating_sub(earlier.get(&reason).copied().unwrap_or(0));
        let rate = watch::round(passed as f64 / elapsed.as_secs_f64());
        (reason, json!({ "total": total, "rate": rate }))
    });
    object["dropped_by_reason"] = Value::Object(dropped.collect());
    object
}
