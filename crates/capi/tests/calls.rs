//! Goal: no order of calls and no argument ends the process, hangs it, or leaves memory or
//! descriptors behind.
//!
//! Method: random calls on two instances back to back, valid and invalid ones, from a seed; then
//! all sockets are closed, and packets are moved until no memory is in use. The test is a program
//! of its own, because it counts the descriptors of the process.
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "one promise holds for all calls of a choice"
)]

use libc::{c_int, c_void, sockaddr, socklen_t};
use std::hash::{BuildHasher, RandomState};
use std::mem::zeroed;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};
use towpath_capi::Instance;
use towpath_capi::abi::*;

/// Seeds of every run, to which one new seed is added.
const SEEDS: [u64; 4] = [1, 2, 3, 4];
/// Number of calls of one run.
const CALLS: usize = 8000;
/// Longest wait for the last packets.
const PATIENCE: Duration = Duration::from_secs(30);

/// A generator of random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// A number that is often valid and sometimes hostile.
    fn int(&mut self) -> c_int {
        match self.below(4) {
            0 => self.next() as c_int,
            1 => self.pick(&[i32::MIN, i32::MAX, -1, 0, 1, 2]),
            _ => self.below(64) as c_int,
        }
    }
}

struct Run {
    random: Random,
    instances: [*const Instance; 2],
    open: [Vec<c_int>; 2],
    sets: [Vec<c_int>; 2],
    buffer: Vec<u8>,
    /// Counts of accepted connections, received bytes, and datagrams received with their source.
    accepted: usize,
    received: isize,
    datagrams: usize,
}

const ADDRESSES: [&std::ffi::CStr; 2] =
    [c"192.0.2.1/24 2001:db8::1/64", c"192.0.2.2/24 2001:db8::2/64"];

impl Run {
    fn new(seed: u64) -> Self {
        // SAFETY: the addresses are strings.
        let instances = ADDRESSES.map(|text| unsafe { towpath_new(text.as_ptr(), 1500) });
        assert!(instances.iter().all(|instance| !instance.is_null()));
        let (open, sets) = Default::default();
        Self {
            random: Random(seed),
            instances,
            open,
            sets,
            buffer: vec![7; 100_000],
            accepted: 0,
            received: 0,
            datagrams: 0,
        }
    }

    /// A descriptor: usually an open one of this instance.
    fn fd(&mut self, side: usize) -> c_int {
        let from = if self.random.one_in(20) { 1 - side } else { side };
        if self.open[from].is_empty() || self.random.one_in(40) {
            return self.random.pick(&[-1, 0, 1, i32::MAX, i32::MIN, 1000]);
        }
        let index = self.random.below(self.open[from].len());
        self.open[from][index]
    }

    fn set(&mut self, side: usize) -> c_int {
        if self.sets[side].is_empty() || self.random.one_in(20) {
            return self.fd(side);
        }
        let index = self.random.below(self.sets[side].len());
        self.sets[side][index]
    }

    /// The address of one of the two instances, or arbitrary bytes; with its length, or another
    /// one.
    fn address(&mut self) -> ([u8; 128], socklen_t) {
        let port = (self.random.below(4) as u16 * 80).to_be_bytes();
        let host = self.random.below(3) as u8;
        let mut bytes = [0; 128];
        bytes[2..4].copy_from_slice(&port);
        // The fields of `struct sockaddr_in` and `struct sockaddr_in6`.
        let (family, len) = self.random.pick(&[(libc::AF_INET, 16), (libc::AF_INET6, 28)]);
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        match (family, host) {
            (_, 0) => {}
            (libc::AF_INET, _) => bytes[4..8].copy_from_slice(&[192, 0, 2, host]),
            _ => {
                bytes[8..12].copy_from_slice(&[0x20, 1, 0xd, 0xb8]);
                bytes[23] = host;
            }
        }
        if self.random.one_in(20) {
            bytes[self.random.below(28)] = self.random.next() as u8;
        }
        let hostile = self.random.int().clamp(-2, 128) as socklen_t;
        (bytes, if self.random.one_in(20) { hostile } else { len })
    }

    /// Moves packets until neither side has any.
    fn settle(&mut self) {
        for turn in 0.. {
            assert!(turn < 100_000, "packets go round and round");
            let mut moved = false;
            for side in 0..2 {
                let [from, to] = [self.instances[side], self.instances[1 - side]];
                let room = self.buffer.as_mut_ptr().cast::<c_void>();
                // SAFETY: both instances live, and the buffer has as many bytes.
                let len = unsafe { towpath_output(from, room, self.buffer.len()) };
                if len > 0 {
                    moved = true;
                    // SAFETY: both instances live, and the buffer has as many bytes.
                    unsafe { towpath_input(to, room, len as usize) };
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// Makes a descriptor non-blocking.
    fn open(&mut self, side: usize) {
        let of = self.instances[side];
        let domain = self.random.pick(&[libc::AF_INET, libc::AF_INET6, libc::AF_INET, 99, -1]);
        let kind = self.random.pick(&[libc::SOCK_STREAM, libc::SOCK_DGRAM]);
        let kind = libc::SOCK_NONBLOCK | kind;
        let kind = if self.random.one_in(20) { self.random.int() } else { kind };
        let protocol = if self.random.one_in(20) { self.random.int() } else { 0 };
        // SAFETY: the instance lives.
        let fd = unsafe { towpath_socket(of, domain, kind, protocol) };
        if fd >= 0 {
            // SAFETY: the instance lives.
            unsafe { towpath_fcntl(of, fd, libc::F_SETFL, libc::O_NONBLOCK) };
            self.open[side].push(fd);
        }
    }

    /// Makes both ends of a connection, with valid calls.
    fn connect(&mut self, side: usize) {
        let (server, client) = (self.instances[side], self.instances[1 - side]);
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
        let (mut at, mut len) = ([0_u8; 28], 28);
        let to = at.as_mut_ptr().cast::<sockaddr>();
        // SAFETY: here and below: the instances live, and the address has 28 bytes.
        unsafe {
            let listener = towpath_socket(server, libc::AF_INET6, kind, 0);
            let fd = towpath_socket(client, libc::AF_INET6, kind, 0);
            assert_eq!(towpath_listen(server, listener, 1), 0);
            assert_eq!(towpath_getsockname(server, listener, to, &raw mut len), 0);
            at[8..24].copy_from_slice(&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            at[23] = side as u8 + 1;
            let to = at.as_ptr().cast::<sockaddr>();
            assert_eq!(towpath_connect(client, fd, to, len), -1);
            self.settle();
            let (none, kind) = (null_mut(), libc::SOCK_NONBLOCK);
            let accepted = towpath_accept4(server, listener, null_mut(), none, kind);
            assert!(accepted >= 0);
            assert_eq!(towpath_close(server, listener), 0);
            self.open[side].push(accepted);
            self.open[1 - side].push(fd);
        }
        self.accepted += 1;
    }

    /// Calls that open and close.
    fn call_of_state(&mut self, side: usize) {
        let (of, fd) = (self.instances[side], self.fd(side));
        let (address, len) = self.address();
        let at = if self.random.one_in(40) { null() } else { address.as_ptr().cast::<sockaddr>() };
        let number = self.random.int();
        match self.random.below(9) {
            0 if self.open[side].len() < 40 => self.open(side),
            // SAFETY: the instance lives; the address has 128 bytes or is null.
            0 | 1 => _ = unsafe { towpath_bind(of, fd, at, len) },
            // SAFETY: the instance lives.
            2 => _ = unsafe { towpath_listen(of, fd, number) },
            // SAFETY: the instance lives; the address has 128 bytes or is null.
            3 | 4 => _ = unsafe { towpath_connect(of, fd, at, len) },
            5 | 6 => {
                let (mut peer, mut len) = ([0_u8; 128], self.random.pick(&[0, 16, 28, u32::MAX]));
                let to = if self.random.one_in(2) { null_mut() } else { peer.as_mut_ptr().cast() };
                let size = if self.random.one_in(9) { null_mut() } else { &raw mut len };
                // SAFETY: the instance lives; the address has 128 bytes, and `len` says less or is
                // invalid.
                let new = unsafe { towpath_accept4(of, fd, to, size, libc::SOCK_NONBLOCK) };
                if new >= 0 {
                    self.accepted += 1;
                    self.open[side].push(new);
                }
            }
            // SAFETY: the instance lives.
            7 => _ = unsafe { towpath_shutdown(of, fd, self.random.pick(&[0, 1, 2, 2, 9, -1])) },
            _ => self.close(side, fd),
        }
    }

    fn close(&mut self, side: usize, fd: c_int) {
        // SAFETY: the instance lives.
        let closed = unsafe { towpath_close(self.instances[side], fd) } == 0;
        let known = self.open[side].contains(&fd) || self.sets[side].contains(&fd);
        assert_eq!(closed, known, "only what is open can be closed");
        self.open[side].retain(|other| *other != fd);
        self.sets[side].retain(|other| *other != fd);
    }

    /// Calls that move bytes.
    fn call_of_bytes(&mut self, side: usize) {
        let (of, fd) = (self.instances[side], self.fd(side));
        let len = self.random.pick(&[0, 1, 100, 1460, 30_000, 100_000]);
        let hostile = if self.random.one_in(30) { usize::MAX } else { len };
        let room = self.buffer.as_mut_ptr().cast::<c_void>();
        let at = if self.random.one_in(40) { null_mut() } else { room };
        let flags = if self.random.one_in(4) { self.random.next() as c_int } else { 0 };
        let flags = flags | libc::MSG_DONTWAIT;
        let pieces: Vec<libc::iovec> =
            (0..self.random.below(4)).map(|_| libc::iovec { iov_base: at, iov_len: len }).collect();
        let bad = [-1, i32::MAX, 1025];
        let count = if self.random.one_in(30) { self.random.pick(&bad) } else { -2 };
        let count = if count == -2 { pieces.len() as c_int } else { count };
        let (address, address_len) = self.address();
        let to = if self.random.one_in(2) { null() } else { address.as_ptr().cast::<sockaddr>() };
        // SAFETY: this is plain memory, for which any bytes are valid.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = pieces.as_ptr().cast_mut();
        message.msg_iovlen = pieces.len();
        let mut control = self.control();
        let mut from = [0_u8; 128];
        let mut from_len: socklen_t = self.random.pick(&[128, 16, 0, 7]);
        if self.random.one_in(2) {
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = self.random.below(control.len() + 1);
            message.msg_name = from.as_mut_ptr().cast();
            message.msg_namelen = from_len;
            if self.random.one_in(2) {
                from = address;
                message.msg_namelen = address_len;
            }
        }
        if self.random.one_in(30) {
            message.msg_iovlen = usize::MAX;
        }
        // SAFETY: here and below: the instance lives; the buffer has `len` bytes, and larger
        // lengths and counts are rejected before memory is accessed.
        unsafe {
            match self.random.below(9) {
                0 => self.received += towpath_read(of, fd, at, hostile).max(0),
                1 => _ = towpath_readv(of, fd, pieces.as_ptr(), count),
                2 => _ = towpath_recv(of, fd, at, len, flags),
                3 => {
                    let source = from.as_mut_ptr().cast();
                    let len = &raw mut from_len;
                    let got = towpath_recvfrom(of, fd, at, hostile, flags, source, len);
                    self.datagrams += usize::from(got >= 0 && from_len >= 16);
                }
                4 => _ = towpath_recvmsg(of, fd, &raw mut message, flags),
                5 => _ = towpath_write(of, fd, at, hostile),
                6 => _ = towpath_writev(of, fd, pieces.as_ptr(), count),
                7 => _ = towpath_sendto(of, fd, at, len, flags, to, address_len),
                _ => _ = towpath_sendmsg(of, fd, &raw const message, flags),
            }
        }
    }

    /// A control message for a send, or arbitrary bytes.
    fn control(&mut self) -> [u8; 64] {
        let mut bytes = [0; 64];
        let (level, kind, len) = self.random.pick(&[
            (libc::SOL_UDP, libc::UDP_SEGMENT, 18_usize),
            (libc::IPPROTO_IP, libc::IP_PKTINFO, 28),
            (libc::IPPROTO_IP, libc::IP_TTL, 20),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 20),
            (libc::SOL_SOCKET, libc::SO_MARK, 20),
        ]);
        bytes[..8].copy_from_slice(&len.to_ne_bytes());
        bytes[8..12].copy_from_slice(&level.to_ne_bytes());
        bytes[12..16].copy_from_slice(&kind.to_ne_bytes());
        bytes[16] = self.random.next() as u8;
        if self.random.one_in(4) {
            bytes[self.random.below(64)] = self.random.next() as u8;
        }
        bytes
    }

    /// Sends a datagram in each direction, with valid calls.
    fn exchange(&mut self, side: usize) {
        let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK;
        let of = self.instances;
        let mut at = [0_u8; 16];
        at[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        at[4..8].copy_from_slice(&[192, 0, 2, side as u8 + 1]);
        let mut len = 16;
        // SAFETY: here and below: the instances live; the address and the buffers have 16 bytes.
        unsafe {
            let to = at.as_mut_ptr().cast::<sockaddr>();
            let server = towpath_socket(of[side], libc::AF_INET, kind, 0);
            let client = towpath_socket(of[1 - side], libc::AF_INET, kind, 0);
            assert_eq!(towpath_bind(of[side], server, to, len), 0);
            assert_eq!(towpath_getsockname(of[side], server, to, &raw mut len), 0);
            let bytes = self.buffer.as_mut_ptr().cast::<c_void>();
            assert_eq!(towpath_sendto(of[1 - side], client, bytes, 5000, 0, to, len), 5000);
            self.settle();
            let got = towpath_recvfrom(of[side], server, bytes, 9000, 0, to, &raw mut len);
            // Sockets that are not read may have filled all queues.
            if got == 5000 {
                self.datagrams += 1;
                assert_eq!(towpath_sendto(of[side], server, bytes, 1, 0, to, len), 1);
                self.settle();
            }
            self.open[side].push(server);
            self.open[1 - side].push(client);
        }
    }

    /// Options, and queries of readiness.
    fn call_of_options(&mut self, side: usize) {
        let (of, fd, set) = (self.instances[side], self.fd(side), self.set(side));
        let level = self.random.pick(&[1, 6, 6, 6, 0, 41, 17, -1]);
        let name = self.random.below(80) as c_int;
        let udp = self.random.pick(&[libc::UDP_SEGMENT, libc::UDP_GRO, libc::UDP_CORK]);
        let name = if level == libc::SOL_UDP { udp } else { name };
        // A close that lingers would wait, and so would the end for one byte per second. The
        // address in a filter is read from, as in the kernel.
        let harmful = [libc::SO_LINGER, libc::SO_MAX_PACING_RATE, libc::SO_ATTACH_FILTER];
        let harms = level == libc::SOL_SOCKET && harmful.contains(&name);
        let mut value = [0_i32; 64];
        if !harms {
            value.fill_with(|| self.random.int());
        }
        let mut len = self.random.pick(&[4_u32, 4, 4, 8, 16, 32, 1, 0, u32::MAX]);
        let mut reported = [0_u8; 64];
        let at = if self.random.one_in(40) { null_mut() } else { value.as_mut_ptr().cast() };
        let (polled, number) = (self.random.next() as i16, self.random.int());
        let mut entry = libc::pollfd { fd, events: polled, revents: 0 };
        let mut event = libc::epoll_event { events: self.random.next() as u32, u64: 1 };
        let count = if self.random.one_in(20) { u64::MAX } else { 1 };
        // SAFETY: here and below: the instance lives; there are 256 bytes, and larger lengths are
        // rejected before memory is accessed.
        unsafe {
            match self.random.below(9) {
                0 | 1 => _ = towpath_setsockopt(of, fd, level, name, at, len),
                2 => _ = towpath_getsockopt(of, fd, level, name, at, &raw mut len),
                3 => {
                    let reported = reported.as_mut_ptr().cast();
                    _ = towpath_getsockname(of, fd, reported, &raw mut len);
                    _ = towpath_getpeername(of, fd, reported, null_mut());
                }
                4 => {
                    let mut number = number | 1;
                    let request = self.random.pick(&[0x5421, 0x541b, 0x5411, 0x8905, u64::MAX]);
                    _ = towpath_ioctl(of, fd, request, &raw mut number);
                    let command = self.random.pick(&[1, 2, 3, 4, -1]);
                    _ = towpath_fcntl(of, fd, command, number | libc::O_NONBLOCK);
                }
                5 => _ = towpath_poll(of, &raw mut entry, count, 0),
                6 if self.sets[side].len() < 4 => {
                    let set = towpath_epoll_create1(of, self.random.pick(&[0, -1]));
                    self.sets[side].extend(Some(set).filter(|set| *set >= 0));
                }
                7 => {
                    let event = if self.random.one_in(9) { null_mut() } else { &raw mut event };
                    _ = towpath_epoll_ctl(of, set, self.random.pick(&[1, 2, 3, 1, 9]), fd, event);
                }
                _ => _ = towpath_epoll_wait(of, set, &raw mut event, number.min(1), 0),
            }
        }
    }

    fn play(&mut self) {
        for _ in 0..CALLS {
            let side = self.random.below(2);
            match self.random.below(8) {
                0..3 => self.call_of_state(side),
                3..6 => self.call_of_bytes(side),
                6 => self.call_of_options(side),
                _ => self.settle(),
            }
            if self.random.one_in(100) {
                self.connect(side);
                self.exchange(side);
            }
            if self.random.one_in(50) {
                let len = self.random.below(100);
                let junk: Vec<u8> = (0..len).map(|_| self.random.next() as u8).collect();
                // SAFETY: the instance lives, and the bytes exist.
                unsafe { towpath_input(self.instances[side], junk.as_ptr().cast(), len) };
            }
        }
    }

    /// Closes everything, and returns when no side holds any memory.
    #[expect(clippy::disallowed_methods, reason = "the wait is bounded")]
    fn finish(mut self) {
        for side in 0..2 {
            let all: Vec<c_int> = self.open[side].iter().chain(&self.sets[side]).copied().collect();
            all.into_iter().for_each(|fd| self.close(side, fd));
        }
        let begun = Instant::now();
        loop {
            self.settle();
            // SAFETY: the instances live.
            let held = self.instances.map(|instance| unsafe { &*instance }.memory_in_use());
            if held == [0, 0] {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "held: {held:?}");
            std::thread::sleep(Duration::from_millis(5));
            for instance in self.instances {
                // SAFETY: the instance lives.
                unsafe { towpath_run_timers(instance) };
            }
        }
        for instance in self.instances {
            // SAFETY: the instance lives, and it is not used any more.
            unsafe { towpath_free(instance) };
        }
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

#[test]
fn any_calls_in_any_order() {
    let before = descriptors();
    let given = std::env::var("TOWPATH_FRESH_SEED").ok();
    let fresh = match given {
        Some(text) => text.parse().expect("TOWPATH_FRESH_SEED is a number"),
        None => RandomState::new().hash_one(0),
    };
    println!("fresh seed: {fresh}");
    for seed in SEEDS.into_iter().chain([fresh]) {
        println!("seed: {seed}");
        let mut run = Run::new(seed);
        run.play();
        // Otherwise the test would show little.
        let Run { accepted, received, datagrams, .. } = run;
        println!("{accepted} connections taken, {received} bytes read, {datagrams} datagrams");
        assert!(accepted > 20 && received > 20_000 && datagrams > 20);
        run.finish();
        assert_eq!(descriptors(), before, "descriptors left");
    }
}
