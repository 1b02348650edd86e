//! A connection as a sequence of requests, independent of how its bytes arrive.

use super::answer::{Answer, Site};
use super::request::{HEAD_BYTES_MAX, Parsed, Request};

/// Bytes that a client has sent and that were not answered yet: less than a head, and what was read
/// with it.
#[derive(Default)]
pub(super) struct Talk {
    input: Vec<u8>,
    /// Number of bytes that were processed.
    at: usize,
    /// Remaining bytes of a body to skip.
    skipped: u64,
}

impl Talk {
    /// Adds bytes that the client has sent.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        debug_assert!(self.input.len() - self.at < HEAD_BYTES_MAX, "it waits for the rest");
        let skipped = bytes.len().min(usize::try_from(self.skipped).unwrap_or(usize::MAX));
        self.skipped -= skipped as u64;
        if self.at == self.input.len() {
            self.input.clear();
            self.at = 0;
        }
        self.input.extend_from_slice(&bytes[skipped..]);
    }

    /// Returns the next answer; `None` if the client must send more first.
    pub(super) fn next(&mut self, site: &mut Site) -> Option<Answer> {
        if self.skipped > 0 || self.at == self.input.len() {
            return None;
        }
        let (answer, len) = match Request::parse(&self.input[self.at..]) {
            Parsed::Partial => {
                self.input.drain(..self.at);
                self.at = 0;
                return None;
            }
            Parsed::Refused(status) => return Some(site.refuse(status)),
            Parsed::Request(request, head_len) => {
                let rest = (self.input.len() - self.at - head_len) as u64;
                let here = request.body.min(rest);
                self.skipped = request.body - here;
                (site.answer(&request), head_len + here as usize)
            }
        };
        self.at += len;
        Some(answer)
    }

    /// Returns true if the client has started a request or has not sent all of one.
    pub(super) fn is_begun(&self) -> bool {
        self.skipped > 0 || self.at < self.input.len()
    }
}
