//! Unpredictable numbers.

use rustix::rand::{GetRandomFlags, getrandom};
use std::io;

/// A secret from which a stack derives sequence numbers and ports.
///
/// # Errors
/// The system refuses random numbers to this process, for example through a system call filter.
pub fn secret() -> io::Result<[u64; 2]> {
    let mut bytes = [0; 16];
    let mut at = 0;
    while at < bytes.len() {
        at += getrandom(&mut bytes[at..], GetRandomFlags::empty())?;
    }
    let bits = u128::from_ne_bytes(bytes);
    Ok([bits as u64, (bits >> 64) as u64])
}
