//! Numbers that nobody can foretell.

use rustix::rand::{GetRandomFlags, getrandom};
use std::io;

/// A secret from which a stack makes sequence numbers and ports.
///
/// # Errors
/// The system has no random numbers for this process, as with a filter of system calls.
pub fn secret() -> io::Result<[u64; 2]> {
    let mut bytes = [0; 16];
    let mut at = 0;
    while at < bytes.len() {
        at += getrandom(&mut bytes[at..], GetRandomFlags::empty())?;
    }
    let bits = u128::from_ne_bytes(bytes);
    Ok([bits as u64, (bits >> 64) as u64])
}
