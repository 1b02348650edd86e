//! Drives an instance through virtual or real time.

use super::settings::Folder;
use crate::instance::{Clock, Config, Guard, Instance, VIRTUAL_EPOCH, VIRTUAL_START};
use crate::wire::Wire;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;
use towpath::driver::Clock as RealClock;
use towpath::host;
use towpath::layers::net::time::Instant;

/// How long before an event packetdrill stops sleeping and spins until the event is due.
const SPIN: Duration = Duration::from_micros(20);
/// Number of consecutive queries of the time after which they count as a loop that waits.
const SPIN_COUNT: u32 = 16;
/// Longest virtual time that passes while one packet is awaited.
const PATIENCE: Duration = Duration::from_secs(600);
/// Longest real time to wait for a call of the other thread.
const SETTLE_MAX: Duration = Duration::from_secs(2);
/// The secret, which is constant so that all runs have the same sequence numbers.
const SECRET: [u64; 2] = [0x746f_7770, 0x6174_6820];
/// Longest sleep in real time without a check of the timers.
const TICK: Duration = Duration::from_millis(1);

/// The flags in the tool's option `--so_flags`.
#[derive(Default)]
struct Flags {
    real: bool,
    mtu: Option<u16>,
    addresses: Vec<(IpAddr, u8)>,
    settings: Option<String>,
    /// Notices report lent memory as copied, as the kernel does on the device that packetdrill uses
    /// with it.
    copied: bool,
}

impl Flags {
    /// Parses `KEY` or `KEY=VALUE`, separated by commas.
    fn parse(text: &str) -> Result<Self, String> {
        let mut flags = Flags::default();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let wrong = || format!("{word}: not understood");
            match key {
                "virtual" => flags.real = false,
                "real" => flags.real = true,
                "mtu" => flags.mtu = Some(value.parse().map_err(|_| wrong())?),
                "local" => {
                    let address: IpAddr = value.parse().map_err(|_| wrong())?;
                    flags.addresses.push((address, if address.is_ipv4() { 32 } else { 128 }));
                }
                "copied" => flags.copied = true,
                "settings" => flags.settings = Some(value.into()),
                _ => return Err(wrong()),
            }
        }
        Ok(flags)
    }
}

/// What the driver knows about the tool's threads.
#[derive(Default)]
struct Threads {
    /// A call of the other thread has ended, and that thread has not asked for the time since.
    owing: bool,
    /// Consecutive queries of the time.
    asked: u32,
}

/// An instance, with the driver of its packets and its time.
pub(super) struct Driver {
    pub(super) instance: Instance,
    main: ThreadId,
    threads: Mutex<Threads>,
    settings: Mutex<Option<Folder>>,
    /// Time of the instance's zero, in microseconds since 1970.
    epoch: u64,
}

impl Driver {
    /// Makes a driver with these flags. The calling thread is its main thread.
    pub(super) fn new(flags: &str) -> Result<Self, String> {
        let flags = Flags::parse(flags)?;
        let config = Config {
            host: host::Config {
                addresses: flags.addresses,
                mtu: flags.mtu.unwrap_or(1500),
                ..host::Config::default()
            },
            ..Config::default()
        };
        let (clock, epoch) = if flags.real {
            let clock = Clock::Real(RealClock::new());
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            (clock, since.map_or(0, |since| since.as_micros() as u64))
        } else {
            let epoch = VIRTUAL_EPOCH.as_micros() as u64 - VIRTUAL_START.micros();
            (Clock::Virtual(VIRTUAL_START), epoch)
        };
        let settings = flags.settings.map(|path| Folder::open(path.into())).transpose();
        let settings = settings.map_err(|error| format!("settings: {error}"))?;
        let instance = Instance::driven(&config, SECRET, clock);
        let driver = Self {
            instance: instance.map_err(|errno| format!("no instance: error {}", errno.0))?,
            main: thread::current().id(),
            threads: Mutex::default(),
            settings: Mutex::new(settings),
            epoch,
        };
        driver.instance.lock().engine.protocols.report_copied(flags.copied);
        driver.read_settings()?;
        Ok(driver)
    }

    fn threads<R>(&self, act: impl FnOnce(&mut Threads) -> R) -> R {
        act(&mut self.threads.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_main(&self) -> bool {
        thread::current().id() == self.main
    }

    /// Applies settings that have changed.
    fn read_settings(&self) -> Result<(), String> {
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(folder) = &mut *settings
            && folder.has_changed()
        {
            let mut state = self.instance.lock();
            folder.apply(&mut state)?;
        }
        Ok(())
    }

    /// Applies settings that have changed. One that is refused ends the script, as a failed
    /// `sysctl` does.
    fn follow_settings(&self) {
        if let Err(problem) = self.read_settings() {
            refuse(&problem);
        }
    }

    /// Makes a call that packetdrill has requested.
    pub(super) fn call<R>(&self, act: impl FnOnce(&Instance) -> R) -> R {
        self.follow_settings();
        self.threads(|threads| threads.asked = 0);
        if self.is_main() {
            return act(&self.instance);
        }
        self.instance.lock().running += 1;
        let result = act(&self.instance);
        self.threads(|threads| threads.owing = true);
        result
    }

    /// Accepts a packet from packetdrill. False if there is no memory for it.
    pub(super) fn send(&self, packet: &[u8]) -> bool {
        let taken = self.call(|instance| instance.call(|state| state.receive(packet)));
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(folder) = &mut *settings {
            folder.tell(&self.instance.lock());
        }
        taken
    }

    /// The next packet that left, with the time in microseconds since 1970. Lets time pass until
    /// there is one. `None` if there will be none.
    pub(super) fn receive(&self) -> Option<(u64, Vec<u8>)> {
        self.follow_settings();
        self.threads(|threads| threads.asked = 0);
        let mut state = self.instance.lock();
        let until = state.now() + PATIENCE;
        loop {
            state = self.await_calls(state);
            if let Some((at, packet)) = state.wire.as_ref().and_then(Wire::take) {
                return Some((self.epoch + at.micros(), packet));
            }
            let next = state.next_due();
            let real = matches!(state.clock, Clock::Real(_));
            let next = next.or(real.then_some(until)).filter(|next| *next <= until)?;
            if real && state.now() >= until {
                return None;
            }
            state = self.pass(state, next);
        }
    }

    /// Lets this much time pass.
    pub(super) fn sleep(&self, duration: Duration) {
        self.follow_settings();
        self.threads(|threads| threads.asked = 0);
        let state = self.instance.lock();
        let virtually = matches!(state.clock, Clock::Virtual(_));
        let until = state.now() + duration + if virtually { SPIN } else { Duration::ZERO };
        drop(self.advance(state, until));
    }

    /// Microseconds since 1970.
    pub(super) fn time(&self) -> u64 {
        let main = self.is_main();
        let (owed, asked) = self.threads(|threads| {
            threads.asked += 1;
            (!main && std::mem::take(&mut threads.owing), threads.asked)
        });
        let mut state = self.instance.lock();
        if owed {
            state.running = state.running.saturating_sub(1);
            self.instance.settled.notify_all();
        } else if asked > SPIN_COUNT && matches!(state.clock, Clock::Virtual(_)) {
            let next = state.now() + Duration::from_micros(1);
            state = self.advance(state, next);
        }
        self.epoch + state.now().micros()
    }

    /// Lets time pass until `until`, from one deadline to the next.
    fn advance<'a>(&'a self, mut state: Guard<'a>, until: Instant) -> Guard<'a> {
        loop {
            state = self.await_calls(state);
            if state.now() >= until {
                return state;
            }
            let next = state.next_due().map_or(until, |next| next.min(until));
            state = self.pass(state, next);
        }
    }

    /// Lets time pass until `next`, when work is due. Real time may stop earlier.
    fn pass<'a>(&'a self, mut state: Guard<'a>, next: Instant) -> Guard<'a> {
        let now = state.now();
        match &mut state.clock {
            Clock::Virtual(at) => *at = next.max(now),
            Clock::Real(_) => {
                drop(state);
                thread::sleep(next.since(now).min(TICK));
                state = self.instance.lock();
            }
        }
        state.run_timers();
        self.instance.settle(&mut state);
        let now = state.now();
        if state.waits.iter().any(|at| *at <= now) {
            state.notify();
        }
        state
    }

    /// Lets calls of the other thread continue if they can.
    fn await_calls<'a>(&'a self, mut state: Guard<'a>) -> Guard<'a> {
        if matches!(state.clock, Clock::Real(_)) {
            return state;
        }
        while state.running > 0 {
            let settled = &self.instance.settled;
            let (guard, timeout) = state.wait(|guard| {
                let waited = settled.wait_timeout(guard, SETTLE_MAX);
                waited.unwrap_or_else(PoisonError::into_inner)
            });
            state = guard;
            if timeout.timed_out() {
                eprintln!("towpath: a system call does not end");
                state.running = 0;
            }
        }
        state
    }
}

/// Reports why no script can be played, and ends the tool.
pub(super) fn refuse(problem: &str) -> ! {
    eprintln!("towpath: {problem}");
    std::process::exit(2);
}
