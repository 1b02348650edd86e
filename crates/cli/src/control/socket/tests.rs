//! Long requests at a control socket: taken one at a time, parsed elsewhere, answered here.

use super::*;
use crate::control::ask;
use crate::control::policy::{self, EGRESS};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use towpath_gateway::control::http;
use towpath_gateway::egress::enforcer::Enforcer;
use towpath_gateway::egress::policy::Policy;
use towpath_gateway::egress::rule::Action;

/// Longest wait for the thread that parses.
const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// A control socket in a folder that goes with it, and a policy that it replaces.
struct Bench {
    control: Control,
    folder: PathBuf,
    enforcer: Arc<Enforcer>,
}

impl Bench {
    fn new(name: &str) -> Self {
        let folder = format!("towpath-control-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        fs::create_dir_all(&folder).unwrap();
        let listener = Listener::bind(&folder.join("api")).unwrap();
        let mut control = Control::new(None, Some(listener)).unwrap();
        control.take_long().unwrap();
        let policy = Policy::new(Vec::new(), Action::Deny, true).unwrap();
        Self { control, folder, enforcer: Arc::new(Enforcer::new(policy, None)) }
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.folder.join("api")).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    }

    fn serve(&mut self) {
        let enforcer = &self.enforcer;
        let served = self.control.serve(|asked| match asked.content {
            Content::Policy(policy) => {
                Some(policy::replace(Some(enforcer), policy, asked.replaced))
            }
            _ => Some(Response::json(200, &json!({}))),
        });
        served.unwrap();
    }

    /// Waits until the socket has work, and serves it.
    fn wait(&mut self) {
        let mut files = [PollFd::new(&self.control, PollFlags::IN)];
        assert_eq!(poll(&mut files, Some(&PATIENCE)), Ok(1), "nothing happens");
        self.serve();
    }

    /// Sends all bytes, while the socket reads them.
    fn send(&mut self, mut stream: &UnixStream, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match stream.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(),
                // It was answered already.
                Err(_) => return,
            }
        }
    }

    /// Returns status and body of the answer; `None` if the connection ends without one.
    fn answer(&mut self, mut stream: &UnixStream) -> Option<(u16, Value)> {
        let (mut answer, mut buffer) = (Vec::new(), [0; 1024]);
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return http::read(&answer),
                Ok(count) => answer.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(),
                // It was closed with bytes that it had not read.
                Err(_) => return http::read(&answer),
            }
        }
    }

    /// Returns the number of rules of the policy.
    fn rules(&self) -> usize {
        // The default is counted, too.
        self.enforcer.summary().by_rule.len() - 1
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn request(body: &str) -> Vec<u8> {
    let len = body.len();
    format!("POST {EGRESS} HTTP/1.1\r\nContent-Length: {len}\r\n\r\n{body}").into_bytes()
}

/// Returns a request for a policy of so many rules.
fn policy_of(rules: usize) -> Vec<u8> {
    let rule = |number| {
        json!({ "action": "allow", "to": [format!("host-{number}.some.example"), "192.0.2.0/24"],
                "ports": ["tcp/443", "udp/443"] })
    };
    request(&json!({ "rule": (0..rules).map(rule).collect::<Vec<_>>() }).to_string())
}

/// Goal: a policy of 5,000 rules is read and applied, while other requests are answered. The one
/// before is freed: by the thread that parses, before it parses again.
#[test]
fn a_long_policy_replaces_another() {
    let mut bench = Bench::new("long");
    let first = Arc::new(Policy::new(Vec::new(), Action::Deny, true).unwrap());
    let before = Arc::downgrade(&first);
    bench.enforcer = Arc::new(Enforcer::new(first, None));
    let (long, short) = (bench.connect(), bench.connect());
    bench.send(&long, &policy_of(5000));
    bench.send(&short, b"GET /v1/stats HTTP/1.1\r\n\r\n");
    assert_eq!(bench.answer(&short), Some((200, json!({}))));
    assert_eq!(bench.answer(&long), Some((200, json!({ "policy": 2 }))));
    assert_eq!(bench.rules(), 5000);
    let wrong = request(&json!({ "rule": [], "x": "y".repeat(1 << 20) }).to_string());
    let stream = bench.connect();
    bench.send(&stream, &wrong);
    let (status, value) = bench.answer(&stream).unwrap();
    assert_eq!((status, bench.rules()), (400, 5000));
    assert!(value["error"].as_str().unwrap().contains("unknown key 'x'"), "{value}");
    assert_eq!(before.strong_count(), 0);
}

/// Goal: clients that send long requests, all of them or a part, never make the process hold more
/// than one; each learns why, and another may follow.
#[test]
fn long_requests_are_held_one_at_a_time() {
    let mut bench = Bench::new("one");
    let whole = policy_of(5000);
    let first = bench.connect();
    bench.send(&first, &whole[..whole.len() - 1]);
    bench.serve();
    for _ in 0..CONNECTIONS_MAX {
        let other = bench.connect();
        bench.send(&other, &whole);
        let (status, value) = bench.answer(&other).unwrap();
        assert_eq!(status, 503);
        assert!(value["error"].as_str().unwrap().contains("another long request"), "{value}");
    }
    bench.send(&first, &whole[whole.len() - 1..]);
    assert_eq!(bench.answer(&first).unwrap().0, 200);
    let huge = format!("POST {EGRESS} HTTP/1.1\r\nContent-Length: 4194305\r\n\r\n");
    let stream = bench.connect();
    bench.send(&stream, huge.as_bytes());
    assert_eq!(bench.answer(&stream).unwrap().0, 413);
    assert_eq!(bench.rules(), 5000);
}

/// Goal: a client that has gone before its policy is read changes nothing, and the next one can
/// send a long one.
#[test]
fn a_policy_of_a_client_that_has_gone_is_not_applied() {
    let mut bench = Bench::new("gone");
    let stream = bench.connect();
    bench.send(&stream, &policy_of(3000));
    while !bench.control.reader.as_ref().unwrap().is_busy() {
        bench.serve();
    }
    drop(stream);
    bench.control.clients.time_out().unwrap();
    while bench.control.reader.as_ref().unwrap().is_busy() {
        bench.wait();
    }
    assert_eq!(bench.rules(), 0);
    let stream = bench.connect();
    bench.send(&stream, &policy_of(4000));
    assert_eq!(bench.answer(&stream).unwrap().0, 200);
    assert_eq!(bench.rules(), 4000);
    bench.serve();
    assert!(bench.control.clients.is_idle());
    let now = Some(&Timespec::default());
    let mut files = [PollFd::new(&bench.control, PollFlags::IN)];
    assert_eq!(poll(&mut files, now), Ok(0), "nothing wakes the worker any more");
}

/// Goal: a body that would need far more memory than it is long is refused before it is parsed.
#[test]
fn a_body_of_too_many_values_is_refused() {
    let mut bench = Bench::new("values");
    let mut body = r#"{"":0},"#.repeat(300_000);
    body.pop();
    let stream = bench.connect();
    bench.send(&stream, &request(&format!("[{body}]")));
    let (status, value) = bench.answer(&stream).unwrap();
    assert_eq!(status, 400);
    assert!(value["error"].as_str().unwrap().contains("600001 values"), "{value}");
}

/// Goal: a client learns why its request is refused, although it has not sent all of it.
#[test]
fn a_refusal_reaches_a_client_that_still_sends() {
    let mut bench = Bench::new("refusal");
    let path = bench.folder.join("api");
    let body = Value::String("x".repeat(5 << 20));
    let client =
        std::thread::spawn(move || ask::exchange(&path, "POST", EGRESS, Some(&body), None));
    while !client.is_finished() {
        let pause = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        poll(&mut [PollFd::new(&bench.control, PollFlags::IN)], Some(&pause)).unwrap();
        bench.serve();
    }
    let (status, value) = client.join().unwrap().unwrap();
    assert_eq!(status, 413);
    assert!(value["error"].as_str().unwrap().contains("at most 4194304"), "{value}");
}
