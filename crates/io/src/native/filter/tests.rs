//! Tests of the filter, with a small interpreter of classic BPF.

use super::*;

/// Runs a filter over the words that `load` returns for their offsets.
fn run(program: &[sock_filter], load: impl Fn(u32) -> u32) -> u32 {
    let (mut at, mut value) = (0, 0);
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        let holds = match code {
            LOAD_WORD => {
                value = load(k);
                continue;
            }
            RETURN => return k,
            JEQ => value == k,
            JGE => value >= k,
            JSET => value & k != 0,
            _ => panic!("{code:#x}"),
        };
        at += usize::from(if holds { jt } else { jf });
    }
}

/// Returns what becomes of a call with these arguments.
fn call(number: i64, arguments: [u32; 6]) -> u32 {
    call_of(OWN_ARCHITECTURE.unwrap(), number as u32, arguments)
}

fn call_of(architecture: u32, number: u32, arguments: [u32; 6]) -> u32 {
    run(&calls().unwrap(), |offset| match offset {
        NUMBER => number,
        ARCHITECTURE => architecture,
        _ => {
            let index = (0..6).find(|index| argument(*index) == offset).expect("an argument");
            arguments[index as usize]
        }
    })
}

const NONE: [u32; 6] = [0; 6];

fn error(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()
}

#[test]
fn calls_about_sockets_are_reported() {
    for number in
        [libc::SYS_connect, libc::SYS_listen, libc::SYS_getsockname, libc::SYS_getpeername]
    {
        assert_eq!(call(number, NONE), libc::SECCOMP_RET_USER_NOTIF);
    }
    for number in [libc::SYS_read, libc::SYS_socket, libc::SYS_bind, libc::SYS_execve, -1] {
        assert_eq!(call(number, [u32::MAX; 6]), libc::SECCOMP_RET_ALLOW);
    }
}

/// Goal: nothing sends data with the SYN, sets a source route or uses io_uring.
#[test]
fn ways_around_are_refused() {
    let fast = libc::MSG_FASTOPEN as u32;
    for (number, index) in [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)]
    {
        for flags in [fast, fast | 1, u32::MAX] {
            let mut arguments = NONE;
            arguments[index] = flags;
            assert_eq!(call(number, arguments), error(libc::EOPNOTSUPP));
        }
        let mut arguments = [u32::MAX; 6];
        arguments[index] = !fast;
        assert_eq!(call(number, arguments), libc::SECCOMP_RET_ALLOW);
    }
    let option =
        |level: i32, name: i32| call(libc::SYS_setsockopt, [9, level as u32, name as u32, 0, 0, 0]);
    for (level, name) in [
        (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT),
        (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_NO_COOKIE),
        (libc::IPPROTO_IP, libc::IP_OPTIONS),
        (libc::IPPROTO_IPV6, libc::IPV6_RTHDR),
    ] {
        assert_eq!(option(level, name), error(libc::EOPNOTSUPP));
    }
    for (level, name) in [
        (libc::IPPROTO_TCP, libc::TCP_NODELAY),
        (libc::IPPROTO_IP, libc::IP_TOS),
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        // The same numbers on another level.
        (libc::SOL_SOCKET, libc::TCP_FASTOPEN_CONNECT),
    ] {
        assert_eq!(option(level, name), libc::SECCOMP_RET_ALLOW);
    }
    assert_eq!(call(libc::SYS_io_uring_setup, NONE), error(libc::ENOSYS));
}

/// Goal: calls of other ABIs, whose numbers mean other calls, do not pass.
#[test]
fn other_abis_do_not_pass() {
    const I386: u32 = 0x4000_0003;
    assert_eq!(call_of(I386, 3, NONE), libc::SECCOMP_RET_KILL_PROCESS);
    if cfg!(target_arch = "x86_64") {
        let x32 = 0x4000_0000 + libc::SYS_connect as u32;
        assert_eq!(call_of(OWN_ARCHITECTURE.unwrap(), x32, NONE), error(libc::ENOSYS));
    }
}
