//! The audit: a line of JSON for each verdict and for each end of a flow.
//!
//! A thread writes the lines. The workers hand them over without waiting: if the thread falls
//! behind by `LINES_MAX`, lines are lost and counted. The file is bounded, too: at the bound
//! nothing more is written, and the rest counts as lost.

use crate::egress::name::Name;
use crate::egress::rule::FlowTo;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};
use towpath_packet::sync::{AtomicU64, Ordering};

/// Lines that wait to be written.
const LINES_MAX: usize = 4096;
/// Default for the largest size of the file.
pub const FILE_BYTES_DEFAULT: u64 = 256 << 20;

/// A writer of records. Dropping it waits until what was handed over is written.
pub struct Audit {
    /// The file and its largest size, until the thread is started.
    file: Option<(File, u64)>,
    lines: Option<SyncSender<String>>,
    lost: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
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
    /// Bytes from and to the guest, and how long the flow lasted.
    pub(super) end: Option<([u64; 2], Duration)>,
}

impl Audit {
    /// Makes an audit in `file`, up to a size of `most` bytes.
    pub fn new(file: File, most: u64) -> Self {
        Self { file: Some((file, most)), lines: None, lost: Arc::default(), thread: None }
    }

    /// Starts the thread that writes, unless it runs. Before, records are lost.
    ///
    /// # Errors
    /// The error of asking for the file's length, or of starting a thread.
    pub(super) fn start(&mut self) -> io::Result<()> {
        let Some((file, most)) = self.file.take() else { return Ok(()) };
        // The thread may run only after the process has confined itself, which forbids to ask.
        let len = file.metadata()?.len();
        let (lines, taken) = sync_channel(LINES_MAX);
        let lost = self.lost.clone();
        let write = move || write_all(file, len, most, &taken, &lost);
        self.thread = Some(thread::Builder::new().name("audit".to_owned()).spawn(write)?);
        self.lines = Some(lines);
        Ok(())
    }

    /// Returns the number of records that are missing.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Hands over a record, unless the thread has fallen behind.
    pub(super) fn put(&self, record: &Record) {
        let lines = self.lines.as_ref();
        if lines.is_none_or(|lines| lines.try_send(record.line(now())).is_err()) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        drop(self.lines.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported.
            let _ = thread.join();
        }
    }
}

/// Writes lines to a file that has `written` bytes, up to `most`.
fn write_all(
    mut file: File,
    mut written: u64,
    most: u64,
    lines: &Receiver<String>,
    lost: &AtomicU64,
) {
    while let Ok(first) = lines.recv() {
        let mut text = first;
        let mut count = 1;
        // One call for all that wait.
        for line in lines.try_iter().take(LINES_MAX) {
            text.push_str(&line);
            count += 1;
        }
        let fits = written + text.len() as u64 <= most;
        match fits.then(|| file.write_all(text.as_bytes())) {
            Some(Ok(())) => written += text.len() as u64,
            _ => {
                lost.fetch_add(count, Ordering::Relaxed);
            }
        }
    }
}

impl Record {
    /// Returns the record of a question that was refused.
    pub(super) fn question(guest: Option<String>, name: Option<&Name>) -> Self {
        Self {
            guest,
            to: None,
            verdict: "deny",
            rule: "default".to_owned(),
            reason: Some("no rule allows this name".to_owned()),
            names: name.map(Name::to_string).into_iter().collect(),
            greeting: None,
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
        if let Some(to) = &self.to {
            let _ = write!(line, r#","port":{}"#, to.port);
        }
        let names: Vec<String> = self.names.iter().map(|name| format!("\"{name}\"")).collect();
        let _ = write!(line, r#","names":[{}]"#, names.join(","));
        if let Some(([out, into], took)) = &self.end {
            let took = took.as_secs_f64();
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
    use std::io::{Read, Seek};

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
            end: None,
        }
    }

    #[test]
    fn records_are_lines_of_json() {
        let mut record = record("deny");
        record.guest = Some("web".to_owned());
        record.reason = Some("denied by a rule".to_owned());
        record.end = Some(([5, 7], Duration::from_millis(1500)));
        let line = record.line(Duration::from_millis(1_700_000_000_042));
        assert_eq!(
            line,
            "{\"time\":1700000000.042,\"verdict\":\"deny\",\"rule\":\"packages\",\
             \"guest\":\"web\",\"reason\":\"denied by a rule\",\"transport\":\"tcp\",\
             \"address\":\"192.0.2.1\",\"greeting\":\"a.example\",\"port\":443,\
             \"names\":[\"a.example\",\"b.example\"],\"bytes_out\":5,\"bytes_in\":7,\
             \"seconds\":1.500}\n"
        );
        let question = Record::question(None, Some(&"a.example".parse().unwrap()));
        assert!(
            question.line(Duration::ZERO).contains(r#""transport":"dns","names":["a.example"]"#)
        );
    }

    /// Goal: the file stays within its bound, whole lines only, and the rest is counted.
    #[test]
    fn the_file_is_bounded() {
        let mut file = tempfile();
        let len = record("allow").line(now()).len() as u64;
        let mut audit = Audit::new(file.try_clone().unwrap(), len * 3);
        audit.start().unwrap();
        let lost = audit.lost.clone();
        // One by one, so that they are not written together.
        for _ in 0..5 {
            let before = (file.metadata().unwrap().len(), lost.load(Ordering::Relaxed));
            audit.put(&record("allow"));
            while before == (file.metadata().unwrap().len(), lost.load(Ordering::Relaxed)) {
                thread::yield_now();
            }
        }
        drop(audit);
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!((text.lines().count(), lost.load(Ordering::Relaxed)), (3, 2));
        assert!(text.lines().all(|line| line.starts_with('{') && line.ends_with('}')));
    }

    fn tempfile() -> File {
        let memory = rustix::fs::memfd_create("audit", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        File::from(memory)
    }
}
