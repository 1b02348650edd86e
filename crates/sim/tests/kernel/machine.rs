//! The kernel of this machine as the subject of scripts: sockets in a network namespace of this
//! thread, frames through a TAP device, real time.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use rustix::thread::{UnshareFlags, unshare_unsafe};
use towpath_io::namespace::{Addresses, Interface};
use towpath_io::reactor::{Events, Interest, Reactor};
use towpath_io::tap::Tap;
use towpath_packet::{Burst, Context, Device, Ledger, Memory, MemoryConfig, time};
use towpath_sim::link::received;
use towpath_sim::oracle;
use towpath_sim::script::{
    Call, Ends, Fd, LISTEN_PORT, Micros, Outcome, REMOTE_MAC, REMOTE_PORT, Subject,
};

use crate::sockets::Sockets;

/// The kernel's link-layer address.
const LOCAL_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// The kernel with its TAP device.
pub(super) struct Machine {
    start: Instant,
    tap: Tap,
    memory: Memory,
    ledger: Ledger,
    reactor: Reactor,
    burst: Burst,
    sockets: Sockets,
}

fn addresses(v6: bool) -> [IpAddr; 2] {
    [1, 2].map(|host: u8| match v6 {
        false => Ipv4Addr::new(192, 168, 0, host).into(),
        true => Ipv6Addr::new(0xfd3d, 0, 0, 0, 0, 0, 0, host.into()).into(),
    })
}

/// Moves this thread into a new network namespace.
///
/// # Errors
/// The reason of the failure.
pub(super) fn enter_namespace() -> Result<(), String> {
    // SAFETY: a new network namespace does not affect file descriptors or memory.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
        .map_err(|errno| format!("no network namespace: {errno}"))?;
    Tap::create("probe").map(drop).map_err(|error| error.to_string())
}

impl Machine {
    /// Makes a machine in the namespace of this thread. The calls of its scripts use IPv4.
    pub(super) fn new() -> Self {
        let tap = Tap::create("tap0").expect("a TAP device");
        let network = |v6| {
            let [address, gateway] = addresses(v6);
            Some(Addresses { address, prefix_len: if v6 { 64 } else { 24 }, gateway })
        };
        let interface = Interface {
            name: "tap0".into(),
            mtu: 1500,
            tx_queue_len: 1000,
            mac: LOCAL_MAC,
            ipv4: network(false),
            ipv6: network(true),
            further: Vec::new(),
            routes: Vec::new(),
        };
        interface.configure().expect("addresses");
        let reactor = Reactor::new().expect("epoll");
        reactor.add(&tap, 0, Interest::READ, false).expect("a reader");
        let config = MemoryConfig { packets: 256, small_frames: 256, large_frames: 256 };
        let (memory, ledger) = (Memory::new(config), Ledger::new());
        let (burst, sockets) = (Burst::new(), Sockets::default());
        Self { start: clock(), tap, memory, ledger, reactor, burst, sockets }
    }

    /// Reads the next frame, if there is one.
    fn take(&mut self) -> Option<Vec<u8>> {
        if self.burst.is_empty() {
            let Self { tap, memory, ledger, burst, .. } = self;
            tap.receive(burst, &mut cx(memory, ledger)).expect("frames");
        }
        self.burst.pop().map(|packet| oracle::flatten(&packet))
    }

    /// Answers queries for the script's link-layer address.
    fn answer(&mut self, frame: &[u8]) -> bool {
        let arp = frame.get(12..14) == Some(&[0x08, 0x06]) && frame.get(20..22) == Some(&[0, 1]);
        if !arp || frame.len() < 42 {
            return false;
        }
        let mut answer = frame[..42].to_vec();
        answer[..6].copy_from_slice(&LOCAL_MAC);
        answer[6..12].copy_from_slice(&REMOTE_MAC);
        answer[21] = 2;
        answer[22..28].copy_from_slice(&REMOTE_MAC);
        answer[28..32].copy_from_slice(&frame[38..42]);
        answer[32..42].copy_from_slice(&frame[22..32]);
        self.inject(&answer);
        true
    }
}

impl Subject for Machine {
    fn ends(&self, v6: bool) -> Ends {
        let [local, remote] = addresses(v6);
        Ends {
            local: SocketAddr::new(local, LISTEN_PORT),
            remote: SocketAddr::new(remote, REMOTE_PORT),
            local_mac: LOCAL_MAC,
            remote_mac: REMOTE_MAC,
        }
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let file = format!("/proc/sys/{}", name.replace('.', "/"));
        fs::write(&file, value.replace(',', " ")).map_err(|error| format!("{file}: {error}"))
    }

    fn now(&self) -> Micros {
        (clock() - self.start).as_micros() as Micros
    }

    fn run(&mut self, until: Micros) -> Option<(Micros, Vec<u8>)> {
        let mut events = Events::new();
        loop {
            while let Some(frame) = self.take() {
                if !self.answer(&frame) {
                    return Some((self.now(), frame));
                }
            }
            let left = until.checked_sub(self.now()).filter(|left| *left > 0)?;
            self.reactor.wait(Some(Duration::from_micros(left)), &mut events).expect("wait");
        }
    }

    fn inject(&mut self, frame: &[u8]) {
        let packet = received(frame, &mut self.memory).expect("enough memory");
        let mut burst = Burst::new();
        burst.push(packet).expect("it is empty");
        let Self { tap, memory, ledger, .. } = self;
        tap.transmit(&mut burst, &mut cx(memory, ledger)).expect("a frame to the kernel");
        assert!(burst.is_empty(), "the device takes a frame");
    }

    fn call(&mut self, call: &Call, data: &mut [u8]) -> Outcome {
        let ends = self.ends(false);
        self.sockets.call(call, &ends, data)
    }

    fn info(&mut self, fd: Fd, field: &str) -> Option<i64> {
        self.sockets.info(fd, field)
    }
}

/// The time of a TAP device, which does not use it.
fn cx<'a>(memory: &'a mut Memory, ledger: &'a Ledger) -> Context<'a> {
    Context { memory, ledger, now: time::Instant::START }
}

fn clock() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "the kernel runs in real time")]
    Instant::now()
}
