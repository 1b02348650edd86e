//! Workers that end before the network does, and workers that do not answer.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::channel;

use towpath_io::endpoint::Connection;
use towpath_packet::Ledger;

use super::*;
use crate::network::{Attachment, Operation, PortSettings, testing};

/// A network with so many workers, all running, and a port of each, which listens at a path. Each
/// `test` has its own paths.
fn running(test: &str, workers: usize) -> (Worker<Network>, Vec<PathBuf>) {
    let config = Config { workers, ipv4: None, ipv6: None, ..Config::default() };
    let mut network = testing::network();
    network.set_workers(&config).expect("workers");
    let mut worker = Worker::serving(&config, network, Arc::new(Ledger::new())).expect("a worker");
    worker.begin().expect("threads");
    let name = |port| format!("towpath-{test}-{}-{workers}-{port}", std::process::id());
    let paths: Vec<_> = (0..workers).map(|port| std::env::temp_dir().join(name(port))).collect();
    for (number, path) in paths.iter().enumerate() {
        let (name, attachment) = (format!("p{number}"), Attachment::Stream(path.clone()));
        let add = Operation::Add { name, attachment, settings: PortSettings::default() };
        worker.apply(vec![add]).expect("added");
    }
    (worker, paths)
}

/// Goal: a helper that panics ends the network with an error that says so. Changes and reports fail
/// or go on without it, at once, and its ports leave no socket behind.
#[test]
fn a_helper_that_panics_ends_the_network() {
    for workers in [2, 4] {
        let (mut worker, paths) = running("panics", workers);
        let last = workers - 1;
        assert!(paths.iter().all(|path| path.exists()));
        // It has no port with this number.
        let shape = Shape::of(&PortSettings::default(), 1500);
        let crew = worker.inside().crew.as_ref().expect("several workers");
        let answer = crew.ask(last, |answer| Command::Change(workers, shape, answer));
        let ended = format!("worker {last} has ended");
        assert_eq!(answer.expect_err("it panics").to_string(), ended);
        let report = worker.inside().report(worker.now());
        assert_eq!(report.ports.len(), workers, "that of the ended one, too");
        let set = worker.inside_mut().set_port(&format!("p{last}"), PortSettings::default());
        assert!(set.expect_err("nobody changes it").to_string().contains(&ended));
        cannot_change(&mut worker, last, &ended);
        let never = EventDoorbell::new().expect("a descriptor");
        let error = worker.run_until(&[never.as_fd()]).expect_err("the network ends");
        assert_eq!(error.to_string(), "a worker panicked");
        drop(worker);
        assert!(paths.iter().all(|path| !path.exists()), "nothing is left");
    }
}

/// A transaction says what it could neither complete nor undo, and does the rest.
fn cannot_change(worker: &mut Worker<Network>, last: usize, ended: &str) {
    let name = format!("p{last}");
    let unknown = || Operation::Del("unknown".to_owned());
    let of_first = std::env::temp_dir().join(format!("towpath-undone-{}", std::process::id()));
    let (attachment, settings) = (Attachment::Stream(of_first.clone()), PortSettings::default());
    let add = Operation::Add { name: "of-first".to_owned(), attachment, settings };
    let error = worker.apply(vec![add, unknown()]).expect_err("there is no such port").to_string();
    assert!(error.starts_with("operation 2: there is no port 'unknown'"), "{error}");
    let not_undone = format!("and changes before it could not be undone: {ended}");
    assert!(error.ends_with(&not_undone), "{error}");
    assert!(!of_first.exists(), "the port has ended");

    let error = worker.apply(vec![Operation::Del(name.clone()), unknown()]);
    let error = error.expect_err("there is no such port").to_string();
    assert!(!error.contains("undone"), "nobody is asked: {error}");
    assert!(worker.inside_mut().find(&name).is_ok(), "it stays");

    let lost = Operation::Del(name.clone());
    let error = worker.apply(vec![Operation::Del("p0".to_owned()), lost]);
    let error = error.expect_err("a worker has ended").to_string();
    // The other workers have to let go of each port.
    let expected = "operation 1: all changes were made, but port 'p0' may still hold its socket";
    assert!(error.starts_with(expected) && error.ends_with(ended), "{error}");
    for removed in ["p0", &name] {
        assert!(worker.inside_mut().find(removed).is_err(), "{removed}");
    }
}

/// Goal: what the ports of all other workers report just before the network ends is passed on.
/// Method: the first worker has no turn after the machines are gone.
#[test]
fn last_reports_of_ports_are_passed_on() {
    let (mut worker, paths) = running("last", 3);
    let network = worker.inside_mut();
    let (tell, told) = channel();
    network.on_news(Box::new(move |port, _| drop(tell.send(port.to_owned()))));
    let machines = ["a", "b", "c"].map(|name| {
        let (near, far) = UnixStream::pair().expect("sockets");
        let attachment = Attachment::VhostUserFd(Connection::new(near.into()).expect("connected"));
        network.add_port(name, attachment, PortSettings::default()).expect("added");
        far
    });
    let report = network.report(Instant::START).ports;
    let places: Vec<_> = report.iter().map(|port| (&port.name[..], port.worker)).collect();
    assert_eq!(places[3..], [("a", 0), ("b", 1), ("c", 2)]);
    drop(machines);
    drop(worker);
    // Each may have had several reports.
    let names: BTreeSet<_> = told.iter().collect();
    assert!(names.iter().eq(["b", "c"]), "{names:?}");
    assert!(paths.iter().all(|path| !path.exists()), "nothing is left");
}

/// Goal: a report lists the ports of a worker that does not answer, also if it has not reported
/// before: after ports were added, and after the number of workers changed.
#[test]
fn ports_of_a_worker_that_does_not_answer_are_listed() {
    let (mut worker, paths) = running("listed", 3);
    for change in [None, Some(2), Some(3)] {
        if let Some(count) = change {
            worker.apply(vec![Operation::Workers(Some(count))]).expect("changed");
        }
        let crew = worker.inside().crew.as_ref().expect("several workers");
        let held: Vec<_> = (1..crew.workers()).map(|other| crew.hold(other)).collect();
        let report = worker.inside().report(worker.now());
        let listed: Vec<_> = report.ports.iter().map(|port| &port.name[..]).collect();
        assert_eq!(listed, ["p0", "p1", "p2"], "{change:?}");
        drop(held);
    }
    drop(worker);
    assert!(paths.iter().all(|path| !path.exists()), "nothing is left");
}
