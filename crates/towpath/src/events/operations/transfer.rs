//! Operations that move bytes between files and streams without showing them to the program.

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

/// A file that was sent.
#[derive(Debug)]
#[non_exhaustive]
pub struct FileSent {
    /// Bytes that the socket took, of header, file and trailer together; also after an error.
    pub bytes: u64,
    /// Why it ended before all was sent.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ended before the range did: then there is no trailer;
    /// `ECANCELED`, `ETIMEDOUT`; those of reading and of sending.
    pub result: io::Result<()>,
    /// What was to be sent.
    pub parts: SendFile,
}

impl EventQueue {
    /// Sends a header, a range of a file, and a trailer. A wait tells
    /// [`News::Completed`](crate::events::News::Completed) when all was sent, and
    /// [`EventQueue::take`] has what became of it.
    ///
    /// A towpath host has blocks of files in memory, at most as many bytes as its
    /// [`Config`](crate::host::Config::file_cache) says, and lends them: what several streams send
    /// is read once. What is changed, by anything but a shared mapping, is read anew by those who
    /// begin afterwards. Header and trailer are copied. It is over when the socket has accepted
    /// all, of which [`News::Accepted`](crate::events::News::Accepted) tells as for
    /// [`EventQueue::send`].
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full; `EINVAL` for a range that ends before it begins or beyond
    /// what files can have, and for what is no regular file. The parts are handed back.
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

    /// Writes what a stream receives to a range of a file, until the range is full or no more will
    /// come. [`EventQueue::take`] has what became of it. What is beyond the range stays in
    /// the stream. A file that is written slower than bytes come closes the window. After a cancel
    /// or the deadline it is over when the file has answered what is under way.
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full; `EINVAL` for a range that ends before it begins or beyond
    /// what files can have, `ESPIPE` for a file without offsets.
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

    /// Sends on `to` what `from` receives: `count` bytes, or fewer where no more come. The kernel
    /// splices between two of its streams; else the bytes go through a buffer of the queue. It ends
    /// when `to` is reset or closed in both directions, also while nothing comes from `from`.
    /// [`EventQueue::take`] has what became of it.
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
        let kind = Kind::Relay { relay, wakes: None, deadline: None, is_told: false };
        let (interest, trigger) = (Interest::BOTH, Trigger::Edge);
        let token = self.begin_add(Source { kind, interest, trigger }, data)?;
        if let (Some(due), Some(registration)) = (deadline, self.slots.get(token))
            && let Kind::Relay { deadline, .. } = &mut registration.source
        {
            *deadline = Some(self.timers.set(due, token));
        }
        // It is under way: what cannot be shown now is shown by the next call.
        let _ = self.settle();
        Ok(token)
    }
}
