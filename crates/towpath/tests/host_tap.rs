//! A host on a TAP device against the kernel's TCP and UDP, in a network namespace of its own.
//! Without the privilege to create one, a test reports that and passes.

use nix::sched::{CloneFlags, unshare};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;
use towpath::host::{
    Chain, Completions, Config, EtherType, FramePart, Host, LENT_OVERHEAD, LinkDestination,
    MacAddr, PacketSocket, RawSocket, ReceivedPiece, SendMode, TcpListener, TcpStream, UdpSocket,
};
use towpath_io::namespace::{Addresses, Interface};

/// More than any step takes, so that a hanging test ends.
const PATIENCE: Duration = Duration::from_secs(60);
const KERNEL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 8, 1));
const OURS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 8, 2));

/// Runs `test` on a thread with its own network: a TAP device with the kernel at one end and the
/// host at the other.
fn in_a_network(test: impl FnOnce(&Host) + Send + 'static) {
    let thread = thread::spawn(move || {
        if let Err(errno) = unshare(CloneFlags::CLONE_NEWNET) {
            println!("skipped: no network namespace: {errno}");
            return;
        }
        let config = Config { default_term: None, ..Config::with_address(OURS, 24) };
        let host = match Host::on_tap_named(&config, "tap0") {
            Ok(host) => host,
            Err(error) => {
                println!("skipped: {error}");
                return;
            }
        };
        let interface = Interface {
            name: "tap0".to_owned(),
            mtu: 1500,
            tx_queue_len: 1000,
            mac: [2, 0, 0, 0, 0, 1],
            ipv4: Some(Addresses { address: KERNEL, prefix_len: 24, gateway: OURS }),
            ipv6: None,
            further: Vec::new(),
            routes: Vec::new(),
        };
        interface.configure().expect("addresses");
        test(&host);
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251 + seed * 7) as u8).collect()
}

/// Goal: bytes lent to the kernel's TCP are sent with the contents they had when they were lent,
/// and belong to the program again once returned. Method: each buffer is overwritten as soon as it
/// is back.
#[test]
fn lent_buffers_go_to_the_kernel_and_come_back() {
    const LEN: usize = 64 << 10;
    const ROUNDS: usize = 256;
    in_a_network(|host| {
        let kernel = std::net::TcpListener::bind((KERNEL, 80)).expect("listens");
        let reader = thread::spawn(move || {
            let (mut peer, _) = kernel.accept().expect("accepted");
            let mut received = vec![0; LEN];
            for seed in 0..ROUNDS {
                peer.read_exact(&mut received).expect("receives");
                assert!(received == pattern(LEN, seed), "buffer {seed}");
            }
            assert_eq!(peer.read(&mut received).expect("the end"), 0);
        });
        let stream = TcpStream::connect(host, SocketAddr::new(KERNEL, 80)).expect("connects");
        let (mut sends, mut free) = (Completions::new(), Vec::new());
        for seed in 0..ROUNDS {
            let mut buffer: Vec<u8> = free.pop().unwrap_or_default();
            buffer.clear();
            buffer.extend(pattern(LEN, seed));
            sends.push(stream.send_zc(buffer).expect("sends"));
            while let Some(mut returned) = sends.try_next() {
                assert!(!returned.copied);
                returned.buffer.fill(0xee);
                free.push(returned.buffer);
            }
        }
        drop(stream);
        while let Some(returned) = sends.wait_next() {
            assert!(!returned.copied);
        }
        reader.join().expect("no panic");
        assert!(host.finish(PATIENCE));
        assert_eq!(host.lent(), 0);
    });
}

/// Goal: the buffers of one call come back one after the other while the kernel's TCP, which reads
/// slowly, has not read the rest; each is overwritten at once. A recall brings the others back, and
/// no byte is lost.
#[test]
fn buffers_of_one_call_come_back_one_by_one() {
    const LEN: usize = 256 << 10;
    const COUNT: usize = 64;
    in_a_network(|host| {
        let kernel = std::net::TcpListener::bind((KERNEL, 81)).expect("listens");
        // Doubled by the kernel, and inherited: far below half of the bytes.
        rustix::net::sockopt::set_socket_recv_buffer_size(&kernel, 1 << 20).expect("an option");
        let stream = TcpStream::connect(host, SocketAddr::new(KERNEL, 81)).expect("connects");
        let (mut peer, _) = kernel.accept().expect("accepted");
        peer.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let chain = Chain((0..COUNT).map(|seed| pattern(LEN, seed)).collect());
        let mut sends = stream.send_zc_each(chain).expect("sends");
        assert!(host.lent() > COUNT / 2 * (LEN + LENT_OVERHEAD), "the peer has little room");
        let mut received = vec![0; LEN];
        for seed in 0..COUNT / 2 {
            peer.read_exact(&mut received).expect("receives");
            assert!(received == pattern(LEN, seed), "buffer {seed}");
            let mut returned = sends.wait_next().expect("a send");
            assert!(!returned.copied && returned.buffer == received, "buffer {seed}");
            returned.buffer.fill(0xee);
        }
        // The budget may get the share of the last buffer a moment after it is back.
        assert!(host.lent() <= (COUNT / 2 + 1) * (LEN + LENT_OVERHEAD));
        assert_eq!(sends.len(), COUNT / 2);
        sends.recall();
        let mut copied = 0;
        for seed in COUNT / 2..COUNT {
            let mut returned = sends.wait_next().expect("a send");
            assert!(returned.buffer == pattern(LEN, seed), "buffer {seed}");
            copied += usize::from(returned.copied);
            returned.buffer.fill(0xee);
        }
        assert!(copied > COUNT / 4, "the peer has not read: {copied}");
        for seed in COUNT / 2..COUNT {
            peer.read_exact(&mut received).expect("receives");
            assert!(received == pattern(LEN, seed), "buffer {seed}");
        }
        drop(stream);
        assert_eq!(peer.read(&mut received).expect("the end"), 0);
        drop(peer);
        assert!(host.finish(PATIENCE));
        assert_eq!(host.lent(), 0);
    });
}

/// Goal: the opposite direction, with the host listening; and a kernel peer that resets.
#[test]
fn the_kernel_connects_and_sends() {
    in_a_network(|host| {
        let listener = TcpListener::bind(host, SocketAddr::new(OURS, 80)).expect("listens");
        let writer = thread::spawn(|| {
            let mut stream = std::net::TcpStream::connect((OURS, 80)).expect("connects");
            stream.write_all(&pattern(5_000_000, 1)).expect("sends");
            stream.shutdown(std::net::Shutdown::Write).expect("shuts down");
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).expect("an answer");
            answer
        });
        let (mut peer, _) = listener.accept().expect("accepted");
        peer.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut received = Vec::new();
        peer.read_to_end(&mut received).expect("receives");
        assert!(received == pattern(5_000_000, 1));
        peer.write_all(b"thanks").expect("sends");
        drop(peer);
        assert_eq!(writer.join().expect("no panic"), b"thanks");
    });
}

/// Goal: a datagram to a group reaches the member at the other end, from the host and from the
/// kernel; errors are those of the kernel's sockets.
#[test]
fn groups_have_members_at_both_ends() {
    const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
    const ANY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
    in_a_network(|host| {
        let (IpAddr::V4(kernel_ip), IpAddr::V4(ours_ip)) = (KERNEL, OURS) else { return };
        let kernel = std::net::UdpSocket::bind((kernel_ip, 0)).expect("bound");
        let kernel_member = std::net::UdpSocket::bind((ANY, 700)).expect("bound");
        let ours = UdpSocket::bind(host, (ANY, 700)).expect("bound");
        kernel_member.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        ours.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        kernel_member.join_multicast_v4(&GROUP, &kernel_ip).expect("joined");
        for interface in [ANY, ours_ip] {
            ours.join_multicast_v4(&GROUP, &interface).expect("joined");
            let number = |done: std::io::Result<()>| done.err().and_then(|e| e.raw_os_error());
            let again = kernel_member.join_multicast_v4(&GROUP, &kernel_ip);
            assert_eq!(number(ours.join_multicast_v4(&GROUP, &interface)), number(again));
            let wrong = kernel_member.join_multicast_v4(&kernel_ip, &kernel_ip);
            assert_eq!(number(ours.join_multicast_v4(&ours_ip, &interface)), number(wrong));
            let (other, nowhere) = (Ipv4Addr::new(239, 1, 2, 4), Ipv4Addr::new(10, 99, 0, 1));
            let unknown = kernel_member.join_multicast_v4(&other, &nowhere);
            assert_eq!(number(ours.join_multicast_v4(&other, &nowhere)), number(unknown));
            let none = kernel_member.leave_multicast_v4(&other, &kernel_ip);
            assert_eq!(number(ours.leave_multicast_v4(&other, &interface)), number(none));

            let mut received = [0; 100];
            ours.send_to(b"to the kernel", (GROUP, 700)).expect("sent");
            let (count, from) = kernel_member.recv_from(&mut received).expect("received");
            assert_eq!((&received[..count], from.ip()), (&b"to the kernel"[..], OURS));
            let (count, _) = ours.recv_from(&mut received).expect("its own");
            assert_eq!(&received[..count], b"to the kernel");
            kernel.send_to(b"to the host", (GROUP, 700)).expect("sent");
            let (count, from) = ours.recv_from(&mut received).expect("received");
            assert_eq!((&received[..count], from.ip()), (&b"to the host"[..], KERNEL));
            kernel_member.recv_from(&mut received).expect("its own");
            ours.leave_multicast_v4(&GROUP, &interface).expect("left");
        }
        assert!(ours.multicast_loop_v4().expect("set") && ours.multicast_loop_v6().expect("set"));
        ours.set_multicast_loop_v4(false).expect("set");
        ours.set_multicast_ttl_v4(7).expect("set");
        ours.set_multicast_hops_v6(9).expect("set");
        assert_eq!(
            (ours.multicast_ttl_v4().expect("set"), ours.multicast_hops_v6().expect("set")),
            (7, 9)
        );
        assert!(!ours.multicast_loop_v4().expect("set"));
    });
}

#[test]
fn datagrams_go_to_the_kernel_and_back() {
    in_a_network(|host| {
        let kernel = std::net::UdpSocket::bind((KERNEL, 53)).expect("bound");
        kernel.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let ours = UdpSocket::bind(host, SocketAddr::new(OURS, 0)).expect("bound");
        ours.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let sent = pattern(9000, 1);
        ours.send_to(&sent, SocketAddr::new(KERNEL, 53)).expect("sent");
        let mut received = vec![0; 10_000];
        let (count, from) = kernel.recv_from(&mut received).expect("received");
        assert!(received[..count] == sent && from == ours.local_addr().expect("bound"));
        kernel.send_to(&received[..count], from).expect("sent");
        let mut back = vec![0; 10_000];
        let (count, from) = ours.recv_from(&mut back).expect("received");
        assert!(back[..count] == sent && from == SocketAddr::new(KERNEL, 53));

        // Without a copy by towpath, in fragments and whole, as the socket chooses.
        ours.connect(SocketAddr::new(KERNEL, 53)).expect("connected");
        for (mode, len) in
            [(SendMode::Lend, 9000), (SendMode::Auto, 1000), (SendMode::Auto, 60_000)]
        {
            ours.set_send_mode(mode);
            let sending = ours.send_zc(pattern(len, 2)).expect("sent");
            let mut received = vec![0; 65_536];
            let (count, from) = kernel.recv_from(&mut received).expect("received");
            assert!(received[..count] == pattern(len, 2), "{len} bytes");
            let returned = sending.returned_within(PATIENCE).expect("back");
            assert!(returned.buffer == pattern(len, 2), "{len} bytes");
            assert_eq!(returned.copied, len == 1000, "{len} bytes");
            kernel.send_to(&received[..count], from).expect("sent");
            let mut pieces = Vec::new();
            assert_eq!(ours.recv_lent(&mut pieces).expect("received").len, len);
            let shown = |piece: &ReceivedPiece| piece.bytes().expect("private").to_vec();
            assert!(pieces.iter().flat_map(shown).collect::<Vec<u8>>() == pattern(len, 2));
        }

        // More than the device accepts at once: the call waits for it. The kernel may drop the
        // rest.
        ours.set_options(|options| options.datagram.segment_size = 1000).expect("an option");
        let sending = ours.send_zc(pattern(1 << 20, 3)).expect("sent");
        assert_eq!(sending.accepted(), 1 << 20);
        let returned = sending.returned_within(PATIENCE).expect("back");
        assert!(returned.buffer == pattern(1 << 20, 3) && !returned.copied);
        let mut first = vec![0; 2000];
        assert_eq!(kernel.recv(&mut first).expect("received"), 1000);
        assert!(first[..1000] == pattern(1 << 20, 3)[..1000]);
    });
}

/// Returns the Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes()
}

/// Goal: lent IP packets and frames reach the kernel unchanged, whole and in fragments, and its
/// answers come back.
#[test]
fn packets_and_frames_go_to_the_kernel_and_back() {
    in_a_network(|host| {
        let raw = RawSocket::bind(host, OURS, 1).expect("bound");
        raw.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        for (number, len) in [8, 1000, 9000].into_iter().enumerate() {
            let mut echo = vec![8, 0, 0, 0, 0x12, 0x34, 0, number as u8];
            echo.extend(pattern(len, number));
            let sum = checksum(&echo);
            echo[2..4].copy_from_slice(&sum);
            let sending = raw.send_zc_to(echo.clone(), KERNEL).expect("sends");
            let mut into = vec![0; 10_000];
            let (count, from) = raw.recv_from(&mut into).expect("an answer");
            assert_eq!((from, into[20]), (KERNEL, 0), "an echo reply");
            assert!(into[24..count] == echo[4..]);
            let returned = sending.returned_within(PATIENCE).expect("back");
            assert!(!returned.copied && returned.buffer == echo);
        }

        let frames = PacketSocket::new(host, EtherType::ARP, FramePart::Payload).expect("made");
        frames.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        // RFC 826: a request for the link-layer address of the kernel's IP address.
        let mut request = vec![0, 1, 8, 0, 6, 4, 0, 1];
        request.extend(host.mac().0);
        request.extend([10, 9, 8, 2, 0, 0, 0, 0, 0, 0, 10, 9, 8, 1]);
        let to = LinkDestination { address: Some(MacAddr([0xff; 6])), protocol: EtherType::ARP };
        let sending = frames.send_zc_to(request, to).expect("sends");
        let mut into = [0; 100];
        let reported = frames.recv_from(&mut into).expect("an answer");
        assert_eq!(reported.link.expect("of a frame").address, MacAddr([2, 0, 0, 0, 0, 1]));
        assert_eq!(into[6..18], [0, 2, 2, 0, 0, 0, 0, 1, 10, 9, 8, 1]);
        assert!(!sending.returned_within(PATIENCE).expect("back").copied);
    });
}
