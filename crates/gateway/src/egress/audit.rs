//! The audit: a line of JSON for each verdict and for each end of a flow.
//!
//! A thread writes the lines. The workers hand them over without waiting: if the thread falls
//! behind by `LINES_MAX`, lines are lost and counted. Where lines are missing, a line says how
//! many.
//!
//! The file is rotated when it is full: the caller's function opens another one, and may wait for a
//! disk. What cannot be written is lost and counted, and tried again after `RETRY`.

use crate::egress::name::Name;
use crate::egress::policy::Reason;
use crate::egress::rule::FlowTo;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};
use towpath_packet::sync::{AtomicU64, Ordering};

/// Lines that wait to be written.
const LINES_MAX: usize = 4096;
/// Default for the largest size of a file, in bytes.
pub const FILE_BYTES_DEFAULT: u64 = 64 << 20;
/// Least size that can be set: more than is written at once.
pub const FILE_BYTES_MIN: u64 = 64 << 10;
/// Bytes after which no further line is added to those that are written at once.
const WRITE_BYTES: usize = 32 << 10;
/// How long to wait after a file could not be opened.
const RETRY: Duration = Duration::from_secs(1);

/// A writer of records. Dropping it waits until what was handed over is written.
pub struct Audit {
    /// The file, until the thread is started.
    log: Option<Log>,
    entries: Option<SyncSender<Entry>>,
    lost: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// Which file comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// An empty one. The present one is full, and gets another name.
    Empty,
    /// The one that has the name now: the user has moved the present one.
    Named,
}

/// Opens the next file.
type Open = Box<dyn FnMut(Next) -> io::Result<File> + Send>;

/// The file, and those that follow.
struct Log {
    file: File,
    most: u64,
    open: Open,
}

/// What the thread gets.
enum Entry {
    Line(String),
    /// To open the file of the name.
    Reopen,
}

/// What a record tells.
pub(super) struct Record {
    /// The name of the guest's port.
    pub(super) guest: Option<String>,
    /// The flow; `None` for a question to a resolver.
    pub(super) to: Option<FlowTo>,
    pub(super) verdict: &'static str,
    /// The `id` of the rule.
    pub(super) rule: String,
    pub(super) reason: Option<String>,
    /// Names that have resolved to the address.
    pub(super) names: Vec<String>,
    /// The name in the greeting.
    pub(super) greeting: Option<String>,
    /// It is about a native socket.
    pub(super) is_native: bool,
    /// Bytes from and to the guest, if they are known, and how long the flow lasted.
    pub(super) end: Option<(Option<[u64; 2]>, Duration)>,
}

impl Audit {
    /// Makes an audit in `file`, up to a size of `most` bytes. Then, and after reopen, it goes on
    /// with the file that `open` returns, on its own thread.
    pub fn new(
        file: File,
        most: u64,
        open: impl FnMut(Next) -> io::Result<File> + Send + 'static,
    ) -> Self {
        let log = Some(Log { file, most, open: Box::new(open) });
        Self { log, entries: None, lost: Arc::default(), thread: None }
    }

    /// Starts the thread that writes, unless it runs. Before, records are lost.
    ///
    /// # Errors
    /// The error of starting a thread.
    pub(super) fn start(&mut self) -> io::Result<()> {
        let Some(log) = self.log.take() else { return Ok(()) };
        let (entries, taken) = sync_channel(LINES_MAX);
        let writer = Writer::new(log, self.lost.clone());
        let write = move || writer.write_all(&taken);
        self.thread = Some(thread::Builder::new().name("audit".to_owned()).spawn(write)?);
        self.entries = Some(entries);
        Ok(())
    }

    /// Makes the thread open the file of the name again, after the lines so far. Returns false if
    /// it is too far behind.
    pub(super) fn reopen(&self) -> bool {
        self.entries.as_ref().is_some_and(|entries| entries.try_send(Entry::Reopen).is_ok())
    }

    /// Returns the number of records that are missing.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Hands over a record, unless the thread has fallen behind.
    pub(super) fn put(&self, record: &Record) {
        let put = |entries: &SyncSender<Entry>| entries.try_send(Entry::Line(record.line(now())));
        if self.entries.as_ref().is_none_or(|entries| put(entries).is_err()) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        drop(self.entries.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported.
            let _ = thread.join();
        }
    }
}

/// The thread's side.
struct Writer {
    log: Log,
    /// Size of the file.
    written: u64,
    /// The last write was cut short: the next one begins with the end of its line.
    is_torn: bool,
    /// No file is opened before then.
    retry_at: Duration,
    lost: Arc<AtomicU64>,
    /// Lost records that lines of the file report.
    reported: u64,
}

impl Writer {
    fn new(mut log: Log, lost: Arc<AtomicU64>) -> Self {
        let written = length(&mut log.file);
        Self { log, written, is_torn: false, retry_at: Duration::ZERO, lost, reported: 0 }
    }

    fn write_all(mut self, entries: &Receiver<Entry>) {
        while let Ok(first) = entries.recv() {
            let (mut text, mut count) = (String::new(), 0);
            // One call for all that wait, up to a bound.
            for entry in [first].into_iter().chain(entries.try_iter()) {
                match entry {
                    Entry::Line(line) => {
                        text.push_str(&line);
                        count += 1;
                    }
                    Entry::Reopen => {
                        self.write(&std::mem::take(&mut text), std::mem::take(&mut count), now());
                        self.retry_at = Duration::ZERO;
                        self.open(Next::Named, now());
                    }
                }
                if text.len() >= WRITE_BYTES {
                    break;
                }
            }
            self.write(&text, count, now());
        }
        // Records may be missing at the end.
        self.write("", 0, now());
    }

    /// Writes lines. Those that cannot be written are lost.
    fn write(&mut self, text: &str, count: u64, at: Duration) {
        let lost = self.lost.load(Ordering::Relaxed);
        if count == 0 && lost == self.reported {
            return;
        }
        let mut all = String::new();
        if self.is_torn {
            all.push('\n');
        }
        if lost > self.reported {
            all.push_str(&missing(lost - self.reported, at));
        }
        all.push_str(text);
        if self.written > 0 && self.written + all.len() as u64 > self.log.most {
            self.open(Next::Empty, at);
        }
        let fits = self.written == 0 || self.written + all.len() as u64 <= self.log.most;
        match fits.then(|| self.log.file.write_all(all.as_bytes())) {
            Some(Ok(())) => {
                self.written += all.len() as u64;
                (self.reported, self.is_torn) = (lost, false);
            }
            failed => {
                if failed.is_some() {
                    // It may have been written in part.
                    let before = std::mem::replace(&mut self.written, length(&mut self.log.file));
                    self.is_torn |= self.written > before;
                }
                self.lost.fetch_add(count, Ordering::Relaxed);
            }
        }
    }

    /// Goes on with another file, if there is one.
    fn open(&mut self, next: Next, at: Duration) {
        if at < self.retry_at {
            return;
        }
        match (self.log.open)(next) {
            Ok(mut file) => {
                self.written = length(&mut file);
                self.log.file = file;
                self.is_torn = false;
            }
            Err(_) => self.retry_at = at + RETRY,
        }
    }
}

/// Returns the size of a file; 0 for a pipe or a device.
fn length(file: &mut File) -> u64 {
    file.seek(SeekFrom::End(0)).unwrap_or(0)
}

/// Returns the line about missing records.
fn missing(count: u64, at: Duration) -> String {
    let (secs, millis) = (at.as_secs(), at.subsec_millis());
    format!("{{\"time\":{secs}.{millis:03},\"verdict\":\"lost\",\"records\":{count}}}\n")
}

impl Record {
    /// Returns the record of a question for a name that was refused by `rule`.
    pub(super) fn question(
        guest: Option<String>,
        name: Option<&Name>,
        rule: &str,
        reason: Reason,
    ) -> Self {
        Self {
            guest,
            to: None,
            verdict: "deny",
            rule: rule.to_owned(),
            reason: Some(reason.to_string()),
            names: name.map(Name::to_string).into_iter().collect(),
            greeting: None,
            is_native: false,
            end: None,
        }
    }

    /// Returns the record as a line of JSON. Its texts have no character that JSON escapes: names
    /// are ASCII, ids and names of ports are checked, and the others are fixed.
    fn line(&self, at: Duration) -> String {
        let (secs, millis) = (at.as_secs(), at.subsec_millis());
        let mut line = format!(r#"{{"time":{secs}.{millis:03},"verdict":"{}""#, self.verdict);
        let mut text = |key: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = write!(line, r#","{key}":"{value}""#);
        };
        text("rule", &self.rule);
        if let Some(guest) = &self.guest {
            text("guest", guest);
        }
        if let Some(reason) = &self.reason {
            text("reason", reason);
        }
        match &self.to {
            Some(to) => {
                text("transport", &to.transport.to_string());
                text("address", &to.address.to_string());
            }
            None => text("transport", "dns"),
        }
        if let Some(greeting) = &self.greeting {
            text("greeting", greeting);
        }
        if self.is_native {
            text("path", "native");
        }
        if let Some(to) = &self.to {
            let _ = write!(line, r#","port":{}"#, to.port);
        }
        let names: Vec<String> = self.names.iter().map(|name| format!("\"{name}\"")).collect();
        let _ = write!(line, r#","names":[{}]"#, names.join(","));
        if let Some((bytes, took)) = &self.end {
            let count = |way: usize| bytes.map_or("null".to_owned(), |all| all[way].to_string());
            let (out, into, took) = (count(0), count(1), took.as_secs_f64());
            let _ = write!(line, r#","bytes_out":{out},"bytes_in":{into},"seconds":{took:.3}"#);
        }
        line.push_str("}\n");
        line
    }
}

/// Returns the time since 1970-01-01 UTC.
fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::rule::Transport;
    use std::io::Read;
    use std::sync::Mutex;

    fn record(verdict: &'static str) -> Record {
        let to = FlowTo { transport: Transport::Tcp, address: [192, 0, 2, 1].into(), port: 443 };
        Record {
            guest: None,
            to: Some(to),
            verdict,
            rule: "packages".to_owned(),
            reason: None,
            names: vec!["a.example".to_owned(), "b.example".to_owned()],
            greeting: Some("a.example".to_owned()),
            is_native: false,
            end: None,
        }
    }

    #[test]
    fn records_are_lines_of_json() {
        let mut record = record("deny");
        record.guest = Some("web".to_owned());
        record.reason = Some("denied by a rule".to_owned());
        record.end = Some((Some([5, 7]), Duration::from_millis(1500)));
        let line = record.line(Duration::from_millis(1_700_000_000_042));
        assert_eq!(
            line,
            "{\"time\":1700000000.042,\"verdict\":\"deny\",\"rule\":\"packages\",\
             \"guest\":\"web\",\"reason\":\"denied by a rule\",\"transport\":\"tcp\",\
             \"address\":\"192.0.2.1\",\"greeting\":\"a.example\",\"port\":443,\
             \"names\":[\"a.example\",\"b.example\"],\"bytes_out\":5,\"bytes_in\":7,\
             \"seconds\":1.500}\n"
        );
        record.is_native = true;
        record.end = Some((None, Duration::ZERO));
        let line = record.line(Duration::ZERO);
        assert!(line.contains(r#","path":"native","port":443,"#), "{line}");
        assert!(line.ends_with(",\"bytes_out\":null,\"bytes_in\":null,\"seconds\":0.000}\n"));
        let name = "a.example".parse().unwrap();
        let question = Record::question(None, Some(&name), "ads", Reason::Rule);
        assert_eq!(
            question.line(Duration::ZERO),
            "{\"time\":0.000,\"verdict\":\"deny\",\"rule\":\"ads\",\"reason\":\"denied by a rule\",\
             \"transport\":\"dns\",\"names\":[\"a.example\"]}\n"
        );
    }

    /// Files in memory: each text that was written to one, in order.
    #[derive(Clone, Default)]
    struct Files(Arc<Mutex<Vec<File>>>);

    impl Files {
        fn open(&self) -> File {
            let memory = rustix::fs::memfd_create("audit", rustix::fs::MemfdFlags::CLOEXEC);
            let file = File::from(memory.unwrap());
            self.0.lock().unwrap().push(file.try_clone().unwrap());
            file
        }

        fn texts(&self) -> Vec<String> {
            let read = |file: &mut File| {
                let mut text = String::new();
                file.rewind().unwrap();
                file.read_to_string(&mut text).unwrap();
                text
            };
            self.0.lock().unwrap().iter_mut().map(read).collect()
        }
    }

    /// Returns a writer of files up to `most` bytes. `opens` says whether the next one can be
    /// opened.
    fn writer(most: u64, opens: impl Fn(Next) -> bool + Send + 'static) -> (Writer, Files) {
        let files = Files::default();
        let more = files.clone();
        let open = move |next| match opens(next) {
            true => Ok(more.open()),
            false => Err(io::ErrorKind::StorageFull.into()),
        };
        let log = Log { file: files.open(), most, open: Box::new(open) };
        (Writer::new(log, Arc::default()), files)
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    /// Goal: a full file is followed by another one, lines stay whole, and none is missing; lines
    /// that are longer than a file have one of their own.
    #[test]
    fn a_full_file_is_followed_by_another() {
        let (mut writer, files) = writer(10, |next| next == Next::Empty);
        for text in ["one\n", "two\n", "three\n", "longer than a file\n", "four\n"] {
            writer.write(text, 1, secs(0));
        }
        assert_eq!(files.texts(), ["one\ntwo\n", "three\n", "longer than a file\n", "four\n"]);
        assert_eq!(writer.lost.load(Ordering::Relaxed), 0);
    }

    /// Goal: while no other file can be opened, the present one stays within its bound and what is
    /// missing is counted; a later line reports how much. Not each line tries again.
    #[test]
    fn missing_lines_are_reported() {
        let tries = Arc::new(AtomicU64::new(0));
        let counted = tries.clone();
        let opens = move |_| counted.fetch_add(1, Ordering::Relaxed) > 0;
        let (mut writer, files) = writer(10, opens);
        for text in ["1234567\n", "lost 1\n", "lost 2\nlost 3\n"] {
            writer.write(text, text.lines().count() as u64, secs(5));
        }
        assert_eq!((files.texts().len(), tries.load(Ordering::Relaxed)), (1, 1));
        writer.write("after\n", 1, secs(6));
        let reported = "{\"time\":6.000,\"verdict\":\"lost\",\"records\":3}\n";
        assert_eq!(files.texts(), ["1234567\n".to_owned(), format!("{reported}after\n")]);
        assert_eq!((writer.lost.load(Ordering::Relaxed), writer.reported), (3, 3));
    }

    /// Goal: a reopened file gets the lines that follow, and the one before those that precede.
    /// Method: all at once, as the thread takes them.
    #[test]
    fn a_moved_file_is_opened_again() {
        let (writer, files) = writer(1000, |next| next == Next::Named);
        let (entries, taken) = sync_channel(9);
        for entry in [Entry::Line("one\n".into()), Entry::Reopen, Entry::Line("two\n".into())] {
            entries.try_send(entry).unwrap();
        }
        drop(entries);
        writer.write_all(&taken);
        assert_eq!(files.texts(), ["one\n", "two\n"]);
    }

    /// Goal: records go through the thread, which has written them all when the audit is dropped;
    /// those from before its start are lost, and the file reports that.
    #[test]
    fn the_thread_writes_all() {
        let files = Files::default();
        let mut audit =
            Audit::new(files.open(), FILE_BYTES_MIN, |_| Err(io::ErrorKind::Other.into()));
        audit.put(&record("allow"));
        audit.start().unwrap();
        (0..100).for_each(|_| audit.put(&record("allow")));
        assert_eq!(audit.lost(), 1);
        drop(audit);
        let text = files.texts().concat();
        assert_eq!(text.lines().count(), 101);
        assert!(text.lines().all(|line| line.starts_with('{') && line.ends_with('}')));
        assert!(text.contains(r#""verdict":"lost","records":1}"#), "{text}");
    }
}
