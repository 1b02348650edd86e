//! What an instance tells at one moment: its counters, its flows, and the ports of a network.

#![allow(clippy::disallowed_methods, reason = "nothing of the data path is here")]

use std::path::Path;
use std::time::Instant;

use serde_json::Value;

use crate::control::api;
use crate::control::ask;
use crate::control::flows;

/// Most flows in a sample.
pub(super) const FLOWS_MAX: usize = 200;
/// Most pages of flows that are requested for one sample. It is enough for 262,144 table entries;
/// flows beyond them are not looked at.
const PAGES_MAX: usize = 64;

/// What an instance tells at one moment.
#[derive(Clone, Debug)]
pub(in crate::show) struct Sample {
    /// When it was asked.
    pub(super) at: Instant,
    /// The answer of `/v1/stats`.
    pub(super) stats: Value,
    /// The ports, if it is a network.
    pub(super) ports: Option<Vec<Value>>,
    pub(in crate::show) flows: Vec<Flow>,
    /// Number of flows that it has, listed or not.
    pub(in crate::show) flows_open: u64,
}

/// A flow, as the instance describes it.
#[derive(Clone, Debug)]
pub(in crate::show) struct Flow {
    /// Names it among all flows of the instance.
    pub(in crate::show) id: String,
    pub(super) worker: u64,
    pub(in crate::show) value: Value,
}

impl Flow {
    /// Bytes that it has moved since the instance last looked at it.
    fn moved(&self) -> u64 {
        number(&self.value["moved-out"]) + number(&self.value["moved-in"])
    }
}

/// Returns a number, or 0.
pub(super) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// Asks an instance for its counters only.
pub(super) fn counters(path: &Path) -> anyhow::Result<Sample> {
    let at = Instant::now();
    let stats = ask::ask(path, "GET", api::STATS, None)?;
    Ok(Sample { at, stats, ports: None, flows: Vec::new(), flows_open: 0 })
}

/// Asks an instance for everything.
pub(in crate::show) fn take(path: &Path) -> anyhow::Result<Sample> {
    let mut sample = counters(path)?;
    if !sample.stats["ports"].is_null()
        && let Some(ports) = ask::ask_if_any(path, "GET", api::PORTS, None)?
    {
        sample.ports = Some(ports["ports"].as_array().cloned().unwrap_or_default());
    }
    (sample.flows, sample.flows_open) = most_active(|target| {
        // An older instance has no list of flows.
        ask::ask_if_any(path, "GET", target, None)
    })?;
    Ok(sample)
}

/// Returns the flows that have moved most bytes, and the number of all. `ask` requests a page.
fn most_active(
    ask: impl Fn(&str) -> anyhow::Result<Option<Value>>,
) -> anyhow::Result<(Vec<Flow>, u64)> {
    let (mut listed, mut open) = (Vec::new(), 0);
    let (mut worker, mut from) = (0, 0);
    for _ in 0..PAGES_MAX {
        // A page need not describe flows that have moved less than all that are listed.
        let moved_min = match listed.len() {
            FLOWS_MAX => listed.last().map_or(0, Flow::moved) + 1,
            _ => 0,
        };
        let Some(page) = ask(&flows::target(worker, from, FLOWS_MAX, moved_min))? else { break };
        open += number(&page["visited"]);
        for value in page["flows"].as_array().into_iter().flatten() {
            let own = value["id"].as_str().unwrap_or_default();
            let kind = value["protocol"].as_str().unwrap_or_default();
            let id = flows::name(worker, kind, own);
            listed.push(Flow { id, worker, value: value.clone() });
        }
        listed.sort_by_key(|flow| std::cmp::Reverse(flow.moved()));
        listed.truncate(FLOWS_MAX);
        match page["next"].as_u64() {
            Some(next) => from = next,
            None => (worker, from) = (worker + 1, 0),
        }
        if worker >= number(&page["workers"]) {
            break;
        }
    }
    Ok((listed, open))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use serde_json::json;

    use super::*;

    /// Goal: pages of all workers are requested; of all their flows, those that moved most are
    /// listed; a page that can add nothing is asked for less.
    #[test]
    fn the_most_active_flows_of_all_pages() {
        let asked = RefCell::new(Vec::new());
        let flows = |from: u64, step: u64| {
            let flow = |at: u64| json!({ "id": format!("{at}.0"), "moved-in": from + at * step });
            (0..150).map(flow).collect::<Vec<_>>()
        };
        let (listed, open) = most_active(|target| {
            asked.borrow_mut().push(target.to_owned());
            Ok(Some(match asked.borrow().len() {
                1 => json!({ "workers": 2, "visited": 4000, "next": 4096, "flows": flows(0, 1) }),
                2 => json!({ "workers": 2, "visited": 10, "flows": flows(1000, 10) }),
                _ => json!({ "workers": 2, "visited": 5, "flows": [] }),
            }))
        })
        .unwrap();
        assert_eq!((listed.len(), open), (FLOWS_MAX, 4015));
        assert_eq!((listed[0].moved(), listed[FLOWS_MAX - 1].moved()), (2490, 100));
        assert_eq!(
            *asked.borrow(),
            [
                "/v1/flows?worker=0&from=0&most=200&moved-min=0",
                "/v1/flows?worker=0&from=4096&most=200&moved-min=0",
                "/v1/flows?worker=1&from=0&most=200&moved-min=101",
            ]
        );
    }

    /// Goal: nonsense from an instance ends in a bounded number of requests.
    #[test]
    fn an_instance_that_never_ends() {
        let asked = RefCell::new(0);
        let endless = most_active(|_| {
            *asked.borrow_mut() += 1;
            Ok(Some(json!({ "workers": 1, "next": 1, "flows": 7, "visited": "x" })))
        });
        assert_eq!(endless.unwrap().0.len(), 0);
        assert_eq!(*asked.borrow(), PAGES_MAX);
        let (flows, open) = most_active(|_| Ok(None)).unwrap();
        assert_eq!((flows.len(), open), (0, 0), "an older version");
        assert!(most_active(|_| anyhow::bail!("gone")).is_err());
        assert_eq!(most_active(|_| Ok(Some(json!([])))).unwrap().0.len(), 0);
    }
}
