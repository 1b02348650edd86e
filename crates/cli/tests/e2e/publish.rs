//! Ports of the host that lead to the program.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use rustix::process::Signal;

use super::support::{
    Family, Host, PATIENCE, Process, Stats, Test, Towpath, assert_rests, command, inside, now,
    program_of, retry, run, url_host,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for family in Family::BOTH {
        for mtu in [576, 1280, 1500, 9000, 65520] {
            if mtu >= 1280 || family == Family::V4 {
                let name = format!("nginx_wrk_{}_{mtu}", family.name());
                let body = move |host: &mut Host| load(host, family, mtu);
                let test = Test::new(name, &["nginx", "wrk"], body);
                tests.push(test.slow_unless(mtu == 1500));
            }
        }
        tests.push(Test::new(format!("published_range_{}", family.name()), &[], move |host| {
            range(host, family);
        }));
        tests.push(Test::new(format!("published_interface_{}", family.name()), &[], move |host| {
            interface(host, family);
        }));
        let name = format!("published_no_descriptor_left_{}", family.name());
        tests.push(Test::new(name, &[], move |host| no_descriptor_left(host, family)));
        tests.push(Test::new(format!("published_udp_{}", family.name()), &[], move |host| {
            udp(host, family);
        }));
        let name = format!("published_udp_answers_from_where_it_was_asked_{}", family.name());
        tests.push(Test::new(name, &[], move |host| two_addresses(host, family)));
    }
    tests
}

/// Writes a configuration for nginx that serves a small and a larger file; returns its path.
/// Everything is in the test's directory.
fn nginx_config(host: &Host) -> String {
    host.write("small", "hello");
    host.write("large", vec![b'x'; 200_000]);
    let directory = host.file("").to_str().expect("text").trim_end_matches('/').to_owned();
    let config = format!(
        "user root; worker_processes 1; daemon off; master_process off; pid {directory}/pid;\n\
         error_log {directory}/error.log; events {{ worker_connections 4096; }}\n\
         http {{ access_log off; client_body_temp_path {directory}/t1; \
         proxy_temp_path {directory}/t2; fastcgi_temp_path {directory}/t3; \
         uwsgi_temp_path {directory}/t4; scgi_temp_path {directory}/t5;\n\
         server {{ listen 80; listen [::]:80; root {directory}; }} }}\n"
    );
    host.write("nginx.conf", config).to_str().expect("text").into()
}

/// Least number of requests for each file.
const REQUESTS: u32 = 100;

/// Goal: a server inside handles a high load through a published port without an error.
/// Method: nginx inside, wrk on the host with 50 connections; small files, then larger ones.
fn load(host: &mut Host, family: Family, mtu: u16) {
    let nginx = command("nginx", ["-c", &nginx_config(host)]);
    let program = [nginx.get_program()].into_iter().chain(nginx.get_args());
    let mtu = mtu.to_string();
    let mut towpath = Towpath::new(["-t", "8080:80", "-m", &mtu]).start(program);
    let base = format!("http://{}:8080", url_host(family.loopback()));
    retry("nginx to listen", || {
        assert_eq!(towpath.poll(), None, "{}", towpath.stderr());
        let curl = ["-sS", "-m", "30", "--noproxy", "*", &format!("{base}/small")];
        let output = Process::start(command("curl", curl)).finish();
        (output.stdout == "hello").then_some(())
    });
    for file in ["small", "large"] {
        let url = format!("{base}/{file}");
        let mut requests = 0;
        let begun = now();
        while requests <= REQUESTS {
            let wrk = ["-t", "1", "-c", "50", "-d", "1s", "--timeout", "60s", url.as_str()];
            let text = run("wrk", wrk);
            assert!(!text.contains("Socket errors") && !text.contains("Non-2xx"), "{text}");
            let line = text.lines().find(|line| line.contains("requests in")).expect("a sum");
            let number = line.trim().split(' ').next().and_then(|number| number.parse().ok());
            requests += number.unwrap_or(0u32);
            assert!(begun.elapsed() < PATIENCE, "{requests} requests: {text}");
        }
    }
    towpath.signal(Signal::TERM);
    let output = towpath.finish();
    let stats = Stats::of(&output);
    output.success();
    stats.assert_uncopied();
}

/// Starts an echo server inside and waits until it is ready.
fn echo_server(options: &[&str], port: u16) -> Process {
    ready_server(Towpath::new(options), port)
}

fn ready_server(towpath: Towpath, port: u16) -> Process {
    let mut towpath = towpath.start(inside("echo-server", &[&port.to_string()]));
    program_of(towpath.pid());
    towpath.wait_for_text("listening");
    towpath
}

fn ask(address: IpAddr, port: u16) -> std::io::Result<()> {
    let address = SocketAddr::new(address, port);
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"question")?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer)?;
    assert_eq!(&answer, b"question");
    Ok(())
}

/// Goal: each port of a range leads to its own port inside; the server sees the client's address.
/// Method: from another machine and from the host itself; the server inside prints the client's
/// address.
fn range(host: &mut Host, family: Family) {
    host.outside();
    let mut towpath = echo_server(&["-t", "2000-2003:3000-3003,~2001"], 3002);
    host.outside().run(|| ask(family.host(), 2002)).expect("an answer");
    towpath.wait_for_text(&format!("from {}", family.outside()));
    ask(family.loopback(), 2002).expect("an answer");
    towpath.wait_for_text(&format!("from {}", family.gateway()));
    for (port, why) in [(2003, "no listener inside"), (2001, "excluded"), (2004, "not in it")] {
        assert!(host.outside().run(|| ask(family.host(), port)).is_err(), "{why}");
    }
}

/// Goal: a port published on one interface is on no other.
/// Method: ADDR%IF and %IF, tried through that interface and through the loopback.
fn interface(host: &mut Host, family: Family) {
    host.outside();
    let option = format!("{}%out0/2002:3002", family.host());
    let towpath = echo_server(&["-t", &option], 3002);
    host.outside().run(|| ask(family.host(), 2002)).expect("an answer");
    let refused = ask(family.loopback(), 2002).expect_err("not through the loopback");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    drop(towpath);
    let towpath = echo_server(&["-t", "%out0/2002:3002"], 3002);
    host.outside().run(|| ask(family.host(), 2002)).expect("an answer");
    assert!(ask(family.loopback(), 2002).is_err());
    drop(towpath);
}

/// Goal: with no descriptor left, accepted connections continue, others wait, and later ones work.
/// Method: towpath may have 64 descriptors, and gets 100 connections.
fn no_descriptor_left(_: &mut Host, family: Family) {
    let few = ["prlimit", "--nofile=64:64"];
    let towpath = ready_server(Towpath::new(["-t", "2002:3002"]).by(few), 3002);
    let address = SocketAddr::new(family.loopback(), 2002);
    let mut streams: Vec<TcpStream> = (0..100)
        .map(|_| TcpStream::connect_timeout(&address, PATIENCE).expect("connect"))
        .collect();
    let ask_over = |stream: &mut TcpStream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"question")?;
        stream.read_exact(&mut [0; 8])
    };
    streams[..30].iter_mut().for_each(|stream| ask_over(stream).expect("an answer"));
    let rest = streams.split_off(90);
    drop(streams);
    rest.into_iter().for_each(|mut stream| ask_over(&mut stream).expect("a late answer"));
    ask(family.loopback(), 2002).expect("an answer");
    assert_rests(towpath.pid(), Duration::from_secs(1), 2);
}

/// Goal: published UDP ports work from everywhere, for several clients at once, including answers.
/// Method: from another machine and from the host's loopback; the server inside prints the client's
/// address.
fn udp(host: &mut Host, family: Family) {
    host.outside();
    let role = inside("udp-server", &["5300"]);
    let mut towpath = Towpath::new(["-u", "5353:5300"]).start(role);
    towpath.wait_for_text("listening");
    let ask = |address: IpAddr| {
        let socket = UdpSocket::bind((family.unspecified(), 0)).expect("bind");
        socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
        socket.connect((address, 5353)).expect("connect");
        for size in [0, 1, 1000, 5000, 30_000] {
            socket.send(&vec![7; size]).expect("sent");
            let mut answer = vec![0; 1 << 16];
            let count = socket.recv(&mut answer).unwrap_or_else(|e| panic!("{size}: {e}"));
            assert_eq!(answer[..count], vec![7; size]);
        }
    };
    host.outside().run(|| ask(family.host()));
    towpath.wait_for_text(&format!("from {}", family.outside()));
    ask(family.loopback());
    towpath.wait_for_text(&format!("from {}", family.gateway()));
}

/// Goal: a client of one of several addresses of the host is answered from that address, whether
/// one socket has all addresses or each has its own.
/// Method: another machine with connected sockets, which take answers from that address only; some
/// datagrams go as fragments or super-packets.
fn two_addresses(host: &mut Host, family: Family) {
    host.outside();
    let second: IpAddr = match family {
        Family::V4 => [192, 0, 2, 77].into(),
        Family::V6 => [0x2001, 0xdb8, 1, 0, 0, 0, 0, 0x77].into(),
    };
    let prefixed = format!("{second}/{}", if family == Family::V4 { 24 } else { 64 });
    let nodad: &[&str] = if family == Family::V4 { &[] } else { &["nodad"] };
    run("ip", [&["address", "add", &prefixed, "dev", "out0"], nodad].concat());
    let each = [family.host(), second].map(|address| format!("{}/5353:5300", url_host(address)));
    let each = each.map(|spec| ["-u".to_owned(), spec]).concat();
    for options in [vec!["-u".into(), "5353:5300".into()], each] {
        let mut towpath = Towpath::new(options).start(inside("udp-server", &["5300"]));
        towpath.wait_for_text("listening");
        host.outside().run(|| {
            let ask = |address: IpAddr| {
                let socket = UdpSocket::bind((family.unspecified(), 0)).expect("bind");
                socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
                socket.connect((address, 5353)).expect("connect");
                socket
            };
            let sockets = [family.host(), second].map(ask);
            for size in [1, 1000, 5000] {
                for socket in &sockets {
                    socket.send(&vec![7; size]).expect("sent");
                    let mut answer = vec![0; 1 << 16];
                    let peer = socket.peer_addr().expect("connected");
                    let count = socket.recv(&mut answer).unwrap_or_else(|e| panic!("{peer}: {e}"));
                    assert_eq!(count, size);
                }
            }
        });
    }
}
