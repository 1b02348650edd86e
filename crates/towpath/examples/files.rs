//! A file server as at the edge of a content network: few files, many clients.
//!
//! Each file is read once, when it is first requested, and then lent to every client, with a head
//! of its own in front. The protocol is the part of HTTP/1.1 that `GET` needs.

mod shared;

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Context, bail, ensure};
use clap::Parser;
use shared::{Client, Lab, Options, add, pattern, run};
use towpath::host::{Completions, TcpListener, TcpStream};

/// Run a file server with many clients, each of which fetches files over one connection.
#[derive(Clone, Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,

    /// Directory of the files; without it, temporary files are created.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    /// Bytes of each created file.
    #[arg(long, default_value_t = 1 << 20,
          value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    bytes: u32,

    /// Number of clients.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    clients: u32,

    /// Number of files that each client fetches.
    #[arg(long, default_value_t = 64)]
    requests: u32,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    run(arguments.options, |lab| work(&arguments, lab))
}

/// Number of created files.
const FILES: usize = 16;
/// Longest line of a request.
const LINE_MAX: u64 = 4096;

/// Returns the number of bytes of files fetched.
fn work(arguments: &Arguments, lab: &Lab) -> anyhow::Result<u64> {
    let made = arguments.root.is_none().then(|| Made::new(arguments.bytes as usize)).transpose()?;
    let root = made.as_ref().map_or_else(|| arguments.root.clone().unwrap_or_default(), Made::path);
    let names = names(&root)?;
    ensure!(!names.is_empty(), "{}: there are no files", root.display());
    let server = Server { root: root.clone(), arguments, files: Mutex::default() };
    let listener = TcpListener::bind(&lab.server, lab.address()).context("cannot listen")?;
    thread::scope(|scope| {
        let server = scope.spawn(|| server.serve(&listener));
        let clients: Vec<_> = (0..arguments.clients as usize)
            .map(|client| {
                let (names, root) = (&names, &root);
                scope.spawn(move || fetch(arguments, lab, (root, names), client))
            })
            .collect();
        let mut fetched = 0;
        for client in clients {
            fetched += client.join().expect("no panic")?;
        }
        server.join().expect("no panic")?;
        Ok(fetched)
    })
}

/// A directory of files, removed when this value is dropped.
struct Made(PathBuf);

impl Made {
    fn new(bytes: usize) -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("towpath-files-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let made = Self(path);
        for number in 0..FILES {
            fs::write(made.0.join(number.to_string()), pattern(bytes, number))?;
        }
        Ok(made)
    }

    fn path(&self) -> PathBuf {
        self.0.clone()
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // If this fails, the files stay in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn names(root: &Path) -> anyhow::Result<Vec<String>> {
    let entries = fs::read_dir(root).with_context(|| format!("cannot read {}", root.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.extend(entry.file_name().into_string().ok());
        }
    }
    names.sort_unstable();
    Ok(names)
}

struct Server<'a> {
    root: PathBuf,
    arguments: &'a Arguments,
    /// Files that were read, by name.
    files: Mutex<HashMap<String, Arc<[u8]>>>,
}

impl Server<'_> {
    fn serve(&self, listener: &TcpListener) -> anyhow::Result<()> {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.arguments.clients)
                .map(|_| {
                    let (stream, _) = listener.accept().context("cannot accept")?;
                    Ok(scope.spawn(|| self.answer(stream)))
                })
                .collect::<anyhow::Result<_>>()?;
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })
    }

    /// Answers the requests of one client until it disconnects.
    fn answer(&self, stream: TcpStream) -> anyhow::Result<()> {
        stream.set_send_mode(self.arguments.options.mode.into());
        stream.set_nodelay(true)?;
        let mut lent = Completions::new();
        let mut reader = BufReader::new(stream);
        while let Some(line) = line(&mut reader)? {
            // The headers of a request are not used.
            while !self::line(&mut reader)?.context("the request has no end")?.is_empty() {}
            let mut words = line.split_ascii_whitespace();
            let file = match (words.next(), words.next()) {
                (Some("GET"), Some(path)) => self.file(path.trim_start_matches('/')),
                _ => None,
            };
            let (status, body) = match file {
                Some(body) => ("200 OK", body),
                None => ("404 Not Found", Arc::from([])),
            };
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
            let head: Arc<[u8]> = Arc::from(head.into_bytes());
            lent.push(reader.get_ref().send_zc((head, body))?);
            while lent.try_next().is_some() {}
        }
        Ok(())
    }

    /// Returns a file of the directory, and none outside of it.
    fn file(&self, name: &str) -> Option<Arc<[u8]>> {
        let mut files = self.files.lock().ok()?;
        if let Some(file) = files.get(name) {
            return Some(file.clone());
        }
        let parts: Vec<_> = Path::new(name).components().collect();
        let [Component::Normal(_)] = parts[..] else { return None };
        let file: Arc<[u8]> = fs::read(self.root.join(name)).ok()?.into();
        files.insert(name.into(), file.clone());
        Some(file)
    }
}

/// Reads the next line without its end; `None` at the end of the connection.
fn line(reader: &mut impl BufRead) -> anyhow::Result<Option<String>> {
    let mut text = String::new();
    let count = reader.by_ref().take(LINE_MAX).read_line(&mut text)?;
    ensure!(count == 0 || text.ends_with('\n'), "a line is cut, or too long");
    Ok((count > 0).then(|| text.trim_end().into()))
}

/// Fetches files and checks their contents. Returns the number of bytes.
fn fetch(
    arguments: &Arguments,
    lab: &Lab,
    (root, names): (&Path, &[String]),
    client: usize,
) -> anyhow::Result<u64> {
    let mut reader = BufReader::new(lab.connect()?);
    let mut sums = HashMap::new();
    let mut fetched = 0;
    for request in 0..arguments.requests as usize {
        let name = &names[(client + request) % names.len()];
        let head = format!("GET /{name} HTTP/1.1\r\nHost: towpath\r\n\r\n").into_bytes();
        drop(reader.get_mut().send(head)?);
        let (len, sum) = response(&mut reader, arguments)?;
        if !sums.contains_key(name) {
            sums.insert(name, add(&fs::read(root.join(name))?));
        }
        ensure!(sum == sums[name], "{name} came with other bytes");
        fetched += len as u64;
    }
    Ok(fetched)
}

/// Returns the length and the checksum of a response's body.
fn response(reader: &mut BufReader<Client>, arguments: &Arguments) -> anyhow::Result<(usize, u64)> {
    let status = line(reader)?.context("there is no answer")?;
    ensure!(status.starts_with("HTTP/1.1 200 "), "the server says {status}");
    let mut len = None;
    loop {
        let field = line(reader)?.context("the answer has no end")?;
        match field.split_once(':') {
            Some(("Content-Length", value)) => len = Some(value.trim().parse()?),
            Some(_) => {}
            None if field.is_empty() => break,
            None => bail!("the answer has the line {field}"),
        }
    }
    let len: usize = len.context("the answer has no length")?;
    // Bytes that arrived with the head were copied with it.
    let early = reader.buffer();
    let early = &early[..early.len().min(len)];
    let (count, sum) = (early.len(), add(early));
    reader.consume(count);
    let rest = match reader.get_mut() {
        Client::Host(stream) => shared::sum(stream, len - count, arguments.options.mode)?,
        Client::Kernel(stream) => shared::sum_copied(stream, len - count)?,
    };
    Ok((len, sum + rest))
}
