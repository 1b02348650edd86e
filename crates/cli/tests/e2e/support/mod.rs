//! Shared code of all end-to-end tests.
//!
//! A test is a function that gets a [`Host`] and runs on a thread of its own in that host's network
//! namespace. So every socket and process of a test is there, never in the real network.
//! [`Test::run`] limits its time and ends what it started.

mod data;
mod host;
mod process;
mod server;
mod towpath;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Completion, Failed, Trial};

pub(crate) use data::{Checker, Pattern, digest_of};
pub(crate) use host::{
    FAR_MTU, FAR_V4, FAR_V6, Far, Host, Namespace, OUTSIDE_V4, OUTSIDE_V6, THIS_V4, THIS_V6, batch,
    become_root, network_namespace, processes_in,
};
pub(crate) use process::{
    Output, Process, assert_rests, command, descriptors, kill_started, resident_kib, run,
};
pub(crate) use server::{Server, echo, http, reset_on_drop};
pub(crate) use towpath::{
    NONE, Stats, TOWPATH, Towpath, inside, program_of, wait_until_nothing_is_left,
};

/// Longest wait for something that normally takes milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(150);
/// How long a test may take to clean up after it was stopped.
const STOPPING: Duration = Duration::from_secs(30);

/// Programs that every test needs.
const PROGRAMS: [&str; 6] = ["ip", "ss", "ping", "setpriv", "unshare", "sha256sum"];

/// Returns true for long tests, as in `make test-long`: with `TOWPATH_LONG` in the environment.
pub(crate) fn is_long() -> bool {
    std::env::var_os("TOWPATH_LONG").is_some()
}

/// One end-to-end test.
pub(crate) struct Test {
    name: String,
    programs: &'static [&'static str],
    limit: Duration,
    quick: bool,
    needs_root: bool,
    needs: fn() -> Option<String>,
    mtu: u16,
    body: Box<dyn FnOnce(&mut Host) + Send>,
}

impl Test {
    pub(crate) fn new(
        name: impl Into<String>,
        programs: &'static [&'static str],
        body: impl FnOnce(&mut Host) + Send + 'static,
    ) -> Self {
        let limit = Duration::from_secs(180);
        let (name, body) = (name.into(), Box::new(body));
        Self {
            name,
            programs,
            limit,
            quick: true,
            needs_root: false,
            needs: || None,
            mtu: towpath::MTU_DEFAULT,
            body,
        }
    }

    /// Sets another limit than three minutes.
    pub(crate) fn limit(self, seconds: u64) -> Self {
        Self { limit: Duration::from_secs(seconds), ..self }
    }

    /// Leaves the test out of the quick run unless `quick`.
    pub(crate) fn slow_unless(self, quick: bool) -> Self {
        Self { quick, ..self }
    }

    /// Requires real root, as a user namespace has no other users.
    pub(crate) fn needs_root(self) -> Self {
        Self { needs_root: true, ..self }
    }

    /// Asks `why_not` for a reason why the test cannot run here.
    pub(crate) fn unless(self, why_not: fn() -> Option<String>) -> Self {
        Self { needs: why_not, ..self }
    }

    /// Sets the MTU inside, and leaves the test out of the quick run.
    pub(crate) fn at_mtu(self, mtu: u16) -> Self {
        Self { name: format!("{}_mtu{mtu}", self.name), mtu, quick: false, ..self }
    }

    /// Converts the test for the harness. A test that cannot run here is ignored, with the reason.
    pub(crate) fn into_trial(self, quick_run: bool) -> Trial {
        let name = self.name.clone();
        Trial::ignorable_test(name, move || {
            if let Some(reason) = self.why_not(quick_run) {
                println!("skipped: {}: {reason}", self.name);
                return Ok(Completion::ignored_with(reason));
            }
            self.run()
        })
    }

    fn why_not(&self, quick_run: bool) -> Option<String> {
        if quick_run && !self.quick {
            return Some("not in the quick run".into());
        }
        if self.needs_root && !host::is_real_root() {
            return Some("this needs root".into());
        }
        let missing = PROGRAMS.iter().chain(self.programs).find_map(|program| missing(program));
        host::unsupported().or(missing).or_else(self.needs)
    }

    fn run(self) -> Result<Completion, Failed> {
        let (sender, done) = mpsc::channel();
        let started = now();
        let (name, body) = (self.name.clone(), self.body);
        towpath::set_mtu(self.mtu);
        let thread = thread::Builder::new().name(name.clone()).spawn(move || {
            let mut host = Host::new(&name);
            body(&mut host);
            host.assert_nothing_left();
            drop(host);
            let _ = sender.send(());
        })?;
        let in_time = done.recv_timeout(self.limit);
        if matches!(in_time, Err(mpsc::RecvTimeoutError::Timeout)) {
            kill_started();
            let stopped = now();
            while !thread.is_finished() && stopped.elapsed() < STOPPING {
                thread::sleep(Duration::from_millis(20));
            }
            return Err(format!("took longer than {:?}", self.limit).into());
        }
        let result = thread.join();
        kill_started();
        note(&self.name, &format!("{:.1} s", started.elapsed().as_secs_f64()));
        result.map(|()| Completion::Completed).map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()));
            text.unwrap_or_else(|| "panicked".into()).into()
        })
    }
}

/// Returns the test of `make`, at the default MTU and at the others of `family`.
pub(crate) fn at_each_mtu(family: Family, make: impl Fn() -> Test) -> Vec<Test> {
    let others = mtus(family).into_iter().filter(|mtu| *mtu != towpath::MTU_DEFAULT);
    std::iter::once(make()).chain(others.map(|mtu| make().at_mtu(mtu))).collect()
}

/// Returns the MTUs that a family is tested at: the smallest, the usual and the largest, and in a
/// long run more.
pub(crate) fn mtus(family: Family) -> Vec<u16> {
    let smallest = if family == Family::V4 { 576 } else { 1280 };
    let mut mtus = vec![smallest, towpath::MTU_DEFAULT, 65520];
    if is_long() {
        mtus.extend([1280, 9000]);
        mtus.sort();
        mtus.dedup();
    }
    mtus
}

/// An IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const BOTH: [Family; 2] = [Family::V4, Family::V6];

    pub(crate) fn name(self) -> &'static str {
        if self == Family::V4 { "v4" } else { "v6" }
    }

    /// `-4` or `-6`, which most programs understand.
    pub(crate) fn option(self) -> &'static str {
        if self == Family::V4 { "-4" } else { "-6" }
    }

    /// Returns the gateway's address inside.
    pub(crate) fn gateway(self) -> IpAddr {
        self.pick("10.0.2.2", "fd74:6f77:7061:7468::2")
    }

    /// Returns the DNS address inside.
    pub(crate) fn dns(self) -> IpAddr {
        self.pick("10.0.2.3", "fd74:6f77:7061:7468::3")
    }

    /// Returns the program's address.
    pub(crate) fn program(self) -> IpAddr {
        self.pick("10.0.2.15", "fd74:6f77:7061:7468::15")
    }

    pub(crate) fn loopback(self) -> IpAddr {
        self.pick("127.0.0.1", "::1")
    }

    pub(crate) fn unspecified(self) -> IpAddr {
        self.pick("0.0.0.0", "::")
    }

    /// Returns the host's address towards the outside.
    pub(crate) fn host(self) -> IpAddr {
        self.pick(THIS_V4, THIS_V6)
    }

    /// Returns the address of the other machine.
    pub(crate) fn outside(self) -> IpAddr {
        self.pick(OUTSIDE_V4, OUTSIDE_V6)
    }

    /// Returns an address behind the other machine, which drops packets to it.
    pub(crate) fn blackhole(self) -> IpAddr {
        self.pick("198.51.100.1", "2001:db8:b::1")
    }

    /// Returns an address for which the host has an `unreachable` route.
    pub(crate) fn unreachable(self) -> IpAddr {
        self.pick("203.0.113.1", "2001:db8:c::1")
    }

    /// Returns an address for which the host has no route.
    pub(crate) fn unrouted(self) -> IpAddr {
        self.pick("198.18.0.1", "2001:db8:d::1")
    }

    /// Returns an unused address of the outside network.
    pub(crate) fn nobody(self) -> IpAddr {
        self.pick("192.0.2.99", "2001:db8:1::99")
    }

    /// Returns the address of a [`host::Far`].
    pub(crate) fn far(self) -> IpAddr {
        self.pick(FAR_V4, FAR_V6)
    }

    /// Returns an address that the router before a [`host::Far`] forbids.
    pub(crate) fn forbidden(self) -> IpAddr {
        self.pick("198.19.1.1", "2001:db8:f::1")
    }

    fn pick(self, v4: &str, v6: &str) -> IpAddr {
        let text = if self == Family::V4 { v4 } else { v6 };
        text.parse().expect("an address")
    }
}

/// Prints a note about a test that is not a result.
pub(crate) fn note(name: &str, what: &str) {
    println!("note: {name}: {what}");
}

/// Returns an address in the form for a URL.
pub(crate) fn url_host(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("[{v6}]"),
    }
}

/// The only reader of the clock.
#[expect(clippy::disallowed_methods, reason = "tests bound how long they wait")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Repeats `attempt` until it returns a value; fails the test after [`PATIENCE`].
pub(crate) fn retry<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let begun = now();
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(begun.elapsed() < PATIENCE, "waited too long for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns why a program cannot be used, if it cannot.
fn missing(program: &str) -> Option<String> {
    find_program(program).is_none().then(|| format!("{program} is not installed"))
}

/// Returns the path of a program.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let places = path.split(':').chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"]);
    places.map(|place| Path::new(place).join(name)).find(|file| file.is_file())
}
