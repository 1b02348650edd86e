//! Answers to requests.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

use super::files::{Found, Root, Target};
use super::request::{Request, Wanted};

/// An answer.
pub(super) struct Answer {
    pub(super) status: u16,
    /// Status line and headers, and the body if it is no file.
    pub(super) head: Vec<u8>,
    /// The file that follows, and the range to send.
    pub(super) body: Option<(Arc<File>, Range<u64>)>,
    /// True if the connection stays open for another request.
    pub(super) is_kept: bool,
    /// The request, for the log.
    pub(super) line: String,
}

/// The state from which answers are made.
pub(super) struct Site {
    pub(super) root: Root,
    pub(super) clock: Clock,
    /// Connections are no longer kept open.
    pub(super) is_ending: bool,
    /// True if requests are logged.
    pub(super) is_logged: bool,
}

/// The time, read once per turn.
pub(super) struct Clock {
    /// Since an arbitrary start.
    pub(super) now: Duration,
    second: u64,
    /// As an HTTP date.
    pub(super) date: String,
}

impl Clock {
    pub(super) fn new() -> Self {
        let mut clock = Self { now: Duration::ZERO, second: u64::MAX, date: String::new() };
        clock.look();
        clock
    }

    pub(super) fn look(&mut self) {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        self.now = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32);
        let second = clock_gettime(ClockId::RealtimeCoarse).tv_sec.unsigned_abs();
        if second != self.second {
            self.second = second;
            let moment = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
            self.date = httpdate::fmt_http_date(moment);
        }
    }
}

impl Site {
    /// Answers a request.
    pub(super) fn answer(&mut self, request: &Request<'_>) -> Answer {
        let mut answer = match request.method {
            "GET" | "HEAD" => match self.root.find(&request.path, self.clock.now) {
                Ok(Target::File(found)) => self.file(request, &found),
                Ok(Target::Directory) => self.directory(request),
                Ok(Target::Nothing) => self.text(404, request.is_kept, ""),
                Err(_) => self.text(503, request.is_kept, ""),
            },
            _ => self.text(405, request.is_kept, "Allow: GET, HEAD\r\n"),
        };
        if request.method == "HEAD" {
            answer.body = None;
            if let Some(end) = answer.head.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                answer.head.truncate(end + 4);
            }
        }
        if self.is_logged {
            answer.line = format!("{} {}", request.method, request.target);
        }
        answer
    }

    /// Answers invalid input, at the end of a connection.
    pub(super) fn refuse(&self, status: u16) -> Answer {
        let mut answer = self.text(status, false, "");
        if self.is_logged {
            answer.line = "-".into();
        }
        answer
    }

    fn file(&self, request: &Request<'_>, found: &Found) -> Answer {
        if is_known(request, found) {
            let mut head = self.head(304, request.is_kept);
            head.extend_from_slice(found.fields.as_bytes());
            head.extend_from_slice(b"\r\n");
            return self.done(304, head, None, request.is_kept);
        }
        let range = request.range.filter(|_| is_same(request.if_range, found));
        let (status, range) = match Wanted::of(range, found.len) {
            Wanted::All => (200, 0..found.len),
            Wanted::Part(range) => (206, range),
            Wanted::Nothing => {
                let field = format!("Content-Range: bytes */{}\r\n", found.len);
                return self.text(416, request.is_kept, &field);
            }
        };
        let mut head = self.head(status, request.is_kept);
        head.extend_from_slice(found.fields.as_bytes());
        if status == 206 {
            let (first, last, len) = (range.start, range.end - 1, found.len);
            push(&mut head, format_args!("Content-Range: bytes {first}-{last}/{len}\r\n"));
        }
        push(&mut head, format_args!("Content-Length: {}\r\n\r\n", range.end - range.start));
        let body = (!range.is_empty()).then(|| (found.file.clone(), range));
        self.done(status, head, body, request.is_kept)
    }

    /// Redirects to the directory's page, where relative links resolve correctly.
    fn directory(&self, request: &Request<'_>) -> Answer {
        let path = request.target.split('?').next().unwrap_or_default();
        self.text(301, request.is_kept, &format!("Location: {path}/\r\n"))
    }

    /// Returns an answer that only contains its status.
    fn text(&self, status: u16, is_kept: bool, fields: &str) -> Answer {
        let reason = reason(status);
        let mut head = self.head(status, is_kept);
        push(
            &mut head,
            format_args!(
                "{fields}Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n{status} {reason}\n",
                reason.len() + 5
            ),
        );
        self.done(status, head, None, is_kept)
    }

    fn head(&self, status: u16, is_kept: bool) -> Vec<u8> {
        let mut head = Vec::with_capacity(HEAD_BYTES);
        let (reason, date) = (reason(status), &self.clock.date);
        let connection = if self.is_kept(is_kept) { "keep-alive" } else { "close" };
        push(
            &mut head,
            format_args!(
                "HTTP/1.1 {status} {reason}\r\nServer: towpath\r\nDate: {date}\r\n\
                 Connection: {connection}\r\n"
            ),
        );
        head
    }

    fn done(
        &self,
        status: u16,
        head: Vec<u8>,
        body: Option<(Arc<File>, Range<u64>)>,
        is_kept: bool,
    ) -> Answer {
        Answer { status, head, body, is_kept: self.is_kept(is_kept), line: String::new() }
    }

    fn is_kept(&self, is_kept: bool) -> bool {
        is_kept && !self.is_ending
    }
}

/// Returns true if the client has the current version of the file (RFC 9110 §13.2.2).
fn is_known(request: &Request<'_>, found: &Found) -> bool {
    if let Some(tags) = request.if_none_match {
        let mut tags = tags.split(',').map(str::trim);
        return tags.any(|tag| tag == "*" || tag.trim_start_matches("W/") == found.etag);
    }
    let since = request.if_modified_since.map(httpdate::parse_http_date);
    since.is_some_and(|since| since.is_ok_and(|since| found.modified <= since))
}

/// Returns true if the client's parts are of the current version of the file (RFC 9110 §13.1.5).
fn is_same(if_range: Option<&str>, found: &Found) -> bool {
    let Some(known) = if_range else { return true };
    known == found.etag || httpdate::parse_http_date(known).is_ok_and(|at| at == found.modified)
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        206 => "Partial Content",
        301 => "Moved Permanently",
        304 => "Not Modified",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        416 => "Range Not Satisfiable",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        505 => "HTTP Version Not Supported",
        _ => "Service Unavailable",
    }
}

fn push(head: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    head.write_fmt(text).expect("writing to memory does not fail");
}

/// Capacity that suffices for most heads.
const HEAD_BYTES: usize = 384;
