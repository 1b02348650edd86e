//! Output for people: progress on standard error, results on standard output.

use std::io::{IsTerminal, Write, stderr};

use crate::{Direction, Result, Transfer};

/// Characters of the bar.
const WIDTH: usize = 40;
/// Without a terminal, progress is printed as this many lines.
const PARTS: usize = 4;

/// A bar on a terminal, lines elsewhere.
pub(crate) struct Progress {
    name: String,
    bytes: usize,
    terminal: bool,
    shown: usize,
}

impl Progress {
    pub(crate) fn new(name: String, bytes: usize) -> Self {
        let progress = Self { name, bytes, terminal: stderr().is_terminal(), shown: 0 };
        if progress.terminal {
            progress.bar(0);
        }
        progress
    }

    pub(crate) fn show(&mut self, done: usize) {
        if self.terminal {
            return self.bar(done);
        }
        let part = done * PARTS / self.bytes;
        if part > self.shown {
            self.shown = part;
            eprintln!("{}: {} of {} MiB", self.name, done >> 20, self.bytes >> 20);
        }
    }

    /// Ends the progress line.
    pub(crate) fn end(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }

    fn bar(&self, done: usize) {
        let full = done * WIDTH / self.bytes;
        let bar = format!("{}{}", "#".repeat(full), ".".repeat(WIDTH - full));
        eprint!("\r{} [{bar}] {} of {} MiB", self.name, done >> 20, self.bytes >> 20);
        // A late flush does no harm.
        let _ = stderr().flush();
    }
}

/// The figures of `towpath run --stats` that are shown.
pub(crate) struct Stats {
    packets: u64,
    super_packets: u64,
    copies_per_byte: f64,
    offload: String,
}

impl Stats {
    pub(crate) fn read(text: &str, direction: Direction) -> Result<Self> {
        let way = match direction {
            Direction::ToProgram => "to the program",
            Direction::ToHost => "from the program",
        };
        let packets = line(text, way)?;
        Ok(Self {
            packets: number(packets, "packets")?,
            super_packets: number(packets, "super-packets")?,
            copies_per_byte: number(line(text, "payload")?, "copies per byte")?,
            offload: line(text, "offload")?.into(),
        })
    }
}

/// Returns the rest of the line that begins with `name`.
fn line<'a>(text: &'a str, name: &str) -> Result<&'a str> {
    let mut lines = text.lines().map(|line| line.strip_prefix("towpath: ").unwrap_or(line));
    let found = lines.find_map(|line| line.strip_prefix(name));
    Ok(found.ok_or_else(|| format!("towpath run printed nothing about '{name}':\n{text}"))?.trim())
}

/// Returns the number before `unit` in a list.
fn number<T: std::str::FromStr>(list: &str, unit: &str) -> Result<T> {
    let part = list.split(", ").find_map(|part| part.strip_suffix(unit)?.trim().parse().ok());
    Ok(part.ok_or_else(|| format!("no number of {unit} in '{list}'"))?)
}

/// Prints the result of one direction through towpath.
pub(crate) fn print(transfer: &Transfer, stats: &Stats) {
    let (rate, seconds) = (transfer.gigabits_per_second(), transfer.time.as_secs_f64());
    let share = 100.0 * stats.super_packets as f64 / stats.packets as f64;
    let mib = transfer.bytes >> 20;
    println!();
    println!("{}", transfer.direction.name());
    println!("  throughput     {rate:.2} Gbit/s ({mib} MiB in {seconds:.2} s)");
    println!("  packets        {}, {share:.1} % of them super-packets", stats.packets);
    println!("  payload        {:.6} copies per byte", stats.copies_per_byte);
    println!("  offload        {}", stats.offload);
    println!("  SHA-256        {}, the same on both ends", transfer.sha256);
}

/// Prints towpath's figures beside those of the kernel.
pub(crate) fn summarise(rows: &[(Transfer, Stats, Transfer)]) {
    println!();
    println!("summary, Gbit/s     towpath   kernel's loopback   of it   copies per byte");
    for (towpath, stats, kernel) in rows {
        let [ours, kernels] = [towpath, kernel].map(Transfer::gigabits_per_second);
        let share = format!("{:.0} %", 100.0 * ours / kernels);
        let (name, copies) = (towpath.direction.name(), stats.copies_per_byte);
        println!("  {name:<15}  {ours:>8.2}  {kernels:>17.2}  {share:>7}  {copies:>15.6}");
    }
    println!();
    println!("The loopback is an upper bound: its bytes cross no namespace, on one connection.");
    println!("Through towpath they cross a TAP device, on two connections.");
}
