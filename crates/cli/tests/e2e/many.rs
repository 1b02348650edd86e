//! Many connections: concurrent, consecutive, and more than there are descriptors.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use super::inside::QUESTION_BYTES;
use super::support::{
    Family, Host, NONE, Server, Stats, Test, Towpath, at_each_mtu, descriptors, echo, inside,
    is_long, note, now, program_of, resident_kib, wait_until_nothing_is_left,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for family in Family::BOTH {
        let name = family.name();
        tests.extend(at_each_mtu(family, || {
            let name = format!("connections_2000_at_once_{name}");
            Test::new(name, &[], move |host| all_at_once(host, family))
        }));
        tests.push(
            Test::new(format!("connections_in_sequence_{name}"), &[], move |host| {
                in_sequence(host, family);
            })
            .limit(720)
            .slow_unless(false),
        );
        tests.push(Test::new(format!("no_descriptor_left_{name}"), &[], move |host| {
            no_descriptor_left(host, family);
        }));
        tests.push(Test::new(format!("request_in_two_parts_{name}"), &[], move |_| {
            in_two_parts(family);
        }));
    }
    tests
}

/// Memory of towpath above which a test fails; the limit for packets is far higher.
const RESIDENT_KIB_MAX: u64 = 64 << 10;

/// Descriptors that towpath may still open when CMD has just started.
const STARTING: usize = 4;

/// Goal: 2,000 connections are open at the same time, and each is released when it ends.
/// Method: a program opens them all, then asks over each; /proc has towpath's descriptors.
fn all_at_once(host: &mut Host, family: Family) {
    let server = Server::start(family.loopback(), echo);
    let address = SocketAddr::new(family.gateway(), server.port()).to_string();
    let mut towpath =
        Towpath::with_loopback(NONE).found_by(host).start_held(inside("hold", &[&address, "2000"]));
    program_of(towpath.pid());
    let at_start = descriptors(towpath.pid()) + STARTING;
    towpath.wait_for_text("answered 2000");
    let resident = resident_kib(towpath.pid());
    note("connections", &format!("{resident} KiB resident"));
    assert!(resident < RESIDENT_KIB_MAX, "{resident} KiB resident");
    wait_until_nothing_is_left(host, &towpath, at_start);
    towpath.release();
    let output = towpath.finish();
    let stats = Stats::of(&output);
    assert!(output.success().starts_with("held 2000\n"));
    stats.assert_carried(16_000, 16_000, 0);
    assert_eq!(stats.number("flows", "now"), 0);
}

/// Less than the delay of a FIN's ACK, which is the longest wait for a server on this machine.
const HELD_UP_US_MIN: u64 = 9_000;

/// Goal: a request is not delayed if the program's kernel holds back its second part until the
/// first is acknowledged (RFC 896), even after requests in one part.
/// Method: the quickest of twenty requests in two parts, which are answered only as a whole.
fn in_two_parts(family: Family) {
    let server = Server::start(family.loopback(), |mut stream| {
        stream.read_exact(&mut [0; QUESTION_BYTES])?;
        stream.write_all(&[0])
    });
    let address = SocketAddr::new(family.gateway(), server.port()).to_string();
    let output = Towpath::with_loopback(NONE).run(inside("two-parts", &[&address, "20"]));
    let quickest: u64 = output.success().trim().parse().expect("microseconds");
    note("two parts", &format!("{quickest} us"));
    assert!(quickest < HELD_UP_US_MIN, "{quickest} us");
}

/// Consecutive connections.
const IN_SEQUENCE: u64 = 4_000;
const IN_SEQUENCE_LONG: u64 = 20_000;

/// Goal: thousands of connections begin and end, and leave nothing.
/// Method: a program opens one after another and asks over it; /proc has towpath's descriptors and
/// memory, before and after.
fn in_sequence(host: &mut Host, family: Family) {
    let count = if is_long() { IN_SEQUENCE_LONG } else { IN_SEQUENCE };
    let server = Server::start(family.loopback(), echo);
    let address = SocketAddr::new(family.gateway(), server.port()).to_string();
    let mut towpath = Towpath::with_loopback(NONE)
        .found_by(host)
        .start_held(inside("short", &[&address, &count.to_string()]));
    program_of(towpath.pid());
    let at_start = descriptors(towpath.pid()) + STARTING;
    let begun = now();
    while !towpath.stdout().contains("answered") && towpath.poll().is_none() {
        assert!(begun.elapsed().as_secs() < 600, "too slow");
        thread::sleep(Duration::from_millis(20));
    }
    let resident = resident_kib(towpath.pid());
    note("connections", &format!("{resident} KiB resident"));
    assert!(resident < RESIDENT_KIB_MAX, "{resident} KiB resident");
    wait_until_nothing_is_left(host, &towpath, at_start);
    towpath.release();
    let output = towpath.finish();
    let stats = Stats::of(&output);
    assert_eq!(output.success(), format!("answered {count}\n"));
    stats.assert_carried(8 * count, 8 * count, 0);
    assert_eq!(stats.number("flows", "now"), 0);
}

/// Goal: with no descriptor left, open connections continue, new ones fail, and later ones work.
/// Method: towpath may have 64 descriptors, and a program opens connections until one fails.
fn no_descriptor_left(_: &mut Host, family: Family) {
    let server = Server::start(family.loopback(), echo);
    let address = SocketAddr::new(family.gateway(), server.port()).to_string();
    let few = ["prlimit", "--nofile=64:64"];
    let output = Towpath::with_loopback(NONE).by(few).run(inside("limited", &[&address, "200"]));
    let stats = Stats::of(&output);
    let text = output.success();
    assert!(text.contains("ConnectionRefused after "), "{text}");
    assert!(text.contains("works again"), "{text}");
    assert!(stats.dropped("no_descriptor") > 0);
}
