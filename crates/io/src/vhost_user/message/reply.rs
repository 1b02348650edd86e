//! Replies to a front end and their encoding.

use super::{FLAG_REPLY, HEADER_BYTES, InflightLayout, PAYLOAD_BYTES_MAX, VERSION};

/// A reply to the front end.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// A number; in an acknowledgement, zero for success.
    Number(u64),
    /// A ring, and where it continues.
    RingState(u32, u32),
    /// The dirty log as it was set: its length, and its offset in its file.
    Log(u64, u64),
    /// Bytes of the configuration space from an offset on: at most `CONFIG_BYTES_MAX`.
    Config(usize, Vec<u8>),
    /// No payload: the configuration space could not be read.
    Nothing,
    /// An in-flight region, whose descriptor is attached.
    Inflight(InflightLayout),
}

impl Reply {
    /// Encodes the reply to request `code`; returns the encoded bytes.
    pub fn emit<'a>(&self, code: u32, to: &'a mut [u8; REPLY_BYTES_MAX]) -> &'a [u8] {
        let mut end = HEADER_BYTES;
        let mut push = |bytes: &[u8]| {
            to[end..end + bytes.len()].copy_from_slice(bytes);
            end += bytes.len();
        };
        match self {
            Reply::Number(number) => push(&number.to_ne_bytes()),
            Reply::RingState(ring, number) => {
                push(&ring.to_ne_bytes());
                push(&number.to_ne_bytes());
            }
            Reply::Log(bytes, offset) => {
                push(&bytes.to_ne_bytes());
                push(&offset.to_ne_bytes());
            }
            Reply::Config(offset, bytes) => {
                push(&(*offset as u32).to_ne_bytes());
                push(&(bytes.len() as u32).to_ne_bytes());
                push(&0u32.to_ne_bytes());
                push(bytes);
            }
            Reply::Nothing => {}
            Reply::Inflight(layout) => {
                push(&layout.bytes.to_ne_bytes());
                push(&layout.file_offset.to_ne_bytes());
                push(&layout.queues.to_ne_bytes());
                push(&layout.queue_size.to_ne_bytes());
                push(&[0; 4]);
            }
        }
        let header = [code, VERSION | FLAG_REPLY, (end - HEADER_BYTES) as u32];
        for (word, place) in header.iter().zip(to.as_chunks_mut::<4>().0) {
            *place = word.to_ne_bytes();
        }
        &to[..end]
    }
}

/// Bytes of the longest reply.
pub const REPLY_BYTES_MAX: usize = HEADER_BYTES + PAYLOAD_BYTES_MAX;
