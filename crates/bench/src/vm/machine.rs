//! A virtual machine in QEMU, told by its serial console what to do.
//!
//! It runs under software emulation, so that it needs no rights; what it boots is made by
//! `scripts/guest`. It ends with the value, whatever happens. Each line of its console is waited
//! for at most for [`PATIENCE`].
//!
//! The tests with virtual machines have this file as a module too, so it depends on nothing else
//! here.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Longest time until a line of the console comes.
const PATIENCE: Duration = Duration::from_secs(600);
/// Several cards with big receive buffers fit.
const MEMORY: &str = "192M";
/// Arguments of the kernel. One that counts ticks against turns of a loop gives up on a busy
/// machine; one that clears pages before a card writes there makes them dirty by itself.
const KERNEL: &str = "console=ttyS0 quiet loglevel=0 panic=-1 no_timer_check init_on_alloc=0";
pub(crate) const QEMU: &str = "qemu-system-x86_64";

/// A machine that runs.
pub(crate) struct Machine {
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    /// All that it said, for messages of what failed.
    said: Vec<String>,
}

/// Why no machine can boot what `scripts/guest` has put into `directory`.
pub(crate) fn missing(directory: &Path) -> Option<String> {
    if Command::new(QEMU).arg("--version").output().is_err() {
        return Some(format!("{QEMU} is not installed"));
    }
    let is_there = ["kernel", INITRD].iter().all(|file| directory.join(file).is_file());
    let shown = directory.display();
    (!is_there).then(|| format!("nothing to boot in {shown}; scripts/guest puts it there"))
}

impl Machine {
    /// Boots a machine from the kernel and the `initrd` in `directory`; `network` are QEMU's
    /// options for its network cards.
    pub(crate) fn boot(
        directory: &Path,
        initrd: &str,
        processors: u16,
        network: &[String],
    ) -> io::Result<Self> {
        let mut machine = Self::start_up(directory, initrd, processors, network)?;
        while !machine.line()?.contains("towpath-ready") {}
        Ok(machine)
    }

    /// Starts a machine as [`boot`](Self::boot) does and does not wait for its guest.
    pub(crate) fn start_up(
        directory: &Path,
        initrd: &str,
        processors: u16,
        network: &[String],
    ) -> io::Result<Self> {
        let memory = format!("memory-backend-memfd,id=memory,size={MEMORY},share=on");
        let mut process = Command::new(QEMU)
            .args(["-accel", "tcg", "-m", MEMORY, "-smp", &processors.to_string()])
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
            // The console begins with whatever bytes the firmware sends.
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

    /// Has the guest run a command; returns what it prints. A command that fails is an error.
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

    /// Hands the guest a command and does not wait.
    pub(crate) fn start(&mut self, command: &str) -> io::Result<()> {
        writeln!(self.input, "{command}")
    }

    /// Turns the machine off and waits until it is.
    pub(crate) fn power_off(mut self) -> io::Result<()> {
        // Linux 6.1 waits for ever for an answer of the card if it sets the card's filters, as new
        // addresses of IPv6 make it do, when the card is off already.
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
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => {
                self.said.push(line.clone());
                Ok(line)
            }
            Err(why) => {
                // A console that has ended leaves a process that does.
                let ended =
                    matches!(why, RecvTimeoutError::Disconnected).then(|| self.process.wait());
                let text = format!("the machine says no more ({why}, {ended:?}): {:#?}", self.said);
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

/// QEMU's options for card number `number`, with the other end at a vhost-user `socket` that it
/// connects to, again after each end. `properties` of the card have a comma in front, each.
pub(crate) fn vhost_user(
    number: usize,
    socket: &Path,
    pairs: u16,
    properties: &str,
) -> [String; 6] {
    let chardev = format!("socket,id=c{number},path={},reconnect=1", socket.display());
    let netdev = format!("vhost-user,id=n{number},chardev=c{number},queues={pairs}");
    // Under emulation QEMU 7.2 dies of vhost-user with MSI-X.
    let device = device(number, &format!(",vectors=0{properties}"));
    ["-chardev".into(), chardev, "-netdev".into(), netdev, "-device".into(), device]
}

/// A network card at QEMU's network `n`, then its number.
pub(crate) fn device(number: usize, properties: &str) -> String {
    // A later `mac` takes the place of this one.
    format!("virtio-net-pci,netdev=n{number},romfile=,mac=02:00:00:00:00:02{properties}")
}

/// What most machines boot.
pub(crate) const INITRD: &str = "initrd";
