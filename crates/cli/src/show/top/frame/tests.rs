//! Rates, tables and drops of samples.

use std::time::{Duration, Instant};

use serde_json::json;

use super::*;

/// Returns a sample of a program's instance that many seconds after another.
pub(in crate::show::top) fn sample(start: Instant, seconds: u64, stats: Value) -> Sample {
    let at = start + Duration::from_secs(seconds);
    Sample { at, stats, ports: None, flows: Vec::new(), flows_open: 0 }
}

#[expect(clippy::disallowed_methods, reason = "samples carry their time")]
pub(in crate::show::top) fn start() -> Instant {
    Instant::now()
}

/// Returns a TCP flow with these bytes in.
pub(in crate::show::top) fn flow(id: &str, bytes_in: u64, moved: u64) -> Flow {
    let value = json!({
        "id": id, "protocol": "tcp", "program": "10.0.2.15:4000", "peer": "192.0.2.1:443",
        "begun-by": "program", "state": "established", "age-us": 90_000_000,
        "bytes-out": 0, "bytes-in": bytes_in, "moved-out": 0, "moved-in": moved,
        "moved-us": 500_000,
        "tcp": { "rtt-us": 85, "rttvar-us": null, "retransmitted": 3, "cwnd": 10 },
    });
    Flow { id: id.to_owned(), worker: 1, value }
}

fn cell<'a>(table: &'a Table, row: usize, title: &str) -> &'a str {
    let column = table.columns.iter().position(|column| column.title == title).unwrap();
    &table.rows[row].cells[column].text
}

#[test]
fn rates_of_a_program() {
    let start = start();
    let stats = |bytes: u64, packets: u64, large: u64, copied: u64, lost: u64| {
        json!({
            "pid": 7, "command": "run -- a\u{1b}b", "bytes_in": bytes, "bytes_out": 0,
            "joined": { "bytes_in": 100, "bytes_out": 0, "flows": 1, "udp_flows": 1 },
            "packets": { "to_program": packets, "super_to_program": large, "retransmitted": 4 },
            "carried": bytes, "copied": { "a": copied, "b": 0 }, "copies_per_byte": 0.25,
            "flows": { "tcp": 1, "udp": 2, "echo": 0 }, "lent": { "bytes": 9, "oldest_us": 1500 },
            "dropped": { "queue_full": lost, "other": 1, "none": 0 },
            "workers": { "0": { "parked": false }, "1": { "parked": true } },
        })
    };
    let mut before = sample(start, 0, stats(1000, 10, 0, 100, 5));
    before.flows = vec![flow("known", 1000, 1)];
    let mut now = sample(start, 2, stats(251_000, 20, 5, 25_100, 25));
    now.flows = vec![flow("known", 3000, 1), flow("new", 9_999_999, 1000)];
    now.flows_open = 16_384;
    let frame = Frame::new(Some(&before), &now);
    assert_eq!(frame.title, "pid 7  run -- a\\u{1b}b", "no control characters");
    assert_eq!(
        frame.sums,
        [
            "in 1.00Mb/s 5 p/s 50% super",
            "out 0b/s 0 p/s - super",
            "copies/byte 0.1000 (0.2500 in all)",
            "flows tcp 1 udp 2 echo 0 joined 2",
            "retransmitted 0/s",
            "lent 9B for 1.5ms",
            "workers 1 of 2",
            "2 of 16384 flows listed",
        ]
    );
    assert_eq!(frame.drops, ["queue_full 25 +10/s", "other 1"]);
    let [flows] = frame.tables.as_slice() else { panic!("one table") };
    assert_eq!(cell(flows, 0, "IN b/s"), "8.00k", "by the sample before");
    assert_eq!(cell(flows, 1, "IN b/s"), "16.0k", "by the instance: 1000 bytes in 0.5 s");
    assert_eq!((cell(flows, 0, "RTT"), cell(flows, 0, "RETR")), ("85us", "3"));
    assert_eq!((cell(flows, 0, "AGE"), cell(flows, 0, "W")), ("1m30s", "1"));
    let details = &flows.rows[0].details;
    let detail = |name: &str| {
        details.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    };
    assert_eq!((detail("rate in"), detail("rtt")), (Some("8.00kb/s"), Some("85us")));
    assert_eq!((detail("rttvar"), detail("cwnd")), (Some("-"), Some("10")));
    assert_eq!((detail("age"), detail("worker")), (Some("1m30s"), Some("1")));

    let first = Frame::new(None, &now);
    assert_eq!(first.sums[0], "in 0b/s 0 p/s - super", "nothing to compare with");
    assert_eq!(first.drops, ["queue_full 25", "other 1"]);
    // An instance with the same number whose counters began anew.
    let anew = sample(start, 4, stats(1000, 2, 0, 0, 1));
    let anew = Frame::new(Some(&now), &anew);
    assert_eq!(anew.sums[0], "in 4.40kb/s 1 p/s 0% super");
    assert_eq!(anew.drops, ["other 1", "queue_full 1"]);
}

#[test]
fn rates_of_a_network() {
    let start = start();
    let stats = |bytes: u64, lost: u64| {
        let port = json!({
            "bytes_in": bytes, "bytes_out": 0, "packets_in": bytes / 1000,
            "packets_out": 0, "super_packets_in": bytes / 1000, "super_packets_out": 0,
            "dropped": { "queue_full": lost, "device": 0 },
        });
        json!({ "pid": 1, "command": "up", "ports": { "a": port }, "stations": 3 })
    };
    let ports = vec![
        json!({ "name": "a", "attachment": "tap", "connected": true, "waiting": 2 }),
        json!({ "name": "b", "attachment": "stream", "connected": false, "failure": "it broke" }),
    ];
    let mut samples = [sample(start, 0, stats(1000, 0)), sample(start, 1, stats(126_000, 7))];
    samples.iter_mut().for_each(|sample| sample.ports = Some(ports.clone()));
    let frame = Frame::new(Some(&samples[0]), &samples[1]);
    assert_eq!(frame.sums[0], "in 1.00Mb/s 125 p/s 100% super");
    assert!(frame.sums.contains(&"stations 3".to_owned()), "{:?}", frame.sums);
    assert_eq!(frame.drops, ["port.queue_full 7 +7/s"]);
    let [table, flows] = frame.tables.as_slice() else { panic!("ports and flows") };
    assert_eq!((table.name, flows.name, flows.rows.len()), ("ports", "flows", 0));
    assert_eq!((cell(table, 0, "IN b/s"), cell(table, 0, "DROP/s")), ("1.00M", "7"));
    assert_eq!((cell(table, 0, "STATE"), cell(table, 1, "STATE")), ("connected", "failed"));
    assert_eq!((cell(table, 0, "SUPER"), cell(table, 1, "SUPER")), ("100%", "-"));
    let has = |name: &str| table.rows[0].details.iter().any(|(other, _)| other == name);
    assert!(has("dropped.queue_full") && has("waiting"), "{:?}", table.rows[0].details);

    let path = PathBuf::from("/x");
    let before = HashMap::from([(path.clone(), samples[0].clone())]);
    let table = instance_table(&before, &[(path, samples[1].clone())]);
    assert_eq!((cell(&table, 0, "IN b/s"), cell(&table, 0, "DROP/s")), ("1.00M", "7"));
}

/// Goal: whatever an instance answers, there is something to show.
#[test]
fn nonsense_is_shown_as_well() {
    let start = start();
    for nonsense in [json!(null), json!([1]), json!({ "ports": 7, "dropped": [1], "flows": "x" })] {
        let mut now = sample(start, 0, nonsense.clone());
        now.ports = Some(vec![nonsense.clone()]);
        now.flows = vec![Flow { id: String::new(), worker: 0, value: nonsense }];
        let frame = Frame::new(Some(&now), &now);
        assert!(frame.sums.iter().all(|text| !text.contains("NaN")), "{:?}", frame.sums);
        assert_eq!(frame.tables.len(), 2);
    }
}
