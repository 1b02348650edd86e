//! Offload negotiation: sending cards of each kind with receiving cards of each kind.

use crate::machine::Machine;
use crate::network::{Up, number};
use std::path::PathBuf;

/// Cards of the sending machine: every combination that matters for TCP.
const SENDERS: [&str; 6] = [
    "",
    ",packed=on",
    ",host_tso4=off",
    ",packed=on,host_tso6=off",
    ",packed=on,host_tso4=off,host_tso6=off,host_ufo=off",
    ",csum=off,host_tso4=off,host_tso6=off,host_ufo=off",
];

/// Cards of the receiving machine: the same, with and without merged buffers.
const RECEIVERS: [&str; 11] = [
    "",
    ",packed=on",
    ",mrg_rxbuf=off",
    ",guest_tso4=off",
    ",packed=on,guest_tso6=off",
    ",packed=on,mrg_rxbuf=off,guest_tso4=off",
    ",mrg_rxbuf=off,guest_tso6=off",
    ",guest_tso4=off,guest_tso6=off,guest_ufo=off",
    ",packed=on,mrg_rxbuf=off,guest_tso4=off,guest_tso6=off,guest_ufo=off",
    ",guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off",
    ",packed=on,mrg_rxbuf=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,\
     guest_ufo=off",
];

/// Bytes of each transfer: several super-packets.
const BYTES: usize = 512 << 10;

/// Two machines with a card of each kind. From each card of one to each card of the other goes a
/// transfer over IPv4 and one over IPv6, in a subnet of its own.
pub(crate) fn each_with_each() {
    let senders: Vec<String> = (0..SENDERS.len()).map(|i| format!("s{i}")).collect();
    let receivers: Vec<String> = (0..RECEIVERS.len()).map(|j| format!("r{j}")).collect();
    let names = senders.iter().chain(&receivers);
    let ports: Vec<(&str, &str)> = names.map(|name| ("--vhost-user", name.as_str())).collect();
    let up = Up::start("offloads", &ports);
    let mut sender = boot(&up, 1, &senders, &SENDERS);
    let mut receiver = boot(&up, 2, &receivers, &RECEIVERS);
    for i in 0..SENDERS.len() {
        for j in 0..RECEIVERS.len() {
            add_addresses(&mut sender, i, i, j, 1);
            add_addresses(&mut receiver, j, i, j, 2);
        }
    }
    receiver.start("nc -ll -p 7 -e md5sum &");
    receiver.run("while ! netstat -ltn | grep -q :7; do sleep 0.1; done");
    sender.run(&format!("dd if=/dev/urandom of=/tmp/data bs={BYTES} count=1 2> /dev/null"));
    let sum = sender.run("md5sum < /tmp/data");
    for (i, from) in SENDERS.iter().enumerate() {
        for (j, to) in RECEIVERS.iter().enumerate() {
            for address in [format!("10.{}.{j}.2", 100 + i), format!("fd00:{i}:{j}::2")] {
                let received = sender.run(&format!("nc {address} 7 < /tmp/data"));
                assert_eq!(received, sum, "{from} to {to}, {address}");
            }
        }
    }
    sender.power_off();
    receiver.power_off();
    let report = up.finish();
    for (j, card) in RECEIVERS.iter().enumerate() {
        // For a card that takes all super-packets none is segmented; for any other some are.
        let cut = number(&report, &format!("port              r{j} "), "cut");
        assert_eq!(cut > 0, card.contains("guest_tso"), "{card}: {report}");
    }
}

/// Boots a machine with a card for each of `cards`, at the ports `names`.
fn boot(up: &Up, machine: u8, names: &[String], cards: &[&str]) -> Machine {
    let cards: Vec<(PathBuf, String)> = (names.iter().zip(cards).enumerate())
        .map(|(number, (name, card))| {
            (up.socket(name), format!(",mac=02:00:00:00:{machine:02x}:{number:02x}{card}"))
        })
        .collect();
    let cards: Vec<_> = cards.iter().map(|(path, card)| (path.clone(), card.as_str())).collect();
    let mut machine = Machine::boot_cards(1, &cards);
    machine.run("for i in all default; do echo 1 > /proc/sys/net/ipv4/conf/$i/arp_ignore; done");
    for number in 0..cards.len() {
        // Addresses are used at once, as they are unique.
        machine.run(&format!("echo 0 > /proc/sys/net/ipv6/conf/eth{number}/accept_dad"));
        machine.run(&format!("ip link set eth{number} up"));
    }
    machine
}

/// Gives card number `card` its addresses in the subnet of sender `i` and receiver `j`.
fn add_addresses(machine: &mut Machine, card: usize, i: usize, j: usize, end: u8) {
    machine.run(&format!(
        "ip addr add 10.{}.{j}.{end}/24 dev eth{card} && \
         ip addr add fd00:{i}:{j}::{end}/64 dev eth{card}",
        100 + i
    ));
}
