//! The kernel's replies as any bytes.

use super::message::Reply;

/// The acknowledgement of request `sequence` in `bytes`: a refusal has the number of an error, and
/// its text is not longer than all that came.
pub fn reply(bytes: &[u8], sequence: u32) {
    if let Reply::Refused { errno, text } = Reply::parse(bytes, sequence) {
        assert!(errno.raw_os_error() > 0, "{errno:?}");
        // A byte that is no UTF-8 is replaced by one character of three.
        assert!(text.is_none_or(|text| text.len() <= 3 * bytes.len()));
    }
}
