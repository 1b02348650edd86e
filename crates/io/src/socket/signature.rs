//! Signatures of TCP segments: TCP MD5 (RFC 2385) and the TCP Authentication Option (TCP-AO,
//! RFC 5925, RFC 5926).
//!
//! The kernel makes and checks them. A socket gets its keys before it connects or listens. A
//! segment without a valid signature is dropped, so a peer without the key is silent. Secrets are
//! not shown: not by `Debug`, and in no error.
//!
//! With TCP-AO a connection may have several keys, which the peers tell apart by numbers. The side
//! that connects begins with its first key. Each segment names the key that the sender wants to be
//! sent (RNextKeyID), and the kernel follows if it has that key. So a key is replaced while both
//! sides have the old one and the new one.
//!
//! Limits: [`TCP_KEY_BYTES_MAX`], [`AO_KEYS_MAX`].

use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::SocketType;
use std::collections::HashSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::open;
use crate::process_sys::socket_option;
use crate::sys;

/// Longest secret in bytes: `TCP_MD5SIG_MAXKEYLEN` and `TCP_AO_MAXKEYLEN` of Linux.
pub const TCP_KEY_BYTES_MAX: usize = 80;
/// Most keys of a [`KeyChain`]: an old one, one in use, a new one, and one more. A listener for 16
/// peers has 64 keys of some 260 bytes, less than `net.core.optmem_max` permits: 20 KiB on the
/// kernels that permit least.
pub const AO_KEYS_MAX: usize = 4;

/// How the segments of a connection are signed. Both sides have the same secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signature {
    /// TCP MD5 (RFC 2385).
    Md5(Secret),
    /// TCP-AO (RFC 5925), which covers the other TCP options, too.
    Ao(KeyChain),
}

/// A secret of 1 to [`TCP_KEY_BYTES_MAX`] bytes, which is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

/// Keys of TCP-AO, of which a connection begins with the first one if it is opened here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChain(Vec<AoKey>);

/// A key of TCP-AO: a master key tuple (RFC 5925 §3.1) for all connections to a peer. Its numbers
/// mean another key with another peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AoKey {
    /// KeyID in segments that are sent: the peer's `recv_id`.
    pub send_id: u8,
    /// KeyID in segments that are received: the peer's `send_id`.
    pub recv_id: u8,
    /// Computes the keys of a connection, and the code in a segment.
    pub algorithm: AoAlgorithm,
    /// The master key.
    pub secret: Secret,
}

/// Algorithms of TCP-AO, all with a code of 96 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AoAlgorithm {
    /// HMAC-SHA-1-96 (RFC 5926 §3.2.1).
    HmacSha1,
    /// AES-128-CMAC-96 (RFC 5926 §3.2.2).
    Aes128Cmac,
    /// HMAC-SHA-256 with a code of 96 bits. No RFC defines it for TCP-AO; BIRD and GoBGP have it.
    HmacSha256,
}

/// Why keys cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// The secret is empty or too long.
    Length,
    /// There is no key, or there are too many.
    Count,
    /// Two keys have this `send_id`.
    SendId(u8),
    /// Two keys have this `recv_id`.
    RecvId(u8),
}

/// Why the kernel cannot sign.
#[derive(Debug)]
pub enum SignatureError {
    /// It was built without TCP MD5.
    NoMd5,
    /// It was built without TCP-AO, or is too old.
    NoAo,
    /// It does not have this algorithm.
    NoAlgorithm(AoAlgorithm),
    /// It has no memory or descriptor for a socket with these keys.
    System(io::Error),
}

impl Signature {
    /// Gives the keys to a socket that is then closed, to learn whether the kernel has what they
    /// need.
    ///
    /// # Errors
    /// What the kernel lacks.
    pub fn try_out(&self) -> Result<(), SignatureError> {
        let peer = IpAddr::from(Ipv4Addr::LOCALHOST);
        let fd = open(&SocketAddr::new(peer, 0), SocketType::STREAM, None);
        let fd = fd.map_err(SignatureError::System)?;
        let other = |errno: Errno| SignatureError::System(errno.into());
        match self {
            Self::Md5(secret) => set_md5_key(fd.as_fd(), peer, secret).map_err(|errno| {
                if errno == Errno::NOPROTOOPT { SignatureError::NoMd5 } else { other(errno) }
            }),
            Self::Ao(KeyChain(keys)) => keys.iter().try_for_each(|key| {
                set_ao_key(fd.as_fd(), peer, key, false).map_err(|errno| match errno {
                    Errno::NOPROTOOPT => SignatureError::NoAo,
                    Errno::NOENT => SignatureError::NoAlgorithm(key.algorithm),
                    errno => other(errno),
                })
            }),
        }
    }

    /// Has a socket that will connect to `peer` sign its segments.
    pub(super) fn for_connection(&self, fd: BorrowedFd<'_>, peer: IpAddr) -> Result<(), Errno> {
        match self {
            Self::Md5(secret) => set_md5_key(fd, peer, secret),
            Self::Ao(KeyChain(keys)) => {
                let mut keys = keys.iter().enumerate();
                keys.try_for_each(|(index, key)| set_ao_key(fd, peer, key, index == 0))
            }
        }
    }

    /// Has a socket that will listen sign the segments of connections with `peer`. With TCP-AO it
    /// receives only segments that are signed, from any peer.
    pub(super) fn for_listener(&self, fd: BorrowedFd<'_>, peer: IpAddr) -> Result<(), Errno> {
        match self {
            Self::Md5(secret) => set_md5_key(fd, peer, secret),
            Self::Ao(KeyChain(keys)) => {
                // Which key is current is decided by the one that a peer begins with.
                keys.iter().try_for_each(|key| set_ao_key(fd, peer, key, false))?;
                let mut info = [0; AO_INFO_BYTES];
                info[..4].copy_from_slice(&AO_REQUIRED.to_ne_bytes());
                sys::set_option(fd, libc::IPPROTO_TCP, sys::TCP_AO_INFO, &info)
            }
        }
    }
}

/// Returns true if the kernel drops segments of this connection that TCP-AO does not sign.
pub(super) fn requires_ao(fd: BorrowedFd<'_>) -> bool {
    let mut info = [0; AO_INFO_BYTES];
    // Without TCP-AO on this socket or in this kernel, it is an error.
    let is_known = socket_option(fd, libc::IPPROTO_TCP, sys::TCP_AO_INFO, &mut info).is_ok();
    let [a, b, c, d, ..] = info;
    is_known && u32::from_ne_bytes([a, b, c, d]) & AO_REQUIRED != 0
}

impl Secret {
    /// Takes a secret.
    ///
    /// # Errors
    /// [`KeyError::Length`].
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, KeyError> {
        let bytes = bytes.into();
        let fits = (1..=TCP_KEY_BYTES_MAX).contains(&bytes.len());
        fits.then_some(Self(bytes)).ok_or(KeyError::Length)
    }
}

impl KeyChain {
    /// Takes 1 to [`AO_KEYS_MAX`] keys, the one to begin with first. All have different numbers.
    ///
    /// # Errors
    /// [`KeyError`], other than [`KeyError::Length`].
    pub fn new(keys: Vec<AoKey>) -> Result<Self, KeyError> {
        if !(1..=AO_KEYS_MAX).contains(&keys.len()) {
            return Err(KeyError::Count);
        }
        // RFC 5925 §3.1.
        let (mut sent, mut received) = (HashSet::new(), HashSet::new());
        for key in &keys {
            if !sent.insert(key.send_id) {
                return Err(KeyError::SendId(key.send_id));
            }
            if !received.insert(key.recv_id) {
                return Err(KeyError::RecvId(key.recv_id));
            }
        }
        Ok(Self(keys))
    }
}

impl AoAlgorithm {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::HmacSha1, Self::Aes128Cmac, Self::HmacSha256];

    /// The name: that of RFC 5926 in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::HmacSha1 => "hmac-sha-1-96",
            Self::Aes128Cmac => "aes-128-cmac-96",
            Self::HmacSha256 => "hmac-sha-256-96",
        }
    }

    /// The algorithm with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    fn kernel_name(self) -> &'static [u8] {
        match self {
            Self::HmacSha1 => b"hmac(sha1)",
            Self::Aes128Cmac => b"cmac(aes128)",
            Self::HmacSha256 => b"hmac(sha256)",
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length => write!(
                f,
                "the secret is empty or too long; expected 1 to {TCP_KEY_BYTES_MAX} bytes"
            ),
            Self::Count => write!(f, "expected 1 to {AO_KEYS_MAX} keys"),
            Self::SendId(id) => write!(f, "two keys have the send-id {id}"),
            Self::RecvId(id) => write!(f, "two keys have the recv-id {id}"),
        }
    }
}

impl std::error::Error for KeyError {}

impl fmt::Display for SignatureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMd5 => {
                f.write_str("this kernel has no TCP MD5; it needs one with CONFIG_TCP_MD5SIG")
            }
            Self::NoAo => f.write_str(
                "this kernel has no TCP-AO, which needs Linux 6.7 or later, built with \
                 CONFIG_TCP_AO; a password (TCP MD5) works without it",
            ),
            Self::NoAlgorithm(algorithm) => write!(
                f,
                "this kernel has no {} for TCP-AO; use {}",
                algorithm.name(),
                AoAlgorithm::HmacSha1.name()
            ),
            Self::System(error) => write!(f, "no socket with these keys: {error}"),
        }
    }
}

impl std::error::Error for SignatureError {}

/// Has the kernel sign what it sends to `peer`, and expect signed segments from there.
fn set_md5_key(fd: BorrowedFd<'_>, peer: IpAddr, Secret(key): &Secret) -> Result<(), Errno> {
    // struct tcp_md5sig: a socket address in 128 bytes, of which the port is ignored; flags,
    // prefix, length of the key, interface; the key in 80 bytes.
    let mut option = [0; ADDRESS_BYTES + 8 + TCP_KEY_BYTES_MAX];
    put_address(&mut option, peer);
    option[130..132].copy_from_slice(&(key.len() as u16).to_ne_bytes());
    option[136..136 + key.len()].copy_from_slice(key);
    sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_MD5SIG, &option)
}

/// Adds a key for connections with `peer`; if it `is_first`, a connection begins with it.
fn set_ao_key(fd: BorrowedFd<'_>, peer: IpAddr, key: &AoKey, is_first: bool) -> Result<(), Errno> {
    let option = ao_key_option(peer, key, is_first);
    sys::set_option(fd, libc::IPPROTO_TCP, sys::TCP_AO_ADD_KEY, &option)
}

/// Returns a `struct tcp_ao_add` of Linux: the peer's address, whose port is zero; the name of the
/// algorithm in 64 bytes; from [`AO_ADD_FLAGS`] on 32 flags, 16 reserved bits, prefix, SendID,
/// RecvID, length of the code, flags of the key, length of the key; the key in 80 bytes.
fn ao_key_option(peer: IpAddr, key: &AoKey, is_first: bool) -> [u8; AO_ADD_BYTES] {
    let mut option = [0; AO_ADD_BYTES];
    put_address(&mut option, peer);
    let name = key.algorithm.kernel_name();
    option[ADDRESS_BYTES..][..name.len()].copy_from_slice(name);
    let flags = if is_first { AO_SET_CURRENT | AO_SET_RNEXT } else { 0 };
    option[AO_ADD_FLAGS..][..4].copy_from_slice(&flags.to_ne_bytes());
    let Secret(secret) = &key.secret;
    let prefix = if peer.is_ipv4() { 32 } else { 128 };
    // No flag of the key: options are signed, and the interface does not matter.
    let numbers = [prefix, key.send_id, key.recv_id, AO_CODE_BYTES, 0, secret.len() as u8];
    option[AO_ADD_FLAGS + 6..][..numbers.len()].copy_from_slice(&numbers);
    option[AO_ADD_FLAGS + 12..][..secret.len()].copy_from_slice(secret);
    option
}

/// Writes a socket address without a port to the beginning of an option.
fn put_address(option: &mut [u8], address: IpAddr) {
    match address {
        IpAddr::V4(ip) => {
            option[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            option[4..8].copy_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            option[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            option[8..24].copy_from_slice(&ip.octets());
        }
    }
}

/// Returns number `index` of the one-bit fields in a 32-bit word of a C structure.
const fn bit_field(index: u32) -> u32 {
    if cfg!(target_endian = "little") { 1 << index } else { 1 << (31 - index) }
}

/// Size of a socket address in an option.
const ADDRESS_BYTES: usize = 128;
/// Sizes of `struct tcp_ao_add` and `struct tcp_ao_info_opt`.
const AO_ADD_BYTES: usize = 288;
const AO_INFO_BYTES: usize = 48;
/// Where the flags of `struct tcp_ao_add` are: behind address, name and interface.
const AO_ADD_FLAGS: usize = ADDRESS_BYTES + 64 + 4;
/// Flags of both: sign with the key from the beginning, ask the peer to do so.
const AO_SET_CURRENT: u32 = bit_field(0);
const AO_SET_RNEXT: u32 = bit_field(1);
/// Flag of `struct tcp_ao_info_opt`: no segment without TCP-AO.
const AO_REQUIRED: u32 = bit_field(2);
/// Bytes of the code in a segment (RFC 5926 §3.2).
const AO_CODE_BYTES: u8 = 12;

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;
    use std::net::Ipv6Addr;

    /// As in the kernel's `linux/tcp.h`.
    #[repr(C, align(8))]
    struct TcpAoAdd {
        addr: [u8; 128],
        alg_name: [u8; 64],
        ifindex: i32,
        flags: u32,
        reserved2: u16,
        prefix: u8,
        sndid: u8,
        rcvid: u8,
        maclen: u8,
        keyflags: u8,
        keylen: u8,
        key: [u8; 80],
    }

    #[repr(C, align(8))]
    struct TcpAoInfo {
        flags: u32,
        reserved2: u16,
        current_key: u8,
        rnext: u8,
        counters: [u64; 5],
    }

    fn key(send_id: u8, recv_id: u8) -> AoKey {
        let secret = Secret::new("hushed").expect("short");
        AoKey { send_id, recv_id, algorithm: AoAlgorithm::Aes128Cmac, secret }
    }

    /// Goal: each value is where the kernel's structure has it, and nothing else is set.
    #[test]
    fn the_option_of_a_key_is_the_structure_of_the_kernel() {
        assert_eq!(AO_ADD_BYTES, size_of::<TcpAoAdd>());
        assert_eq!(AO_INFO_BYTES, size_of::<TcpAoInfo>());
        assert_eq!(offset_of!(TcpAoInfo, flags), 0);
        assert_eq!(offset_of!(TcpAoAdd, addr), 0);
        let peers: [(IpAddr, u8); 2] =
            [(Ipv4Addr::new(192, 0, 2, 1).into(), 32), (Ipv6Addr::LOCALHOST.into(), 128)];
        for (peer, prefix) in peers {
            let mut expected = [0; AO_ADD_BYTES];
            match peer {
                IpAddr::V4(_) => expected[4..8].copy_from_slice(&[192, 0, 2, 1]),
                IpAddr::V6(_) => expected[23] = 1,
            }
            let family = if prefix == 32 { libc::AF_INET } else { libc::AF_INET6 };
            expected[..2].copy_from_slice(&(family as u16).to_ne_bytes());
            let mut put =
                |at: usize, bytes: &[u8]| expected[at..][..bytes.len()].copy_from_slice(bytes);
            put(offset_of!(TcpAoAdd, alg_name), b"cmac(aes128)");
            put(offset_of!(TcpAoAdd, prefix), &[prefix]);
            put(offset_of!(TcpAoAdd, sndid), &[7]);
            put(offset_of!(TcpAoAdd, rcvid), &[255]);
            put(offset_of!(TcpAoAdd, maclen), &[12]);
            put(offset_of!(TcpAoAdd, keylen), &[6]);
            put(offset_of!(TcpAoAdd, key), b"hushed");
            assert_eq!(ao_key_option(peer, &key(7, 255), false), expected);
            let flags = offset_of!(TcpAoAdd, flags);
            let both: u32 = if cfg!(target_endian = "little") { 3 } else { 3 << 30 };
            expected[flags..][..4].copy_from_slice(&both.to_ne_bytes());
            assert_eq!(ao_key_option(peer, &key(7, 255), true), expected);
        }
    }

    #[test]
    fn keys_that_no_connection_can_have_are_refused() {
        assert_eq!(Secret::new(""), Err(KeyError::Length));
        assert_eq!(Secret::new([7; TCP_KEY_BYTES_MAX + 1]), Err(KeyError::Length));
        Secret::new([7; TCP_KEY_BYTES_MAX]).expect("the longest");
        let keys = |ids: &[(u8, u8)]| ids.iter().map(|(send, recv)| key(*send, *recv)).collect();
        KeyChain::new(keys(&[(0, 1), (1, 0), (2, 255), (255, 2)])).expect("all differ");
        let wrong: [(&[(u8, u8)], KeyError); 4] = [
            (&[], KeyError::Count),
            (&[(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)], KeyError::Count),
            (&[(1, 2), (3, 4), (1, 5)], KeyError::SendId(1)),
            (&[(1, 2), (3, 2)], KeyError::RecvId(2)),
        ];
        for (ids, error) in wrong {
            assert_eq!(KeyChain::new(keys(ids)), Err(error));
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let signatures =
            [Signature::Md5(key(1, 1).secret), Signature::Ao(KeyChain(vec![key(1, 1)]))];
        for signature in signatures {
            let shown = format!("{signature:?}");
            assert!(!shown.contains("hush") && !shown.contains("104, 117"), "{shown}");
        }
    }

    #[test]
    fn algorithms_have_one_name_each() {
        for algorithm in AoAlgorithm::ALL {
            assert_eq!(AoAlgorithm::from_name(algorithm.name()), Some(algorithm));
        }
        assert_eq!(AoAlgorithm::from_name("md5"), None);
    }
}
