//! Two real virtual machines, and bulk TCP from one to the other: through towpath with payload
//! shared and with payload copied out at the switch, and through a kernel bridge with two TAP
//! devices.
//!
//! Both machines have a card for each of these paths, so that the same machines measure all of
//! them. The receiving card accepts no large packets: the packets that the other machine sends are
//! segmented on the way. Its kernel does not coalesce them either (`ethtool -K eth0 gro off`), as
//! the receivers for which segmentation without a copy was first measured. The traffic is that of
//! the measurement too: one connection of iperf3 with `-w 256K -l 256K`. The figures are those of
//! the receiving iperf3.
//!
//! The machines use KVM if it boots one of them within [`KVM_PATIENCE`]; otherwise they run under
//! software emulation, which takes nearly all of the time, so speed says little there. The
//! meaningful figures are then towpath's processor time, and how often it copied each byte. A
//! bridge runs in the time of QEMU and of the kernel's own threads: it can be compared by the
//! processor time of everything that takes part.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::machine::{self, EMULATION, INITRD, Machine, QEMU, device, vhost_user};
use super::traffic::{RECEIVER, SENDER, Serving};
use super::workload::WHOLE;
use crate::cases::Case;
use crate::iperf::{self, Direction, Moved, Test};
use crate::lab::{IPERF_PORT, ip};
use crate::process::{self, KernelThreads, processors};
use crate::say;
use crate::scratch::Scratch;
use crate::system::version;

/// Machines of one kind, and their cases.
#[derive(Debug)]
pub(super) struct Kind {
    /// Processors of each machine.
    processors: u16,
    /// In the order of the report and of the figures that [`Machines::measure`] returns.
    pub(super) cases: [Case; FIGURES],
}

pub(super) static KINDS: [Kind; 2] = [
    Kind {
        processors: 1,
        cases: [
            Case::high("vm_guests", "Gbit/s"),
            Case::low("vm_guests_cpu", "s/GiB"),
            Case::low("vm_guests_cpu_all", "s/GiB"),
            Case::low("vm_guests_copies", "copies/byte"),
        ],
    },
    Kind {
        processors: 2,
        cases: [
            Case::high("vm_guests_2cpus", "Gbit/s"),
            Case::low("vm_guests_2cpus_cpu", "s/GiB"),
            Case::low("vm_guests_2cpus_cpu_all", "s/GiB"),
            Case::low("vm_guests_2cpus_copies", "copies/byte"),
        ],
    },
];
/// Figures of a measurement.
const FIGURES: usize = 4;

/// The cases of all kinds.
pub(super) fn cases() -> impl Iterator<Item = &'static Case> {
    KINDS.iter().flat_map(|kind| &kind.cases)
}

/// What runs the machines.
pub(super) enum Accelerator {
    Kvm,
    /// Software emulation, and why KVM is not used.
    Emulation(String),
}

impl Accelerator {
    /// KVM, if it boots a machine.
    pub(super) fn find(images: &Path) -> Self {
        say::notice("looking whether KVM boots a machine");
        let boots = || {
            let mut machine = Machine::start_up(images, INITRD, KVM, 1, &[])?;
            machine.until_ready(KVM_PATIENCE)
        };
        match boots() {
            Ok(()) => Self::Kvm,
            // Its text also lists everything that the machine printed.
            Err(error) => {
                Self::Emulation(error.to_string().lines().next().unwrap_or_default().into())
            }
        }
    }

    fn options(&self) -> &'static [&'static str] {
        match self {
            Self::Kvm => KVM,
            Self::Emulation(_) => EMULATION,
        }
    }
}

/// The paths between the machines, towpath's first.
const SYSTEMS: [&str; 3] = ["shared", "orphan", "bridge"];

/// Both machines and the paths between them. All of it ends with this value.
pub(super) struct Machines<'a> {
    sender: Machine,
    receiver: Machine,
    ways: Vec<Way>,
    /// Why there is no bridge.
    no_bridge: Option<String>,
    booting: &'a Booting<'a>,
    kind: &'static Kind,
}

/// The parts that machines need to boot.
pub(super) struct Booting<'a> {
    /// The directory of the images that they boot.
    pub(super) images: &'a Path,
    /// The directory of sockets.
    pub(super) scratch: &'a Path,
    pub(super) kernel: &'a KernelThreads,
    pub(super) accelerator: Accelerator,
}

/// One path from machine to machine.
struct Way {
    /// towpath's worker; `None` for the kernel's bridge.
    serving: Option<Serving>,
    _sockets: Option<Scratch>,
}

/// Why there are no machines to measure with; they boot the images in `directory`.
pub(super) fn missing(directory: &Path) -> Option<String> {
    let no_iperf3 = || {
        let file = directory.join(INITRD_IPERF3);
        let text = format!("there is no {}; run scripts/guest where iperf3 is", file.display());
        (!file.is_file()).then_some(text)
    };
    machine::missing(directory).or_else(no_iperf3)
}

impl<'a> Booting<'a> {
    /// Boots two machines, and moves some bytes along each path.
    pub(super) fn boot(&'a self, kind: &'static Kind) -> anyhow::Result<Machines<'a>> {
        let scratch = self.scratch;
        let (mut ways, mut cards) = (Vec::new(), [Vec::new(), Vec::new()]);
        for orphan in [false, true] {
            let sockets = Scratch::inside(scratch)?;
            // On any processor: the machines are not pinned either.
            let serving = Serving::start(orphan, &sockets, &WHOLE, [processors()?; 2])?;
            for (end, name) in [SENDER, RECEIVER].into_iter().enumerate() {
                let mut properties = properties(end, ways.len());
                if let Accelerator::Kvm = self.accelerator {
                    // The card's own default, as the bridge's cards have it.
                    properties += ",vectors=4";
                }
                cards[end].extend(vhost_user(ways.len(), &sockets.path(name), 1, &properties));
            }
            ways.push(Way { serving: Some(serving), _sockets: Some(sockets) });
        }
        let no_bridge = bridge().err().map(|error| format!("{error:#}"));
        if no_bridge.is_none() {
            let number = ways.len();
            for (end, tap) in TAPS.into_iter().enumerate() {
                let netdev = format!("tap,id=n{number},ifname={tap},script=no,downscript=no");
                let device = device(number, &properties(end, number));
                cards[end].extend(["-netdev".to_owned(), netdev, "-device".to_owned(), device]);
            }
            ways.push(Way { serving: None, _sockets: None });
        }
        say::notice(format_args!("booting two machines of {} processors", kind.processors));
        let boot = |end: usize| self.boot_one(end, kind, &cards[end], ways.len());
        let (sender, receiver) = (boot(0)?, boot(RECEIVING)?);
        let mut machines = Machines { sender, receiver, ways, no_bridge, booting: self, kind };
        for (number, name) in machines.ways().iter().enumerate() {
            machines.transfer(number, 1).context(*name)?;
        }
        Ok(machines)
    }

    /// Boots one of the machines, with `count` cards.
    fn boot_one(
        &self,
        end: usize,
        kind: &Kind,
        cards: &[String],
        count: usize,
    ) -> anyhow::Result<Machine> {
        let options = self.accelerator.options();
        let mut machine =
            Machine::boot(self.images, INITRD_IPERF3, options, kind.processors, cards)?;
        for limit in ["rmem_max", "wmem_max"] {
            machine.run(&format!("echo {BUFFER_BYTES_MAX} > /proc/sys/net/core/{limit}"))?;
        }
        for number in 0..count {
            let (card, address) = (format!("eth{number}"), address(end, number));
            machine.run(&format!("ip addr add {address}/24 dev {card}"))?;
            if end == RECEIVING {
                machine.run(&format!("ethtool -K {card} gro off"))?;
                let is_off = "grep -q '^generic-receive-offload: off'";
                machine.run(&format!("ethtool -k {card} | {is_off}"))?;
            }
            machine.run(&format!("ip link set {card} up"))?;
        }
        Ok(machine)
    }
}

impl Machines<'_> {
    /// Names of the paths between the machines.
    pub(super) fn ways(&self) -> &'static [&'static str] {
        &SYSTEMS[..self.ways.len()]
    }

    /// The systems that have figures of a case.
    pub(super) fn systems(&self, case: &Case) -> &'static [&'static str] {
        let is_of_towpath = [&self.kind.cases[1], &self.kind.cases[3]].contains(&case);
        if is_of_towpath { &SYSTEMS[..2] } else { self.ways() }
    }

    /// The software below the machines, and why something is not measured.
    pub(super) fn circumstances(&self) -> impl Iterator<Item = String> {
        let version = version(QEMU).unwrap_or_default();
        let below = match &self.booting.accelerator {
            Accelerator::Kvm => "KVM".to_owned(),
            Accelerator::Emulation(why) => format!("software emulation (KVM: {why})"),
        };
        let processors = self.kind.processors;
        let machines = format!("real machines: {version}, {below}, {processors} processors each");
        let no_bridge = self.no_bridge.as_ref();
        let no_bridge = no_bridge.map(|why| format!("bridge: not measured: {why}"));
        [machines].into_iter().chain(no_bridge)
    }

    /// Measures one path for `span`, in whole seconds. Returns a figure for each of the cases that
    /// this path has.
    pub(super) fn measure(
        &mut self,
        way: usize,
        span: Duration,
    ) -> anyhow::Result<[Option<f64>; FIGURES]> {
        self.transfer(way, span.as_secs().max(1))
    }

    /// Powers both machines off, and checks that the paths served them without errors.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        self.sender.power_off()?;
        self.receiver.power_off()?;
        for serving in self.ways.into_iter().filter_map(|way| way.serving) {
            serving.stop()?;
        }
        if self.no_bridge.is_none() {
            for device in TAPS.into_iter().chain([BRIDGE]) {
                ip(&format!("link del {device}"))?;
            }
        }
        Ok(())
    }

    fn transfer(&mut self, way: usize, seconds: u64) -> anyhow::Result<[Option<f64>; FIGURES]> {
        let Self { sender, receiver, booting: Booting { kernel, .. }, .. } = self;
        receiver.start("iperf3 -s -1 > /tmp/told 2>&1 &")?;
        receiver
            .run(&format!("while ! netstat -ltn | grep -q :{IPERF_PORT}; do sleep 0.1; done"))?;
        let before = self.ways[way].used(kernel)?;
        let to = address(RECEIVING, way);
        let told = sender.run(&format!("iperf3 -c {to} {TRAFFIC} -t {seconds} -J"))?;
        receiver.run("wait")?;
        let after = self.ways[way].used(kernel)?;
        let one_way = Test { ipv6: false, udp: false, direction: Direction::Out, flows: 1 };
        let Moved { gbits_per_second, bytes, .. } = iperf::moved(&told.join("\n"), one_way)?;
        ensure!(bytes > 0.0, "nothing was received: {told:?}");
        let [cpu, cpu_all, copied] = std::array::from_fn(|at| Some(after[at]? - before[at]?));
        let per_gib = |used: f64| used * f64::from(1_u32 << 30) / bytes;
        Ok([
            Some(gbits_per_second),
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

impl Kind {
    /// The figure of a case, from the result of [`Machines::measure`].
    pub(super) fn figure(&self, case: &Case, figures: &[Option<f64>; FIGURES]) -> Option<f64> {
        self.cases.iter().position(|other| other == case).and_then(|at| figures[at])
    }
}

/// Makes a bridge with two TAP devices. They disappear with the network of this process.
fn bridge() -> anyhow::Result<()> {
    ip(&format!("link add {BRIDGE} type bridge"))?;
    ip(&format!("link set {BRIDGE} up"))?;
    for tap in TAPS {
        ip(&format!("tuntap add dev {tap} mode tap vnet_hdr"))?;
        ip(&format!("link set {tap} master {BRIDGE} up"))?;
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
const BRIDGE: &str = "bridge0";
const TAPS: [&str; 2] = ["sender0", "receiver0"];
/// iperf3's options: socket buffers and blocks of 256 KiB.
const TRAFFIC: &str = "-w 256K -l 256K";
/// Lets programs in the machines have socket buffers of that size.
const BUFFER_BYTES_MAX: u32 = 1 << 20;
/// QEMU's options for KVM.
const KVM: &[&str] = &["-accel", "kvm", "-cpu", "host"];
/// Longest wait for a line of a machine that boots with KVM, which takes two seconds. There are
/// hosts that have `/dev/kvm` and boot nothing.
const KVM_PATIENCE: Duration = Duration::from_secs(20);
/// The image with iperf3 and ethtool.
const INITRD_IPERF3: &str = "initrd-iperf3";
