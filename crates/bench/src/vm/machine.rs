//! A virtual machine in QEMU, controlled through its serial console.
//!
//! Under software emulation it needs no privileges. `scripts/guest` makes the images that it boots.
//! The machine ends when this value is dropped. The wait for a line of the console is limited by
//! [`PATIENCE`].
//!
//! The tests with virtual machines include this file as a module too, so it depends on nothing else
//! in this package.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Longest wait for a line of the console.
const PATIENCE: Duration = Duration::from_secs(600);
/// Enough for several cards with large receive buffers.
const MEMORY: &str = "192M";
/// Kernel arguments. The kernel's timer check counts ticks against loop turns, and fails on a busy
/// machine. A kernel that clears pages before a card writes to them would dirty them itself.
const KERNEL: &str = "console=ttyS0 quiet loglevel=0 panic=-1 no_timer_check init_on_alloc=0";
pub(crate) const QEMU: &str = "qemu-system-x86_64";
/// QEMU's options for software emulation.
pub(crate) const EMULATION: &[&str] = &["-accel", "tcg"];

/// A running machine.
pub(crate) struct Machine {
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    /// Everything that it printed, for error messages.
    said: Vec<String>,
}

/// Why no machine can boot the images of `scripts/guest` in `directory`.
pub(crate) fn missing(directory: &Path) -> Option<String> {
    if Command::new(QEMU).arg("--version").output().is_err() {
        return Some(format!("{QEMU} is not installed"));
    }
    let is_there = ["kernel", INITRD].iter().all(|file| directory.join(file).is_file());
    let shown = directory.display();
    (!is_there).then(|| format!("{shown} has nothing to boot; run scripts/guest"))
}

impl Machine {
    /// Boots a machine from the kernel and the `initrd` in `directory`. `accelerator` are QEMU's
    /// options for what runs it, `network` those for its network cards.
    pub(crate) fn boot(
        directory: &Path,
        initrd: &str,
        accelerator: &[&str],
        processors: u16,
        network: &[String],
    ) -> io::Result<Self> {
        let mut machine = Self::start_up(directory, initrd, accelerator, processors, network)?;
        machine.until_ready(PATIENCE)?;
        Ok(machine)
    }

    /// Starts a machine as [`boot`](Self::boot) does, without waiting for its guest.
    pub(crate) fn start_up(
        directory: &Path,
        initrd: &str,
        accelerator: &[&str],
        processors: u16,
        network: &[String],
    ) -> io::Result<Self> {
        let memory = format!("memory-backend-memfd,id=memory,size={MEMORY},share=on");
        let mut process = Command::new(QEMU)
            .args(accelerator)
            .args(["-m", MEMORY, "-smp", &processors.to_string()])
            .args(["-object", &memory, "-machine", "pc,memory-backend=memory"])
            .args(network)
            .args(["-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"])
            .arg("-kernel")
            .arg(directory.join("kernel"))
            .arg("-initrd")
            .arg(directory.join(initrd))
            .args(["-append", KERNEL])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(process.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            // The console begins with arbitrary bytes from the firmware.
            for line in output.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line);
                if sender.send(line.trim_end_matches('\r').to_owned()).is_err() {
                    break;
                }
            }
        });
        let input = process.stdin.take().expect("piped");
        Ok(Self { process, input, lines, said: Vec::new() })
    }

    /// Waits until the guest takes commands, at most `patience` for each line that it prints.
    pub(crate) fn until_ready(&mut self, patience: Duration) -> io::Result<()> {
        while !self.line_within(patience)?.contains("towpath-ready") {}
        Ok(())
    }

    /// Runs a command in the guest and returns its output. A command that fails is an error.
    pub(crate) fn run(&mut self, command: &str) -> io::Result<Vec<String>> {
        self.start(&format!("{command}; echo towpath-done $?"))?;
        let mut printed = Vec::new();
        loop {
            let line = self.line()?;
            match line.strip_prefix("towpath-done ") {
                Some("0") => return Ok(printed),
                Some(status) => {
                    return Err(io::Error::other(format!("{command}: {status}: {printed:?}")));
                }
                None => printed.push(line),
            }
        }
    }

    /// Passes a command to the guest without waiting for it.
    pub(crate) fn start(&mut self, command: &str) -> io::Result<()> {
        writeln!(self.input, "{command}")
    }

    /// Powers the machine off and waits until it has ended.
    pub(crate) fn power_off(mut self) -> io::Result<()> {
        // Linux 6.1 sets the card's filters when IPv6 addresses change. If the card is already off,
        // it waits forever for the card's answer.
        self.run("for card in /sys/class/net/eth*; do ip link set ${card##*/} down; done")?;
        self.start("poweroff -f")?;
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    return Err(io::Error::other("the machine does not turn off"));
                }
            }
        }
        let status = self.process.wait()?;
        match status.success() {
            true => Ok(()),
            false => Err(io::Error::other(format!("{QEMU}: {status}"))),
        }
    }

    fn line(&mut self) -> io::Result<String> {
        self.line_within(PATIENCE)
    }

    fn line_within(&mut self, patience: Duration) -> io::Result<String> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => {
                self.said.push(line.clone());
                Ok(line)
            }
            Err(why) => {
                // When the console has ended, the process ends, too.
                let ended =
                    matches!(why, RecvTimeoutError::Disconnected).then(|| self.process.wait());
                let text =
                    format!("the machine prints nothing more ({why}, {ended:?}): {:#?}", self.said);
                Err(io::Error::other(text))
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

/// QEMU's options for card number `number`, whose other end is a vhost-user `socket`. QEMU connects
/// to it, and reconnects after each disconnect. `properties` of the card each start with a comma.
pub(crate) fn vhost_user(
    number: usize,
    socket: &Path,
    pairs: u16,
    properties: &str,
) -> [String; 6] {
    let chardev = format!("socket,id=c{number},path={},reconnect=1", socket.display());
    let netdev = format!("vhost-user,id=n{number},chardev=c{number},queues={pairs}");
    // Under emulation, QEMU 7.2 crashes with vhost-user and MSI-X.
    let device = device(number, &format!(",vectors=0{properties}"));
    ["-chardev".into(), chardev, "-netdev".into(), netdev, "-device".into(), device]
}

/// A network card on QEMU's network `n` followed by its number.
pub(crate) fn device(number: usize, properties: &str) -> String {
    // A later `mac` overrides this one.
    format!("virtio-net-pci,netdev=n{number},romfile=,mac=02:00:00:00:00:02{properties}")
}

/// The image that most machines boot.
pub(crate) const INITRD: &str = "initrd";
