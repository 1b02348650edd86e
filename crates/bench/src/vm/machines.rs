//! Two real virtual machines, and bulk TCP from one to the other: through towpath with payload
//! shared and with payload copied out at the switch, and through a kernel bridge with two TAP
//! devices.
//!
//! Both machines have a card for each of these paths, so that the same machines measure all of
//! them. The receiving card accepts no large packets: the packets that the other machine sends are
//! segmented on the way. The receiver counts the bytes. Times are the host's and include the start
//! of two small programs.
//!
//! The machines run under software emulation, which takes nearly all of the time, so speed says
//! little. The meaningful figures are towpath's processor time, and how often it copied each byte.
//! A bridge runs in the time of QEMU and of the kernel's own threads: it can be compared by the
//! processor time of everything that takes part.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::machine::{self, INITRD, Machine, QEMU, device, vhost_user};
use super::traffic::{RECEIVER, SENDER, Serving};
use crate::cases::Case;
use crate::lab::ip;
use crate::ping_pong::Stopwatch;
use crate::process::{self, KernelThreads, processors};
use crate::say;
use crate::scratch::Scratch;
use crate::system::version;

/// The cases, in the order of the report and of the figures that [`Machines::measure`] returns.
pub(super) static CASES: [Case; 4] = [
    Case::high("vm_guests", "Gbit/s"),
    Case::low("vm_guests_cpu", "s/GiB"),
    Case::low("vm_guests_cpu_all", "s/GiB"),
    Case::low("vm_guests_copies", "copies/byte"),
];

/// The paths between the machines, towpath's first.
const SYSTEMS: [&str; 3] = ["shared", "orphan", "bridge"];

/// Both machines and the paths between them. All of it ends with this value.
pub(super) struct Machines<'a> {
    sender: Machine,
    receiver: Machine,
    ways: Vec<Way>,
    /// Why there is no bridge.
    no_bridge: Option<String>,
    kernel: &'a KernelThreads,
}

/// The parts that machines need to boot.
pub(super) struct Booting<'a> {
    /// The directory of the images that they boot.
    pub(super) images: &'a Path,
    /// The directory of sockets.
    pub(super) scratch: &'a Path,
    pub(super) kernel: &'a KernelThreads,
}

/// One path from machine to machine.
struct Way {
    /// towpath's worker; `None` for the kernel's bridge.
    serving: Option<Serving>,
    /// Bytes per second of the last transfer.
    rate: f64,
    _sockets: Option<Scratch>,
}

/// Why there are no machines to measure with; they boot the images in `directory`.
pub(super) fn missing(directory: &Path) -> Option<String> {
    machine::missing(directory)
}

impl<'a> Booting<'a> {
    /// Boots both machines, and moves some bytes along each path.
    pub(super) fn boot(&self) -> anyhow::Result<Machines<'a>> {
        let Self { images, scratch, kernel } = *self;
        let (mut ways, mut cards) = (Vec::new(), [Vec::new(), Vec::new()]);
        for orphan in [false, true] {
            let sockets = Scratch::inside(scratch)?;
            // On any processor: the machines are not pinned either.
            let serving = Serving::start(orphan, &sockets, 1, processors()?)?;
            for (end, name) in [SENDER, RECEIVER].into_iter().enumerate() {
                let properties = properties(end, ways.len());
                cards[end].extend(vhost_user(ways.len(), &sockets.path(name), 1, &properties));
            }
            ways.push(Way { serving: Some(serving), rate: 0.0, _sockets: Some(sockets) });
        }
        let no_bridge = bridge().err().map(|error| format!("{error:#}"));
        if no_bridge.is_none() {
            let number = ways.len();
            for (end, tap) in TAPS.into_iter().enumerate() {
                let netdev = format!("tap,id=n{number},ifname={tap},script=no,downscript=no");
                let device = device(number, &properties(end, number));
                cards[end].extend(["-netdev".to_owned(), netdev, "-device".to_owned(), device]);
            }
            ways.push(Way { serving: None, rate: 0.0, _sockets: None });
        }
        say::notice("booting two machines");
        let boot = |end: usize| {
            let mut machine = Machine::boot(images, INITRD, 1, &cards[end])?;
            for number in 0..ways.len() {
                let (card, address) = (format!("eth{number}"), address(end, number));
                machine.run(&format!("ip addr add {address}/24 dev {card}"))?;
                machine.run(&format!("ip link set {card} up"))?;
            }
            anyhow::Ok(machine)
        };
        let (sender, receiver) = (boot(0)?, boot(RECEIVING)?);
        let mut machines = Machines { sender, receiver, ways, no_bridge, kernel };
        for (number, name) in machines.ways().iter().enumerate() {
            machines.transfer(number, BYTES_MIN).context(*name)?;
        }
        Ok(machines)
    }
}

impl Machines<'_> {
    /// Names of the paths between the machines.
    pub(super) fn ways(&self) -> &'static [&'static str] {
        &SYSTEMS[..self.ways.len()]
    }

    /// The systems that have figures of a case.
    pub(super) fn systems(&self, case: &Case) -> &'static [&'static str] {
        let is_of_towpath = [&CASES[1], &CASES[3]].contains(&case);
        if is_of_towpath { &SYSTEMS[..2] } else { self.ways() }
    }

    /// The software below the machines, and why something is not measured.
    pub(super) fn circumstances(&self) -> impl Iterator<Item = String> {
        let version = version(QEMU).unwrap_or_default();
        let no_bridge = self.no_bridge.as_ref();
        let no_bridge = no_bridge.map(|why| format!("bridge: not measured: {why}"));
        [format!("real machines: {version}, software emulation")].into_iter().chain(no_bridge)
    }

    /// Measures one path for about `span`. Returns a figure for each of [`CASES`] that this path
    /// has.
    pub(super) fn measure(
        &mut self,
        way: usize,
        span: Duration,
    ) -> anyhow::Result<[Option<f64>; CASES.len()]> {
        let bytes = (self.ways[way].rate * span.as_secs_f64()) as u64;
        self.transfer(way, bytes.clamp(BYTES_MIN, BYTES_MAX))
    }

    /// Powers both machines off, and checks that the paths served them without errors.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        self.sender.power_off()?;
        self.receiver.power_off()?;
        for serving in self.ways.into_iter().filter_map(|way| way.serving) {
            serving.stop()?;
        }
        Ok(())
    }

    fn transfer(&mut self, way: usize, bytes: u64) -> anyhow::Result<[Option<f64>; CASES.len()]> {
        let blocks = bytes.div_ceil(BLOCK_BYTES);
        let Self { sender, receiver, .. } = self;
        let sink = "dd of=/dev/null bs=64k iflag=fullblock";
        receiver.start(&format!("nc -l -p {PORT} -e {sink} 2> /tmp/told &"))?;
        receiver.run(&format!("while ! netstat -ltn | grep -q :{PORT}; do sleep 0.1; done"))?;
        let (before, started) = (self.ways[way].used(self.kernel)?, Stopwatch::start());
        let source = format!("dd if=/dev/zero bs=64k count={blocks}");
        let to = address(RECEIVING, way);
        sender.run(&format!("nc {to} {PORT} -e {source} 2> /dev/null"))?;
        let reported = receiver.run("wait; cat /tmp/told")?;
        let (seconds, after) = (started.elapsed().as_secs_f64(), self.ways[way].used(self.kernel)?);
        let is_whole = reported.contains(&format!("{blocks}+0 records in"));
        ensure!(is_whole, "{blocks} blocks were sent: {reported:?}");
        let bytes = (blocks * BLOCK_BYTES) as f64;
        self.ways[way].rate = bytes / seconds;
        let [cpu, cpu_all, copied] = std::array::from_fn(|at| Some(after[at]? - before[at]?));
        let per_gib = |used: f64| used * f64::from(1_u32 << 30) / bytes;
        Ok([
            Some(bytes * 8e-9 / seconds),
            cpu.map(per_gib),
            cpu_all.map(per_gib),
            copied.map(|copied| copied / bytes),
        ])
    }
}

impl Way {
    /// Usage since the start: processor time of towpath and of everything that takes part, and
    /// bytes copied by towpath.
    fn used(&self, kernel: &KernelThreads) -> anyhow::Result<[Option<f64>; 3]> {
        let all = process::cpu_seconds_fine(&process::all()) + kernel.cpu_seconds();
        let cpu = self.serving.as_ref().map(Serving::cpu).transpose()?;
        let copied = self.serving.as_ref().map(|serving| serving.ledger.copied() as f64);
        Ok([cpu.map(|cpu| cpu.as_secs_f64()), Some(all), copied])
    }
}

/// The figure of a case, from the result of [`Machines::measure`].
pub(super) fn figure(case: &Case, figures: &[Option<f64>; CASES.len()]) -> Option<f64> {
    CASES.iter().position(|other| other == case).and_then(|at| figures[at])
}

/// Makes a bridge with two TAP devices. They disappear with the network of this process.
fn bridge() -> anyhow::Result<()> {
    ip("link add bridge0 type bridge")?;
    ip("link set bridge0 up")?;
    for tap in TAPS {
        ip(&format!("tuntap add dev {tap} mode tap vnet_hdr"))?;
        ip(&format!("link set {tap} master bridge0 up"))?;
    }
    Ok(())
}

/// Properties of a machine's card.
fn properties(end: usize, number: usize) -> String {
    let mac = format!(",mac=02:00:00:00:0{end}:0{number}");
    match end {
        RECEIVING => mac + ",guest_tso4=off,guest_tso6=off,guest_ufo=off",
        _ => mac,
    }
}

/// A machine's address on one path; each path has its own subnet.
fn address(end: usize, number: usize) -> Ipv4Addr {
    [10, 1, number as u8, 1 + end as u8].into()
}

/// Index of the receiving machine.
const RECEIVING: usize = 1;
const TAPS: [&str; 2] = ["sender0", "receiver0"];
const PORT: u16 = 9;
/// Bytes that programs in the machines write at once.
const BLOCK_BYTES: u64 = 64 << 10;
/// Small enough for a quick run, and so large that the handshake and acknowledgements do not
/// matter.
const BYTES_MIN: u64 = 16 << 20;
const BYTES_MAX: u64 = 64 << 30;
