//! Operations that move bytes between files and streams without exposing them to the program.

use crate::events::registrations::relay::Relay;
use crate::events::registrations::socket::End;
use crate::events::registrations::source::{Kind, Source};
use crate::events::{EventQueue, Interest, Refused, SendFile, Stream, Token, Trigger};
use crate::host::TcpStream;
use crate::host::operations::operation::Work;
use crate::host::operations::receive_file::FileReceive;
use crate::host::operations::send_file::FileSend;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use towpath_io::events::Job;

/// Result of sending a file.
#[derive(Debug)]
#[non_exhaustive]
pub struct FileSent {
    /// Bytes that the socket accepted, of header, file and trailer together; also after an error.
    pub bytes: u64,
    /// Why it ended before everything was sent.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ended before the range did, in which case the trailer is not
    /// sent; `ECANCELED`, `ETIMEDOUT`; errors of reading and of sending.
    pub result: io::Result<()>,
    /// The parts, handed back.
    pub parts: SendFile,
}

impl EventQueue {
    /// Sends a header, a range of a file, and a trailer. A wait reports
    /// [`EventKind::Completed`](crate::events::EventKind::Completed) when everything was sent, and
    /// [`EventQueue::take`] then returns the result.
    ///
    /// A towpath host keeps blocks of files in memory, up to the size set in its
    /// [`Config`](crate::host::Config::file_cache), and lends them: blocks that several streams
    /// send are read once. If a file changes, other than through a shared mapping, later operations
    /// read it anew. Header and trailer are copied. The operation completes when the socket has
    /// accepted everything, which [`EventKind::Accepted`](crate::events::EventKind::Accepted)
    /// reports as for [`EventQueue::send`].
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full; `EINVAL` if the range ends before it begins or exceeds the
    /// largest file offset, or if the file is no regular file. The parts are handed back.
    pub fn send_file(
        &mut self,
        stream: impl Into<Stream>,
        parts: SendFile,
        deadline: Option<Instant>,
        data: u64,
    ) -> Result<Token, Refused<SendFile>> {
        let socket = match stream.into().0 {
            End::Host(stream) => return self.send_file_of_host(stream, parts, deadline, data),
            End::Kernel(socket) => socket,
        };
        self.begin_job(Job::SendFile(socket, parts), deadline, data).map_err(|(error, job)| {
            let Job::SendFile(_, operation) = job else { unreachable!("it is what was begun") };
            Refused { error, operation }
        })
    }

    fn send_file_of_host(
        &mut self,
        stream: TcpStream,
        parts: SendFile,
        deadline: Option<Instant>,
        data: u64,
    ) -> Result<Token, Refused<SendFile>> {
        let send = FileSend::new(stream, parts, &mut self.regular)
            .map_err(|(error, operation)| Refused { error, operation })?;
        self.begin(Work::SendFile(Box::new(send)), deadline, data).map_err(|(error, work)| {
            let operation = work.into_parts().expect("it is of a file");
            Refused { error, operation }
        })
    }

    /// Writes the bytes that a stream receives to a range of a file, until the range is full or the
    /// stream ends. [`EventQueue::take`] returns the result. Bytes beyond the range stay in the
    /// stream. If writing is slower than the network, the receive window closes. After a cancel or
    /// the deadline, it completes when the write under way is done.
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full; `EINVAL` if the range ends before it begins or exceeds the
    /// largest file offset; `ESPIPE` for a file without offsets.
    pub fn receive_file(
        &mut self,
        stream: impl Into<Stream>,
        file: Arc<File>,
        range: Range<u64>,
        deadline: Option<Instant>,
        data: u64,
    ) -> io::Result<Token> {
        let socket = match stream.into().0 {
            End::Host(stream) => {
                let receive = Box::new(FileReceive::new(stream, file, range)?);
                let begun = self.begin(Work::ReceiveFile(receive), deadline, data);
                return begun.map_err(|(error, _)| error);
            }
            End::Kernel(socket) => socket,
        };
        let job = Job::ReceiveFile(socket, file, range);
        self.begin_job(job, deadline, data).map_err(|(error, _)| error)
    }

    /// Sends on `to` what `from` receives: `count` bytes, or fewer if `from` ends. Between two
    /// kernel streams the kernel splices. What a stream of a host receives is sent on without a
    /// copy, except short parts of large memory; what the kernel's stream receives goes through a
    /// buffer of the queue. It
    /// also ends when `to` is reset or closed in both directions, even while `from` is idle.
    /// [`EventQueue::take`] returns the result.
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full.
    pub fn splice(
        &mut self,
        from: impl Into<Stream>,
        to: impl Into<Stream>,
        count: u64,
        deadline: Option<Instant>,
        data: u64,
    ) -> io::Result<Token> {
        let (from, to) = (from.into(), to.into());
        if let (Some(from), Some(to)) = (from.as_kernel(), to.as_kernel()) {
            let job = Job::Splice(from.clone(), to.clone(), count);
            return self.begin_job(job, deadline, data).map_err(|(error, _)| error);
        }
        self.check_process()?;
        let relay = Box::new(Relay::new(from, to, count));
        let kind = Kind::Relay { relay, wakes: None, deadline: None, is_reported: false };
        let (interest, trigger) = (Interest::BOTH, Trigger::Edge);
        let token = self.begin_add(Source { kind, interest, trigger }, data)?;
        if let (Some(due), Some(registration)) = (deadline, self.slots.get(token))
            && let Kind::Relay { deadline, .. } = &mut registration.source
        {
            *deadline = Some(self.timers.set(due, token));
        }
        // The operation has started. If updating the queue's descriptor fails now, the next call
        // repeats it.
        let _ = self.settle();
        Ok(token)
    }
}
