//! Real virtual machines whose network card is connected to a host in this process, or to `towpath
//! up`.
//!
//! `cargo test -p towpath-cli --test guest [FILTER]`. They need QEMU and the output of
//! `scripts/guest`; otherwise the tests are ignored. They run one after another.

mod crash;
mod iperf;
mod link;
mod machine;
mod migration;
mod network;
mod offloads;
mod passt;
mod tcp_ao;

use libtest_mimic::{Arguments, Trial};
use machine::Machine;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use towpath::host::{Config, Host, TcpStream};
use towpath_io::vhost_user::{Offer, VhostUser};
use towpath_packet::Site;

/// Bytes of a transfer in each direction.
const TRANSFER: usize = 64 << 20;

/// Names of network cards, and their properties.
const CARDS: [(&str, &str); 4] = [
    ("split", ""),
    ("packed", ",packed=on"),
    ("split_plain", ",mrg_rxbuf=off,event_idx=off,indirect_desc=off"),
    ("packed_plain", ",packed=on,mrg_rxbuf=off,event_idx=off,indirect_desc=off"),
];

fn main() -> ExitCode {
    type Test = fn();
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let missing = machine::missing();
    if let Some(why) = &missing {
        eprintln!("guest: ignored: {why}");
    }
    let trials = CARDS.map(|(name, card)| {
        let trial = Trial::test(format!("transfer_{name}"), move || {
            transfer(name, card);
            Ok(())
        });
        trial.with_ignored_flag(missing.is_some())
    });
    let networks: [(&str, Test); 11] = [
        ("network_vhost_user", network::two_by_vhost_user),
        ("network_stream", network::by_stream_and_vhost_user),
        ("network_queues", network::several_queues),
        ("network_file", network::from_a_file),
        ("network_offloads", offloads::each_with_each),
        ("network_guest_killed", crash::of_a_guest),
        ("network_restarted", crash::of_the_network),
        ("network_ports", crash::of_other_ports),
        ("network_migrated", migration::of_a_guest),
        ("network_passt", passt::of_each_kind),
        ("network_link", link::down_and_up),
    ];
    let networks = networks.map(|(name, test)| {
        let trial = Trial::test(name, move || {
            test();
            Ok(())
        });
        trial.with_ignored_flag(missing.is_some())
    });
    let missing_iperf3 = missing.clone().or_else(machine::missing_iperf3);
    if let Some(why) = &missing_iperf3 {
        eprintln!("guest: network_iperf3 ignored: {why}");
    }
    let iperf3 = Trial::test("network_iperf3", || {
        iperf::both_ways();
        Ok(())
    });
    let iperf3 = iperf3.with_ignored_flag(missing_iperf3.is_some());
    let missing_ao = missing.or_else(machine::missing_ao);
    if let Some(why) = &missing_ao {
        eprintln!("guest: tcp_ao ignored: {why}");
    }
    let tcp_ao = Trial::test("tcp_ao", || {
        tcp_ao::sessions();
        Ok(())
    });
    let tcp_ao = tcp_ao.with_ignored_flag(missing_ao.is_some());
    let trials = trials.into_iter().chain(networks).chain([iperf3, tcp_ao]).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A host connected to a guest's card, with its socket, which is removed with it.
struct Bench {
    host: Host,
    socket: PathBuf,
}

impl Bench {
    fn new(name: &str) -> Self {
        let file = format!("towpath-guest-{name}-{}.sock", std::process::id());
        let socket = std::env::temp_dir().join(file);
        let device = VhostUser::listen(&socket, Offer::default());
        let device = device.expect("a socket among temporary files");
        let config = Config::with_address([10, 0, 0, 1], 24);
        let host = Host::on_vhost_user(&config, device).expect("a thread");
        Self { host, socket }
    }
}

/// Boots, answers ping in both directions, and echoes many bytes, each of which is checked.
fn transfer(name: &str, card: &str) {
    let bench = Bench::new(name);
    let mut machine = Machine::boot(&bench.socket, 1, card);
    machine.configure("10.0.0.2/24");
    machine.run("ping -c 3 -i 0.1 -W 2 10.0.0.1 | grep -q ' 3 packets received'");
    machine.start("nc -l -p 7 -e cat &");
    machine.run("while ! netstat -ltn | grep -q :7; do sleep 0.1; done");
    let stream = TcpStream::connect(&bench.host, ([10, 0, 0, 2], 7));
    echo(&stream.expect("the guest listens"));
    // To the guest everything is copied, once; from the guest only what is too small to lend.
    let into = bench.host.ledger().copied_at(Site::Guest);
    assert!((TRANSFER as u64..TRANSFER as u64 * 11 / 10).contains(&into), "{into}");
    let out = bench.host.ledger().copied_at(Site::GuestSmall)
        + bench.host.ledger().copied_at(Site::Recall);
    assert!(out < TRANSFER as u64 / 2, "{out} bytes copied on their way out of the guest");
    machine.power_off();
}

/// Returns byte number `at` of the data.
fn byte_at(at: usize) -> u8 {
    ((at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Sends [`TRANSFER`] bytes and expects them back.
fn echo(stream: &TcpStream) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut at = 0;
            while at < TRANSFER {
                let block: Vec<u8> = (at..TRANSFER.min(at + (256 << 10))).map(byte_at).collect();
                (&*stream).write_all(&block).expect("the guest reads");
                at += block.len();
            }
        });
        let mut at = 0;
        let mut block = vec![0; 256 << 10];
        while at < TRANSFER {
            let count = (&*stream).read(&mut block).expect("the guest answers");
            assert!(count > 0, "the end after {at} bytes");
            for byte in &block[..count] {
                assert_eq!(*byte, byte_at(at), "byte {at}");
                at += 1;
            }
        }
    });
}
