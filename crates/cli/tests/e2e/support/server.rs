//! Small servers on threads of the test.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::net::Shutdown;

use super::data::{Pattern, digest};

/// A server: accepts until dropped, each connection on a thread of its own.
pub(crate) struct Server {
    listener: Arc<TcpListener>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// No connection of a test is silent for longer.
const SILENCE: Duration = Duration::from_secs(60);

impl Server {
    /// Listens at `address`, on a port chosen by the system.
    pub(crate) fn start(
        address: IpAddr,
        serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::start_at(SocketAddr::new(address, 0), serve)
    }

    pub(crate) fn start_at(
        address: SocketAddr,
        serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let listener = Arc::new(TcpListener::bind(address).expect("bind"));
        // A longer backlog than the standard library's, for tests with many connections.
        rustix::net::listen(&listener, 4096).expect("listen");
        let stopped = Arc::new(AtomicBool::new(false));
        let (accepting, stop) = (listener.clone(), stopped.clone());
        let serve = Arc::new(serve);
        let thread = thread::spawn(move || {
            // Acquire: pairs with the Release in `drop`.
            while !stop.load(Ordering::Acquire) {
                let Ok((stream, _)) = accepting.accept() else { continue };
                let serve = serve.clone();
                let small = thread::Builder::new().stack_size(256 << 10);
                let serving = small.spawn(move || {
                    let _ = stream.set_read_timeout(Some(SILENCE));
                    let _ = stream.set_write_timeout(Some(SILENCE));
                    let _ = stream.set_nodelay(true);
                    // In some tests the peer breaks off on purpose.
                    let _ = serve(stream);
                });
                serving.expect("a thread");
            }
        });
        Self { listener, stopped, thread: Some(thread) }
    }

    pub(crate) fn port(&self) -> u16 {
        self.listener.local_addr().expect("an address").port()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Release: pairs with the Acquire of the accepting thread.
        self.stopped.store(true, Ordering::Release);
        // Wakes the accepting thread.
        let _ = rustix::net::shutdown(&self.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Echoes everything until the peer closes.
pub(crate) fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..count])?;
    }
}

/// Serves HTTP: GET /N returns N bytes of the pattern, PUT returns the SHA-256 of the request's
/// body.
pub(crate) fn http(stream: TcpStream) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(256 << 10, stream.try_clone()?);
    let mut stream = stream;
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut body_bytes = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(length) = line.strip_prefix("content-length:") {
            body_bytes = length.trim().parse().unwrap_or(0);
        }
        if line.starts_with("expect: 100-continue") {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
    }
    let status = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length:";
    let mut words = request.split(' ');
    match (words.next(), words.next().and_then(|path| path.strip_prefix('/')?.parse().ok())) {
        (Some("GET"), Some(bytes)) => {
            write!(stream, "{status} {bytes}\r\n\r\n")?;
            let mut buffer = vec![0; 256 << 10];
            let mut pattern = Pattern::new(bytes);
            while let count @ 1.. = pattern.read(&mut buffer)? {
                stream.write_all(&buffer[..count])?;
            }
            Ok(())
        }
        _ => {
            let digest = digest(reader.take(body_bytes))?;
            write!(stream, "{status} {}\r\n\r\n{digest}", digest.len())
        }
    }
}

/// Makes closing send a reset instead of a FIN.
pub(crate) fn reset_on_drop(stream: &TcpStream) {
    rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO)).expect("linger");
}
