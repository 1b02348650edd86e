//! A worker with an inside made for one question each, and a worker's stack facing a program's.

use super::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use towpath_net::fragment::into_received;
use towpath_packet::Device;
use towpath_packet::sync::{AtomicU32, Ordering::Relaxed};

/// Turns within which the worker must have polled the inside.
const TURNS_MAX: u32 = 100;

/// An inside whose turn is always due, and that can only be polled.
struct Busy {
    /// Never readable.
    file: OwnedFd,
    looked_at: OwnedFd,
    turns: u32,
}

impl Inside for Busy {
    fn add_to(&self, _: &mut Report) {}
}

impl Device for Busy {
    type Error = io::Error;

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn caps(&self) -> Caps {
        Caps::plain(1500)
    }

    fn next_deadline(&self) -> Option<Instant> {
        Some(Instant::START)
    }

    fn turn(&mut self, _: bool, _: &mut Context<'_>) -> io::Result<()> {
        self.turns += 1;
        match self.turns {
            ..TURNS_MAX => Ok(()),
            _ => Err(io::Error::other("the worker never polled the inside")),
        }
    }

    fn poll(&mut self) -> bool {
        rustix::io::write(&self.looked_at, &1_u64.to_ne_bytes()).expect("room");
        false
    }

    fn receive(&mut self, _: &mut Burst, _: &mut Context<'_>) -> io::Result<Input> {
        Ok(Input::Done)
    }

    fn transmit(&mut self, _: &mut Burst, _: &mut Context<'_>) -> io::Result<()> {
        Ok(())
    }
}

/// Goal: a worker that never sleeps requests no kicks, so it has to poll the inside. Method: the
/// worker ends when it polls the inside, and fails after `TURNS_MAX` turns.
#[test]
fn a_busy_worker_looks_at_its_inside() {
    let file = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    let looked_at = file();
    let end = looked_at.try_clone().unwrap();
    let inside = Busy { file: file(), looked_at, turns: 0 };
    let mut worker = Worker::serving(&Config::default(), inside, Arc::default()).unwrap();
    assert_eq!(worker.run_until(&[end.as_fd()]).unwrap(), 0);
}

/// An inside that is always readable. It returns one packet per read at first, and many at once at
/// the end.
struct Singles {
    file: OwnedFd,
    end: OwnedFd,
    /// Packets that are still to come alone, and then together.
    alone: u32,
    together: u32,
    /// Reads that found nothing.
    vain: Arc<AtomicU32>,
}

impl Inside for Singles {
    fn add_to(&self, _: &mut Report) {}
}

impl Device for Singles {
    type Error = io::Error;

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn caps(&self) -> Caps {
        Caps::plain(1500)
    }

    fn looks_by_call(&self) -> bool {
        true
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> io::Result<Input> {
        let is_alone = self.alone > 0;
        while !burst.is_full() {
            let left = if is_alone { &mut self.alone } else { &mut self.together };
            if *left == 0 || is_alone && !burst.is_empty() {
                self.vain.fetch_add(1, Relaxed);
                break;
            }
            *left -= 1;
            burst.push(cx.memory.packet().expect("memory")).expect("room");
        }
        if self.alone + self.together == 0 {
            rustix::io::write(&self.end, &1_u64.to_ne_bytes())?;
        }
        Ok(Input::Done)
    }

    fn transmit(&mut self, _: &mut Burst, _: &mut Context<'_>) -> io::Result<()> {
        Ok(())
    }
}

/// Goal: where packets come alone, the worker rarely reads an empty inside, and takes every packet.
/// Method: the inside counts reads in vain; the worker ends when it has taken all packets.
#[test]
fn an_inside_with_single_packets_is_not_asked_for_more() {
    let vain = Arc::new(AtomicU32::new(0));
    let end = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    let inside = Singles {
        file: eventfd(1, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap(),
        end: end.try_clone().unwrap(),
        alone: 160,
        together: 100,
        vain: vain.clone(),
    };
    let mut worker = Worker::serving(&Config::default(), inside, Arc::default()).unwrap();
    assert_eq!(worker.run_until(&[end.as_fd()]).unwrap(), 0);
    assert_eq!(worker.inside().alone + worker.inside().together, 0, "all were taken");
    let vain = vain.load(Relaxed);
    assert!((4..30).contains(&vain), "{vain} looks in vain for 160 packets");
}

/// A program's stack facing the worker's stack, with a clock of their own.
struct Rig {
    gateway: Stack,
    program: Stack,
    memory: Memory,
    ledger: Ledger,
    now: Instant,
}

impl Rig {
    fn new() -> Self {
        let config = Config::default();
        let caps =
            Caps { checksum: true, tso4: true, gso_bytes_max: 65_535 + 14, ..Caps::plain(1500) };
        let net = config.ipv4.unwrap();
        let (address, gateway) = (IpAddr::from(net.address), IpAddr::from(net.gateway));
        let own = stack::Config {
            mac: MacAddr(config.program_mac),
            addresses: vec![Address { address, prefix_len: net.prefix_len }],
            next_hops: vec![gateway],
            transparent: false,
            secret: [1, 2],
            tcp: Settings::default(),
            limits: Limits::default(),
        };
        let mut rig = Self {
            gateway: new_stack(&config, caps, vec![address], &[]).unwrap(),
            program: Stack::new(own, caps),
            memory: Memory::new(MemoryConfig::within(8 << 20)),
            ledger: Ledger::new(),
            now: Instant::START,
        };
        rig.gateway.set_neighbor(address, MacAddr(config.program_mac));
        rig.program.set_neighbor(gateway, MacAddr(config.gateway_mac));
        rig
    }

    /// Moves the packets of one stack to the other, one hop time later; returns their lengths.
    fn pass(&mut self, to_gateway: bool) -> Vec<usize> {
        let Self { gateway, program, memory, ledger, .. } = self;
        let (from, to) = if to_gateway { (program, gateway) } else { (gateway, program) };
        let mut sent = Burst::new();
        from.output(&mut sent, &mut Context { memory, ledger, now: self.now });
        let lens = sent.iter().map(Packet::len).collect();
        self.now += HOP;
        let mut received = Burst::new();
        while let Some(packet) = sent.pop() {
            received.push(into_received(packet, memory).expect("memory")).expect("room");
        }
        to.input(&mut received, &mut Context { memory, ledger, now: self.now });
        lens
    }
}

/// Time on the way of a packet: long compared to a copy.
const HOP: Duration = Duration::from_millis(5);

/// Goal: packets to the program are as large as the window allows, however slow the handshake was.
/// Method: on a simulated clock, the ten segments of the first window form two packets of half the
/// window each.
#[test]
fn packets_are_large_on_a_path_that_seemed_slow() {
    let mut rig = Rig::new();
    let net = Config::default().ipv4.unwrap();
    let (local, remote) = ((net.address, 40_000).into(), ([192, 0, 2, 1], 80).into());
    rig.program.tcp_connect(local, remote, rig.now).unwrap();
    rig.pass(true);
    let (handle, _) = rig.gateway.next_event().expect("the SYN is reported");
    rig.gateway.with_tcp(handle, rig.now, |connection| connection.accept());
    rig.pass(false);
    rig.pass(true);
    let pieces: Vec<_> = (0..64).map_while(|_| rig.memory.small.take()).collect();
    rig.gateway.with_tcp(handle, rig.now, |connection| {
        pieces.into_iter().for_each(|frame| connection.send(frame.freeze(2000)));
    });
    let lens = rig.pass(false);
    assert!(
        lens.len() == 2 && lens.iter().all(|len| (5 * 1448..6 * 1448).contains(len)),
        "{lens:?}"
    );
}
