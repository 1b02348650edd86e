//! The client of a control socket: one request, one answer.
//!
//! Limit: [`RESPONSE_BYTES_MAX`].

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, bail};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::Value;
use towpath_gateway::control::http;

use crate::control::instances::PATIENCE;

/// The error if an instance that serves one program gets a request for a network.
pub(crate) const NO_NETWORK: &str = "this towpath serves one program and is not a network; choose \
                                     a `towpath up` with --pid or --socket";
/// Longest answer that is read, in bytes: many times the counters of all ports of a full switch.
const RESPONSE_BYTES_MAX: u64 = 4 << 20;

/// Sends a request to a control socket. An error response becomes an error, except that a missing
/// path returns `None`, as at an instance of another kind.
pub(crate) fn ask_if_any(
    path: &Path,
    method: &str,
    target: &str,
    body: Option<&Value>,
) -> anyhow::Result<Option<Value>> {
    match exchange(path, method, target, body, None)? {
        (200, value) => Ok(Some(value)),
        (404, _) => Ok(None),
        (_, value) => bail!(reason(&value)),
    }
}

/// Sends a request to a control socket, with a descriptor if there is one. Returns the status and
/// the value of the response.
pub(crate) fn exchange(
    path: &Path,
    method: &str,
    target: &str,
    body: Option<&Value>,
    file: Option<BorrowedFd<'_>>,
) -> anyhow::Result<(u16, Value)> {
    // Before the connection begins, which must not last.
    let body = body.map(Value::to_string).unwrap_or_default();
    let stream = UnixStream::connect(path)
        .with_context(|| format!("cannot connect to the control socket {}", path.display()))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut answer = Vec::new();
    let sent = send(&stream, method, target, &body, file);
    let read = stream.take(RESPONSE_BYTES_MAX).read_to_end(&mut answer);
    if let Some(answer) = http::read(&answer) {
        // It may have been refused before all of it was sent.
        return Ok(answer);
    }
    sent.and(read)
        .with_context(|| format!("no answer from the control socket {}", path.display()))?;
    bail!("{} is not a control socket of towpath", path.display())
}

/// Sends the text of a request, and a descriptor with its first byte if there is one.
pub(crate) fn send(
    mut stream: &UnixStream,
    method: &str,
    target: &str,
    body: &str,
    file: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(files) = file.as_ref().map(std::slice::from_ref) {
        assert!(control.push(SendAncillaryMessage::ScmRights(files)), "there is room for one");
    }
    let slices = [IoSlice::new(request.as_bytes())];
    let sent = sendmsg(stream, &slices, &mut control, SendFlags::NOSIGNAL)?;
    stream.write_all(&request.as_bytes()[sent..])
}

/// Returns the reason in an error response, without characters that a terminal would interpret.
pub(crate) fn reason(value: &Value) -> String {
    value["error"].as_str().unwrap_or("no reason is given").replace(char::is_control, "?")
}

/// Sends a request for a path that the control socket must have.
pub(crate) fn ask(
    path: &Path,
    method: &str,
    target: &str,
    body: Option<&Value>,
) -> anyhow::Result<Value> {
    ask_if_any(path, method, target, body)?
        .with_context(|| format!("{}: {NO_NETWORK}", path.display()))
}

/// Returns a value without characters that a terminal would interpret.
pub(crate) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), |text| text.escape_debug().to_string())
}
