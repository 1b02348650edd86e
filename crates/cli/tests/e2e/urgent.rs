//! Urgent data: a byte that one side marks is marked for the other, at its place in the stream.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags};

use super::support::{Family, Host, NONE, PATIENCE, Server, Stats, Test, Towpath, inside};

pub(crate) fn tests() -> Vec<Test> {
    let test = |family: Family| {
        Test::new(format!("urgent_data_{}", family.name()), &[], move |host| marked(host, family))
    };
    Family::BOTH.map(test).into()
}

/// Bytes before the marked one, and after it.
const AROUND: usize = 20_000;
const MARKED: u8 = b'!';

/// Goal: both sides get the marked byte separately and the others in order, and none is lost.
/// Method: a program and a server send each other bytes with one mark among them.
fn marked(host: &mut Host, family: Family) {
    let (sender, answers) = mpsc::channel();
    let server = Server::start(family.loopback(), move |stream| {
        let received = receive(&stream);
        // The receiver may have timed out.
        let _ = sender.send(received.map_err(|error| error.to_string()));
        send(&stream)
    });
    let address = SocketAddr::new(family.gateway(), server.port()).to_string();
    let output = Towpath::with_loopback(NONE).found_by(host).run(inside("urgent", &[&address]));
    let stats = Stats::of(&output);
    assert_eq!(output.success(), "received\n");
    answers.recv_timeout(PATIENCE).expect("a connection").expect("marked bytes");
    let all = 2 * AROUND as u64 + 1;
    stats.assert_bytes(all, all, 0);
}

/// The program's side.
pub(crate) fn exchange(address: &str) -> io::Result<()> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    send(&stream)?;
    receive(&stream)?;
    println!("received");
    Ok(())
}

fn send(mut stream: &TcpStream) -> io::Result<()> {
    stream.write_all(&[b'a'; AROUND])?;
    rustix::net::send(stream, &[MARKED], SendFlags::OOB)?;
    stream.write_all(&[b'b'; AROUND])?;
    stream.shutdown(Shutdown::Write)
}

fn receive(mut stream: &TcpStream) -> io::Result<()> {
    let patience = Timespec::try_from(PATIENCE).expect("seconds");
    poll(&mut [PollFd::new(stream, PollFlags::PRI)], Some(&patience))?;
    let mut byte = [0];
    rustix::net::recv(stream, &mut byte, RecvFlags::OOB)?;
    let mut others = Vec::new();
    stream.read_to_end(&mut others)?;
    let expected = [[b'a'; AROUND], [b'b'; AROUND]].concat();
    match (byte, others == expected) {
        ([MARKED], true) => Ok(()),
        _ => Err(io::Error::other(format!(
            "{byte:?} was marked, among {} other bytes",
            others.len()
        ))),
    }
}
