//! `towpath attach` with namespaces that are handed over as file descriptors.

use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::attach::addresses;
use super::support::*;

/// Starts a process that waits in new namespaces of these kinds.
fn new_namespaces(kinds: &[&str]) -> (Guard, String) {
    let mut command = Command::new("unshare");
    command.args(kinds).args(["sleep", "1000"]).stdin(Stdio::null());
    let child = Guard(command.spawn().unwrap());
    let pid = child.pid().as_raw_pid();
    let name_of = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/comm"));
    wait_for("new namespaces", || name_of(pid).is_ok_and(|name| name == "sleep\n"));
    (child, pid.to_string())
}

/// Returns `towpath attach` with arguments, with descriptors that `redirections` opens.
fn attach(redirections: &str, arguments: &[&str]) -> Command {
    let script = format!("exec \"$0\" attach \"$@\" {redirections}");
    let mut command = Command::new("sh");
    command.args(["-c", &script, TOWPATH]).args(arguments);
    command
}

fn begin(redirections: &str, arguments: &[&str]) -> Guard {
    let mut command = attach(redirections, arguments);
    Guard(command.stdin(Stdio::null()).spawn().unwrap())
}

/// Goal: descriptors serve as paths do, also standard streams and paths of descriptors; the end
/// comes with a signal.
#[test]
fn namespaces_are_served_by_descriptor() {
    skip_if!(no_root());
    let (_program, pid) = new_namespaces(&["--user", "--map-root-user", "--net"]);
    let (net, user) = (format!("/proc/{pid}/ns/net"), format!("/proc/{pid}/ns/user"));
    let both = format!("7<{net} 8<{user}");
    let standard = format!("<{net} 1<{user}");
    let cases: &[(&str, &[&str])] = &[
        (&both, &["--netns-fd", "7"]),
        (&both, &["--netns-fd", "7", "--userns-fd", "8"]),
        (&both, &["--netns", "/proc/self/fd/7", "--userns", "/proc/self/fd/8"]),
        (&standard, &["--netns-fd", "0", "--userns-fd", "1"]),
        (&standard, &["--netns", "/proc/self/fd/0", "--userns", "/proc/self/fd/1"]),
        ("", &["--netns", &net, "--userns", &user]),
        ("", &["--netns", &net, "--userns", "/proc/self/ns/user"]),
        ("", &["--userns", &user, &pid]),
    ];
    for (redirections, arguments) in cases {
        let mut towpath = begin(redirections, arguments);
        wait_for("the interface", || {
            assert!(towpath.0.try_wait().unwrap().is_none(), "{arguments:?}");
            addresses(&net).contains("10.0.2.15/24")
        });
        thread::sleep(Duration::from_millis(20));
        assert!(towpath.0.try_wait().unwrap().is_none(), "{arguments:?}");
        towpath.signal(Signal::TERM);
        finish(towpath);
        wait_for("the interface to go", || !addresses(&net).contains("tap0"));
    }
}

/// Goal: what is no namespace of the right kind is refused, with the option, the value and the
/// reason.
#[test]
fn other_descriptors_are_refused() {
    skip_if!(no_root());
    let (_program, pid) = new_namespaces(&["--net"]);
    let (_other, other) = new_namespaces(&["--user", "--map-root-user"]);
    let (net, user) = (format!("7</proc/{pid}/ns/net"), format!("8</proc/{other}/ns/user"));
    let all = format!("{net} {user} 9</dev/null 6</proc/self/ns/net");
    let cases: &[(&[&str], &str)] = &[
        (
            &["--netns-fd", "99"],
            "option --netns-fd: file descriptor 99 must be open, and no other option may use it: \
             Bad file descriptor",
        ),
        (
            &["--netns-fd", "8"],
            "option --netns-fd: file descriptor 8 is a user namespace; expected a network \
             namespace",
        ),
        (&["--netns-fd", "9"], "option --netns-fd: file descriptor 9 is not a network namespace"),
        (&["--netns-fd", "6"], "file descriptor 6 is the network namespace of towpath itself"),
        (
            &["--netns-fd", "7", "--userns-fd", "7"],
            "option --userns-fd: file descriptor 7 must be open, and no other option may use it",
        ),
        (
            &["--netns-fd", "7", "--ready-fd", "7"],
            "option --netns-fd: file descriptor 7 must be open, and no other option may use it",
        ),
        (
            &["--netns-fd", "7", "--userns-fd", "9"],
            "option --userns-fd: file descriptor 9 is not a user namespace",
        ),
        (
            &["--netns-fd", "7", "--userns", "/proc/self/ns/mnt"],
            "option --userns: /proc/self/ns/mnt is a mount namespace; expected a user namespace",
        ),
        (
            &["--netns-fd", "7", "--userns", "/no/such"],
            "option --userns: cannot open the namespace /no/such: No such file",
        ),
        (
            &["--netns-fd", "7", "--userns-fd", "8"],
            "no permission to enter the network namespace file descriptor 7 from the user \
             namespace file descriptor 8, which does not own it",
        ),
        (
            &["--netns", "/proc/self/fd/5"],
            "option --netns: cannot open the namespace /proc/self/fd/5: No such file",
        ),
    ];
    for (arguments, expected) in cases {
        let refused = output(&mut attach(&all, arguments));
        assert_eq!(refused.status.code(), Some(125), "{arguments:?}: {}", errors(&refused));
        assert!(errors(&refused).contains(expected), "{arguments:?}: {}", errors(&refused));
    }
    // The standard library opens /dev/null in place of a closed standard stream.
    let closed = output(&mut attach("<&-", &["--netns-fd", "0"]));
    assert_eq!(closed.status.code(), Some(125));
    let expected = "file descriptor 0 is not a network namespace";
    assert!(errors(&closed).contains(expected), "{}", errors(&closed));
    let usage = |arguments: &[&str]| -> Output { output(&mut attach(&all, arguments)) };
    for arguments in [
        &["--netns-fd", "-1"][..],
        &["--netns-fd", "x"],
        &["--netns-fd", "7", &pid],
        &["--netns-fd", "7", "--netns", "/x"],
        &["--netns-fd", "7", "--stay"],
        &["--userns", "/x", "--userns-fd", "8", &pid],
        &["--userns-fd", "8"],
    ] {
        assert_eq!(usage(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

/// Goal: a path that would make an open wait, such as a pipe, is refused at once.
#[test]
fn a_pipe_is_refused() {
    skip_if!(no_root());
    let script = "d=$(mktemp -d) && mkfifo $d/pipe && \"$0\" attach --netns $d/pipe; echo $?; \
                  rm -r $d";
    let refused = output(Command::new("sh").args(["-c", script, TOWPATH]));
    assert_eq!(text(&refused), "125\n");
    assert!(errors(&refused).contains("/pipe is not a network namespace"), "{}", errors(&refused));
}

/// Goal: a user hands over own namespaces as descriptors, and may enter no others.
#[test]
fn a_user_hands_over_own_namespaces() {
    skip_if!(no_root());
    let copy = PublicCopy::new("descriptors");
    let (_program, foreign) = new_namespaces(&["--user", "--map-root-user", "--net"]);
    let script = format!(
        "$USER_RUN unshare --user --net sleep 1000 & \
         for i in $(seq 500); do \
           [ \"$(cat /proc/$!/comm)\" = sleep ] && break; sleep 0.01; \
         done; \
         exec 7</proc/$!/ns/net 8</proc/$!/ns/user 9</proc/{foreign}/ns/user; \
         $USER_RUN timeout -s INT 0.5 {0} attach --netns-fd 7 --userns-fd 8; echo $?; \
         $USER_RUN {0} attach --netns-fd 7 --userns-fd 9; echo $?; kill $!",
        copy.path()
    );
    let output = output(&mut as_user(&script));
    let told = errors(&output);
    // timeout(1) exits with 124 after it had to interrupt.
    assert_eq!(text(&output), "124\n125\n", "{told}");
    let refused = "no permission to enter the user namespace file descriptor 9: it belongs to";
    assert!(told.contains(refused), "{told}");
}
