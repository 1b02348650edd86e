//! `towpath run` end to end, in network namespaces that the tests make.
//!
//! `cargo test -p towpath-cli --test e2e [FILTER]`; with `TOWPATH_E2E=quick` in the environment,
//! long tests are left out. Tests that cannot run on a machine are reported as ignored, with the
//! reason. Tests run one after another: concurrent ones would take the processors from each other.

mod cni;
mod dns;
mod egress;
mod ending;
mod evpn;
mod inside;
mod iperf;
mod isolation;
mod join_published;
mod joined;
mod life;
mod many;
mod native;
mod options;
mod ping;
mod policy_clients;
mod programs;
mod publish;
mod soak;
mod support;
mod taps;
mod trace;
mod transfer;
mod tunnels;
mod udp;
mod uplinks;
mod urgent;
mod workers;

use std::process::ExitCode;

use libtest_mimic::Arguments;
use rustix::process::{Resource, getrlimit, setrlimit};
use support::Test;

fn main() -> ExitCode {
    if let Some(code) = inside::play() {
        return code;
    }
    support::become_root();
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("one's own limit");
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let quick = std::env::var("TOWPATH_E2E").is_ok_and(|value| value == "quick");
    let tests: Vec<Test> = [
        transfer::tests(),
        many::tests(),
        native::tests(),
        ending::tests(),
        isolation::tests(),
        iperf::tests(),
        publish::tests(),
        joined::tests(),
        join_published::tests(),
        programs::tests(),
        dns::tests(),
        egress::tests(),
        policy_clients::tests(),
        ping::tests(),
        trace::tests(),
        udp::tests(),
        urgent::tests(),
        workers::tests(),
        life::tests(),
        taps::tests(),
        cni::tests(),
        uplinks::tests(),
        evpn::tests(),
        tunnels::tests(),
        options::tests(),
        soak::tests(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let trials = tests.into_iter().map(|test| test.into_trial(quick)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
