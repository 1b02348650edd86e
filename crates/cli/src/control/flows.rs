//! Open flows on a control socket: `GET` of [`FLOWS`] lists them, a page at a time, and `DELETE`
//! ends a native one.
//!
//! The query of a list has `worker`, from 0 on; `from`, where the page begins: 0, or `next` of the
//! page before; `most`, the flows to describe; `moved-min`, the least number of bytes that a
//! described flow has moved since it was last visited. All of them have defaults.
//! `towpath_gateway`'s module of flow lists says what a page costs. That of an end has `flow`, the
//! [`name`] of the flow.

use std::fmt::{self, Display, Write as _};
use std::net::SocketAddr;

use serde_json::json;
use towpath_gateway::control::http::Response;
use towpath_gateway::flows::{FlowKind, FlowPage, FlowQuery, LISTED_MAX, ListedFlow};
use towpath_gateway::native::{Ended, Link};
use towpath_net::tcp::Info;

pub(crate) const FLOWS: &str = "/v1/flows";

/// Returns true if a request's target is a list of flows.
pub(crate) fn is_meant(target: &str) -> bool {
    target.split('?').next() == Some(FLOWS)
}

/// Answers a request. `page` returns a page of a worker's flows, or `None` if that worker does not
/// answer.
pub(crate) fn answer(
    target: &str,
    workers: usize,
    page: impl FnOnce(usize, &FlowQuery) -> Option<FlowPage>,
) -> Response {
    let (worker, query) = match parse(target) {
        Ok(wanted) => wanted,
        Err(message) => return Response::error(400, &message),
    };
    if worker >= workers {
        return Response::error(400, &format!("there is no worker {worker}, only {workers}"));
    }
    match page(worker, &query) {
        Some(page) => Response::json_text(text(&page, worker, workers)),
        None => Response::error(503, &format!("worker {worker} does not answer; ask again later")),
    }
}

/// Returns the target of a request for a page.
pub(crate) fn target(worker: u64, from: u64, most: usize, moved_min: u64) -> String {
    format!("{FLOWS}?worker={worker}&from={from}&most={most}&moved-min={moved_min}")
}

/// Returns the name of a flow among all of an instance: `WORKER/PROTOCOL/ID`.
pub(crate) fn name(worker: u64, protocol: &str, id: &str) -> String {
    format!("{worker}/{protocol}/{id}")
}

/// Returns the target of a request to end the flow with this [name].
pub(crate) fn end_target(name: &str) -> String {
    format!("{FLOWS}?flow={name}")
}

/// Answers a request to end a flow; `native` has the native ones.
pub(crate) fn end(target: &str, native: Option<&mut Link>) -> Response {
    let Some((_, name)) = target.split_once("?flow=") else {
        return Response::error(400, "expected ?flow=NAME; `towpath flows` lists the names");
    };
    let Some((protocol, id)) = parse_name(name) else {
        let message = format!("'{name}' is not the name of a flow; `towpath flows` lists them");
        return Response::error(400, &message);
    };
    let Some(native) = native.filter(|_| protocol == FlowKind::Native.name()) else {
        return Response::error(
            400,
            &format!("flow {name} is not native; only those can be ended"),
        );
    };
    let refused = |status, why: &str| Response::error(status, &format!("flow {name}: {why}"));
    match native.end(id) {
        Some(Ended::Reset) => Response::json(200, &json!({ "ended": name })),
        Some(Ended::Gone) => refused(409, "it is over already"),
        Some(Ended::Hidden) => refused(409, "no process has its socket open now; ask again later"),
        None => refused(503, "no answer yet; it may end later"),
    }
}

/// Returns the protocol and the ID in the name of a flow.
fn parse_name(name: &str) -> Option<(&str, (u32, u32))> {
    let (worker, rest) = name.split_once('/')?;
    let (protocol, id) = rest.split_once('/')?;
    let (index, generation) = id.split_once('.')?;
    let _: u64 = worker.parse().ok()?;
    Some((protocol, (index.parse().ok()?, generation.parse().ok()?)))
}

/// Returns the worker and the query of a target.
fn parse(target: &str) -> Result<(usize, FlowQuery), String> {
    let mut worker = 0;
    let mut query = FlowQuery { from: 0, most: LISTED_MAX, moved_min: 0 };
    let pairs = target.split_once('?').map_or("", |(_, pairs)| pairs);
    for pair in pairs.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let number: u64 = value
            .bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| value.parse().ok())
            .flatten()
            .ok_or_else(|| format!("{name} takes a number, not '{value}'"))?;
        let size = usize::try_from(number).unwrap_or(usize::MAX);
        match name {
            "worker" => worker = size,
            "from" => query.from = number,
            "most" => query.most = size,
            "moved-min" => query.moved_min = number,
            _ => return Err(format!("'{name}' is no part of a list of flows")),
        }
    }
    Ok((worker, query))
}

/// Returns a page as JSON. It is written without a tree of values in between, which would take five
/// times as long, while no packet moves.
fn text(page: &FlowPage, worker: usize, workers: usize) -> String {
    let mut out = String::with_capacity(TEXT_BYTES + page.flows.len() * TEXT_BYTES);
    let mut object = Object::begin(&mut out);
    object.number("worker", worker);
    object.number("workers", workers);
    object.number("visited", page.visited);
    object.optional("next", page.next);
    let list = object.value("flows");
    list.push('[');
    for (index, one) in page.flows.iter().enumerate() {
        if index > 0 {
            list.push(',');
        }
        flow(list, one);
    }
    list.push(']');
    object.end();
    out.push('\n');
    out
}

fn flow(out: &mut String, flow: &ListedFlow) {
    let (index, generation) = flow.id;
    let mut object = Object::begin(out);
    object.word("id", format_args!("{index}.{generation}"));
    object.word("protocol", flow.kind.name());
    object.word("path", flow.kind.path());
    object.word("program", Address(flow.program));
    match flow.peer {
        Some(peer) => object.word("peer", Address(peer)),
        None => object.number("peer", "null"),
    }
    object.word("begun-by", if flow.is_inbound { "host" } else { "program" });
    object.word("state", flow.state);
    object.number("age-us", flow.age.as_micros());
    object.number("bytes-out", flow.bytes_out);
    object.number("bytes-in", flow.bytes_in);
    object.number("moved-out", flow.moved_out);
    object.number("moved-in", flow.moved_in);
    object.number("moved-us", flow.moved_in_time.as_micros());
    if let Some(info) = &flow.tcp {
        connection(object.value("tcp"), info);
    }
    object.end();
}

/// Writes the state of the connection between towpath and the program. Where a number has no value
/// yet, there is null.
fn connection(out: &mut String, info: &Info) {
    let known = |number: u32, unknown: u32| (number != unknown).then_some(number);
    let mut object = Object::begin(out);
    object.optional("rtt-us", known(info.rtt, 0));
    object.optional("rttvar-us", known(info.rttvar, 0));
    object.optional("min-rtt-us", known(info.min_rtt, u32::MAX));
    object.number("rto-us", info.rto);
    object.number("mss", info.snd_mss);
    object.number("cwnd", info.snd_cwnd);
    // Linux's numbers from there on mean that there is no threshold yet.
    let threshold = Some(info.snd_ssthresh).filter(|segments| *segments < i32::MAX as u32);
    object.optional("ssthresh", threshold);
    object.number("retransmitted", info.total_retrans);
    object.number("retransmitted-bytes", info.bytes_retrans);
    object.number("timeouts", info.total_rto);
    object.number("unacked", info.unacked);
    object.number("lost", info.lost);
    object.number("unsent-bytes", info.notsent_bytes);
    object.number("window-peer", info.snd_wnd);
    object.number("window-own", info.rcv_wnd);
    object.number("segments-out", info.segs_out);
    object.number("segments-in", info.segs_in);
    object.number("delivery-rate", info.delivery_rate);
    object.end();
}

/// An address; port 0 stands for none.
struct Address(SocketAddr);

impl Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.port() {
            0 => self.0.ip().fmt(f),
            _ => self.0.fmt(f),
        }
    }
}

/// Writes a JSON object whose names and words need no escapes.
struct Object<'a> {
    out: &'a mut String,
    is_empty: bool,
}

impl<'a> Object<'a> {
    fn begin(out: &'a mut String) -> Self {
        out.push('{');
        Self { out, is_empty: true }
    }

    /// Writes a name, and returns where its value follows.
    fn value(&mut self, name: &str) -> &mut String {
        let separator = if self.is_empty { "\"" } else { ",\"" };
        self.is_empty = false;
        self.out.push_str(separator);
        self.out.push_str(name);
        self.out.push_str("\":");
        self.out
    }

    fn number(&mut self, name: &str, number: impl Display) {
        // Writing to a string cannot fail.
        let _ = write!(self.value(name), "{number}");
    }

    fn optional(&mut self, name: &str, number: Option<impl Display>) {
        match number {
            Some(number) => self.number(name, number),
            None => self.number(name, "null"),
        }
    }

    fn word(&mut self, name: &str, word: impl Display) {
        let _ = write!(self.value(name), "\"{word}\"");
    }

    fn end(self) {
        self.out.push('}');
    }
}

/// Bytes to reserve for a flow: more than a flow of TCP over IPv4 takes.
const TEXT_BYTES: usize = 800;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;
    use towpath_gateway::flows::FlowKind;

    use super::*;

    #[test]
    fn queries() {
        let all = target(2, 1 << 33, 50, 7);
        let query = FlowQuery { from: 1 << 33, most: 50, moved_min: 7 };
        assert!(is_meant(&all) && is_meant(FLOWS));
        assert_eq!(parse(&all), Ok((2, query)));
        let plain = FlowQuery { from: 0, most: LISTED_MAX, moved_min: 0 };
        assert_eq!(parse(FLOWS), Ok((0, plain)));
        assert_eq!(parse("/v1/flows?&"), Ok((0, plain)));
        for wrong in ["/v1/flows/", "/v1/flowsy", "/v1/flow", ""] {
            assert!(!is_meant(wrong), "{wrong}");
        }
        for wrong in ["most=-1", "most=+1", "most=", "most", "from=99999999999999999999", "x=1"] {
            let target = format!("{FLOWS}?{wrong}");
            assert!(parse(&target).is_err(), "{wrong}");
            let answer = answer(&target, 1, |_, _| panic!("it asks for {wrong}")).to_bytes();
            assert!(answer.starts_with(b"HTTP/1.1 400 "), "{wrong}");
        }
    }

    #[test]
    fn a_page_is_json() {
        let flow = |kind, tcp, peer| ListedFlow {
            kind,
            id: (7, u32::MAX),
            program: "10.0.2.15:80".parse().unwrap(),
            peer,
            is_inbound: true,
            state: "open",
            age: Duration::MAX,
            bytes_out: u64::MAX,
            bytes_in: 0,
            moved_out: 1,
            moved_in: 2,
            moved_in_time: Duration::ZERO,
            tcp,
        };
        let info = Info { rtt: 85, min_rtt: u32::MAX, snd_ssthresh: u32::MAX, ..Info::default() };
        let flows = vec![
            flow(FlowKind::Tcp, Some(Box::new(info)), Some("[fd00::1]:443".parse().unwrap())),
            flow(FlowKind::Udp, None, None),
            flow(FlowKind::Echo, None, Some("[fd00::2]:0".parse().unwrap())),
        ];
        let page = FlowPage { flows, visited: 9, next: Some(1 << 33) };
        let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let all = read(&text(&page, 1, 2));
        assert_eq!(all["next"], 1_u64 << 33);
        let [tcp, udp, echo] = all["flows"].as_array().unwrap().as_slice() else { panic!("{all}") };
        assert_eq!((&tcp["protocol"], &tcp["path"]), (&"tcp".into(), &"interface".into()));
        assert_eq!((&tcp["id"], &tcp["peer"]), (&"7.4294967295".into(), &"[fd00::1]:443".into()));
        assert_eq!((&tcp["bytes-out"], &tcp["tcp"]["rtt-us"]), (&u64::MAX.into(), &85.into()));
        assert_eq!(
            (&tcp["tcp"]["min-rtt-us"], &tcp["tcp"]["ssthresh"]),
            (&Value::Null, &Value::Null)
        );
        assert_eq!(
            (&udp["peer"], &udp["tcp"], &echo["peer"]),
            (&Value::Null, &Value::Null, &"fd00::2".into())
        );
        let empty = read(&text(&FlowPage::default(), 0, 1));
        assert_eq!((&empty["flows"], &empty["next"]), (&serde_json::json!([]), &Value::Null));
    }

    #[test]
    fn names_of_flows() {
        let native = name(2, "native", "7.1");
        assert_eq!(parse_name(&native), Some(("native", (7, 1))));
        assert!(is_meant(&end_target(&native)));
        let missing = FLOWS.to_owned();
        for wrong in [missing, end_target(""), end_target("1/native"), end_target("a/native/1.1")] {
            let answer = end(&wrong, None).to_bytes();
            assert!(answer.starts_with(b"HTTP/1.1 400 "), "{wrong}");
        }
        let answer = String::from_utf8(end(&end_target("0/tcp/1.1"), None).to_bytes()).unwrap();
        assert!(answer.contains("flow 0/tcp/1.1 is not native"), "{answer}");
    }

    #[test]
    fn workers_that_are_not_there_or_silent() {
        let status = |target: &str, page: Option<FlowPage>| {
            let answer = answer(target, 2, |_, _| page).to_bytes();
            String::from_utf8_lossy(&answer).split(' ').nth(1).map(str::to_owned)
        };
        let page = || Some(FlowPage::default());
        assert_eq!(status("/v1/flows?worker=1", page()).as_deref(), Some("200"));
        assert_eq!(status("/v1/flows?worker=2", page()).as_deref(), Some("400"));
        assert_eq!(status("/v1/flows?worker=1", None).as_deref(), Some("503"));
    }
}
