//! What programs send to a control socket: HTTP requests, and the transactions in them.

use towpath_gateway::control::fields::Fields;
use towpath_gateway::control::http::{BODY_BYTES_MAX, HEAD_BYTES_MAX, Request, read};
use towpath_gateway::control::operations::{static_lease, transaction};

/// Reads the input as a request that comes in two parts, as an answer, as a transaction and as a
/// list of settings.
///
/// # Panics
/// If a request has more than was sent, is not there although all that a request may have is, or
/// is read in another way once more has come; or if an answer to a wrong request is none.
pub fn run(data: &[u8]) {
    request(data);
    let _ = read(data);
    let _ = transaction(data);
    if let Ok(text) = str::from_utf8(data) {
        let _ = Fields::of_settings(text).and_then(static_lease);
    }
}

fn request(data: &[u8]) {
    match Request::parse(data) {
        Ok(Some(request)) => {
            let Request { method, path, body } = request;
            assert!(method.len() + path.len() + body.len() < data.len());
            assert!(body.len() <= BODY_BYTES_MAX);
            let end = body.as_ptr_range().end as usize - data.as_ptr() as usize;
            let whole = Request::parse(&data[..end]).expect("it was one").expect("all of it");
            assert_eq!((whole.method, whole.path, whole.body), (method, path, body));
            // The beginning of a request is waited for, not refused.
            let part = Request::parse(&data[..end - 1]).expect("the beginning of a request");
            assert!(part.is_none(), "a part of a request is not taken for all of it");
            let _ = transaction(body);
        }
        Ok(None) => assert!(data.len() < HEAD_BYTES_MAX + BODY_BYTES_MAX, "more is waited for"),
        Err(response) => {
            let (status, value) = read(&response.to_bytes()).expect("an answer in JSON");
            assert!((400..600).contains(&status) && value["error"].is_string());
        }
    }
}
