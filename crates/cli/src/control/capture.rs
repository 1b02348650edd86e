//! `towpath capture`: writes a port's packets to a capture file. This module has both sides of the
//! control socket.
//!
//! The command opens the file, with its user's rights, and passes the descriptor to the network
//! with its request. The network writes to it from the memory where the packets are. The connection
//! stays open during the capture: it carries an interim response (102) first, and a response with
//! the counters at the end. Shutting down the sending side or closing the connection ends the
//! capture.

use std::fs;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use serde_json::{Map, Value, json};
use towpath_gateway::capture::{CaptureSettings, Recorder, Summary, compile_filter};
use towpath_gateway::control::http::{self, Response};
use towpath_gateway::network::Network;
use towpath_gateway::worker::Worker;
use towpath_io::namespace::signals::Signals;
use towpath_io::pcapng::SNAP_BYTES_MAX;

use crate::config::args::CaptureArguments;
use crate::config::settings::{self, find_capture};
use crate::control::ask;
use crate::control::instances::PATIENCE;
use crate::control::ports;
use crate::control::socket::Asked;
use crate::exit::{Ending, Failure};
use crate::messages::Messages;

/// Path of capture requests.
pub(crate) const CAPTURE: &str = "/v1/capture";
/// Longest wait for the last response: the network may have to wait for a disk or a reader.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// The response that reports that the capture has begun.
const BEGUN: &[u8] = b"HTTP/1.1 102 Processing\r\n\r\n";

/// Captures until an event ends the capture.
pub(crate) fn capture(arguments: &CaptureArguments) -> Result<Ending, Failure> {
    let expression = arguments.expression();
    if let Err(error) = compile_filter(&arguments.filter).and_then(|_| compile_filter(&expression))
    {
        settings::usage_error(&anyhow!("option --filter '{}': {error}", arguments.filter));
    }
    let signals = Signals::block()?;
    let path = ports::one(&arguments.which)?;
    let stream = UnixStream::connect(&path)
        .with_context(|| format!("cannot connect to the control socket {}", path.display()))?;
    let body = json!({
        "port": arguments.port,
        "snaplen": arguments.snaplen,
        "count": arguments.count,
        "filter": expression,
        "truncate": arguments.write.as_os_str() != "-",
    });
    let (file, is_new) = open(&arguments.write)?;
    let sent = ask::send(&stream, "POST", CAPTURE, &body.to_string(), Some(file.as_fd()))
        .with_context(|| format!("cannot send the request to {}", path.display()));
    drop(file);
    let answered = sent.and_then(|()| answer(&wait(stream, &signals, &arguments.port)?));
    if is_new && answered.is_err() && is_empty(&arguments.write) {
        // Nothing was captured. A failure to remove the file is not the error to report.
        let _ = fs::remove_file(&arguments.write);
    }
    let value = answered?;
    let messages = Messages::Normal;
    for (name, reported) in [
        ("captured", "packets captured"),
        ("accepted", "packets passed the filter"),
        ("dropped", "packets dropped: the file or its reader was too slow"),
    ] {
        messages.notice(format_args!("{} {reported}", value[name]));
    }
    match value["error"].as_str() {
        Some(error) => Err(anyhow!("the capture ended early: {error}").into()),
        None => Ok(Ending::Code(0)),
    }
}

fn is_empty(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.len() == 0)
}

/// Parses the last response of the network.
fn answer(bytes: &[u8]) -> anyhow::Result<Value> {
    let (status, value) = http::read(bytes).context("the network closed the connection")?;
    if status == 404 {
        bail!(ask::NO_NETWORK);
    }
    if status != 200 {
        bail!(ask::reason(&value));
    }
    Ok(value)
}

/// Opens the destination; returns whether it is a new file. The network gets a descriptor of its
/// own.
fn open(path: &Path) -> anyhow::Result<(OwnedFd, bool)> {
    if path.as_os_str() != "-" {
        let (file, is_new) = find_capture(path)?;
        return Ok((file.into(), is_new));
    }
    let stdout = io::stdout();
    if stdout.is_terminal() {
        bail!("cannot write a capture to a terminal; give a file, or pipe it to a program");
    }
    Ok((stdout.as_fd().try_clone_to_owned()?, false))
}

/// Waits for the last response; a signal requests the end.
fn wait(mut stream: UnixStream, signals: &Signals, port: &str) -> anyhow::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut is_asked = false;
    loop {
        let limit =
            is_asked.then_some(Timespec { tv_sec: END_PATIENCE.as_secs() as i64, tv_nsec: 0 });
        let mut fds = [PollFd::new(&stream, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
        if rustix::io::retry_on_intr(|| poll(&mut fds, limit.as_ref()))? == 0 {
            bail!("the network did not end the capture in {} s", END_PATIENCE.as_secs());
        }
        let has_answer = !fds[0].revents().is_empty();
        while let Some(signal) = signals.next()? {
            if signal.is_end() && is_asked {
                bail!("interrupted again before the capture ended; the file may be incomplete");
            }
            if signal.is_end() {
                is_asked = true;
                stream.shutdown(Shutdown::Write)?;
            }
        }
        if !has_answer {
            continue;
        }
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer).context("cannot read the answer of the network")?;
        answer.extend_from_slice(&buffer[..count]);
        if answer.starts_with(BEGUN) {
            answer.drain(..BEGUN.len());
            Messages::Normal.notice(format_args!("capturing on port {}", port.escape_debug()));
        }
        if count == 0 || answer.len() > http::HEAD_BYTES_MAX {
            return Ok(answer);
        }
    }
}

/// The captures of a running network. Each has a thread, which owns its file and its connection.
/// Dropping this waits for the threads; they end with the network.
#[derive(Default)]
pub(crate) struct Captures {
    threads: Vec<JoinHandle<()>>,
}

impl Captures {
    /// Begins a capture; returns an error response if it cannot begin.
    pub(crate) fn begin(
        &mut self,
        worker: &mut Worker<Network>,
        asked: Asked<'_>,
    ) -> Option<Response> {
        self.threads.retain(|thread| !thread.is_finished());
        match self.try_begin(worker, asked) {
            Ok(()) => None,
            Err((status, message)) => Some(Response::error(status, &message)),
        }
    }

    fn try_begin(
        &mut self,
        worker: &mut Worker<Network>,
        asked: Asked<'_>,
    ) -> Result<(), (u16, String)> {
        if asked.request.method != "POST" {
            return Err((405, "expected method POST".to_owned()));
        }
        let wanted = read_wanted(asked.request.body).map_err(|message| (400, message))?;
        let file = asked.file.take().ok_or((
            400,
            "the request has no file; send a file descriptor (SCM_RIGHTS) with it".to_owned(),
        ))?;
        let impossible = |error: &dyn std::fmt::Display| (409, error.to_string());
        let stream = asked.stream.try_clone().map_err(|error| impossible(&error))?;
        let snap_bytes = wanted.settings.snap_bytes as u32;
        let begun =
            worker.with_inside(|network, cx| network.capture(&wanted.port, wanted.settings, cx));
        let sniffer = begun.map_err(|error| impossible(&error))?;
        if wanted.truncates && is_regular(&file) {
            rustix::fs::ftruncate(&file, 0).map_err(|error| impossible(&error))?;
        }
        let recorder = Recorder::new(sniffer, file, &wanted.port, Some(snap_bytes), wanted.count)
            .map_err(|error| (409, cannot_write(&error)))?;
        let thread = thread::Builder::new().name("capture".to_owned());
        let thread = thread.spawn(move || record(recorder, stream));
        self.threads.push(thread.map_err(|error| impossible(&error))?);
        Ok(())
    }
}

/// Says why a capture cannot be written to a file. A pipe is opened again, which only the user who
/// made it may do: with `sudo -u USER towpath capture ... | tcpdump ...` that is another one.
fn cannot_write(error: &io::Error) -> String {
    let hint = match error.kind() {
        ErrorKind::PermissionDenied => {
            "; if it is a pipe that another user has made, run sh -c 'towpath capture ... | cat' \
             instead"
        }
        _ => "",
    };
    format!("cannot write a capture to the file: {error}{hint}")
}

impl Drop for Captures {
    fn drop(&mut self) {
        for thread in self.threads.drain(..) {
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
    }
}

/// The parameters of a capture.
struct Wanted {
    port: String,
    settings: CaptureSettings,
    count: Option<u64>,
    /// A regular file is truncated when the capture begins.
    truncates: bool,
}

fn is_regular(file: &OwnedFd) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file())
}

fn read_wanted(body: &[u8]) -> Result<Wanted, String> {
    let body: Value =
        serde_json::from_slice(body).map_err(|error| format!("the body is not JSON: {error}"))?;
    let mut fields: Map<String, Value> = body.as_object().ok_or("expected an object")?.clone();
    let port = fields.remove("port");
    let port = port
        .as_ref()
        .and_then(Value::as_str)
        .ok_or("'port': expected the name of a port")?
        .to_owned();
    let mut number = |name: &str, max: u64| match fields.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64().filter(|number| (1..=max).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(format!("'{name}': expected a number from 1 to {max}, got {value}")),
        },
    };
    let snap_bytes = number("snaplen", SNAP_BYTES_MAX.into())?;
    let count = number("count", u64::MAX)?;
    let filter = match fields.remove("filter") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) if text.trim().is_empty() => None,
        Some(Value::String(text)) => {
            Some(compile_filter(&text).map_err(|error| format!("filter '{text}': {error}"))?)
        }
        Some(_) => return Err("'filter': expected a string".to_owned()),
    };
    let truncates = match fields.remove("truncate") {
        None => false,
        Some(Value::Bool(truncates)) => truncates,
        Some(_) => return Err("'truncate': expected true or false".to_owned()),
    };
    if let Some(name) = fields.keys().next() {
        let known = "expected port, snaplen, count, filter or truncate";
        return Err(format!("unknown key '{name}'; {known}"));
    }
    let mut settings = CaptureSettings { filter, ..CaptureSettings::default() };
    if let Some(snap_bytes) = snap_bytes {
        settings.snap_bytes = snap_bytes as usize;
    }
    Ok(Wanted { port, settings, count, truncates })
}

/// Runs on the thread of a capture. The client may close the connection at any time; sending to it
/// may fail.
fn record(recorder: Recorder, mut stream: UnixStream) {
    let _ = stream.set_nonblocking(false);
    let _ = stream.set_write_timeout(Some(PATIENCE));
    let _ = stream.write_all(BEGUN);
    let Summary { written, statistics, error } = recorder.run(stream.as_fd());
    let mut value = json!({
        "captured": written,
        "seen": statistics.seen,
        "accepted": statistics.accepted,
        "dropped": statistics.dropped,
    });
    if let Some(error) = error {
        value["error"] = error.to_string().into();
    }
    let _ = stream.write_all(&Response::json(200, &value).to_bytes());
}
