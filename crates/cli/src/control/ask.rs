//! The client of a control socket: one request, one answer.
//!
//! Limit: [`RESPONSE_BYTES_MAX`].

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, bail};
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
    let mut stream = UnixStream::connect(path)
        .with_context(|| format!("cannot connect to the control socket {}", path.display()))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let request = format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut answer = Vec::new();
    stream
        .write_all(request.as_bytes())
        .and_then(|()| stream.take(RESPONSE_BYTES_MAX).read_to_end(&mut answer))
        .with_context(|| format!("no answer from the control socket {}", path.display()))?;
    let (status, value) = http::read(&answer)
        .with_context(|| format!("{} is not a control socket of towpath", path.display()))?;
    match status {
        200 => Ok(Some(value)),
        404 => Ok(None),
        // A terminal would interpret control characters.
        _ => bail!(
            "{}",
            value["error"].as_str().unwrap_or("no reason is given").replace(char::is_control, "?")
        ),
    }
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
