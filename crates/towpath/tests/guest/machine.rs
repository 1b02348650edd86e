//! A virtual machine in QEMU, told by its serial console what to do.
//!
//! It runs under software emulation, so that it needs no rights; what it boots is made by
//! `scripts/guest`. It ends with the value, whatever happens.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Longest time until a line of the console comes.
const PATIENCE: Duration = Duration::from_secs(600);
/// Several cards with big receive buffers fit.
const MEMORY: &str = "192M";

/// A machine that runs.
pub(crate) struct Machine {
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    /// All that it said, for the message of a test that fails.
    said: Vec<String>,
}

/// Why a machine cannot be had here.
pub(crate) fn missing() -> Option<String> {
    if Command::new(QEMU).arg("--version").output().is_err() {
        return Some(format!("{QEMU} is not installed"));
    }
    let found = [kernel(), initrd()].iter().all(|file| file.exists());
    (!found).then(|| "nothing to boot: run scripts/guest".to_owned())
}

/// Why a machine, or the host, has no iperf3.
pub(crate) fn missing_iperf3() -> Option<String> {
    let found =
        initrd_iperf3().exists() && Command::new("iperf3").arg("--version").output().is_ok();
    (!found).then(|| "no iperf3 when scripts/guest ran, or now".to_owned())
}

impl Machine {
    /// Boots a machine whose network card has its other end at `socket`. `card` are further
    /// properties of the card, each with a comma in front; `pairs` of queues.
    pub(crate) fn boot(socket: &Path, pairs: u16, card: &str) -> Self {
        Self::boot_cards(pairs, &[(socket.to_owned(), card)])
    }

    /// Boots a machine with several such cards: `eth0`, `eth1` and so on in this order. Each
    /// connects again when its other end goes.
    pub(crate) fn boot_cards(pairs: u16, cards: &[(PathBuf, &str)]) -> Self {
        Self::start_up(pairs, &vhost_user(pairs, cards))
    }

    /// Boots a machine with one such card that has iperf3.
    pub(crate) fn boot_iperf3(socket: &Path, card: &str) -> Self {
        let network = vhost_user(1, &[(socket.to_owned(), card)]);
        Self::start_with(&initrd_iperf3(), 1, &network)
    }

    /// Boots a machine that makes the socket of its network card's other end, and waits for it.
    pub(crate) fn boot_listening(socket: &Path, card: &str) -> Self {
        let network = [
            "-chardev".to_owned(),
            format!("socket,id=c0,path={},server=on", socket.display()),
            "-netdev".to_owned(),
            "vhost-user,id=n0,chardev=c0".to_owned(),
            "-device".to_owned(),
            device(0, &format!(",vectors=0{card}")),
        ];
        Self::start_up(1, &network)
    }

    /// Boots a machine whose network card sends frames to `socket`.
    pub(crate) fn boot_stream(socket: &Path, card: &str) -> Self {
        let network =
            format!("stream,id=n0,server=off,addr.type=unix,addr.path={}", socket.display());
        Self::start_up(1, &["-netdev".to_owned(), network, "-device".to_owned(), device(0, card)])
    }

    fn start_up(processors: u16, network: &[String]) -> Self {
        Self::start_with(&initrd(), processors, network)
    }

    fn start_with(initrd: &Path, processors: u16, network: &[String]) -> Self {
        let memory = format!("memory-backend-memfd,id=memory,size={MEMORY},share=on");
        let mut process = Command::new(QEMU)
            .args(["-accel", "tcg", "-m", MEMORY, "-smp", &processors.to_string()])
            .args(["-object", &memory, "-machine", "pc,memory-backend=memory"])
            .args(network)
            .args(["-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"])
            .arg("-kernel")
            .arg(kernel())
            .arg("-initrd")
            .arg(initrd)
            // A kernel that counts ticks against turns of a loop gives up on a busy machine.
            .args(["-append", "console=ttyS0 quiet loglevel=0 panic=-1 no_timer_check"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("missing() looked for it");
        let output = BufReader::new(process.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            // The console begins with whatever bytes the firmware sends.
            for line in output.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line);
                if sender.send(line.trim_end_matches('\r').to_owned()).is_err() {
                    break;
                }
            }
        });
        let input = process.stdin.take().expect("piped");
        let mut machine = Self { process, input, lines, said: Vec::new() };
        machine.wait_for("towpath-ready");
        machine
    }

    /// Has the guest run a command; returns what it prints. Fails if the command does.
    pub(crate) fn run(&mut self, command: &str) -> Vec<String> {
        let (status, printed) = self.try_run(command);
        assert_eq!(status, "0", "{command}: {printed:?}");
        printed
    }

    /// The same, whatever comes of it: its status, and what it prints.
    pub(crate) fn try_run(&mut self, command: &str) -> (String, Vec<String>) {
        self.start(&format!("{command}; echo towpath-done $?"));
        let mut printed = Vec::new();
        loop {
            let line = self.line();
            match line.strip_prefix("towpath-done ") {
                Some(status) => return (status.to_owned(), printed),
                None => printed.push(line),
            }
        }
    }

    /// Hands the guest a command and does not wait.
    pub(crate) fn start(&mut self, command: &str) {
        writeln!(self.input, "{command}").expect("the machine runs");
    }

    /// Gives the guest its address.
    pub(crate) fn configure(&mut self, address: &str) {
        self.run(&format!("ip addr add {address} dev eth0 && ip link set eth0 up"));
    }

    /// Turns the machine off and waits until it is.
    pub(crate) fn power_off(mut self) {
        // Linux 6.1 waits for ever for an answer of the card if it sets the card's filters, as new
        // addresses of IPv6 make it do, when the card is off already.
        self.run("for card in /sys/class/net/eth*; do ip link set ${card##*/} down; done");
        self.start("poweroff -f");
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("the machine does not turn off"),
            }
        }
        assert!(self.process.wait().expect("ours").success());
    }

    /// Ends the machine at once, whatever it does.
    pub(crate) fn kill(self) {
        drop(self);
    }

    fn wait_for(&mut self, what: &str) {
        while !self.line().contains(what) {}
    }

    fn line(&mut self) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => {
                self.said.push(line.clone());
                line
            }
            Err(why) => {
                // A console that has ended leaves a process that does.
                let ended =
                    matches!(why, RecvTimeoutError::Disconnected).then(|| self.process.wait());
                panic!("the machine says no more ({why}, {ended:?}): {:#?}", self.said)
            }
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Network cards with these other ends and further properties.
fn vhost_user(pairs: u16, cards: &[(PathBuf, &str)]) -> Vec<String> {
    let mut network = Vec::new();
    for (number, (socket, card)) in cards.iter().enumerate() {
        network.push("-chardev".to_owned());
        network.push(format!("socket,id=c{number},path={},reconnect=1", socket.display()));
        network.push("-netdev".to_owned());
        network.push(format!("vhost-user,id=n{number},chardev=c{number},queues={pairs}"));
        network.push("-device".to_owned());
        // Under emulation QEMU 7.2 dies of vhost-user with MSI-X.
        network.push(device(number, &format!(",vectors=0{card}")));
    }
    network
}

/// A network card.
fn device(number: usize, card: &str) -> String {
    // A later `mac` takes the place of this one.
    format!("virtio-net-pci,netdev=n{number},romfile=,mac=02:00:00:00:00:02{card}")
}

const QEMU: &str = "qemu-system-x86_64";

fn kernel() -> PathBuf {
    directory().join("kernel")
}

fn initrd() -> PathBuf {
    directory().join("initrd")
}

fn initrd_iperf3() -> PathBuf {
    directory().join("initrd-iperf3")
}

/// Where `scripts/guest` puts things: beside what is built.
fn directory() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("guest")
}
