//! A virtual machine for tests: any failure ends the test.

#[path = "../../../bench/src/vm/machine.rs"]
mod qemu;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use qemu::{EMULATION, INITRD, device, vhost_user};

/// The kernel with TCP-AO.
const KERNEL_AO: &str = "kernel-ao";
/// The image with iperf3.
const INITRD_IPERF3: &str = "initrd-iperf3";

/// A running machine, ended when dropped.
pub(crate) struct Machine(qemu::Machine);

/// Returns why no machine can run here, if none can.
pub(crate) fn missing() -> Option<String> {
    qemu::missing(&directory())
}

/// Returns why a machine, or the host, has no iperf3.
pub(crate) fn missing_iperf3() -> Option<String> {
    let found = directory().join(INITRD_IPERF3).exists()
        && Command::new("iperf3").arg("--version").output().is_ok();
    (!found).then(|| "no iperf3 when scripts/guest ran, or now".to_owned())
}

/// Returns why no machine has TCP-AO.
pub(crate) fn missing_ao() -> Option<String> {
    let found = directory().join(KERNEL_AO).exists();
    (!found).then(|| "no kernel with TCP-AO when scripts/guest ran".to_owned())
}

/// Makes `directory` one from which [`Machine::boot_ao`] boots: with the kernel, and the usual
/// image with the contents of `more`, a cpio archive.
pub(crate) fn prepare_ao(directory: &Path, more: &[u8]) {
    let images = self::directory();
    symlink(images.join(KERNEL_AO), directory.join("kernel")).expect("a new link");
    let mut image = fs::read(images.join(INITRD)).expect("missing() looked for it");
    // The kernel accepts concatenated archives as one.
    image.extend_from_slice(more);
    fs::write(directory.join(INITRD), image).expect("a new file");
}

impl Machine {
    /// Boots a machine with TCP-AO and without a network card.
    pub(crate) fn boot_ao(directory: &Path) -> Self {
        let machine = qemu::Machine::boot(directory, INITRD, EMULATION, 1, &[]);
        Self(machine.expect("missing_ao() looked for it"))
    }

    /// Boots a machine whose network card is connected to `socket`. `card` are further properties
    /// of the card, each preceded by a comma; `pairs` is its number of queue pairs.
    pub(crate) fn boot(socket: &Path, pairs: u16, card: &str) -> Self {
        Self::boot_cards(pairs, &[(socket.to_owned(), card)])
    }

    /// Boots a machine with several such cards: `eth0`, `eth1` and so on in this order. Each
    /// reconnects when its other end goes.
    pub(crate) fn boot_cards(pairs: u16, cards: &[(PathBuf, &str)]) -> Self {
        let cards = cards.iter().enumerate();
        let network: Vec<_> = cards
            .flat_map(|(number, (socket, card))| vhost_user(number, socket, pairs, card))
            .collect();
        Self::start_up(INITRD, pairs, &network)
    }

    /// Boots a machine with one such card and iperf3.
    pub(crate) fn boot_iperf3(socket: &Path, card: &str) -> Self {
        Self::start_up(INITRD_IPERF3, 1, &vhost_user(0, socket, 1, card))
    }

    /// Boots a machine with one such card that can be migrated through the socket `monitor`.
    pub(crate) fn boot_watched(socket: &Path, card: &str, monitor: &Path) -> Self {
        Self::start_up(INITRD, 1, &watched(socket, card, monitor))
    }

    /// Starts the destination of a migration, with one such card, and does not wait for it. It is
    /// controlled at the socket `monitor`. Both machines have the same properties.
    pub(crate) fn await_arrival(socket: &Path, card: &str, monitor: &Path) -> Self {
        let mut options = watched(socket, card, monitor);
        options.extend(["-incoming".to_owned(), "defer".to_owned()]);
        let machine = qemu::Machine::start_up(&directory(), INITRD, EMULATION, 1, &options);
        Self(machine.expect("missing() looked for it"))
    }

    /// Boots a machine that makes the socket of its network card itself, and waits for a
    /// connection.
    pub(crate) fn boot_listening(socket: &Path, card: &str) -> Self {
        let network = [
            "-chardev".to_owned(),
            format!("socket,id=c0,path={},server=on", socket.display()),
            "-netdev".to_owned(),
            "vhost-user,id=n0,chardev=c0".to_owned(),
            "-device".to_owned(),
            device(0, &format!(",vectors=0{card}")),
        ];
        Self::start_up(INITRD, 1, &network)
    }

    /// Boots a machine whose network card sends frames to `socket`.
    pub(crate) fn boot_stream(socket: &Path, card: &str) -> Self {
        let network =
            format!("stream,id=n0,server=off,addr.type=unix,addr.path={}", socket.display());
        let network = ["-netdev".to_owned(), network, "-device".to_owned(), device(0, card)];
        Self::start_up(INITRD, 1, &network)
    }

    fn start_up(initrd: &str, processors: u16, network: &[String]) -> Self {
        let machine = qemu::Machine::boot(&directory(), initrd, EMULATION, processors, network);
        Self(machine.expect("missing() looked for it"))
    }

    /// Runs a command in the guest; returns its output. Fails if the command does.
    pub(crate) fn run(&mut self, command: &str) -> Vec<String> {
        self.0.run(command).expect("the guest does it")
    }

    /// Starts a command in the guest and does not wait.
    pub(crate) fn start(&mut self, command: &str) {
        self.0.start(command).expect("the machine runs");
    }

    /// Gives the guest its address.
    pub(crate) fn configure(&mut self, address: &str) {
        self.run(&format!("ip addr add {address} dev eth0 && ip link set eth0 up"));
    }

    /// Turns the machine off and waits until it is.
    pub(crate) fn power_off(self) {
        self.0.power_off().expect("it turns off");
    }

    /// Ends the machine at once.
    pub(crate) fn kill(self) {
        drop(self);
    }
}

/// Returns QEMU's options for a card and a monitor.
fn watched(socket: &Path, card: &str, monitor: &Path) -> Vec<String> {
    let mut options = vhost_user(0, socket, 1, card).to_vec();
    let monitor = format!("unix:{},server=on,wait=off", monitor.display());
    options.extend(["-qmp".to_owned(), monitor]);
    options
}

/// Returns the folder of `scripts/guest`, next to the build's folder.
fn directory() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("guest")
}
