//! Moves bytes from one TCP socket to another through a pipe with splice(2). The kernel moves
//! pages, and no byte enters user memory.
//!
//! A pipe holds bytes between [`Pipe::fill`] and [`Pipe::drain`]; an empty pipe can serve any other
//! pair of sockets. Urgent data has no special meaning here and keeps its place in the stream.
//! splice(2) stops before it, so that byte is read and written instead.
//!
//! Writing to a socket whose peer has gone raises SIGPIPE, which Rust programs ignore from the
//! start.
//!
//! Limit: [`PIPE_BYTES`].

use super::TcpSocket;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::io;

/// Most bytes in a pipe, and the pipe size that is requested. A loopback super-packet usually takes
/// two or three slots of a page each, but may take one slot for each of its pages.
pub const PIPE_BYTES: usize = 512 << 10;

/// A pipe between two sockets.
#[derive(Debug)]
pub struct Pipe {
    outlet: OwnedFd,
    inlet: OwnedFd,
    held: usize,
}

impl Pipe {
    /// Creates an empty pipe, which takes two descriptors.
    ///
    /// # Errors
    /// Those of pipe(2). It is no error if the pipe stays smaller than requested, as it does for
    /// unprivileged users with many pipes.
    pub fn new() -> io::Result<Self> {
        let (outlet, inlet) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let _ = fcntl_setpipe_size(&inlet, PIPE_BYTES);
        Ok(Self { outlet, inlet, held: 0 })
    }

    /// Bytes in the pipe.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Moves bytes from `from` into the pipe, as far as there is room; 0 after the peer's FIN.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing to read, or if a pipe that holds bytes is full. Others are
    /// those of the connection.
    pub fn fill(&mut self, from: &TcpSocket) -> io::Result<usize> {
        let room = PIPE_BYTES.saturating_sub(self.held);
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut result = splice(&from.fd, None, &self.inlet, None, room, FLAGS);
        if self.held == 0 && matches!(result, Ok(0) | Err(Errno::AGAIN)) && has_bytes(from) {
            // Either they arrived just now, or splice stops before them.
            result = match splice(&from.fd, None, &self.inlet, None, room, FLAGS) {
                Ok(0) | Err(Errno::AGAIN) => self.take_byte(from),
                result => result,
            };
        }
        let count = result?;
        self.held += count;
        Ok(count)
    }

    /// Moves bytes from the pipe to `to`; returns how many.
    ///
    /// # Errors
    /// `WouldBlock` if `to` accepts none now. Others are those of the connection.
    pub fn drain(&mut self, to: &TcpSocket) -> io::Result<usize> {
        if self.held == 0 {
            return Ok(0);
        }
        match splice(&self.outlet, None, &to.fd, None, self.held, FLAGS)? {
            0 => Err(io::ErrorKind::WriteZero.into()),
            count => {
                self.held -= count;
                Ok(count)
            }
        }
    }

    /// Moves the one byte before which splice stops.
    fn take_byte(&self, from: &TcpSocket) -> Result<usize, Errno> {
        let mut byte = [0];
        match rustix::net::recv(&from.fd, &mut byte, RecvFlags::DONTWAIT)? {
            (_, 0) => Ok(0),
            // This cannot block, because the pipe is empty.
            _ => rustix::io::write(&self.inlet, &byte),
        }
    }
}

const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

/// True if bytes wait to be read. The ioctl cannot fail on a connected socket.
fn has_bytes(socket: &TcpSocket) -> bool {
    rustix::io::ioctl_fionread(&socket.fd).is_ok_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::{Events, Interest, Reactor};
    use crate::socket::TcpListener;
    use rustix::net::sockopt;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    /// Far longer than any step here takes.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A socket of ours and its peer.
    fn connected() -> (TcpSocket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0".parse().expect("one"), None).expect("bind");
        let peer = TcpStream::connect(listener.local().expect("bound")).expect("connect");
        peer.set_read_timeout(Some(PATIENCE)).expect("timeout");
        wait(&listener, Interest::READ);
        let (socket, _) = listener.accept().expect("accept");
        (socket, peer)
    }

    fn wait(fd: impl rustix::fd::AsFd, interest: Interest) {
        let mut reactor = Reactor::new().expect("epoll");
        reactor.add(fd, 0, interest, false).expect("add");
        let mut events = Events::new();
        reactor.wait(Some(PATIENCE), &mut events).expect("wait");
        assert!(!events.is_empty(), "nothing came");
    }

    fn is_would_block(result: io::Result<usize>) -> bool {
        result.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    #[test]
    fn bytes_pass_and_the_end_shows() {
        let ((from, mut sender), (to, mut reader)) = (connected(), connected());
        let mut pipe = Pipe::new().expect("a pipe");
        assert!(is_would_block(pipe.fill(&from)), "nothing is there");
        assert_eq!(pipe.drain(&to).expect("nothing to do"), 0);
        sender.write_all(b"words").expect("sent");
        wait(&from, Interest::READ);
        assert_eq!(pipe.fill(&from).expect("words"), 5);
        assert_eq!(pipe.held(), 5);
        assert_eq!(pipe.drain(&to).expect("room"), 5);
        let mut came = [0; 5];
        reader.read_exact(&mut came).expect("words");
        assert_eq!((&came, pipe.held()), (b"words", 0));
        drop(sender);
        wait(&from, Interest::READ);
        assert_eq!(pipe.fill(&from).expect("the end"), 0);
    }

    /// Goal: a full socket or a full pipe causes no error and no loss.
    #[test]
    fn a_sink_that_is_full_stops_the_pipe() {
        let ((from, mut sender), (to, mut reader)) = (connected(), connected());
        let mut pipe = Pipe::new().expect("a pipe");
        let total = 16 << 20;
        let sending = std::thread::spawn(move || {
            let bytes: Vec<u8> = (0..total).map(|at: usize| (at % 251) as u8).collect();
            sender.write_all(&bytes).expect("sent");
        });
        let mut given = 0;
        while !is_would_block(pipe.drain(&to).inspect(|count| given += count)) || pipe.held() == 0 {
            if is_would_block(pipe.fill(&from)) && pipe.held() == 0 {
                wait(&from, Interest::READ);
            }
        }
        while !is_would_block(pipe.fill(&from)) {
            assert!(pipe.held() <= PIPE_BYTES);
            if pipe.held() == 0 {
                wait(&from, Interest::READ);
            }
        }
        let mut came = 0;
        let mut buffer = vec![0; 64 << 10];
        while came < total {
            while came < given {
                let count = reader.read(&mut buffer).expect("bytes");
                let is_right = |(at, byte): (usize, &u8)| *byte == ((came + at) % 251) as u8;
                assert!(buffer[..count].iter().enumerate().all(is_right), "after {came}");
                came += count;
            }
            if given == total {
                break;
            }
            if pipe.held() == 0 && is_would_block(pipe.fill(&from)) {
                wait(&from, Interest::READ);
                continue;
            }
            match pipe.drain(&to) {
                Ok(count) => given += count,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        sending.join().expect("no panic");
        assert_eq!((came, pipe.held()), (total, 0));
    }

    /// Goal: urgent bytes keep their places, even two of them, and even directly before the end.
    #[test]
    fn urgent_bytes_stay_in_the_stream() {
        let ((from, mut sender), (to, mut reader)) = (connected(), connected());
        let urgent = |sender: &TcpStream, byte: &[u8]| {
            let sent = rustix::net::send(sender, byte, rustix::net::SendFlags::OOB);
            assert_eq!(sent.expect("sent"), 1);
        };
        sender.write_all(b"ab").expect("sent");
        urgent(&sender, b"!");
        sender.write_all(b"cd").expect("sent");
        urgent(&sender, b"?");
        drop(sender);
        let mut pipe = Pipe::new().expect("a pipe");
        loop {
            match pipe.fill(&from) {
                Ok(0) => break,
                Ok(_) => {
                    pipe.drain(&to).expect("room");
                }
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    wait(&from, Interest::READ);
                }
            }
        }
        drop(to);
        let mut all = Vec::new();
        reader.read_to_end(&mut all).expect("all");
        assert_eq!(all, b"ab!cd?");
    }

    #[test]
    fn a_peer_that_is_gone_is_an_error() {
        let ((from, sender), (to, reader)) = (connected(), connected());
        let mut pipe = Pipe::new().expect("a pipe");
        (&sender).write_all(b"x").expect("sent");
        wait(&from, Interest::READ);
        pipe.fill(&from).expect("a byte");
        sockopt::set_socket_linger(&reader, Some(Duration::ZERO)).expect("linger");
        drop(reader);
        wait(&to, Interest::READ);
        let error = pipe.drain(&to).expect_err("the peer has gone");
        assert_eq!(Errno::from_io_error(&error), Some(Errno::CONNRESET));
        let error = pipe.drain(&to).expect_err("the peer has gone");
        assert_eq!(Errno::from_io_error(&error), Some(Errno::PIPE));
        assert_eq!(pipe.held(), 1, "an undelivered byte stays");
        sockopt::set_socket_linger(&sender, Some(Duration::ZERO)).expect("linger");
        drop(sender);
        wait(&from, Interest::READ);
        let mut empty = Pipe::new().expect("a pipe");
        let error = empty.fill(&from).expect_err("the peer has gone");
        assert_eq!(Errno::from_io_error(&error), Some(Errno::CONNRESET));
    }
}
