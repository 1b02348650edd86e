//! Programs that speak TCP.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::Outcome;
use crate::support::{Checker, Pattern, echo, now, reset_on_drop};

/// Longest wait for anything, so that a failure reports its cause.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long a reader stops.
pub(crate) const STOP: Duration = Duration::from_secs(10);

/// How long a connection pauses: longer than the kernel remembers which queue of a TAP device last
/// sent its packets.
const REST: Duration = Duration::from_millis(4500);

/// Bytes of a question that is answered only as a whole.
pub(crate) const QUESTION_BYTES: usize = 16;

/// Connects. The kernel can lose the error of a connect that does not wait: then the attempt ends
/// without one, and is repeated.
pub(super) fn open(address: &str) -> Result<TcpStream, std::io::Error> {
    let address: SocketAddr = address.parse().expect("an address");
    let is_lost = |result: &Result<_, std::io::Error>| {
        let error = result.as_ref().err();
        error.is_some_and(|error| {
            error.raw_os_error().is_none() && error.kind() != ErrorKind::TimedOut
        })
    };
    let mut result = TcpStream::connect_timeout(&address, PATIENCE);
    for _ in 0..4 {
        if is_lost(&result) {
            result = TcpStream::connect_timeout(&address, PATIENCE);
        }
    }
    let stream = result?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connects to all addresses at once; prints for each the result and its milliseconds.
pub(super) fn connect(addresses: &[&str]) -> Outcome {
    let begun = now();
    thread::scope(|scope| {
        for address in addresses {
            scope.spawn(move || {
                let result = open(address);
                let took = begun.elapsed().as_millis();
                match result {
                    Ok(_) => println!("{address} connected {took}"),
                    Err(error) => println!("{address} {:?} {took}", error.kind()),
                }
            });
        }
    });
    Ok(())
}

fn ask(stream: &mut TcpStream, number: usize) -> Outcome {
    let sent = number.to_be_bytes();
    let mut came = [0; size_of::<usize>()];
    stream.write_all(&sent)?;
    stream.read_exact(&mut came)?;
    if came == sent { Ok(()) } else { Err(format!("another answer to {number}").into()) }
}

/// Opens connections and keeps them all open, then asks over each, then closes them.
pub(super) fn hold(address: &str, count: usize) -> Outcome {
    let open = |_| open(address);
    let mut streams = (0..count).map(open).collect::<Result<Vec<_>, _>>()?;
    println!("held {}", streams.len());
    for (number, stream) in streams.iter_mut().enumerate() {
        ask(stream, number)?;
    }
    println!("answered {}", streams.len());
    Ok(())
}

/// Opens connections, then asks over one after another and closes it.
pub(super) fn ask_in_turn(address: &str, count: usize) -> Outcome {
    let streams = (0..count).map(|_| open(address)).collect::<Result<Vec<_>, _>>()?;
    for (number, mut stream) in streams.into_iter().enumerate() {
        ask(&mut stream, number)?;
    }
    println!("answered {count}");
    Ok(())
}

/// Opens connections, asks over each, lets them pause, and asks over each again.
pub(super) fn rest(address: &str, count: usize) -> Outcome {
    let open = |_| open(address);
    let mut streams = (0..count).map(open).collect::<Result<Vec<_>, _>>()?;
    for pause in [Duration::ZERO, REST] {
        thread::sleep(pause);
        for (number, stream) in streams.iter_mut().enumerate() {
            ask(stream, number)?;
        }
    }
    println!("answered {count} twice");
    Ok(())
}

/// Makes connections one after another, each with a question and its answer. Half of them close
/// here first. The others close only the sending half, so that the server's FIN comes first or
/// late.
pub(super) fn short(address: &str, count: usize) -> Outcome {
    for number in 0..count {
        let mut stream = open(address).map_err(|error| format!("connection {number}: {error}"))?;
        ask(&mut stream, number)?;
        if number % 2 == 1 {
            stream.shutdown(Shutdown::Write)?;
            if stream.read(&mut [0])? != 0 {
                return Err("more than the answer".into());
            }
        }
    }
    println!("answered {count}");
    Ok(())
}

/// Asks without `TCP_NODELAY`, over a connection for each question: sixteen times with one write,
/// then with two, all of that repeatedly. Prints the microseconds of the quickest question in two
/// parts.
pub(super) fn two_parts(address: &str, count: usize) -> Outcome {
    let address: SocketAddr = address.parse()?;
    let ask = |parts: usize| -> Result<Duration, std::io::Error> {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let begun = now();
        for part in [0; QUESTION_BYTES].chunks(QUESTION_BYTES / parts) {
            stream.write_all(part)?;
        }
        stream.read_exact(&mut [0])?;
        Ok(begun.elapsed())
    };
    let mut quickest = Duration::MAX;
    for _ in 0..count {
        for _ in 0..16 {
            ask(1)?;
        }
        quickest = quickest.min(ask(2)?);
    }
    println!("{}", quickest.as_micros());
    Ok(())
}

/// Opens connections until one is refused, at most `count`; checks that the open ones work, closes
/// half of them, and opens one more.
pub(super) fn limited(address: &str, count: usize) -> Outcome {
    let mut streams = Vec::new();
    while streams.len() < count {
        match open(address) {
            Ok(stream) => streams.push(stream),
            Err(error) => {
                println!("{:?} after {}", error.kind(), streams.len());
                break;
            }
        }
    }
    for (number, stream) in streams.iter_mut().enumerate() {
        ask(stream, number)?;
    }
    println!("answered {}", streams.len());
    streams.truncate(streams.len() / 2);
    let begun = now();
    loop {
        match open(address).map(|mut stream| ask(&mut stream, count)) {
            Ok(answered) => break answered?,
            Err(error) if begun.elapsed() > PATIENCE => return Err(error.into()),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
    println!("works again");
    Ok(())
}

/// Sends a pattern and closes that half; then expects all of it back, and the end.
pub(super) fn half_close(address: &str, bytes: u64) -> Outcome {
    let mut stream = open(address)?;
    let reading = stream.try_clone()?;
    let reader = thread::spawn(move || Checker::new(Pattern::new(bytes)).read_all(reading));
    Pattern::new(bytes).write_to(&mut stream)?;
    stream.shutdown(Shutdown::Write)?;
    println!("read {}", reader.join().expect("no panic")?);
    Ok(())
}

/// Expects a pattern and the peer's end, and only then sends a pattern and closes.
pub(super) fn peer_first(address: &str, bytes: u64) -> Outcome {
    let mut stream = open(address)?;
    println!("read {}", Checker::new(Pattern::new(bytes)).read_all(&stream)?);
    Pattern::new(bytes).write_to(&mut stream)?;
    Ok(())
}

/// Reads until the peer resets.
pub(super) fn await_reset(address: &str) -> Outcome {
    let mut stream = open(address)?;
    stream.write_all(b"begin")?;
    let mut buffer = vec![0; 64 << 10];
    let (mut count, begun) = (0, now());
    let end = loop {
        match stream.read(&mut buffer) {
            Ok(0) => break "closed".into(),
            Ok(more) => count += more,
            Err(error) => break format!("{:?}", error.kind()),
        }
    };
    println!("{end} after {count} bytes, {} ms", begun.elapsed().as_millis());
    Ok(())
}

/// Reads some bytes and resets.
pub(super) fn reset(address: &str) -> Outcome {
    let mut stream = open(address)?;
    stream.read_exact(&mut vec![0; 100_000])?;
    reset_on_drop(&stream);
    drop(stream);
    println!("reset");
    // The end of the process would also close the socket.
    thread::sleep(Duration::from_secs(1));
    Ok(())
}

/// Reads a little, stops for [`STOP`], and reads the rest.
pub(super) fn slow_reader(address: &str, bytes: u64) -> Outcome {
    let mut stream = open(address)?;
    let mut start = [0; 1000];
    stream.read_exact(&mut start)?;
    let mut checker = Checker::new(Pattern::new(bytes));
    checker.take(&start)?;
    thread::sleep(STOP);
    println!("read {}", checker.read_all(stream)?);
    Ok(())
}

/// Sends a pattern, and waits for the peer's end.
pub(super) fn upload(address: &str, bytes: u64) -> Outcome {
    let mut stream = open(address)?;
    Pattern::new(bytes).write_to(&mut stream)?;
    stream.shutdown(Shutdown::Write)?;
    stream.read_to_end(&mut Vec::new())?;
    println!("sent {bytes}");
    Ok(())
}

/// Sends a pattern and ends.
pub(super) fn send(address: &str, bytes: u64) -> Outcome {
    Ok(Pattern::new(bytes).write_to(open(address)?)?)
}

/// Reads a pattern.
pub(super) fn download(address: &str, bytes: u64) -> Outcome {
    println!("read {}", Checker::new(Pattern::new(bytes)).read_all(open(address)?)?);
    Ok(())
}

/// Sends to one address and reads from another, both at once.
pub(super) fn both(up: &str, down: &str, bytes: u64) -> Outcome {
    let (mut up, mut down) = (open(up)?, open(down)?);
    thread::spawn(move || std::io::copy(&mut down, &mut std::io::sink()));
    Ok(Pattern::new(bytes).write_to(&mut up)?)
}

/// Echoes at an address, and prints the client's address.
pub(super) fn echo_server(address: &str) -> Outcome {
    let listener = TcpListener::bind(address)?;
    println!("listening");
    loop {
        let (stream, peer) = listener.accept()?;
        println!("from {}", peer.ip().to_canonical());
        thread::spawn(|| echo(stream));
    }
}

/// Sends many bytes. Resets in the middle of a connection whose client has asked for that, and
/// prints how others end.
pub(super) fn reset_server(port: u16) -> Outcome {
    let listener = TcpListener::bind(("::", port))?;
    println!("listening");
    loop {
        let (mut stream, _) = listener.accept()?;
        let mut word = [0; 5];
        stream.read_exact(&mut word)?;
        if &word == b"reset" {
            Pattern::new(1 << 20).write_to(&mut stream)?;
            reset_on_drop(&stream);
            continue;
        }
        let end = std::io::copy(&mut std::io::repeat(1), &mut stream);
        // A write may report the reset as a broken pipe; the socket keeps the error itself.
        let error = stream.take_error()?.or(end.err()).ok_or("no error")?;
        println!("ended by {:?}", error.kind());
    }
}

/// Echoes words, each after a pause.
pub(super) fn late_server(port: u16) -> Outcome {
    let listener = TcpListener::bind(("::", port))?;
    println!("listening");
    loop {
        let (mut stream, _) = listener.accept()?;
        thread::spawn(move || {
            let mut word = [0; 8];
            while stream.read_exact(&mut word).is_ok() {
                thread::sleep(REST);
                if stream.write_all(&word).is_err() {
                    return;
                }
            }
        });
    }
}
