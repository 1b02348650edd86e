//! Finds a socket of the host among the descriptors of all processes.
//!
//! The supervisor keeps no descriptor of a native socket, as the connection would then stay open
//! after the program has closed it. When it needs one, it copies one of the program's. That takes
//! about a microsecond for each descriptor of each process, and nothing before.
//!
//! Not found is a socket that no process has open: one whose last descriptor is on its way between
//! processes in a Unix socket. Nor one whose holders this process may not look at.

use std::fs;
use std::os::fd::{OwnedFd, RawFd};

use rustix::net::sockopt;
use rustix::process::{Pid, PidfdGetfdFlags, pidfd_getfd};

use super::caller::open_process;

/// Returns another descriptor of the socket with this inode and this cookie; `None` if none is
/// found. Inodes are reused, cookies are not.
pub fn find(inode: u32, cookie: u64) -> Option<OwnedFd> {
    let processes = numbers("/proc");
    // Most threads have the descriptors of their process.
    let leaders = processes.iter().copied();
    let others = processes.iter().flat_map(|process| {
        let threads = numbers(&format!("/proc/{process}/task"));
        threads.into_iter().filter(move |thread| thread != process)
    });
    leaders.chain(others).find_map(|thread| of_thread(thread, inode, cookie))
}

fn of_thread(thread: i32, inode: u32, cookie: u64) -> Option<OwnedFd> {
    let same = format!("socket:[{inode}]");
    let files = fs::read_dir(format!("/proc/{thread}/fd")).ok()?.flatten();
    let is_same =
        |file: &fs::DirEntry| fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == &*same);
    let mut numbers =
        files.filter(is_same).filter_map(|file| file.file_name().to_str()?.parse().ok());
    numbers.find_map(|number: RawFd| {
        let process = open_process(Pid::from_raw(thread)?).ok()?;
        let file = pidfd_getfd(process, number, PidfdGetfdFlags::empty()).ok()?;
        (sockopt::socket_cookie(&file) == Ok(cookie)).then_some(file)
    })
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
    }
}
