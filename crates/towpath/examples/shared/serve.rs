//! How examples that serve do it: for clients of the same process, on a second host, or beside a
//! program of the kernel's network.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use futures::future::{Either, select};
use tokio::runtime::{Builder, Runtime};
use towpath::host::{Config, Host};
use towpath::tokio::TcpListener;

use crate::place::{PREFIX_LEN, isolated, on_tap};

/// Where the server has its host.
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
/// Where its clients are, those of the kernel's network too.
pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 2);

/// A tokio without I/O of its own.
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    Ok(Builder::new_current_thread().enable_time().build()?)
}

/// Serves at `port` while `ask` runs, which has the host of the clients.
pub(crate) fn in_process<S, A, T>(
    port: u16,
    serve: impl FnOnce(TcpListener) -> S,
    ask: impl FnOnce(Host) -> A,
) -> anyhow::Result<T>
where
    S: Future<Output = anyhow::Result<()>> + Send + 'static,
    A: Future<Output = anyhow::Result<T>>,
{
    let config = |address| Config::with_address(address, PREFIX_LEN);
    let (server, clients) = Host::pair(&config(SERVER), &config(CLIENT))?;
    runtime()?.block_on(async {
        let listener = TcpListener::bind(&server, (SERVER, port)).await?;
        let server = tokio::spawn(serve(listener));
        let asked = ask(clients).await;
        server.abort();
        asked
    })
}

/// Serves a program of the kernel's network at `port`, until it ends.
pub(crate) fn beside<S>(
    command: &[OsString],
    port: u16,
    serve: impl FnOnce(TcpListener) -> S,
) -> anyhow::Result<()>
where
    S: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    isolated(|| {
        let host = on_tap(&Config::with_address(SERVER, PREFIX_LEN), CLIENT)?;
        let (program, arguments) = command.split_first().context("there is no command")?;
        let name = program.to_string_lossy();
        let runtime = runtime()?;
        let done = runtime.block_on(async {
            let listener = TcpListener::bind(&host, (SERVER, port)).await?;
            let client = Command::new(program).args(arguments).spawn();
            let mut client = client.with_context(|| format!("cannot run {name}"))?;
            let ended = tokio::task::spawn_blocking(move || client.wait());
            let status = match select(ended, tokio::spawn(serve(listener))).await {
                Either::Left((ended, _)) => ended??,
                // Whoever is still there ends with the namespace.
                Either::Right((served, _)) => return served?.context("the server ended"),
            };
            ensure!(status.success(), "{name}: {status}");
            Ok(())
        });
        runtime.shutdown_background();
        done
    })
}

/// Tells an error.
pub(crate) fn exit_code(done: anyhow::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
