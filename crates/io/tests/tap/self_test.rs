//! The self-test, on devices where everything works and on devices where something does not.

use std::time::Duration;

use towpath_io::tap::{Features, Report, SelfTest, Tap, self_test, self_test_patiently};
use towpath_packet::{Burst, Device};

use crate::network::{End, ONE, isolated};
use crate::support::{cx, memory};

/// Factor on each time limit, so that features that work are found to work on a busy machine, too.
const PATIENCE: u32 = 100;
/// Number of self-tests, of which the fastest counts: a busy machine may suspend any of them.
const TRIES: usize = 50;

fn tested(end: End, features: Features) -> Report {
    let mut tap = end.tap(features);
    let report = self_test_patiently(&mut tap, &end.self_test(), PATIENCE);
    println!("{report} in {:?}", report.elapsed);
    assert_eq!(report.features, tap.features());
    report
}

/// Returns the first time that is below `max`, or else the shortest.
fn quickest(max: Duration, time: impl FnMut() -> Duration) -> Duration {
    let mut times = std::iter::repeat_with(time).take(TRIES);
    let mut shortest = Duration::MAX;
    while shortest >= max
        && let Some(time) = times.next()
    {
        shortest = shortest.min(time);
    }
    shortest
}

/// Goal: on a kernel where everything works, the self-test proves all of it, quickly.
#[test]
fn self_test_passes() {
    for mtu in [1280, 1500, 9000, 65_520] {
        let max = Duration::from_millis(100);
        let elapsed = quickest(max, || {
            let mut elapsed = Duration::ZERO;
            isolated(|| {
                let report = tested(End { mtu, ..ONE }, Features::ALL);
                assert_eq!(report.to_string(), "offload: checksum tso4 tso6 uso (tested)");
                elapsed = report.elapsed;
            });
            elapsed
        });
        assert!(elapsed < max, "{elapsed:?}");
    }
}

/// Goal: features that were not agreed are not reported as working, and the others are still
/// proved.
#[test]
fn self_test_with_features_missing() {
    let cases = [
        (
            Features { uso: false, ..Features::ALL },
            "checksum tso4 tso6 (tested); off: uso (not agreed)",
        ),
        (
            Features { tso4: false, ..Features::ALL },
            "checksum tso6 uso (tested); off: tso4 (not agreed)",
        ),
        (
            Features { checksum: true, ..Features::NONE },
            "checksum (tested); off: tso4 (not agreed), tso6 (not agreed), uso (not agreed)",
        ),
        (
            Features::NONE,
            "none; off: checksum (not agreed), tso4 (not agreed), tso6 (not agreed), \
             uso (not agreed)",
        ),
    ];
    for (features, expected) in cases {
        isolated(|| {
            let report = tested(ONE, features);
            assert_eq!(report.to_string(), format!("offload: {expected}"));
        });
    }
}

/// Goal: a family without addresses affects only its own features.
#[test]
fn self_test_without_ipv6() {
    isolated(|| {
        let mut tap = ONE.tap(Features::ALL);
        let setup = SelfTest { program_v6: None, ..ONE.self_test() };
        let report = self_test_patiently(&mut tap, &setup, PATIENCE);
        let expected =
            "offload: checksum tso4 uso (tested); off: tso6 (no address to test it with)";
        assert_eq!(report.to_string(), expected);
        assert!(!tap.caps().tso6);
    });
}

/// Goal: a feature that does not work is detected. Method: the device's mask is changed behind the
/// self-test's back, so that the kernel does not do what was agreed.
#[test]
fn self_test_finds_what_does_not_work() {
    let cases = [
        (
            Features { uso: false, ..Features::ALL },
            "checksum tso4 tso6",
            "uso (came in single segments)",
        ),
        (
            Features { tso6: false, ..Features::ALL },
            "checksum tso4 uso",
            "tso6 (came in single segments)",
        ),
        (Features::NONE, "none", "checksum (checksums came finished)"),
    ];
    for (real, works, reason) in cases {
        isolated(|| {
            let mut truth = ONE.tap(real);
            truth.set_offload(real).expect("features");
            let mut tap = Tap::from_fd(truth.into_fd(), Features::ALL, 1500);
            let report = self_test_patiently(&mut tap, &ONE.self_test(), PATIENCE);
            println!("{report} in {:?}", report.elapsed);
            assert!(report.to_string().contains(reason), "{report}");
            assert_eq!(tap.features().to_string(), works);
        });
    }
}

/// Goal: a device on which nothing works is reported in time, without a panic.
#[test]
fn self_test_of_a_dead_device_ends_in_time() {
    let in_time = |setup: &SelfTest, device: fn() -> Tap| {
        let max = Duration::from_millis(300);
        let elapsed = quickest(max, || {
            let mut elapsed = Duration::ZERO;
            isolated(|| {
                let mut tap = device();
                let report = self_test(&mut tap, setup);
                println!("{report} in {:?}", report.elapsed);
                assert_eq!(tap.features(), Features::NONE);
                elapsed = report.elapsed;
            });
            elapsed
        });
        assert!(elapsed < max, "{elapsed:?}");
    };
    in_time(&ONE.self_test(), || {
        let mut tap = Tap::create("tap0").expect("a TAP device");
        tap.set_offload(Features::ALL).expect("features");
        tap
    });
    // The link is up, but has other addresses than the self-test is given: each probe times out or
    // fails.
    let setup = SelfTest { program_mac: [2, 9, 9, 9, 9, 9], ..ONE.self_test() };
    in_time(&setup, || ONE.tap(Features::ALL));
}

/// Goal: a self-test leaves no socket, connection, neighbour entry or packet behind.
#[test]
fn self_test_leaves_nothing_behind() {
    isolated(|| {
        let sockets = || {
            let read = |name| {
                let text = std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
                text.unwrap_or_default().lines().count()
            };
            ["tcp", "tcp6", "udp", "udp6", "arp"].map(read)
        };
        let mut tap = ONE.tap(Features::ALL);
        let before = sockets();
        assert_eq!(before, [1; 5], "a heading each");
        let report = self_test_patiently(&mut tap, &ONE.self_test(), PATIENCE);
        assert_eq!(report.features, Features::ALL);
        assert_eq!(sockets(), before);
        let output =
            std::process::Command::new("ip").args(["neighbour", "show", "nud", "all"]).output();
        if let Ok(output) = output {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(!text.contains("10.9.8.2") && !text.contains("fd00::2"), "{text}");
        }
        let mut memory = memory(64, 64, 16);
        let mut burst = Burst::new();
        tap.receive(&mut burst, &mut cx(&mut memory)).expect("received");
        while let Some(mut packet) = burst.pop() {
            // The kernel's own multicast reports may arrive at any time.
            let headers = packet.peek_headers();
            let is_report = headers[12..14] == [0x86, 0xdd] && matches!(headers[20], 0 | 58);
            assert!(is_report, "{headers:02x?}");
        }
    });
}
