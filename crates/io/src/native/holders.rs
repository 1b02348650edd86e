//! Finds a socket of the host among the descriptors of all processes.
//!
//! The supervisor keeps no descriptor of a native socket, as the connection would then stay open
//! after the program has closed it. When it needs one, it copies one of the program's. That takes
//! about a microsecond for each descriptor of each process, and nothing before.
//!
//! Not found is a socket that no process has open: one whose last descriptor is on its way between
//! processes in a Unix socket. Nor one whose holders this process may not look at.

use std::collections::HashMap;
use std::fs;
use std::os::fd::{OwnedFd, RawFd};

use rustix::net::sockopt;
use rustix::process::{Pid, PidfdGetfdFlags, pidfd_getfd};

use super::caller::open_process;

/// Returns another descriptor of the socket with this inode and this cookie; `None` if none is
/// found. Inodes are reused, cookies are not.
pub fn find(inode: u32, cookie: u64) -> Option<OwnedFd> {
    let mut found = None;
    find_each(HashMap::from([(inode, cookie)]), |_, socket| found = Some(socket));
    found
}

/// Looks for sockets, `wanted` by inode with their cookies, in one pass over all processes. Passes
/// the cookie and another descriptor of each that is found to `take`.
pub fn find_each(mut wanted: HashMap<u32, u64>, mut take: impl FnMut(u64, OwnedFd)) {
    let processes = numbers("/proc");
    // Most threads have the descriptors of their process.
    let leaders = processes.iter().copied();
    let others = processes.iter().flat_map(|process| {
        let threads = numbers(&format!("/proc/{process}/task"));
        threads.into_iter().filter(move |thread| thread != process)
    });
    for thread in leaders.chain(others) {
        if wanted.is_empty() {
            return;
        }
        find_of_thread(thread, &mut wanted, &mut take);
    }
}

fn find_of_thread(
    thread: i32,
    wanted: &mut HashMap<u32, u64>,
    take: &mut impl FnMut(u64, OwnedFd),
) {
    let files = fs::read_dir(format!("/proc/{thread}/fd")).into_iter().flatten().flatten();
    for file in files {
        let Some(inode) = inode_of(&file) else { continue };
        let Some(cookie) = wanted.get(&inode).copied() else { continue };
        if let Some(socket) = copy(thread, &file, cookie) {
            wanted.remove(&inode);
            take(cookie, socket);
        }
    }
}

/// Returns the inode of the socket that a descriptor leads to, if it leads to one.
fn inode_of(file: &fs::DirEntry) -> Option<u32> {
    let target = fs::read_link(file.path()).ok()?;
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Copies a descriptor of a thread, if it is still that of the socket with this cookie.
fn copy(thread: i32, file: &fs::DirEntry, cookie: u64) -> Option<OwnedFd> {
    let number: RawFd = file.file_name().to_str()?.parse().ok()?;
    let process = open_process(Pid::from_raw(thread)?).ok()?;
    let socket = pidfd_getfd(process, number, PidfdGetfdFlags::empty()).ok()?;
    (sockopt::socket_cookie(&socket) == Ok(cookie)).then_some(socket)
}

/// Returns the entries of a folder that are numbers.
fn numbers(folder: &str) -> Vec<i32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    use rustix::fs::fstat;

    /// Goal: a socket is found by its inode and cookie, and no other one for it.
    #[test]
    fn a_socket_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = fstat(&listener).unwrap().st_ino as u32;
        let cookie = sockopt::socket_cookie(&listener).unwrap();
        let found = find(inode, cookie).expect("this process has it");
        assert_eq!(sockopt::socket_cookie(&found), Ok(cookie));
        assert!(find(inode, cookie + 1).is_none(), "another socket with the same inode");
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let other_inode = fstat(&other).unwrap().st_ino as u32;
        let other_cookie = sockopt::socket_cookie(&other).unwrap();
        let mut found = Vec::new();
        let wanted = HashMap::from([(inode, cookie), (other_inode, other_cookie)]);
        find_each(wanted, |cookie, socket| found.push((cookie, sockopt::socket_cookie(&socket))));
        found.sort_unstable_by_key(|(cookie, _)| *cookie);
        let mut expected = [cookie, other_cookie].map(|cookie| (cookie, Ok(cookie)));
        expected.sort_unstable_by_key(|(cookie, _)| *cookie);
        assert_eq!(found, expected);
    }
}
