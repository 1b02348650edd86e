//! Requests of clients: HTTP/1.1 (RFC 9112) and HTTP/1.0, as far as fetching files needs it.
//!
//! This parser knows neither connections nor files. Any input is accepted; invalid requests are
//! rejected with a status, after which the connection ends.

use std::borrow::Cow;
use std::ops::Range;

use httparse::{EMPTY_HEADER, Header};

/// Longest request line with headers.
pub(crate) const HEAD_BYTES_MAX: usize = 8 << 10;
/// Most headers.
const HEADERS_MAX: usize = 64;
/// Longest body that is skipped; no supported method has one.
pub(crate) const BODY_BYTES_MAX: u64 = 64 << 10;

/// Result of parsing the start of a client's data.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed<'a> {
    /// An incomplete request.
    Partial,
    /// A request and the length of its head.
    Request(Request<'a>, usize),
    /// Rejected with this status; the connection ends.
    Refused(u16),
}

/// A request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    /// The target as it was sent.
    pub(super) target: &'a str,
    /// The decoded path of the target, relative to the root.
    pub(super) path: Cow<'a, str>,
    /// Length of the body in bytes.
    pub(super) body: u64,
    /// True if the client wants to send another request afterwards.
    pub(super) is_kept: bool,
    pub(super) range: Option<&'a str>,
    pub(super) if_range: Option<&'a str>,
    pub(super) if_modified_since: Option<&'a str>,
    pub(super) if_none_match: Option<&'a str>,
}

impl<'a> Request<'a> {
    pub(super) fn parse(input: &'a [u8]) -> Parsed<'a> {
        let mut headers = [EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        let head_len = match request.parse(input) {
            Ok(httparse::Status::Complete(len)) if len <= HEAD_BYTES_MAX => len,
            Ok(httparse::Status::Partial) if input.len() < HEAD_BYTES_MAX => {
                return Parsed::Partial;
            }
            Ok(_) | Err(httparse::Error::TooManyHeaders) => return Parsed::Refused(431),
            Err(httparse::Error::Version) => return Parsed::Refused(505),
            Err(_) => return Parsed::Refused(400),
        };
        let (Some(method), Some(target), Some(minor)) =
            (request.method, request.path, request.version)
        else {
            return Parsed::Refused(400);
        };
        match Self::complete((method, target), minor, request.headers) {
            Ok(request) => Parsed::Request(request, head_len),
            Err(status) => Parsed::Refused(status),
        }
    }

    fn complete(
        (method, target): (&'a str, &'a str),
        minor: u8,
        headers: &[Header<'a>],
    ) -> Result<Self, u16> {
        let path = path(target).ok_or(400_u16)?;
        let mut request = Self { method, target, path, is_kept: minor == 1, ..Self::default() };
        let (mut hosts, mut body) = (0, None);
        for header in headers {
            // Only values in UTF-8 are used.
            let value = std::str::from_utf8(header.value).map(str::trim);
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            if is("host") {
                hosts += 1;
            } else if is("transfer-encoding") {
                // RFC 9112 §6.1.
                return Err(501);
            } else if is("content-length") {
                let len = length(value.map_err(|_| 400_u16)?).ok_or(400_u16)?;
                // RFC 9112 §6.3: several values that differ.
                if body.replace(len).is_some_and(|before| before != len) {
                    return Err(400);
                }
            } else if let Ok(value) = value {
                if is("connection") {
                    request.connection(value);
                } else if is("range") {
                    request.range = Some(value);
                } else if is("if-range") {
                    request.if_range = Some(value);
                } else if is("if-modified-since") {
                    request.if_modified_since = Some(value);
                } else if is("if-none-match") {
                    request.if_none_match = Some(value);
                }
            }
        }
        // RFC 9112 §3.2: no host in HTTP/1.1, or several.
        if hosts > 1 || (hosts == 0 && minor == 1) {
            return Err(400);
        }
        request.body = body.unwrap_or(0);
        if request.body > BODY_BYTES_MAX { Err(413) } else { Ok(request) }
    }

    fn connection(&mut self, options: &str) {
        for option in options.split(',').map(str::trim) {
            if option.eq_ignore_ascii_case("close") {
                self.is_kept = false;
            } else if option.eq_ignore_ascii_case("keep-alive") {
                self.is_kept = true;
            }
        }
    }
}

/// Parses a number of digits only.
fn length(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// Returns the decoded path of a target without its query; `None` if it is no path.
fn path(target: &str) -> Option<Cow<'_, str>> {
    // RFC 9112 §3.2.2: a server also accepts the absolute form.
    let path = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    };
    let path = path.split('?').next()?.strip_prefix('/')?;
    if !path.contains('%') {
        return Some(path.into());
    }
    let mut decoded = Vec::with_capacity(path.len());
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte => byte,
        });
    }
    let text = String::from_utf8(decoded).ok()?;
    (!text.contains('\0')).then(|| text.into())
}

/// Meaning of a `Range` header for a file of a given length.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The whole file: there is no range, several, or an unsupported one (RFC 9110 §14.2).
    All,
    Part(Range<u64>),
    /// The range is outside of the file.
    Nothing,
}

impl Wanted {
    pub(super) fn of(range: Option<&str>, len: u64) -> Self {
        let part = range.and_then(|range| range.trim().strip_prefix("bytes="));
        let Some((first, last)) = part.and_then(|part| part.trim().split_once('-')) else {
            return Self::All;
        };
        match (length(first), length(last)) {
            (None, Some(0)) if first.is_empty() => Self::Nothing,
            (None, Some(_)) if first.is_empty() && len == 0 => Self::Nothing,
            (None, Some(count)) if first.is_empty() => Self::Part(len.saturating_sub(count)..len),
            (Some(first), Some(last)) if last < first => Self::All,
            (Some(first), _) if first >= len && (last.is_empty() || length(last).is_some()) => {
                Self::Nothing
            }
            (Some(first), Some(last)) => Self::Part(first..last.saturating_add(1).min(len)),
            (Some(first), None) if last.is_empty() => Self::Part(first..len),
            _ => Self::All,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Parsed<'_> {
        Request::parse(text.as_bytes())
    }

    #[test]
    fn a_request_with_all_that_is_understood() {
        let text = "GET /a%20b?q HTTP/1.1\r\nHost: x\r\nRange: bytes=1-\r\nConnection: a, close\r\n\
                    If-None-Match: \"1\"\r\nContent-Length: 3\r\n\r\nabcGET";
        let Parsed::Request(request, len) = parse(text) else { panic!() };
        assert_eq!(&text[len..], "abcGET");
        assert_eq!((request.method, request.target, &*request.path), ("GET", "/a%20b?q", "a b"));
        assert_eq!((request.body, request.is_kept), (3, false));
        assert_eq!((request.range, request.if_none_match), (Some("bytes=1-"), Some("\"1\"")));
        let end = text.find("\r\n\r\n").unwrap() + 4;
        for cut in 0..end {
            assert_eq!(parse(&text[..cut]), Parsed::Partial, "{cut}");
        }
    }

    #[test]
    fn connections_are_kept_as_the_version_says() {
        for (text, is_kept) in [
            ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", true),
            ("GET / HTTP/1.0\r\n\r\n", false),
            ("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", true),
        ] {
            let Parsed::Request(request, _) = parse(text) else { panic!("{text}") };
            assert_eq!(request.is_kept, is_kept, "{text}");
        }
    }

    #[test]
    fn what_is_refused() {
        let long = format!("GET / HTTP/1.1\r\nHost: x\r\nA: {}", "a".repeat(HEAD_BYTES_MAX));
        let many = format!("GET / HTTP/1.1\r\n{}", "A: b\r\n".repeat(HEADERS_MAX + 1));
        for (text, status) in [
            ("\0\0\0\0", 400),
            ("GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
            ("GET x HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("GET /%4 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("GET /%ff HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 65537\r\n\r\n", 413),
            ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 501),
            ("GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505),
            (&long, 431),
            (&many, 431),
        ] {
            assert_eq!(parse(text), Parsed::Refused(status), "{text}");
        }
    }

    #[test]
    fn ranges() {
        for (range, wanted) in [
            ("bytes=0-0", Wanted::Part(0..1)),
            ("bytes=2-", Wanted::Part(2..10)),
            ("bytes=2-100", Wanted::Part(2..10)),
            ("bytes=2-18446744073709551615", Wanted::Part(2..10)),
            ("bytes=-3", Wanted::Part(7..10)),
            ("bytes=-30", Wanted::Part(0..10)),
            ("bytes=-0", Wanted::Nothing),
            ("bytes=10-", Wanted::Nothing),
            ("bytes=10-12", Wanted::Nothing),
            ("bytes=0-1,4-5", Wanted::All),
            ("bytes=3-2", Wanted::All),
            ("bytes=a-", Wanted::All),
            ("bytes=-", Wanted::All),
            ("bytes=+1-2", Wanted::All),
            ("lines=0-1", Wanted::All),
        ] {
            assert_eq!(Wanted::of(Some(range), 10), wanted, "{range}");
        }
        assert_eq!(Wanted::of(Some("bytes=0-"), 0), Wanted::Nothing);
        assert_eq!(Wanted::of(Some("bytes=-1"), 0), Wanted::Nothing);
        assert_eq!(Wanted::of(None, 10), Wanted::All);
    }
}
