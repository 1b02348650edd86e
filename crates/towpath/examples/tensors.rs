//! A parameter server: clients push tensors and pull them back.
//!
//! A request is an operation, the number of a tensor and a length: 13 bytes. A push is followed by
//! the tensor. The server adds up its bytes, in place if they were lent, and answers with the sum.
//! A pull is answered with the tensor, which the server lends from where it keeps it.

mod shared;

use std::io::Read;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, ensure};
use clap::Parser;
use shared::{Client, Lab, Mode, Options, add, pattern, run, sum, sum_copied};
use towpath::host::{Completions, TcpListener, TcpStream};

/// Run a parameter server and its clients: large tensors in both directions.
#[derive(Clone, Copy, Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,

    /// Bytes per tensor.
    #[arg(long, default_value_t = 4 << 20,
          value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    bytes: u32,

    /// Number of tensors.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    tensors: u32,

    /// Number of clients.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: u32,

    /// Number of times that each client pushes and pulls every tensor.
    #[arg(long, default_value_t = 8)]
    rounds: u32,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    run(arguments.options, |lab| work(arguments, lab))
}

const PUSH: u8 = 1;
const PULL: u8 = 2;
const REQUEST_BYTES: usize = 13;

/// Returns the number of bytes of tensors moved.
fn work(arguments: Arguments, lab: &Lab) -> anyhow::Result<u64> {
    let len = arguments.bytes as usize;
    let tensors: Arc<[Arc<[u8]>]> =
        (0..arguments.tensors as usize).map(|seed| Arc::from(pattern(len, seed))).collect();
    let listener = TcpListener::bind(&lab.server, lab.address()).context("cannot listen")?;
    thread::scope(|scope| {
        let server = scope.spawn(|| serve(&listener, arguments, &tensors));
        let clients: Vec<_> = (0..arguments.clients)
            .map(|_| scope.spawn(|| train(arguments, lab, &tensors)))
            .collect();
        let mut moved = 0;
        for client in clients {
            moved += client.join().expect("no panic")?;
        }
        server.join().expect("no panic")?;
        Ok(moved)
    })
}

fn serve(
    listener: &TcpListener,
    arguments: Arguments,
    tensors: &Arc<[Arc<[u8]>]>,
) -> anyhow::Result<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..arguments.clients)
            .map(|_| {
                let (stream, _) = listener.accept().context("cannot accept")?;
                Ok(scope.spawn(|| answer(stream, arguments.options.mode, tensors)))
            })
            .collect::<anyhow::Result<_>>()?;
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

/// Answers the requests of one client until it disconnects.
fn answer(mut stream: TcpStream, mode: Mode, tensors: &[Arc<[u8]>]) -> anyhow::Result<()> {
    stream.set_send_mode(mode.into());
    stream.set_nodelay(true)?;
    let mut lent = Completions::new();
    loop {
        let mut request = [0; REQUEST_BYTES];
        if stream.read(&mut request[..1])? == 0 {
            return Ok(());
        }
        stream.read_exact(&mut request[1..])?;
        let [operation, rest @ ..] = request;
        let (index, len) = rest.split_at(4);
        let index = u32::from_be_bytes(index.try_into().expect("4 bytes")) as usize;
        let len = u64::from_be_bytes(len.try_into().expect("8 bytes")) as usize;
        let tensor = tensors.get(index).context("there is no such tensor")?;
        ensure!(len == tensor.len(), "a tensor of {} bytes, not {len}", tensor.len());
        let answer: Arc<[u8]> = match operation {
            PUSH => Arc::from(sum(&mut stream, len, mode)?.to_be_bytes()),
            PULL => tensor.clone(),
            _ => anyhow::bail!("there is no operation {operation}"),
        };
        lent.push(stream.send_zc(answer)?);
        while lent.try_next().is_some() {}
    }
}

fn request(operation: u8, index: usize, len: usize) -> Vec<u8> {
    let mut request = vec![operation];
    request.extend((index as u32).to_be_bytes());
    request.extend((len as u64).to_be_bytes());
    request
}

/// Pushes and pulls all tensors. Returns the number of bytes of tensors moved.
fn train(arguments: Arguments, lab: &Lab, tensors: &[Arc<[u8]>]) -> anyhow::Result<u64> {
    let (mut client, mode) = (lab.connect()?, arguments.options.mode);
    let sums: Vec<u64> = tensors.iter().map(|tensor| add(tensor)).collect();
    let mut moved = 0;
    for round in 0..arguments.rounds as usize {
        for (index, tensor) in tensors.iter().enumerate() {
            // A client's buffer belongs to the client, and comes back for reuse.
            let gradient = pattern(tensor.len(), round);
            let expected = add(&gradient);
            let head = client.send(request(PUSH, index, gradient.len()))?;
            let body = client.send(gradient)?;
            let mut answer = [0; 8];
            client.read_exact(&mut answer)?;
            ensure!(u64::from_be_bytes(answer) == expected, "the server got other bytes");
            for sending in [head, body].into_iter().flatten() {
                drop(sending.returned().buffer);
            }
            drop(client.send(request(PULL, index, tensor.len()))?);
            let pulled = match &mut client {
                Client::Host(stream) => sum(stream, tensor.len(), mode)?,
                Client::Kernel(stream) => sum_copied(stream, tensor.len())?,
            };
            ensure!(pulled == sums[index], "the client got other bytes");
            moved += 2 * tensor.len() as u64;
        }
    }
    Ok(moved)
}
