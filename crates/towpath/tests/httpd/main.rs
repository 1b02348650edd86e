//! The example `httpd` speaks correct HTTP whatever its clients do, on each kind of socket.
//!
//! The example's server runs in threads of this test; clients are in the same process or on the
//! loopback interface. The only pauses are the server's own limits; everything else is waited for.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod lab;
mod program;
#[path = "../../examples/httpd/server/mod.rs"]
#[expect(dead_code, reason = "signals are for programs")]
mod server;

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use lab::{LIMITS, Lab, SYSTEMS, request};
use server::{Limits, PART_BYTES};

/// Larger than everything buffered between a server and a client that does not read.
const LARGE: u64 = 96 << 20;

fn everywhere(limits: Limits, test: impl Fn(&mut Lab)) {
    for system in SYSTEMS {
        eprintln!("{system:?}");
        test(&mut Lab::new(system, limits));
    }
}

#[test]
fn files_come_as_they_are() {
    everywhere(LIMITS, |lab| {
        let mut client = lab.connect();
        for len in [0, 1, 4096, 16 << 10, (16 << 10) + 1, PART_BYTES as usize, 3_000_001] {
            let name = format!("{len}.html");
            let bytes = lab.file(&name, len);
            let answer = client.get(&format!("/{name}?query"), "");
            assert_eq!((answer.status, answer.len()), (200, len as u64));
            assert!(answer.body == bytes, "{len}");
            assert_eq!(answer.field("Content-Type"), Some("text/html; charset=utf-8"));
            assert_eq!(answer.field("Connection"), Some("keep-alive"));
            client.send(request("HEAD", &format!("/{name}"), ""));
            assert_eq!(client.head().len(), len as u64);
        }
        fs::create_dir(lab.root.join("d")).unwrap();
        assert_eq!(client.get("/d/", "").status, 404);
        let index = lab.file("d/index.html", 10);
        assert_eq!(client.get("/d/", "").body, index);
        let answer = client.get("/d", "Connection: close\r\n");
        assert_eq!((answer.status, answer.field("Location")), (301, Some("/d/")));
        assert_eq!(client.until_end(), 0);
    });
}

#[test]
fn ranges_and_conditions() {
    everywhere(LIMITS, |lab| {
        let bytes = lab.file("a", 100_000);
        let mut client = lab.connect();
        let whole = client.get("/a", "");
        let (etag, modified) =
            (whole.field("ETag").unwrap(), whole.field("Last-Modified").unwrap());
        for (range, part) in [("0-0", 0..1), ("99990-", 99_990..100_000), ("-7", 99_993..100_000)] {
            for condition in
                ["", &format!("If-Range: {etag}\r\n"), &format!("If-Range: {modified}\r\n")]
            {
                let answer = client.get("/a", &format!("Range: bytes={range}\r\n{condition}"));
                assert_eq!((answer.status, &*answer.body), (206, &bytes[part.clone()]));
                let reported = format!("bytes {}-{}/100000", part.start, part.end - 1);
                assert_eq!(answer.field("Content-Range"), Some(&*reported));
            }
        }
        for fields in ["Range: bytes=0-1,4-5\r\n", "Range: bytes=0-1\r\nIf-Range: \"other\"\r\n"] {
            let answer = client.get("/a", fields);
            assert_eq!((answer.status, answer.len()), (200, 100_000), "{fields}");
        }
        let answer = client.get("/a", "Range: bytes=100000-\r\n");
        assert_eq!((answer.status, answer.field("Content-Range")), (416, Some("bytes */100000")));
        for (fields, status) in [
            (format!("If-Modified-Since: {modified}\r\n"), 304),
            ("If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n".into(), 200),
            ("If-Modified-Since: some day\r\n".into(), 200),
            (format!("If-None-Match: \"x\", W/{etag}\r\n"), 304),
            (format!("If-None-Match: \"x\"\r\nIf-Modified-Since: {modified}\r\n"), 200),
        ] {
            assert_eq!(client.get("/a", &fields).status, status, "{fields}");
        }
    });
}

/// Goal: invalid requests, and requests that cannot be served, get an error whatever follows them.
/// The connection ends if the start of the next request is unknown.
#[test]
fn bad_requests_are_refused() {
    everywhere(LIMITS, |lab| {
        lab.file("a", 10);
        let endless = format!("GET /a HTTP/1.1\r\nHost: x\r\nA: {}", "a".repeat(100_000));
        for (text, status) in [
            ("\0\x01\x02\r\n\r\n", 400),
            ("GET /a HTTP/1.1\r\n\r\n", 400),
            ("GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 70000\r\n\r\n", 413),
            ("POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
            ("GET /a HTTP/3.0\r\nHost: x\r\n\r\n", 505),
            (&endless, 431),
        ] {
            let mut client = lab.connect();
            client.try_send(text);
            let answer = client.answer();
            assert_eq!((answer.status, answer.field("Connection")), (status, Some("close")));
            assert_eq!(client.until_end(), 0, "{status}");
        }
        // The connection itself is still usable.
        let mut client = lab.connect();
        client.send("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n");
        let answer = client.answer();
        assert_eq!((answer.status, answer.field("Allow")), (405, Some("GET, HEAD")));
        client.send([b'x'; 60_000]);
        assert_eq!(client.get("/none", "").status, 404);
        assert_eq!(client.get("/a", "").status, 200);
        let (_, log) = {
            drop(client);
            lab.end()
        };
        assert_eq!(log.matches("\"POST /a\" 405 ").count(), 1, "{log}");
        assert_eq!(log.matches("\"-\" 400 ").count(), 3, "{log}");
    });
}

#[test]
fn nothing_outside_of_the_directory() {
    everywhere(LIMITS, |lab| {
        let bytes = lab.file("a", 10);
        let secret = lab.root.with_extension("secret");
        let name = secret.file_name().unwrap().to_str().unwrap().to_owned();
        fs::write(&secret, "secret").unwrap();
        fs::create_dir(lab.root.join("d")).unwrap();
        symlink(&secret, lab.root.join("absolute")).unwrap();
        symlink(format!("../{name}"), lab.root.join("relative")).unwrap();
        symlink("a", lab.root.join("inside")).unwrap();
        let fifo = lab.root.join("fifo");
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).unwrap();
        let mut client = lab.connect();
        for path in [
            format!("/../{name}"),
            format!("/d/../../{name}"),
            format!("/%2e%2e/{name}"),
            format!("/..%2f{name}"),
            format!("/{}", secret.display()),
            "/absolute".into(),
            "/relative".into(),
            "/fifo".into(),
            "/proc/self/environ".into(),
        ] {
            assert_eq!(client.get(&path, "").status, 404, "{path}");
        }
        for path in ["/d/../a", "/inside", "http://towpath/a"] {
            assert_eq!(client.get(path, "").body, bytes, "{path}");
        }
        fs::remove_file(secret).unwrap();
    });
}

#[test]
fn requests_in_one_piece_and_in_many() {
    everywhere(LIMITS, |lab| {
        let files: Vec<_> = (0..5).map(|n| lab.file(&n.to_string(), n * 20_000)).collect();
        let mut client = lab.connect();
        let mut text = String::new();
        for number in 0..200 {
            text += &request("GET", &format!("/{}", number % 5), "");
        }
        client.send(text);
        for number in 0..200 {
            assert!(client.answer().body == files[number % 5], "{number}");
        }
        let text = request("GET", "/1", "") + &request("HEAD", "/2", "Connection: close\r\n");
        for byte in text.bytes() {
            client.send([byte]);
        }
        assert!(client.answer().body == files[1]);
        assert_eq!(client.head().len(), 40_000);
        assert_eq!(client.until_end(), 0);
        // A client that has shut down writing still gets its answer.
        let mut client = lab.connect();
        client.send(request("GET", "/3", ""));
        client.end_writing();
        assert!(client.answer().body == files[3]);
        assert_eq!(client.until_end(), 0);
        let (report, log) = lab.end();
        assert_eq!((report.connections, report.answers, report.failures), (2, 203, 0));
        assert_eq!(log.lines().count(), 203);
        assert!(log.contains(" +0000] \"GET /1\" 200 20"), "{log}");
    });
}

/// Goal: a client that sends nothing, or too little in too long a time, cannot keep a connection.
#[test]
fn slow_clients_are_ended() {
    everywhere(Limits { idle: Duration::from_secs(1), ..LIMITS }, |lab| {
        lab.large("large", LARGE);
        let (mut silent, mut slow, mut deaf) = (lab.connect(), lab.connect(), lab.connect());
        slow.send("GET / HTTP/1.1\r\nHos");
        deaf.send(request("GET", "/large", ""));
        assert_eq!(silent.until_end(), 0);
        assert_eq!(slow.answer().status, 408);
        assert_eq!(slow.until_end(), 0);
        assert_eq!(deaf.head().status, 200);
        // Read only after the server has abandoned it.
        let mut log = String::new();
        for _ in 0..600 {
            log = fs::read_to_string(lab.root.with_extension("log")).unwrap();
            if log.contains("\"GET /large\" 200 ") {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(log.contains("\"GET /large\" 200 "), "{log}");
        assert!(deaf.until_end() < LARGE);
        assert_eq!(lab.end().0.failures, 1);
    });
}

/// Goal: if a file becomes shorter, the available part is sent and then the connection ends, so
/// that the client notices. Other clients are not affected.
#[test]
fn a_file_that_shrinks() {
    everywhere(LIMITS, |lab| {
        lab.large("large", LARGE);
        let small = lab.file("small", 100);
        let mut client = lab.connect();
        client.send(request("GET", "/large", ""));
        assert_eq!(client.head().len(), LARGE);
        let file = fs::OpenOptions::new().write(true).open(lab.root.join("large")).unwrap();
        file.set_len(1000).unwrap();
        assert!(client.until_end() < LARGE);
        assert_eq!(lab.connect().get("/small", "").body, small);
        // Its current length, once the server has looked it up again.
        let mut client = lab.connect();
        let mut len = LARGE;
        for _ in 0..600 {
            client.send(request("HEAD", "/large", ""));
            len = client.head().len();
            if len == 1000 {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(len, 1000);
        drop(client);
        assert_eq!(lab.end().0.failures, 1);
    });
}

#[test]
fn clients_that_leave() {
    everywhere(LIMITS, |lab| {
        lab.large("large", LARGE);
        let small = lab.file("small", 100);
        for _ in 0..5 {
            let mut client = lab.connect();
            client.send(request("GET", "/large", ""));
            assert_eq!(client.head().len(), LARGE);
            drop(client);
            let mut client = lab.connect();
            client.send("GET /small HT");
            drop(client);
        }
        let mut client = lab.connect();
        assert_eq!(client.get("/small", "").body, small);
        drop(client);
        // The server ends as soon as there are no connections.
        let (report, _) = lab.end();
        assert_eq!((report.connections, report.failures), (11, 5));
    });
}

/// Goal: the server's end waits for answers in progress, and for nothing else.
#[test]
fn an_end_that_waits() {
    everywhere(LIMITS, |lab| {
        lab.large("large", LARGE);
        let (mut idle, mut busy) = (lab.connect(), lab.connect());
        lab.file("small", 100);
        assert_eq!(idle.get("/small", "").status, 200);
        busy.send(request("GET", "/large", "") + &request("GET", "/small", ""));
        assert_eq!(busy.head().len(), LARGE);
        lab.ask_to_end();
        assert_eq!(idle.until_end(), 0);
        // The whole promised body arrives, and no further request is kept waiting.
        let rest = busy.until_end();
        assert!(rest >= LARGE, "{rest}");
        assert_eq!(lab.end().0.failures, 0);
    });
}

/// Goal: no client can keep a server from ending.
#[test]
fn an_end_that_does_not_wait_for_ever() {
    everywhere(Limits { grace: Duration::from_millis(200), ..LIMITS }, |lab| {
        lab.large("large", LARGE);
        let mut deaf = lab.connect();
        deaf.send(request("GET", "/large", ""));
        assert_eq!(deaf.head().len(), LARGE);
        let mut slow = lab.connect();
        slow.send("GET /large HT");
        assert_eq!(lab.end().0.failures, 1);
        assert!(deaf.until_end() < LARGE);
    });
}

#[test]
fn more_connections_than_there_may_be() {
    everywhere(Limits { connections: 2, ..LIMITS }, |lab| {
        let bytes = lab.file("a", 10);
        let (mut first, mut second) = (lab.connect(), lab.connect());
        assert_eq!(first.get("/a", "").body, bytes);
        assert_eq!(second.get("/a", "").body, bytes);
        let mut others: Vec<_> = (0..3).map(|_| lab.connect()).collect();
        for client in &mut others {
            client.send(request("GET", "/a", "Connection: close\r\n"));
        }
        assert_eq!(second.get("/a", "").body, bytes);
        drop(first);
        for client in &mut others {
            assert_eq!(client.answer().body, bytes);
        }
        drop(second);
        assert_eq!(lab.end().0.connections, 5);
    });
}
