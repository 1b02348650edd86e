//! Reads of a file at several depths: by operations, by blocking calls, and by io_uring alone.
//!
//! Blocks are read in a fixed order that looks random. For reads from disk, each block is read once
//! per measurement, and the kernel is first asked to drop the file from its page cache, so that the
//! disk has to work. In `hot` cases the whole file is in the page cache. Blocking calls need one
//! thread per concurrent read. Where the kernel cannot drop the file, as with files in memory, both
//! kinds of cases are the same.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use rustix::fs::{Advice, fadvise};
use rustix::time::{ClockId, clock_gettime};
use towpath::events::{Action, Choice, Completion, Config, EventQueue, Operation};
use towpath_packet::sync::{AtomicU64, Ordering};

use super::Group;
use super::plain_ring::PlainRing;
use crate::cases::{Better, Case, Selection};
use crate::ping_pong::Stopwatch;
use crate::say;
use crate::scratch::Scratch;

/// A kind of read to measure.
#[derive(Debug)]
struct Point {
    is_hot: bool,
    bytes: usize,
    depth: usize,
    /// Reads per second, and processor time of all threads per read.
    cases: [Case; 2],
}

/// The systems, towpath's first. The last is io_uring without towpath.
const SYSTEMS: [&str; 4] = ["io_uring", "epoll", "pread", "plain io_uring"];

/// Size of the file.
const FILE_BYTES: u64 = 512 << 20;
const FILE_BYTES_SHORT: u64 = 16 << 20;
/// Coprime to powers of two, and large, so that neighbours are far apart.
const STRIDE: u64 = 0x9e37_79b1;

pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    points().iter().flat_map(|point| &point.cases)
}

fn points() -> &'static [Point] {
    static POINTS: LazyLock<Vec<Point>> = LazyLock::new(|| {
        let mut points = Vec::new();
        for is_hot in [false, true] {
            for bytes in [4 << 10, 256 << 10] {
                points.extend([1, 4, 16, 64].map(|depth| Point::new(is_hot, bytes, depth)));
            }
        }
        points
    });
    &POINTS
}

/// A file to read.
pub(super) struct Reads {
    /// The directory of the file.
    _directory: Scratch,
    file: Arc<File>,
    /// Size of the file in bytes.
    bytes: u64,
    systems: Vec<&'static str>,
}

impl Reads {
    /// Creates a file if a selected case needs it; returns `None` otherwise.
    pub(super) fn new(
        scratch: &Path,
        selection: &Selection,
        span: Duration,
    ) -> anyhow::Result<Option<Self>> {
        if !all().any(|case| selection.has(case)) {
            return Ok(None);
        }
        let directory = Scratch::inside(scratch)?;
        let mut file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(directory.path("read"))
            .context("cannot create a file to read")?;
        let bytes = if span < Duration::from_secs(1) { FILE_BYTES_SHORT } else { FILE_BYTES };
        let block = vec![0x5a; 1 << 20];
        for _ in 0..bytes >> 20 {
            file.write_all(&block).context("no room for a file to read")?;
        }
        file.sync_all().context("cannot write the file to read")?;
        let mut systems = SYSTEMS.to_vec();
        if EventQueue::with(&config(Choice::IoUring)).is_err() {
            say::notice("file_read_*: io_uring is not available; measuring epoll only");
            systems.retain(|system| !system.contains("io_uring"));
        }
        Ok(Some(Self { _directory: directory, file: Arc::new(file), bytes, systems }))
    }

    /// The groups with selected cases.
    pub(super) fn groups<'a>(&'a self, selection: &Selection) -> Vec<Group<'a>> {
        let group = |point: &'static Point| Group {
            cases: point.cases.iter().collect(),
            systems: self.systems.clone(),
            measure: Box::new(move |system, span| self.measure(point, system, span)),
        };
        let groups = points().iter().map(group);
        groups.filter(|group| group.is_selected(selection)).collect()
    }

    fn measure(&self, point: &Point, system: &str, span: Duration) -> anyhow::Result<Vec<f64>> {
        if point.is_hot {
            let mut block = vec![0; 1 << 20];
            for at in 0..self.bytes >> 20 {
                self.file.read_exact_at(&mut block, at << 20).context("cannot read")?;
            }
        } else {
            fadvise(&self.file, 0, None, Advice::DontNeed).context("posix_fadvise")?;
        }
        // Bytes that are read ahead would be read twice.
        fadvise(&self.file, 0, None, Advice::Random).context("posix_fadvise")?;
        let blocks = Blocks {
            bytes: point.bytes,
            count: self.bytes / point.bytes as u64,
            repeats: point.is_hot,
            taken: AtomicU64::new(0),
            watch: Stopwatch::start(),
            span,
        };
        let before = cpu();
        let done = match system {
            "pread" => self.by_calls(&blocks, point.depth),
            "epoll" => self.by_queue(&blocks, point.depth, Choice::Epoll),
            "io_uring" => self.by_queue(&blocks, point.depth, Choice::IoUring),
            _ => self.by_ring(&blocks, point.depth),
        }?;
        let (taken, used) = (blocks.watch.elapsed(), cpu() - before);
        ensure!(done > 0, "nothing was read");
        let done = done as f64;
        Ok(vec![done / taken.as_secs_f64(), used.as_secs_f64() * 1e6 / done])
    }

    /// Reads with blocking calls, one thread per concurrent read.
    fn by_calls(&self, blocks: &Blocks, depth: usize) -> anyhow::Result<u64> {
        let read = || -> anyhow::Result<u64> {
            let (mut buffer, mut done) = (vec![0; blocks.bytes], 0);
            while let Some(at) = blocks.next() {
                self.file.read_exact_at(&mut buffer, at).context("cannot read")?;
                done += 1;
            }
            Ok(done)
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..depth).map(|_| scope.spawn(read)).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().map_err(|_| anyhow!("a thread failed"))?
            };
            threads.into_iter().map(join).collect::<Vec<_>>().into_iter().sum()
        })
    }

    fn by_queue(&self, blocks: &Blocks, depth: usize, choice: Choice) -> anyhow::Result<u64> {
        let mut queue = EventQueue::with(&config(choice))?;
        let submit = |queue: &mut EventQueue, buffer| -> anyhow::Result<bool> {
            let Some(at) = blocks.next() else { return Ok(false) };
            let operation = Operation { action: Action::Read(at), file: self.file.clone(), buffer };
            queue.submit(operation, None, 0)?;
            Ok(true)
        };
        for _ in 0..depth {
            submit(&mut queue, vec![0; blocks.bytes])?;
        }
        let (mut events, mut done) = (Vec::new(), 0);
        while !queue.is_empty() {
            events.clear();
            queue.wait(&mut events, None)?;
            for event in &events {
                let Some(Completion::Bytes(read)) = queue.take(event.token) else {
                    bail!("the operation did not complete");
                };
                ensure!(
                    read.result.context("cannot read")? == blocks.bytes,
                    "the file is truncated"
                );
                done += 1;
                submit(&mut queue, read.buffer)?;
            }
        }
        Ok(done)
    }

    fn by_ring(&self, blocks: &Blocks, depth: usize) -> anyhow::Result<u64> {
        let mut ring = PlainRing::new(self.file.clone(), blocks.bytes, depth)?;
        while let Some(at) = if ring.has_room() { blocks.next() } else { None } {
            ring.read(at);
        }
        let mut done = 0;
        while !ring.is_idle() {
            for _ in 0..ring.wait()? {
                done += 1;
                if let Some(at) = blocks.next() {
                    ring.read(at);
                }
            }
        }
        Ok(done)
    }
}

/// The blocks to read, shared by all threads.
struct Blocks {
    bytes: usize,
    /// Number of blocks, a power of two.
    count: u64,
    /// Each block may be read several times.
    repeats: bool,
    taken: AtomicU64,
    watch: Stopwatch,
    span: Duration,
}

impl Blocks {
    /// Offset of the next block; `None` if all were read or the time is over.
    fn next(&self) -> Option<u64> {
        // Relaxed: no other memory depends on this counter.
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        let goes_on = (number < self.count || self.repeats) && self.watch.elapsed() < self.span;
        goes_on.then(|| number.wrapping_mul(STRIDE) % self.count * self.bytes as u64)
    }
}

impl Point {
    fn new(is_hot: bool, bytes: usize, depth: usize) -> Self {
        let hot = if is_hot { "_hot" } else { "" };
        let name = format!("file_read_{}KiB_depth_{depth}{hot}", bytes >> 10);
        let case =
            |suffix, unit, better| Case { name: (name.clone() + suffix).into(), unit, better };
        let cases = [case("", "reads/s", Better::High), case("_cpu", "us/read", Better::Low)];
        Self { is_hot, bytes, depth, cases }
    }
}

fn config(back_end: Choice) -> Config {
    Config { back_end, ..Config::default() }
}

/// Processor time of this process.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_is_read_once_and_then_no_more() {
        let count = 64;
        let blocks = Blocks {
            bytes: 4096,
            count,
            repeats: false,
            taken: AtomicU64::new(0),
            watch: Stopwatch::start(),
            span: Duration::MAX,
        };
        let mut found: Vec<u64> = std::iter::from_fn(|| blocks.next()).collect();
        assert_ne!(found[..2], [0, 4096]);
        found.sort_unstable();
        assert!(found.into_iter().eq((0..count).map(|block| block * 4096)));
        assert_eq!(blocks.next(), None);
        let over = Blocks { span: Duration::ZERO, taken: AtomicU64::new(0), ..blocks };
        assert_eq!(over.next(), None);
    }
}
