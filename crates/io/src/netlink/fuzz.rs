//! Feeds arbitrary bytes to the parsers of the kernel's replies, lists and reports of changes.

use super::message::Reply;
use super::{dump, watch};

/// Parses `bytes` as a report of changes, and as a part of the list `sequence` of routes and
/// addresses.
pub fn messages(bytes: &[u8], sequence: u32) {
    watch::is_relevant(bytes);
    dump::parse(bytes, sequence);
}

/// Parses `bytes` as the acknowledgement of request `sequence`. A refusal must have a positive
/// error number, and its text must not be longer than the input allows.
pub fn reply(bytes: &[u8], sequence: u32) {
    if let Reply::Refused { errno, text } = Reply::parse(bytes, sequence) {
        assert!(errno.raw_os_error() > 0, "{errno:?}");
        // An invalid UTF-8 byte is replaced by a character of three bytes.
        assert!(text.is_none_or(|text| text.len() <= 3 * bytes.len()));
    }
}
