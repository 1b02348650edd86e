//! Jobs that the kernel has not completed when their queue ends.

use super::super::SendFile;
use super::transfer::Block;
use super::{Buffer, Running, Source, Work};

/// Memory that the kernel may still read or write.
#[expect(dead_code, reason = "only the kernel uses it")]
enum Left {
    Buffer(Buffer),
    Source(Source),
    Block(Block),
    File(SendFile, Block),
    Work(Work),
}

impl Running {
    /// Leaks the memory of a job that the kernel still uses. Drops the sockets: the kernel itself
    /// keeps those that it needs open.
    pub(in super::super) fn abandon(self) {
        let left = match self.work {
            Work::Accept(..) | Work::Connect(..) | Work::Taken => return,
            Work::Receive { buffer, .. } => Left::Buffer(buffer),
            Work::Send { from, .. } => Left::Source(from),
            Work::ReceiveFile { block, .. } => Left::Block(block),
            Work::SendFile(sending) => Left::File(sending.parts, sending.block),
            work => Left::Work(work),
        };
        Box::leak(Box::new(left));
    }
}
