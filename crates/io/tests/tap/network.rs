//! Namespaces with one device each, alone or joined.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use towpath_io::namespace::{Addresses, Interface};
use towpath_io::reactor::{Events, Interest, Reactor};
use towpath_io::tap::{Features, SelfTest, Tap, TapError};
use towpath_packet::{Burst, Device, Memory, MemoryConfig, Piece};

use crate::support::cx;

const TICK: Option<Duration> = Some(Duration::from_millis(20));

/// One end of a test network: a TAP device in a namespace, with addresses on both sides.
#[derive(Clone, Copy)]
pub(crate) struct End {
    pub(crate) host: u8,
    pub(crate) other: u8,
    pub(crate) mtu: u16,
}

impl End {
    pub(crate) fn mac(host: u8) -> [u8; 6] {
        [0x02, 0, 0, 0, 0, host]
    }

    pub(crate) fn v4(host: u8) -> IpAddr {
        IpAddr::from([10, 9, 8, host])
    }

    pub(crate) fn v6(host: u8) -> IpAddr {
        IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(host)])
    }

    pub(crate) fn interface(&self) -> Interface {
        let network =
            |address: IpAddr, prefix_len, gateway| Addresses { address, prefix_len, gateway };
        Interface {
            name: "tap0".to_owned(),
            mtu: self.mtu,
            tx_queue_len: 1000,
            mac: Self::mac(self.host),
            ipv4: Some(network(Self::v4(self.host), 24, Self::v4(self.other))),
            ipv6: Some(network(Self::v6(self.host), 64, Self::v6(self.other))),
            further: Vec::new(),
            routes: Vec::new(),
        }
    }

    pub(crate) fn self_test(&self) -> SelfTest {
        let v4 = |host| match Self::v4(host) {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        };
        let v6 = |host| match Self::v6(host) {
            IpAddr::V6(address) => Some(address),
            IpAddr::V4(_) => None,
        };
        SelfTest {
            program_mac: Self::mac(self.host),
            gateway_mac: Self::mac(self.other),
            program_v4: v4(self.host),
            program_v6: v6(self.host),
            gateway_v4: v4(self.other),
            gateway_v6: v6(self.other),
            mtu: self.mtu,
        }
    }

    /// Creates this end's device in the namespace of this thread, sets it up and adds its
    /// addresses.
    pub(crate) fn tap(&self, wanted: Features) -> Tap {
        let mut tap = Tap::create("tap0").expect("a TAP device");
        tap.set_offload(wanted).expect("features");
        tap.set_mtu(self.mtu);
        self.interface().configure().expect("addresses");
        tap
    }
}

pub(crate) const ONE: End = End { host: 1, other: 2, mtu: 1500 };
pub(crate) const TWO: End = End { host: 2, other: 1, mtu: 1500 };

/// Moves this thread into a new network namespace; false, with a message, if that is not permitted.
fn enter_namespace() -> bool {
    // SAFETY: the call is safe unless it unshares descriptors; this one unshares only the network
    // namespace.
    match unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
        Ok(()) => {}
        Err(errno) => {
            println!("skipped: no network namespace: {errno}");
            return false;
        }
    }
    if let Err(error @ (TapError::NoDevice | TapError::DeviceForbidden)) = Tap::create("probe") {
        println!("skipped: {error}");
        return false;
    }
    true
}

/// Runs `body` on a thread in a namespace of its own.
pub(crate) fn isolated(body: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let run = || {
            if enter_namespace() {
                body();
            }
        };
        scope.spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Counters of the packets forwarded between two ends.
pub(crate) struct Forwarded {
    pub(crate) memory: Memory,
    pub(crate) taps: [Tap; 2],
    /// Lengths of the pieces of the longest frame.
    pub(crate) longest: Vec<usize>,
}

/// Runs `one` and `two` in two namespaces, and forwards between them until both are finished.
pub(crate) fn joined(
    features: Features,
    one: impl FnOnce() + Send,
    two: impl FnOnce() + Send,
) -> Option<Forwarded> {
    let done = [AtomicBool::new(false), AtomicBool::new(false)];
    thread::scope(|scope| {
        let (sender, taps) = mpsc::channel();
        let bodies: [Box<dyn FnOnce() + Send>; 2] = [Box::new(one), Box::new(two)];
        let mut threads = Vec::new();
        for ((body, end), done) in bodies.into_iter().zip([ONE, TWO]).zip(&done) {
            let sender = sender.clone();
            threads.push(scope.spawn(move || {
                if enter_namespace() {
                    let tap = end.tap(features);
                    let features = tap.features();
                    sender.send((end.host, tap.into_fd(), features)).expect("a forwarder");
                    drop(sender);
                    let _raise = Raise(done);
                    body();
                }
            }));
        }
        drop(sender);
        let mut taps: Vec<(u8, OwnedFd, Features)> = taps.iter().take(2).collect();
        taps.sort_by_key(|(host, ..)| *host);
        let taps = taps.into_iter().map(|(_, fd, features)| Tap::from_fd(fd, features, 1500));
        let forwarded = match <[Tap; 2]>::try_from(taps.collect::<Vec<_>>()) {
            Ok(taps) => Some(forward(taps, &done)),
            Err(_) => None,
        };
        for thread in threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        forwarded
    })
}

/// Sets a flag when dropped, also when a test fails, so that no thread waits for it forever.
struct Raise<'a>(&'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn forward(mut taps: [Tap; 2], done: &[AtomicBool; 2]) -> Forwarded {
    let config = MemoryConfig { packets: 512, small_frames: 512, large_frames: 512 };
    let mut memory = Memory::new(config);
    let mut reactor = Reactor::new().expect("epoll");
    for (token, tap) in taps.iter().enumerate() {
        reactor.add(tap, token as u64, Interest::READ, false).expect("add");
    }
    let (mut events, mut burst) = (Events::new(), Burst::new());
    let mut longest: Vec<usize> = Vec::new();
    // Acquire: pairs with the Release in `Raise::drop`.
    while !done.iter().all(|done| done.load(Ordering::Acquire)) {
        reactor.wait(TICK, &mut events).expect("wait");
        for event in events.iter() {
            let from = event.token as usize;
            taps[from].receive(&mut burst, &mut cx(&mut memory)).expect("received");
            for packet in burst.iter() {
                if packet.len() > longest.iter().sum() {
                    longest = packet.pieces().map(Piece::len).collect();
                }
            }
            taps[1 - from].transmit(&mut burst, &mut cx(&mut memory)).expect("sent");
            burst.clear();
        }
    }
    Forwarded { memory, taps, longest }
}

impl Forwarded {
    /// Goal shared by all tests with two ends: nothing is dropped on the way, and no frame is lost.
    pub(crate) fn finish(mut self) {
        for tap in &mut self.taps {
            assert_eq!(tap.counters().receive_dropped(), 0);
            assert_eq!(tap.counters().transmit_dropped(), 0);
            assert_eq!(tap.withdrawn(), Features::NONE);
            tap.rest();
        }
        let Memory { packets, small, large } = &self.memory;
        assert_eq!((packets.out_count(), small.out_count(), large.out_count()), (0, 0, 0));
    }
}
