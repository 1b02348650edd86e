//! The filter of the program's system calls, in classic BPF: it reports the calls of
//! [`calls`](super::calls), and refuses what would go around them.

use libc::sock_filter;

/// Offsets in `struct seccomp_data` (linux/seccomp.h).
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

/// Offset of the lower half of an argument. The kernel ignores the upper half of arguments that
/// are integers.
const fn argument(index: u32) -> u32 {
    let low = if cfg!(target_endian = "little") { 0 } else { 4 };
    16 + 8 * index + low
}

/// `AUDIT_ARCH_*` of this architecture (linux/audit.h); `None` if none is known.
const OWN_ARCHITECTURE: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xc000_003e)
} else if cfg!(target_arch = "aarch64") {
    Some(0xc000_00b7)
} else if cfg!(target_arch = "riscv64") {
    Some(0xc000_00f3)
} else {
    None
};
/// On x86-64, numbers from here on are calls of the x32 ABI. The number of a call that a debugger
/// has cancelled is -1.
const X32: u32 = 0x4000_0000;

const TCP: u32 = libc::IPPROTO_TCP as u32;
const IP: u32 = libc::IPPROTO_IP as u32;
const IPV6: u32 = libc::IPPROTO_IPV6 as u32;
/// `IPV6_2292PKTOPTIONS` of linux/in6.h, which may hold a routing header.
const IPV6_2292PKTOPTIONS: u32 = 6;

/// Returns the filter of the program's calls; `None` on an architecture that it is not made for.
///
/// - *Reported*: connect(2), listen(2), getsockname(2), getpeername(2).
/// - *Refused*: data in the SYN (`MSG_FASTOPEN` and its socket options) and io_uring, which send
///   and connect without connect(2); and source routes, which lead packets to other hosts.
/// - *Other ABIs*: a call of another architecture ends the process, as its calls have other
///   numbers; x32 is refused as by kernels without it.
pub fn calls() -> Option<Vec<sock_filter>> {
    let fast = || {
        let refused = libc::MSG_FASTOPEN as u32;
        when(JSET, refused, vec![refuse(libc::EOPNOTSUPP)])
    };
    let option = |names: &[u32]| {
        let refused = names.iter().map(|name| when(JEQ, *name, vec![refuse(libc::EOPNOTSUPP)]));
        joined([vec![load(argument(2))], refused.flatten().collect(), vec![allow()]])
    };
    let no_fast = [libc::TCP_FASTOPEN_CONNECT as u32, libc::TCP_FASTOPEN_NO_COOKIE as u32];
    let no_routes = [libc::IPV6_RTHDR as u32, libc::IPV6_2292RTHDR as u32, IPV6_2292PKTOPTIONS];
    let options = joined([
        vec![load(argument(1))],
        when(JEQ, TCP, option(&no_fast)),
        when(JEQ, IP, option(&[libc::IP_OPTIONS as u32])),
        when(JEQ, IPV6, option(&no_routes)),
        vec![allow()],
    ]);
    let call = |number: libc::c_long, block| when(JEQ, number as u32, block);
    let own = [
        call(libc::SYS_connect, vec![report()]),
        call(libc::SYS_listen, vec![report()]),
        call(libc::SYS_getsockname, vec![report()]),
        call(libc::SYS_getpeername, vec![report()]),
        call(libc::SYS_io_uring_setup, vec![refuse(libc::ENOSYS)]),
        call(libc::SYS_sendto, joined([vec![load(argument(3))], fast(), vec![allow()]])),
        call(libc::SYS_sendmsg, joined([vec![load(argument(2))], fast(), vec![allow()]])),
        call(libc::SYS_sendmmsg, joined([vec![load(argument(3))], fast(), vec![allow()]])),
        call(libc::SYS_setsockopt, options),
        when(JEQ, u32::MAX, vec![allow()]),
        if cfg!(target_arch = "x86_64") {
            when(JGE, X32, vec![refuse(libc::ENOSYS)])
        } else {
            Vec::new()
        },
        vec![allow()],
    ];
    let own = joined([vec![load(NUMBER)], own.into_iter().flatten().collect()]);
    let kill = vec![give(libc::SECCOMP_RET_KILL_PROCESS)];
    Some(joined([vec![load(ARCHITECTURE)], when(JEQ, OWN_ARCHITECTURE?, own), kill]))
}

/// Runs `block` if the loaded value compares with `value` as `test` says.
fn when(test: u16, value: u32, block: Vec<sock_filter>) -> Vec<sock_filter> {
    let skip = u8::try_from(block.len()).expect("these filters have fewer than 256 instructions");
    let mut all = vec![sock_filter { code: test, jt: 0, jf: skip, k: value }];
    all.extend(block);
    all
}

fn joined<const N: usize>(parts: [Vec<sock_filter>; N]) -> Vec<sock_filter> {
    parts.into_iter().flatten().collect()
}

fn statement(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

fn load(offset: u32) -> sock_filter {
    statement(LOAD_WORD, offset)
}

/// Ends the filter with this result.
fn give(result: u32) -> sock_filter {
    statement(RETURN, result)
}

fn allow() -> sock_filter {
    give(libc::SECCOMP_RET_ALLOW)
}

fn report() -> sock_filter {
    give(libc::SECCOMP_RET_USER_NOTIF)
}

/// Makes the call fail with this error.
fn refuse(errno: i32) -> sock_filter {
    give(libc::SECCOMP_RET_ERRNO | errno.cast_unsigned())
}

/// Operations (linux/bpf_common.h).
const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JEQ: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JGE: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const JSET: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

#[cfg(test)]
mod tests;
