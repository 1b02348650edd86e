//! An HTTP server of static files on the event queue: on kernel sockets; or on a towpath host,
//! whose clients are in the kernel at the other end of a TAP device, or in this process.
//!
//! `httpd --root DIR` serves on kernel sockets until SIGINT or SIGTERM. `httpd --over tap --root
//! DIR` creates the interface `httpd0` for its clients. `httpd --over process` serves clients of
//! its own, and prints the number of answered requests.

mod load;
mod server;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Parser, ValueEnum};
use load::Load;
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use server::{Completions, EndBy, Kernel, Limits, Readiness, Report, Serve, Service, Stack};
use towpath::events::{Choice, Config, EventQueue};
use towpath::host::{self, Host, TcpListener};
use towpath_io::netlink::{LinkSettings, Netlink};

/// Serves the files of a directory by HTTP/1.1.
#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// Directory of the files; with clients in this process, a temporary one is created by default.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    /// Where the clients are.
    #[arg(long, value_enum, default_value = "kernel")]
    over: Over,

    /// Address to listen at; port 0 is any [default: 127.0.0.1:8080; on a towpath host 10.7.0.1:80]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,

    /// How bytes are moved.
    #[arg(long, value_enum, default_value = "completions")]
    engine: Engine,

    /// Kernel interface of the event queue.
    #[arg(long, value_enum, default_value = "best")]
    back_end: BackEnd,

    /// Most connections at a time; others wait.
    #[arg(long, value_name = "N", default_value_t = 4096,
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    connections: u32,

    /// How long a request may take to arrive, and a client to receive 256 KiB.
    #[arg(long, value_name = "S", default_value_t = 30,
          value_parser = clap::value_parser!(u32).range(1..=86400))]
    idle: u32,

    /// How long answers in progress continue after SIGINT or SIGTERM; a second signal ends them.
    #[arg(long, value_name = "S", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(0..=86400))]
    grace: u32,

    /// Append a line for each answer to this file.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Connections of the clients in this process.
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,

    /// Total number of requests that they make.
    #[arg(long, value_name = "N", default_value = "10000")]
    requests: NonZeroU32,

    /// Path that they request.
    #[arg(long, value_name = "PATH", default_value = "/4096")]
    path: String,

    /// Make a new connection for each request.
    #[arg(long)]
    close: bool,
}

/// Where the clients are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Over {
    /// Anywhere that kernel sockets reach.
    Kernel,
    /// In the kernel, at the other end of a TAP device.
    Tap,
    /// On a second host in this process.
    Process,
}

/// How bytes are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// By operations of the event queue.
    Completions,
    /// By non-blocking calls: plain epoll on kernel sockets.
    Readiness,
}

/// Kernel interface of the event queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BackEnd {
    /// io_uring if the kernel allows it.
    Best,
    IoUring,
    Epoll,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("httpd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    // Raises the limit of descriptors. If this fails, fewer connections are accepted.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    match arguments.over {
        Over::Kernel => {
            let listen = arguments.listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 8080)));
            let listener = std::net::TcpListener::bind(listen)
                .with_context(|| format!("cannot listen at {listen}"))?;
            reported(arguments.kernel(listener)?);
        }
        Over::Tap => {
            // The host's threads must not receive the signals.
            EndBy::Signals.block()?;
            let config = host::Config::with_address(SERVER, PREFIX_LEN);
            let host = Host::on_tap_named(&config, DEVICE)?;
            let mut netlink = Netlink::open()?;
            let index = netlink.link_index(DEVICE)?;
            netlink.address_add(index, IpAddr::V4(CLIENT), PREFIX_LEN)?;
            netlink.link_set(index, &LinkSettings { up: true, ..LinkSettings::default() })?;
            reported(arguments.stack(&host, EndBy::Signals)?);
            ensure!(host.finish(PATIENCE), "connections are not over");
        }
        Over::Process => arguments.in_process()?,
    }
    Ok(())
}

fn reported(report: Report) {
    let Report { connections, answers, bytes, failures } = report;
    eprintln!(
        "{answers} answers on {connections} connections, {bytes} bytes, {failures} not to the end"
    );
}

impl Arguments {
    fn service(&self, root: &std::path::Path) -> anyhow::Result<Service> {
        let limits = Limits {
            connections: self.connections as usize,
            idle: Duration::from_secs(self.idle.into()),
            grace: Duration::from_secs(self.grace.into()),
        };
        Service::new(root, self.log.as_deref(), limits)
            .with_context(|| format!("cannot serve {}", root.display()))
    }

    fn root(&self) -> anyhow::Result<&std::path::Path> {
        self.root.as_deref().context("option --root says what to serve")
    }

    fn queue(&self) -> anyhow::Result<EventQueue> {
        let back_end = match self.back_end {
            BackEnd::Best => Choice::Best,
            BackEnd::IoUring => Choice::IoUring,
            BackEnd::Epoll => Choice::Epoll,
        };
        let config = Config { back_end, ..Config::default() };
        EventQueue::with(&config).context("option --back-end")
    }

    /// Serves on kernel sockets.
    fn kernel(&self, listener: std::net::TcpListener) -> anyhow::Result<Report> {
        let service = self.service(self.root()?)?;
        eprintln!("listening at {}", listener.local_addr()?);
        Ok(match self.engine {
            Engine::Completions => {
                let (queue, end) = (self.queue()?, EndBy::Signals);
                Completions::new(queue, listener.into(), service, &end)?.run()?
            }
            Engine::Readiness => {
                Readiness::new(Kernel::new(listener, EndBy::Signals)?, service).run()?
            }
        })
    }

    /// Serves on a towpath host.
    fn stack(&self, host: &Host, end: EndBy) -> anyhow::Result<Report> {
        let service = self.service(self.root()?)?;
        let listen = self.listen.unwrap_or(SocketAddr::from((SERVER, PORT)));
        let listener = TcpListener::bind(host, listen)
            .with_context(|| format!("cannot listen at {listen}"))?;
        eprintln!("listening at {}", listener.local_addr()?);
        Ok(match self.engine {
            Engine::Completions => {
                Completions::new(self.queue()?, listener.into(), service, &end)?.run()?
            }
            Engine::Readiness => {
                Readiness::new(Stack::new(self.queue()?, listener, end)?, service).run()?
            }
        })
    }
}

impl Arguments {
    /// Serves clients on a second host in this process.
    fn in_process(&self) -> anyhow::Result<()> {
        let config = |address| host::Config::with_address(address, PREFIX_LEN);
        let (host, clients) = Host::pair(&config(SERVER), &config(CLIENT))?;
        let made = self.root.is_none().then(Made::new).transpose()?;
        let root = made.as_ref().map(|made| made.0.clone()).or(self.root.clone());
        let arguments = Self { root, ..self.clone() };
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let server = EndBy::Readable(end.clone());
        let (report, loaded) = thread::scope(|scope| {
            let server = scope.spawn(|| arguments.stack(&host, server));
            let load = Load {
                host: &clients,
                server: self.listen.unwrap_or(SocketAddr::from((SERVER, PORT))),
                path: &self.path,
                connections: self.clients as usize,
                is_kept: !self.close,
                requests_max: u32::from(self.requests).into(),
                span: Duration::MAX,
            };
            let loaded = load.run();
            rustix::io::write(&end, &1_u64.to_ne_bytes())?;
            anyhow::Ok((server.join().expect("no panic")?, loaded?))
        })?;
        reported(report);
        let rate = loaded.answers as f64 / loaded.taken.as_secs_f64();
        println!("{} answers, {rate:.0} in a second, {} errors", loaded.answers, loaded.errors);
        ensure!(loaded.errors == 0, "there were errors");
        for host in [&host, &clients] {
            ensure!(host.finish(PATIENCE), "connections are not over");
        }
        Ok(())
    }
}

/// A directory with one file, removed when this value is dropped.
struct Made(PathBuf);

impl Made {
    fn new() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("towpath-httpd-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let made = Self(path);
        fs::write(made.0.join("4096"), vec![b'x'; 4096])?;
        Ok(made)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // If this fails, the file stays in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 2);
const PREFIX_LEN: u8 = 24;
const PORT: u16 = 80;
const DEVICE: &str = "httpd0";
const PATIENCE: Duration = Duration::from_secs(10);
