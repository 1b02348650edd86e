//! Job control: towpath and its program are one job of the shell that started them.
//!
//! An interactive bash runs on a pseudo-terminal; the test types.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::support::*;

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

/// A shell on a terminal of its own.
struct Session {
    shell: Guard,
    keyboard: File,
    screen: Arc<Mutex<String>>,
}

impl Drop for Session {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("on the screen: {:?}", self.screen());
            for job in children(self.shell.pid().as_raw_pid()) {
                let _ = kill_process(Pid::from_raw(job).unwrap(), Signal::KILL);
            }
        }
    }
}

impl Session {
    fn start() -> Option<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).ok()?;
        grantpt(&master).ok()?;
        unlockpt(&master).ok()?;
        let name = ptsname(&master, Vec::new()).ok()?;
        let path = std::path::Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
        let open = || -> Option<OwnedFd> {
            rustix::fs::open(path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).ok()
        };
        let mut command = with_default_signals("setsid");
        command.args(["--ctty", "bash", "--norc", "--noprofile", "-i"]);
        command.env("PS1", "$ ").env("TOWPATH", TOWPATH);
        command.stdin(Stdio::from(open()?)).stdout(Stdio::from(open()?)).stderr(open()?);
        let shell = Guard(command.spawn().ok()?);
        drop(command);
        let keyboard = File::from(master);
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut reader, shown) = (keyboard.try_clone().ok()?, Arc::clone(&screen));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Some(Self { shell, keyboard, screen })
    }

    fn type_keys(&mut self, keys: &str) {
        self.screen.lock().unwrap().clear();
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Returns the output since the last keys.
    fn screen(&self) -> String {
        self.screen.lock().unwrap().clone()
    }

    fn wait_for_text(&self, text: &str) {
        wait_for(&format!("'{text}' on the screen"), || self.screen().contains(text));
    }

    /// Waits for a prompt after the last input.
    fn wait_for_prompt(&self) {
        wait_for("a prompt", || self.screen().ends_with("$ "));
    }

    /// Returns towpath, process 1 and the program that runs in the shell, once it is named `name`.
    fn wait_for_job(&self, name: &str) -> [i32; 3] {
        let mut towpath = None;
        wait_for("the job to start", || {
            towpath = children(self.shell.pid().as_raw_pid()).first().copied();
            towpath.is_some()
        });
        let towpath = towpath.unwrap();
        let (init, program) = init_and_command_of(towpath, name);
        [towpath, init, program]
    }
}

fn wait_for_state(pid: i32, expected: char) {
    wait_for(&format!("state {expected}"), || state(pid) == Some(expected));
}

macro_rules! start_session {
    () => {
        match Session::start() {
            Some(session) => session,
            None => {
                eprintln!("skipped: no pseudo-terminal, or no bash");
                return;
            }
        }
    };
}

#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it() {
    skip_if!(no_tap());
    let mut session = start_session!();
    session.type_keys("$TOWPATH run -- sleep 1000\n");
    let [towpath, init, program] = session.wait_for_job("sleep");
    session.type_keys(CTRL_Z);
    session.wait_for_text("Stopped");
    session.wait_for_prompt();
    wait_for_state(towpath, 'T');
    wait_for_state(program, 'T');
    // Process 1 need not be stopped.
    wait_for_state(init, 'S');
    session.type_keys("fg\n");
    wait_for_state(towpath, 'S');
    wait_for_state(program, 'S');
    session.type_keys(CTRL_C);
    session.wait_for_prompt();
    session.type_keys("echo status=$?\n");
    session.wait_for_text("status=130\r\n");
}

/// Goal: Ctrl-C reaches the program once. A program that handles it continues, and so does towpath.
#[test]
fn a_program_may_handle_ctrl_c() {
    skip_if!(no_tap());
    let mut session = start_session!();
    let script = "count=0; trap 'count=$((count+1)); echo caught $count' INT; echo wait''ing; \
                  while [ $count -lt 2 ]; do sleep 0.01; done; exit 4";
    session.type_keys(&format!("$TOWPATH run -- bash -c \"$(cat <<'END'\n{script}\nEND\n)\"\n"));
    session.wait_for_text("waiting\r\n");
    session.type_keys(CTRL_C);
    session.wait_for_text("caught 1");
    thread::sleep(std::time::Duration::from_millis(50));
    assert!(!session.screen().contains("caught 2"), "once: {}", session.screen());
    session.type_keys(CTRL_C);
    session.wait_for_text("caught 2");
    session.wait_for_prompt();
    session.type_keys("echo status=$?\n");
    session.wait_for_text("status=4\r\n");
}

#[test]
fn ctrl_c_stops_a_loop_of_the_shell() {
    skip_if!(no_tap());
    let mut session = start_session!();
    session.type_keys("for i in 1 2 3; do $TOWPATH run -- sleep 1000; done; echo loop''ended\n");
    session.wait_for_job("sleep");
    session.type_keys(CTRL_C);
    session.wait_for_prompt();
    session.type_keys("echo status=$?\n");
    session.wait_for_text("status=130\r\n");
    assert!(children(session.shell.pid().as_raw_pid()).is_empty());
}

#[test]
fn a_shell_inside_has_job_control_and_gives_the_terminal_back() {
    skip_if!(no_tap());
    let mut session = start_session!();
    session.type_keys("$TOWPATH run -- bash --norc --noprofile -i\n");
    let [_, _, shell] = session.wait_for_job("bash");
    session.type_keys("echo in''side\n");
    session.wait_for_text("inside\r\n");
    session.wait_for_prompt();
    session.type_keys("sleep 1001\n");
    let sleep = wait_for_child(shell, "sleep");
    session.type_keys(CTRL_Z);
    session.wait_for_text("Stopped");
    session.wait_for_prompt();
    session.type_keys("fg\n");
    wait_for_state(sleep, 'S');
    session.type_keys(CTRL_C);
    session.wait_for_prompt();
    session.type_keys("exit 6\n");
    wait_for("the shell to end", || state(shell).is_none());
    session.type_keys("echo status=$?; cat\n");
    session.wait_for_text("status=6\r\n");
    session.type_keys("the terminal is the outer shell's again\n");
    session.wait_for_text("again\r\nthe terminal");
    session.type_keys(CTRL_C);
}

/// Goal: a script without job control may read the terminal after a shell ran inside: towpath gives
/// the foreground back.
#[test]
fn the_foreground_is_given_back_to_a_script() {
    skip_if!(no_tap());
    let mut session = start_session!();
    session.type_keys(
        "sh -c '$TOWPATH run -- bash --norc --noprofile -ic true; echo read''ing; read line; \
         echo got $line'\n",
    );
    session.wait_for_text("reading\r\n");
    session.type_keys("words\n");
    session.wait_for_text("got words\r\n");
}
