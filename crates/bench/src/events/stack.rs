//! Server and clients in this process, on two hosts with a link between them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{ClockId, clock_gettime};
use towpath::events::Choice;
use towpath::host::{Config, Host, TcpListener};

use super::points::Point;
use super::serve::server::EndBy;
use super::serve::{self, CLIENT, Engine, PORT, SERVER, STACK};
use load::Load;

#[path = "../../../towpath/examples/httpd/load.rs"]
mod load;

/// Measures requests per second, microseconds of processor time per request, and errors.
pub(super) fn measure(
    system: &str,
    point: &Point,
    root: &Path,
    span: Duration,
) -> anyhow::Result<Vec<f64>> {
    let engine =
        if system == STACK[0] { Engine::Completions(Choice::Best) } else { Engine::Readiness };
    let config = |address| Config::with_address(address, 24);
    let (host, clients) = Host::pair(&config(SERVER), &config(CLIENT))?;
    let address = SocketAddr::from((SERVER, PORT));
    let listener = TcpListener::bind(&host, address)?;
    let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
    let readable = EndBy::Readable(end.clone());
    thread::scope(|scope| {
        let server = scope.spawn(|| serve::stack(engine, listener, readable, root));
        let before = cpu();
        let load = Load {
            host: &clients,
            server: address,
            path: &point.path(),
            connections: point.clients as usize,
            is_kept: point.is_kept,
            requests_max: u64::MAX,
            span,
        };
        let loaded = load.run();
        let used = cpu() - before;
        rustix::io::write(&end, &1_u64.to_ne_bytes())?;
        server.join().expect("no panic")?;
        let loaded = loaded?;
        let answers = loaded.answers as f64;
        let microseconds = used.as_secs_f64() * 1e6 / answers;
        Ok(vec![answers / loaded.taken.as_secs_f64(), microseconds, loaded.errors as f64])
    })
}

/// Processor time of this process.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
