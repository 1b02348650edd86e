//! HTTP/1.1 (RFC 9112) as far as the control socket needs it: one request per connection, with a
//! body of known length, and one response, after which the connection closes.
//!
//! Limits: [`HEAD_BYTES_MAX`], [`HEADERS_MAX`], [`BODY_BYTES_MAX`], [`LONG_BODY_BYTES_MAX`].

use httparse::Status;
use serde_json::{Value, json};

/// Longest request line with headers, in bytes.
pub const HEAD_BYTES_MAX: usize = 8 << 10;
/// Most headers of a request or a response.
pub const HEADERS_MAX: usize = 32;
/// Longest body of a request in bytes: fits a transaction of a hundred ports with long paths.
pub const BODY_BYTES_MAX: usize = 64 << 10;
/// Longest body of a long request in bytes: as long as the file of a policy may be.
pub const LONG_BODY_BYTES_MAX: usize = 4 << 20;

/// How long the body of a request may be.
#[derive(Clone, Copy, Debug)]
pub struct BodyRoom {
    /// Most bytes at any time.
    pub most: usize,
    /// Most bytes now. Less than `most` while another long request is on its way.
    pub now: usize,
}

impl BodyRoom {
    /// For an instance that takes no long requests.
    pub const SHORT: Self = Self { most: BODY_BYTES_MAX, now: BODY_BYTES_MAX };
    /// For a long request, while there is no other.
    pub const LONG: Self = Self { most: LONG_BODY_BYTES_MAX, now: LONG_BODY_BYTES_MAX };
    /// While there is a long request.
    pub const ONE_LONG: Self = Self { now: BODY_BYTES_MAX, ..Self::LONG };
}

/// A complete request.
#[derive(Debug)]
pub struct Request<'a> {
    /// The method, for example `GET`.
    pub method: &'a str,
    /// The target, for example `/v1/stats`.
    pub path: &'a str,
    /// The body, as long as its Content-Length.
    pub body: &'a [u8],
}

/// A response.
#[derive(Debug)]
pub struct Response {
    status: u16,
    content_type: &'static str,
    body: String,
}

impl<'a> Request<'a> {
    /// Parses the request in `input`; `None` if it is not complete. There is `room` for its body.
    ///
    /// # Errors
    /// The response to an invalid or too large request.
    pub fn parse(input: &'a [u8], room: BodyRoom) -> Result<Option<Self>, Response> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        let too_large = || {
            let message = format!(
                "the headers are too large; at most {HEAD_BYTES_MAX} bytes and {HEADERS_MAX} \
                 headers are accepted"
            );
            Response::error(431, &message)
        };
        let head_len = match request.parse(input) {
            Ok(Status::Complete(len)) if len <= HEAD_BYTES_MAX => len,
            Ok(Status::Partial) if input.len() < HEAD_BYTES_MAX => return Ok(None),
            Ok(_) | Err(httparse::Error::TooManyHeaders) => return Err(too_large()),
            Err(error) => {
                return Err(Response::error(400, &format!("not an HTTP request: {error}")));
            }
        };
        let (Some(method), Some(path)) = (request.method, request.path) else {
            return Err(Response::error(400, "not an HTTP request"));
        };
        let body_len = body_len(request.headers)?;
        if body_len > room.most {
            let BodyRoom { most, .. } = room;
            let message =
                format!("a body of {body_len} bytes is too large; at most {most} are accepted");
            return Err(Response::error(413, &message));
        }
        if body_len > room.now {
            let message = "another long request is being read; try again when it is answered";
            return Err(Response::error(503, message));
        }
        let body = input.get(head_len..head_len + body_len);
        Ok(body.map(|body| Self { method, path, body }))
    }
}

/// Returns the length of the body according to the headers.
fn body_len(headers: &[httparse::Header<'_>]) -> Result<usize, Response> {
    let mut found = None;
    for header in headers {
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            // RFC 9112 §6.1: the server does not understand the transfer coding.
            let message = "Transfer-Encoding is not supported; send a Content-Length";
            return Err(Response::error(501, message));
        }
        if header.name.eq_ignore_ascii_case("content-length") {
            let is_digits = header.value.iter().all(u8::is_ascii_digit);
            let text = std::str::from_utf8(header.value).ok().filter(|_| is_digits);
            let len: Option<usize> = text.and_then(|text| text.parse().ok());
            // RFC 9112 §6.3: the length is invalid, or several lengths differ.
            if len.is_none() || found.is_some_and(|found| Some(found) != len) {
                return Err(Response::error(400, "Content-Length is not a number, or differs"));
            }
            found = len;
        }
    }
    Ok(found.unwrap_or(0))
}

impl Response {
    /// Returns a response with a JSON body.
    pub fn json(status: u16, value: &Value) -> Self {
        Self { status, content_type: "application/json", body: format!("{value}\n") }
    }

    /// Returns a response with a body that is JSON already.
    pub fn json_text(body: String) -> Self {
        Self { status: 200, content_type: "application/json", body }
    }

    /// Returns a response with figures in OpenMetrics format.
    pub fn metrics(body: String) -> Self {
        let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        Self { status: 200, content_type, body }
    }

    /// Returns a response that reports an error.
    pub fn error(status: u16, message: &str) -> Self {
        Self::json(status, &json!({ "error": message }))
    }

    /// Returns the bytes to send.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Self { status, content_type, body } = self;
        let (reason, len) = (reason(*status), body.len());
        format!(
            "HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\n\
             Content-Length: {len}\r\nConnection: close\r\n\r\n{body}"
        )
        .into_bytes()
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        413 => "Content Too Large",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        _ => "",
    }
}

/// Returns status and body of a JSON response; `None` if it is not valid or not complete.
pub fn read(answer: &[u8]) -> Option<(u16, Value)> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let Ok(Status::Complete(len)) = response.parse(answer) else { return None };
    Some((response.code?, serde_json::from_slice(&answer[len..]).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(input: &[u8]) -> Option<u16> {
        Request::parse(input, BodyRoom::SHORT).err().map(|response| response.status)
    }

    #[test]
    fn a_request_is_taken_when_all_of_it_is_there() {
        let whole = b"POST /x HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}";
        for len in 0..whole.len() {
            assert!(matches!(Request::parse(&whole[..len], BodyRoom::SHORT), Ok(None)), "{len}");
        }
        let request = Request::parse(whole, BodyRoom::SHORT).ok().flatten().unwrap();
        assert_eq!((request.method, request.path, request.body), ("POST", "/x", &b"{}"[..]));
    }

    #[test]
    fn what_is_no_request_is_refused() {
        assert_eq!(status(b"\x16\x03\x01\x00\x00"), Some(400), "TLS");
        assert_eq!(status(&[b'A'; HEAD_BYTES_MAX]), Some(431), "a line without an end is too long");
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX + 1));
        assert_eq!(status(many.as_bytes()), Some(431));
        for (header, expected) in [
            ("Content-Length: -1", 400),
            ("Content-Length: +1", 400),
            ("Content-Length:", 400),
            ("Content-Length: 1\r\nContent-Length: 2", 400),
            ("Content-Length: 99999999999999999999999", 400),
            ("Content-Length: 65537", 413),
            ("Transfer-Encoding: chunked", 501),
        ] {
            let input = format!("POST / HTTP/1.1\r\n{header}\r\n\r\n");
            assert_eq!(status(input.as_bytes()), Some(expected), "{header}");
        }
    }

    /// Goal: a long body is taken where there is room for it, and a client learns whether it may
    /// try again.
    #[test]
    fn long_bodies_are_taken_one_at_a_time() {
        let head = |len: usize| format!("POST / HTTP/1.1\r\nContent-Length: {len}\r\n\r\n");
        let status = |len, room| match Request::parse(head(len).as_bytes(), room) {
            Ok(request) => request.map_or(0, |_| 200),
            Err(response) => response.status,
        };
        let (short, long) = (BODY_BYTES_MAX, LONG_BODY_BYTES_MAX);
        for (room, expected) in [
            (BodyRoom::SHORT, [0, 413, 413, 413]),
            (BodyRoom::LONG, [0, 0, 0, 413]),
            (BodyRoom::ONE_LONG, [0, 503, 503, 413]),
        ] {
            let got = [short, short + 1, long, long + 1].map(|len| status(len, room));
            assert_eq!(got, expected, "{room:?}");
        }
    }
}
