//! Target: requests to a control socket and their transactions, responses, and lists of settings.

use towpath_gateway::control::fields::Fields;
use towpath_gateway::control::http::{BODY_BYTES_MAX, BodyRoom, HEAD_BYTES_MAX, Request, read};
use towpath_gateway::control::operations::{static_lease, transaction};

/// Parses the input as a request that arrives in two parts, as a response, as a transaction and as
/// a list of settings.
///
/// # Panics
/// If a parsed request is longer than the input, if a request is still incomplete at its maximum
/// size, if a request parses differently from its own bytes alone, or if the error response to an
/// invalid request is malformed.
pub fn run(data: &[u8]) {
    request(data);
    let _ = read(data);
    let _ = transaction(data);
    if let Ok(text) = str::from_utf8(data) {
        let _ = Fields::of_settings(text).and_then(static_lease);
    }
}

fn request(data: &[u8]) {
    match Request::parse(data, BodyRoom::SHORT) {
        Ok(Some(request)) => {
            let Request { method, path, body } = request;
            assert!(method.len() + path.len() + body.len() < data.len());
            assert!(body.len() <= BODY_BYTES_MAX);
            let end = body.as_ptr_range().end as usize - data.as_ptr() as usize;
            let whole = Request::parse(&data[..end], BodyRoom::SHORT)
                .expect("it parsed")
                .expect("complete");
            assert_eq!((whole.method, whole.path, whole.body), (method, path, body));
            // The parser waits for the rest of an incomplete request instead of refusing it.
            let part = Request::parse(&data[..end - 1], BodyRoom::SHORT)
                .expect("the beginning of a request");
            assert!(part.is_none(), "an incomplete request is not accepted");
            let _ = transaction(body);
        }
        Ok(None) => assert!(data.len() < HEAD_BYTES_MAX + BODY_BYTES_MAX, "waits for more"),
        Err(response) => {
            let (status, value) = read(&response.to_bytes()).expect("an answer in JSON");
            assert!((400..600).contains(&status) && value["error"].is_string());
        }
    }
}
