//! The host in an HTTP/1 request (RFC 9112 §3.2).

use crate::egress::greeting::Greeting;
use crate::egress::name::Name;

/// Most header fields of a request.
const FIELDS_MAX: usize = 128;

/// Reads the head of the first request. A request whose target has an authority must name the same
/// host in it as in its Host field.
pub(super) fn read(bytes: &[u8]) -> Greeting {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Greeting::Partial,
        Err(_) => return Greeting::Unnamed,
    }
    host_of(&request).map_or(Greeting::Unnamed, Greeting::Name)
}

fn host_of(request: &httparse::Request<'_, '_>) -> Option<Name> {
    let mut hosts = request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case("host"));
    let host = name_of(hosts.next()?.value)?;
    if hosts.next().is_some() {
        return None;
    }
    let target = request.path?;
    let authority = match request.method? {
        "CONNECT" => Some(target),
        _ if target.starts_with('/') || target == "*" => None,
        _ => {
            let (scheme, rest) = target.split_once("://")?;
            let is_http = scheme.eq_ignore_ascii_case("http");
            let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            Some(rest.get(..end).filter(|_| is_http)?)
        }
    };
    let is_same = authority.is_none_or(|text| name_of(text.as_bytes()).as_ref() == Some(&host));
    is_same.then_some(host)
}

/// Returns the name of an authority without user information, less its port.
fn name_of(authority: &[u8]) -> Option<Name> {
    let text = std::str::from_utf8(authority).ok()?;
    let (name, port) = text.split_once(':').unwrap_or((text, ""));
    port.bytes().all(|c| c.is_ascii_digit()).then(|| name.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> Greeting {
        Greeting::Name(text.parse().unwrap())
    }

    #[test]
    fn the_host_of_a_request_is_read() {
        for request in [
            "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET / HTTP/1.1\r\nAccept: */*\r\nhOST:\tA.Example:80 \r\n\r\nbody",
            "OPTIONS * HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET http://a.example/x?y HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET HTTP://a.example:8080 HTTP/1.1\r\nHost: a.example:80\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n",
        ] {
            assert_eq!(read(request.as_bytes()), named("a.example"), "{request}");
            let end = request.find("\r\n\r\n").unwrap() + 3;
            for len in 1..end {
                assert_eq!(read(&request.as_bytes()[..len]), Greeting::Partial, "{request}");
            }
        }
    }

    /// Bad input: no host, two, one that is an address, has other characters or differs from the
    /// target's; fields that are folded or have other line ends; HTTP/2.
    #[test]
    fn requests_without_one_clear_host_have_none() {
        for request in [
            "GET / HTTP/1.0\r\n\r\n",
            "GET / HTTP/1.1\r\nHost:\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example\nHost: b.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example\r\n\tb.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : a.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example, b.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example/b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: u@a.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: [2001:db8::1]:80\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example:8a\r\n\r\n",
            "GET / HTTP/1.1\r\nX: a\rHost: b.example\r\nHost: a.example\r\n\r\n",
            "GET http://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET http://a.example@b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET http://b.example?http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET https://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET a.example HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "CONNECT b.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET / HTTP/1.1 x\r\nHost: a.example\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ] {
            assert_eq!(read(request.as_bytes()), Greeting::Unnamed, "{request:?}");
        }
        let fields = "A: b\r\n".repeat(FIELDS_MAX);
        let many = format!("GET / HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n");
        assert_eq!(read(many.as_bytes()), Greeting::Unnamed);
    }
}
