//! Reads of a file at several depths: by operations, by blocking calls, and by io_uring alone.
//!
//! Blocks are read in a fixed order that looks random. For reads from disk, each block is read once
//! per measurement, and the kernel is first asked to drop the file from its page cache, so that the
//! disk has to work. In `hot` cases the whole file is in the page cache. In `direct` cases the disk
//! writes into the program's own buffers, past the page cache (`O_DIRECT`). Blocking calls need one
//! thread per concurrent read. Where the kernel cannot drop the file, as with files in memory, the
//! first two kinds of cases are the same.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use rustix::fs::{Advice, Mode, OFlags, fadvise, open};
use rustix::time::{ClockId, clock_gettime};
use towpath::events::{Action, Choice, Config, EventQueue, Operation};
use towpath::host::{Fill, Part};
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
    from: Origin,
    bytes: usize,
    depth: usize,
    /// Reads per second, and processor time of all threads per read.
    cases: [Case; 2],
}

/// Where the bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Disk,
    /// In the page cache.
    Cache,
    /// On the disk, which writes into the reader's buffers.
    Direct,
}

/// The systems, towpath's first. The last is io_uring without towpath, which has no direct reads.
const SYSTEMS: [&str; 4] = ["io_uring", "epoll", "pread", "plain io_uring"];

/// Size of the file.
const FILE_BYTES: u64 = 512 << 20;
const FILE_BYTES_SHORT: u64 = 16 << 20;
/// A prime number, so that all blocks are read, and large, so that neighbours are far apart.
const STRIDE: u64 = 0x9e37_79b1;
const SIZES: [usize; 3] = [4 << 10, 40 << 10, 256 << 10];
const DEPTHS: [usize; 4] = [1, 4, 16, 64];
/// Alignment of buffers, offsets and lengths that every disk takes for direct reads.
const ALIGN: usize = 4096;

pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    points().iter().flat_map(|point| &point.cases)
}

fn points() -> &'static [Point] {
    static POINTS: LazyLock<Vec<Point>> = LazyLock::new(|| {
        let mut points = Vec::new();
        for from in [Origin::Disk, Origin::Cache, Origin::Direct] {
            for bytes in SIZES {
                points.extend(DEPTHS.map(|depth| Point::new(from, bytes, depth)));
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
    /// The same file for direct reads, where the file system has them.
    direct: Option<Arc<File>>,
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
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let direct = open(directory.path("read"), flags, Mode::empty());
        if let Err(error) = &direct {
            say::notice(format_args!("file_read_*_direct: no direct reads here: {error}"));
        }
        let direct = direct.ok().map(|file| Arc::new(File::from(file)));
        Ok(Some(Self { _directory: directory, file: Arc::new(file), direct, bytes, systems }))
    }

    /// The groups with selected cases.
    pub(super) fn groups<'a>(&'a self, selection: &Selection) -> Vec<Group<'a>> {
        let group = |point: &'static Point| {
            let mut systems = self.systems.clone();
            systems.retain(|system| point.from != Origin::Direct || *system != "plain io_uring");
            Group {
                cases: point.cases.iter().collect(),
                systems,
                measure: Box::new(move |system, span| self.measure(point, system, span)),
            }
        };
        let can = |point: &&Point| point.from != Origin::Direct || self.direct.is_some();
        let groups = points().iter().filter(can).map(group);
        groups.filter(|group| group.is_selected(selection)).collect()
    }

    fn measure(&self, point: &Point, system: &str, span: Duration) -> anyhow::Result<Vec<f64>> {
        if point.from == Origin::Cache {
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
            repeats: point.from == Origin::Cache,
            taken: AtomicU64::new(0),
            watch: Stopwatch::start(),
            span,
        };
        let before = cpu();
        let file = match (point.from, &self.direct) {
            (Origin::Direct, Some(direct)) => direct,
            _ => &self.file,
        };
        let choice = if system == "epoll" { Choice::Epoll } else { Choice::IoUring };
        let done = match (system, point.from) {
            ("pread", _) => by_calls(file, &blocks, point.depth),
            ("plain io_uring", _) => by_ring(file, &blocks, point.depth),
            // Any buffer will do, but a vector need not be aligned.
            (_, Origin::Direct) => by_queue(file, &blocks, point.depth, choice, aligned),
            _ => by_queue(file, &blocks, point.depth, choice, |bytes| vec![0; bytes]),
        }?;
        let (taken, used) = (blocks.watch.elapsed(), cpu() - before);
        ensure!(done > 0, "nothing was read");
        let done = done as f64;
        Ok(vec![done / taken.as_secs_f64(), used.as_secs_f64() * 1e6 / done])
    }
}

/// Reads with blocking calls, one thread per concurrent read.
fn by_calls(file: &File, blocks: &Blocks, depth: usize) -> anyhow::Result<u64> {
    let read = || -> anyhow::Result<u64> {
        let (part, mut done) = (aligned(blocks.bytes), 0);
        let (range, mut buffer) = (part.range(), part.into_buffer());
        while let Some(at) = blocks.next() {
            file.read_exact_at(&mut buffer[range.clone()], at).context("cannot read")?;
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

fn by_queue<B: Fill>(
    file: &Arc<File>,
    blocks: &Blocks,
    depth: usize,
    choice: Choice,
    buffer: impl Fn(usize) -> B,
) -> anyhow::Result<u64> {
    let mut queue = EventQueue::with(&config(choice))?;
    let submit = |queue: &mut EventQueue, buffer: B| -> anyhow::Result<()> {
        let Some(at) = blocks.next() else { return Ok(()) };
        let operation = Operation { action: Action::Read(at), file: file.clone(), buffer };
        queue.submit(operation, None, 0).map_err(|refused| refused.error)?;
        Ok(())
    };
    for _ in 0..depth {
        submit(&mut queue, buffer(blocks.bytes))?;
    }
    let (mut events, mut done) = (Vec::new(), 0);
    while !queue.is_empty() {
        events.clear();
        queue.wait(&mut events, None)?;
        for event in &events {
            let read = queue.take(event.token).and_then(|done| done.into_buffer().ok());
            let read = read.context("the operation did not complete")?;
            ensure!(read.result.context("cannot read")? == blocks.bytes, "the file is truncated");
            done += 1;
            submit(&mut queue, read.buffer)?;
        }
    }
    Ok(done)
}

fn by_ring(file: &Arc<File>, blocks: &Blocks, depth: usize) -> anyhow::Result<u64> {
    let mut ring = PlainRing::new(file.clone(), blocks.bytes, depth)?;
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

/// A buffer whose address is a multiple of [`ALIGN`].
fn aligned(bytes: usize) -> Part<Vec<u8>> {
    let buffer = vec![0; bytes + ALIGN];
    let start = buffer.as_ptr().align_offset(ALIGN);
    Part::new(buffer, start..start + bytes).expect("the alignment is less than what was added")
}

/// The blocks to read, shared by all threads.
struct Blocks {
    bytes: usize,
    /// Number of blocks.
    count: u64,
    /// Each block may be read several times.
    repeats: bool,
    taken: AtomicU64,
    watch: Stopwatch,
    span: Duration,
}

impl Blocks {
    /// Offset of the next block; `None` if all were read or the time is over. There is always a
    /// first one, so that a busy machine measures something.
    fn next(&self) -> Option<u64> {
        // Relaxed: no other memory depends on this counter.
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        let is_in_time = number == 0 || self.watch.elapsed() < self.span;
        let goes_on = (number < self.count || self.repeats) && is_in_time;
        goes_on.then(|| number.wrapping_mul(STRIDE) % self.count * self.bytes as u64)
    }
}

impl Point {
    fn new(from: Origin, bytes: usize, depth: usize) -> Self {
        let kind = match from {
            Origin::Disk => "",
            Origin::Cache => "_hot",
            Origin::Direct => "_direct",
        };
        let name = format!("file_read_{}KiB_depth_{depth}{kind}", bytes >> 10);
        let case =
            |suffix, unit, better| Case { name: (name.clone() + suffix).into(), unit, better };
        let cases = [case("", "reads/s", Better::High), case("_cpu", "us/read", Better::Low)];
        Self { from, bytes, depth, cases }
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
        assert_eq!([over.next(), over.next()], [Some(0), None]);
    }
}
