//! The program: its options, its signals, its network, and clients by other authors.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::lab::{PATIENCE, request};

/// Returns the path of the program; prints a note and returns `None` if only this test was built.
fn program() -> Option<PathBuf> {
    let mut program = std::env::current_exe().unwrap();
    program.pop();
    program.set_file_name("examples");
    let program = program.join("httpd");
    if program.exists() {
        return Some(program);
    }
    eprintln!("skipped: {} is not built", program.display());
    None
}

/// A directory, removed when this value is dropped.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let name = format!("towpath-httpd-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("a"), vec![b'a'; 300_000]).unwrap();
        Self(path)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running server, killed when this value is dropped.
struct Serving {
    child: Child,
    messages: BufReader<ChildStderr>,
    address: SocketAddr,
}

impl Serving {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut messages = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        messages.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening at ").unwrap_or_else(|| panic!("{line}"));
        Self { child, messages, address: address.parse().unwrap() }
    }

    /// Ends the server with SIGTERM and returns what it prints.
    fn end(mut self) -> String {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).unwrap();
        let mut text = String::new();
        self.messages.read_to_string(&mut text).unwrap();
        assert!(self.child.wait().unwrap().success(), "{text}");
        text
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_program_that_ends_when_it_is_asked_to() {
    let (Some(program), files) = (program(), Files::new("signals")) else { return };
    // The first case uses the defaults.
    for options in [&[][..], &["--back-end", "epoll"], &["--engine", "readiness"]] {
        let log = files.0.join("log");
        let mut command = Command::new(&program);
        command.args(options).args(["--listen", "127.0.0.1:0", "--root"]).arg(&files.0);
        let serving = Serving::start(command.arg("--log").arg(&log));
        let mut client = TcpStream::connect(serving.address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(request("GET", "/a", "Connection: close\r\n").as_bytes()).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert!(answer.len() > 300_000 && answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
        let said = serving.end();
        assert!(said.starts_with("1 answers on 1 connections, "), "{options:?}: {said}");
        assert!(fs::read_to_string(&log).unwrap().contains("\"GET /a\" 200 300"));
        fs::remove_file(&log).unwrap();
    }
}

#[test]
fn clients_of_its_own() {
    let Some(program) = program() else { return };
    for engine in ["completions", "readiness"] {
        for more in [&["--requests=2000"][..], &["--requests=500", "--close", "--clients=20"]] {
            let mut command = Command::new(&program);
            command.args(["--over", "process", "--engine", engine]).args(more);
            let output = command.stdin(Stdio::null()).output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{errors}");
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(text.contains(" answers, ") && text.ends_with(" 0 errors\n"), "{text}");
        }
    }
}

/// Goal: curl and wrk, in the kernel at the other end of a TAP device, get the files that they
/// request.
#[test]
fn programs_over_tap() {
    let Some(program) = program() else { return };
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/net/tun").exists() {
        eprintln!("skipped: this needs root and /dev/net/tun");
        return;
    }
    let files = Files::new("tap");
    for engine in ["completions", "readiness"] {
        let mut command = Command::new("unshare");
        command.arg("--net").arg(&program).args(["--over", "tap", "--engine", engine, "--root"]);
        // unshare(1) replaces itself with the server, so its process ID is the server's.
        let serving = Serving::start(command.arg(&files.0));
        let inside = |arguments: &[&str]| {
            let mut command = Command::new("nsenter");
            command.args(["--net", "--target", &serving.child.id().to_string()]).args(arguments);
            command.stdin(Stdio::null()).output().unwrap()
        };
        let url = format!("http://{}/a", serving.address);
        let output = inside(&["curl", "--silent", "--show-error", "--max-time", "60", &url]);
        if is_missing("curl", &output) {
            continue;
        }
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout == fs::read(files.0.join("a")).unwrap());
        let part = ["curl", "--silent", "--max-time", "60", "--range", "10-19,", &url];
        assert_eq!(inside(&part).stdout.len(), 300_000, "several ranges are the whole file");
        let output = inside(&["wrk", "-t1", "-c8", "-d1s", "--timeout", "60s", &url]);
        if !is_missing("wrk", &output) {
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(text.contains("Requests/sec:") && !text.contains("Non-2xx"), "{text}");
            assert!(!text.contains("Socket errors"), "{text}");
        }
        let said = serving.end();
        assert!(said.contains(" answers on "), "{said}");
    }
}

/// Returns true, and prints a note, if a program is not installed.
fn is_missing(name: &str, output: &std::process::Output) -> bool {
    let is_missing = output.status.code() == Some(127);
    if is_missing {
        eprintln!("skipped: {name} is not installed");
    }
    is_missing
}

#[test]
fn wrong_options_are_reported() {
    let Some(program) = program() else { return };
    for (option, code, words) in [
        ("--over=moon", 2, "moon"),
        ("--connections=0", 2, "--connections"),
        ("--root=/none", 1, "/none"),
        ("--grace=1", 1, "--root"),
    ] {
        let mut command = Command::new(&program);
        command.args(["--listen=127.0.0.1:0", option]).stdin(Stdio::null());
        let output = command.output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{option}: {errors}");
        assert!(errors.contains(words), "{option}: {errors}");
    }
}
