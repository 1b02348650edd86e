//! Beginning and end of processes: nothing is left, whichever process is killed, and an idle
//! towpath uses no processor time.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::support::{
    Checker, Family, Host, NONE, PATIENCE, Pattern, Process, Server, Stats, TOWPATH, Test, Towpath,
    assert_rests, inside, network_namespace, note, processes_in, program_of, resident_kib, retry,
    run,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = vec![
        Test::new("idle", &[], idle),
        Test::new("up_without_its_tap_device", &[], up_without_its_tap_device),
    ];
    for family in Family::BOTH {
        let name = family.name();
        tests.push(Test::new(format!("program_killed_{name}"), &[], move |host| {
            killed(host, family, Victim::Program);
        }));
        tests.push(Test::new(format!("towpath_killed_{name}"), &[], move |host| {
            killed(host, family, Victim::Towpath);
        }));
        tests.push(Test::new(format!("program_ends_at_once_{name}"), &[], move |host| {
            ends_at_once(host, family);
        }));
    }
    tests
}

/// The process that is killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Victim {
    Program,
    Towpath,
}

/// Starts a server that reads or writes endlessly, and reports the first byte and the end.
fn endless(family: Family, reads: bool) -> (Server, Receiver<()>) {
    let (sender, events) = mpsc::channel();
    let server = Server::start(family.loopback(), move |mut stream: TcpStream| {
        if reads {
            stream.read_exact(&mut [0])?;
        }
        let _ = sender.send(());
        let _ = if reads {
            io::copy(&mut stream, &mut io::sink())
        } else {
            io::copy(&mut io::repeat(1), &mut stream)
        };
        let _ = sender.send(());
        Ok(())
    });
    (server, events)
}

/// Goal: after a kill in the middle of transfers in both directions, servers see an end, and
/// neither process, namespace, interface nor socket is left.
/// Method: SIGKILL for CMD or for towpath; /proc, ip and ss.
fn killed(host: &mut Host, family: Family, victim: Victim) {
    let (reader, reader_news) = endless(family, true);
    let (writer, writer_news) = endless(family, false);
    let at = |server: &Server| SocketAddr::new(family.gateway(), server.port()).to_string();
    let many = u64::MAX.to_string();
    let role = inside("both", &[&at(&reader), &at(&writer), &many]);
    let towpath = Towpath::with_loopback(NONE).start(role);
    for events in [&reader_news, &writer_news] {
        events.recv_timeout(PATIENCE).expect("a beginning");
    }
    thread::sleep(Duration::from_millis(300));
    let program = program_of(towpath.pid());
    let namespace = network_namespace(program).expect("a namespace");
    assert!(!processes_in(&namespace).is_empty() && !host.sockets().is_empty());
    match victim {
        Victim::Program => {
            kill_process(Pid::from_raw(program).expect("a process"), Signal::KILL).expect("kill");
        }
        Victim::Towpath => towpath.signal(Signal::KILL),
    }
    let output = towpath.finish();
    match victim {
        Victim::Program => assert_eq!(output.status.code(), Some(128 + 9), "{}", output.stderr),
        Victim::Towpath => assert_eq!(output.status.signal(), Some(9)),
    }
    for events in [reader_news, writer_news] {
        events.recv_timeout(PATIENCE).expect("an end");
    }
    retry("processes inside to end", || processes_in(&namespace).is_empty().then_some(()));
    retry("sockets to be closed", || host.sockets().is_empty().then_some(()));
}

/// Goal: data that a program has written arrives although the program ends at once.
/// Method: 1 MiB, with a server that begins to read late.
fn ends_at_once(_: &mut Host, family: Family) {
    const BYTES: u64 = 1 << 20;
    let (sender, results) = mpsc::channel();
    let server = Server::start(family.loopback(), move |stream| {
        thread::sleep(Duration::from_millis(500));
        let _ = sender.send(Checker::new(Pattern::new(BYTES)).read_all(stream));
        Ok(())
    });
    let address = SocketAddr::new(family.gateway(), server.port()).to_string();
    let role = inside("send", &[&address, &BYTES.to_string()]);
    let output = Towpath::with_loopback(NONE).run(role);
    let result = results.recv_timeout(PATIENCE).expect("an end");
    assert_eq!(result, Ok(BYTES));
    Stats::of(&output).assert_carried(BYTES, 0, 0);
    output.success();
}

/// Goal: a port whose TAP device was deleted takes no processor time, and reports that the device
/// is gone.
/// Method: `ip link del`; /proc has the time used in two seconds.
fn up_without_its_tap_device(_: &mut Host) {
    let mut command = Command::new(TOWPATH);
    command.args(["up", "-v", "--stats", "--no-gateway", "--tap", "gone0"]);
    let mut towpath = Process::start(command);
    towpath.wait_for_text("serving 1 ports");
    run("ip", ["link", "del", "gone0"]);
    assert_rests(towpath.pid(), Duration::from_secs(2), 1);
    towpath.signal(Signal::INT);
    let output = towpath.finish();
    assert!(output.stderr.contains("the TAP interface was deleted"), "{}", output.stderr);
}

/// Most memory of an idle towpath.
const IDLE_KIB_MAX: u64 = 16 << 10;

/// Goal: a towpath whose program does nothing uses little memory and no processor time.
/// Method: CMD downloads, then sleeps; /proc has the time used in five seconds, and the memory.
fn idle(_: &mut Host) {
    let server =
        Server::start(Family::V4.loopback(), |stream| Pattern::new(64 << 20).write_to(&stream));
    let address = SocketAddr::new(Family::V4.gateway(), server.port()).to_string();
    let role = inside("download", &[&address, "67108864"]);
    let mut towpath = Towpath::with_loopback(NONE).start_held(role);
    towpath.wait_for_text("read 67108864");
    assert_rests(towpath.pid(), Duration::from_secs(5), 1);
    let little = retry("memory to be given back", || {
        let resident = resident_kib(towpath.pid());
        (resident < IDLE_KIB_MAX).then_some(resident)
    });
    note("idle", &format!("{little} KiB resident"));
    towpath.release();
    towpath.finish().success();
}
