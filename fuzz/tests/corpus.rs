//! Runs every target over its stored corpus, without sanitizer and fuzzing engine.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

/// Goal: all stored inputs pass. Method: runs all files of a target's folder through its function.
/// A target without any file has been forgotten.
fn replay(name: &str) {
    let (_, run) = towpath_fuzz::TARGETS.iter().find(|(target, _)| *target == name).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut files: Vec<_> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    for file in files {
        let bytes = fs::read(&file).unwrap();
        if let Err(panic) = std::panic::catch_unwind(|| run(&bytes)) {
            eprintln!("input: {}", file.display());
            std::panic::resume_unwind(panic);
        }
    }
}

/// Every folder has a target.
#[test]
fn every_corpus_has_a_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for entry in fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name();
        assert!(towpath_fuzz::TARGETS.iter().any(|(target, _)| *target == name), "{name:?}");
    }
}

#[test]
fn egress() {
    replay("egress");
}

#[test]
fn evpn() {
    replay("evpn");
}

#[test]
fn filter() {
    replay("filter");
}

#[test]
fn fragment() {
    replay("fragment");
}

#[test]
fn frame() {
    replay("frame");
}

#[test]
fn offload() {
    replay("offload");
}

#[test]
fn publish() {
    replay("publish");
}

#[test]
fn services() {
    replay("services");
}

#[test]
fn switch() {
    replay("switch");
}

#[test]
fn tcp_input() {
    replay("tcp_input");
}

#[test]
fn vhost_user_message() {
    replay("vhost_user_message");
}

#[test]
fn vxlan() {
    replay("vxlan");
}

#[test]
fn wire() {
    replay("wire");
}

#[test]
fn config() {
    replay("config");
}

#[test]
fn control() {
    replay("control");
}

#[test]
fn dhcpv4() {
    replay("dhcpv4");
}

#[test]
fn dhcpv6() {
    replay("dhcpv6");
}

#[test]
fn kernel() {
    replay("kernel");
}

#[test]
fn resolv() {
    replay("resolv");
}

#[test]
fn virtq() {
    replay("virtq");
}
