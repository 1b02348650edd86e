//! Running the servers of examples: for clients in the same process, on a second host, or beside a
//! program that uses the kernel's network.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use futures::future::{Either, select};
use tokio::runtime::{Builder, Runtime};
use towpath::host::{Config, Host};
use towpath::tokio::TcpListener;

use crate::place::{PREFIX_LEN, isolated, on_tap};

/// Address of the server's host.
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
/// Address of its clients, including those on the kernel's network.
pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 2);

/// Creates a tokio runtime without an I/O driver.
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    Ok(Builder::new_current_thread().enable_time().build()?)
}

/// Serves at `port` while `ask` runs with the clients' host.
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

/// Serves a program on the kernel's network at `port`, until the program ends.
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
                // Remaining processes end with the namespace.
                Either::Right((served, _)) => return served?.context("the server ended"),
            };
            ensure!(status.success(), "{name}: {status}");
            Ok(())
        });
        runtime.shutdown_background();
        done
    })
}

/// Prints an error and returns the exit code.
pub(crate) fn exit_code(done: anyhow::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
