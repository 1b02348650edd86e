//! Links that go down and up, and reports of it to the front end.

use super::*;
use std::io::Read;
use std::path::PathBuf;

const GET_CONFIG: u32 = 24;
const SET_BACKEND_REQ_FD: u32 = 21;
/// Acknowledgements, the configuration space, and reports of its changes.
const REPORTS: u64 = protocol::REPLY_ACK | protocol::CONFIG | protocol::BACKEND_REQ;
const NEED_REPLY: u32 = 8;

/// A device whose only front end has these protocol features.
fn with_config(features: u64) -> (UnixStream, VhostUser) {
    let (socket, ours) = UnixStream::pair().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let offer = Offer { mac: Some([2; 6]), ..Offer::default() };
    let mut device = VhostUser::from_socket(ours.into(), offer).unwrap();
    send(&socket, SET_PROTOCOL_FEATURES, 1, &features.to_ne_bytes(), &[]);
    turn(&mut device, NOW);
    (socket, device)
}

/// Gives the device a channel for reports; returns the acknowledgement, and the end to read from.
fn give_channel(socket: &UnixStream, device: &mut VhostUser) -> (u64, UnixStream) {
    let (reports, channel) = UnixStream::pair().unwrap();
    send(socket, SET_BACKEND_REQ_FD, 1 | NEED_REPLY, &[], &[channel.as_fd()]);
    turn(device, NOW);
    let (bytes, _) = receive(socket);
    (u64::from_ne_bytes(bytes[12..].try_into().unwrap()), reports)
}

/// Returns the link status in the configuration space.
fn status(socket: &UnixStream, device: &mut VhostUser) -> u16 {
    let payload = [&[6_u32, 2, 0].map(u32::to_ne_bytes).concat()[..], &[0; 2]].concat();
    send(socket, GET_CONFIG, 1, &payload, &[]);
    turn(device, NOW);
    let (bytes, _) = receive(socket);
    u16::from_le_bytes(bytes[24..].try_into().unwrap())
}

/// A listening device in a folder of its own.
struct Listening {
    folder: PathBuf,
    path: PathBuf,
}

impl Listening {
    fn new(name: &str) -> (Self, VhostUser) {
        let folder = std::env::temp_dir().join(format!("towpath-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("socket");
        let device = VhostUser::listen(&path, Offer::default()).unwrap();
        (Self { folder, path }, device)
    }

    fn connect(&self, device: &mut VhostUser) -> UnixStream {
        let socket = UnixStream::connect(&self.path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        turn(device, NOW);
        assert!(device.is_connected());
        socket
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.folder).unwrap();
    }
}

/// Goal: a front end that takes reports stays connected, gets one for each change, and reads the
/// new state.
#[test]
fn a_front_end_that_takes_reports_gets_them() {
    let (socket, mut device) = with_config(REPORTS);
    let (done, mut reports) = give_channel(&socket, &mut device);
    assert_eq!(done, 0);
    for is_up in [false, true, false] {
        device.set_link(is_up).unwrap();
        device.set_link(is_up).unwrap();
        turn(&mut device, NOW);
        let mut report = [0; 12];
        reports.read_exact(&mut report).unwrap();
        assert_eq!(report, [2, 1, 0].map(u32::to_ne_bytes).as_flattened());
        assert_eq!(status(&socket, &mut device), is_up.into());
    }
    assert!(device.is_connected());
    reports.set_nonblocking(true).unwrap();
    assert!(reports.read(&mut [0]).is_err(), "one report for each change");
}

/// Goal: for a front end that takes no reports, the link is the connection: its rings stop as at
/// any end of a session, nothing is lost, and there is no socket until the link is up.
#[test]
fn without_reports_the_connection_is_the_link() {
    let (listening, mut device) = Listening::new("link");
    let socket = listening.connect(&mut device);
    let mut bench = Bench::over((socket, device), 0);
    bench.start_all();
    bench.send(1);
    let packets = bench.receive();
    assert_eq!(packets.len(), 1);
    bench.device.set_link(false).unwrap();
    assert!(bench.device.next_deadline().is_some_and(|at| at <= NOW), "a turn is due");
    bench.turn(NOW);
    assert_eq!(bench.end(), Some(SessionEnd::LinkDown));
    assert_eq!(bench.transmit.used(), Some((1, 0)), "the loan is over");
    assert_eq!(content(&packets[0]), frame(1));
    assert_eq!(bench.socket.read(&mut [0]).unwrap(), 0);
    assert!(!bench.device.is_connected() && !listening.path.exists());
    let counters = bench.device.counters();
    assert_eq!((counters.sent_away, counters.link_down), (1, 1));
    bench.device.set_link(true).unwrap();
    bench.socket = listening.connect(&mut bench.device);
    bench.agree();
    bench.start([0, 1]);
    bench.send(2);
    assert_eq!(bench.receive().len(), 1);
}

/// Goal: packed rings whose position would be forgotten keep their session, with an in-flight
/// region they do not.
#[test]
fn packed_rings_part_with_an_in_flight_region_only() {
    for has_inflight in [false, true] {
        let (listening, mut device) = Listening::new("packed-link");
        let socket = listening.connect(&mut device);
        let mut bench = Bench::over((socket, device), ring_feature::PACKED);
        if has_inflight {
            let payload =
                [[0; 16].to_vec(), [2, SIZE, 0, 0].map(u16::to_ne_bytes).concat()].concat();
            send(&bench.socket, GET_INFLIGHT_FD, 1, &payload, &[]);
            bench.turn(NOW);
            let (area, file) = bench.reply(GET_INFLIGHT_FD);
            assert_eq!(bench.ask(SET_INFLIGHT_FD, &area, &[file.unwrap().as_fd()]), 0);
        }
        bench.start_all();
        bench.device.set_link(false).unwrap();
        bench.turn(NOW);
        assert_eq!(bench.device.is_connected(), !has_inflight);
        assert!(!listening.path.exists(), "nobody else connects");
        bench.device.set_link(true).unwrap();
        if !has_inflight {
            bench.send(1);
            assert_eq!(bench.receive().len(), 1);
        }
    }
}

/// Goal: a client does not connect while its link is down.
#[test]
fn a_client_stays_away_while_its_link_is_down() {
    let (listening, monitor) = Listening::new("client-link");
    let mut device = VhostUser::connect(&listening.path, Offer::default()).unwrap();
    turn(&mut device, NOW);
    assert!(device.is_connected());
    device.set_link(false).unwrap();
    turn(&mut device, NOW);
    assert!(!device.is_connected());
    let later = NOW + 10 * RETRY_INTERVAL;
    turn(&mut device, later);
    assert!(!device.is_connected() && device.next_deadline().is_none());
    device.set_link(true).unwrap();
    turn(&mut device, later);
    assert!(device.is_connected());
    drop(monitor);
}

/// Goal: a socket that another process has taken meanwhile is an error, and the link stays down
/// until it is free again.
#[test]
fn a_link_stays_down_if_its_socket_is_taken() {
    let (listening, mut device) = Listening::new("taken");
    device.set_link(false).unwrap();
    let other = std::os::unix::net::UnixListener::bind(&listening.path).unwrap();
    assert!(device.set_link(true).is_err());
    drop(other);
    device.set_link(true).unwrap();
    listening.connect(&mut device);
}

/// Goal: a device with one connection only keeps it, and a front end that has closed its channel
/// or never reads it stalls nothing.
#[test]
fn a_channel_that_nobody_reads_stalls_nothing() {
    let (socket, mut device) = with_config(REPORTS);
    device.set_link(false).unwrap();
    turn(&mut device, NOW);
    assert_eq!(status(&socket, &mut device), 0, "it can look, and has no channel");
    let (_, reports) = give_channel(&socket, &mut device);
    for round in 0..10_000 {
        device.set_link(round % 2 == 0).unwrap();
    }
    assert_eq!(status(&socket, &mut device), 0);
    drop(reports);
    device.set_link(true).unwrap();
    assert_eq!(status(&socket, &mut device), 1);
}

/// Goal: a channel that was not negotiated is refused and not used; a second one ends the session.
/// What was queued in either is closed, by another thread.
#[test]
fn channels_out_of_place_are_refused() {
    let (socket, mut device) = with_config(protocol::REPLY_ACK | protocol::CONFIG);
    let (done, mut reports) = give_channel(&socket, &mut device);
    assert_eq!(done, 1);
    device.set_link(false).unwrap();
    reports.set_nonblocking(true).unwrap();
    assert!(reports.read(&mut [0]).is_err(), "nothing is reported");
    let (mut reader, writer) = std::io::pipe().unwrap();
    let (queueing, channel) = UnixStream::pair().unwrap();
    send(&queueing, 1, 1, &[], &[writer.as_fd()]);
    drop(writer);
    send(&socket, SET_BACKEND_REQ_FD, 1 | NEED_REPLY, &[], &[channel.as_fd()]);
    drop(channel);
    turn(&mut device, NOW);
    let ends: Vec<_> = std::iter::from_fn(|| device.take_event()).collect();
    let foreign = SessionEnd::Channel(ChannelError::Foreign);
    assert_eq!(ends.last(), Some(&DeviceEvent::Ended(foreign)));
    assert_eq!(reader.read(&mut [0]).unwrap(), 0, "it is closed");
}

/// Goal: a front end that closes its connection leaves its channel to another thread, too.
#[test]
fn a_channel_ends_with_its_session() {
    let (socket, mut device) = with_config(REPORTS);
    let (_, mut reports) = give_channel(&socket, &mut device);
    drop(socket);
    turn(&mut device, NOW);
    assert!(!device.is_connected());
    assert_eq!(reports.read(&mut [0]).unwrap(), 0);
}

/// Goal: the largest packet changes at once, in both directions of the change, and for later
/// sessions.
#[test]
fn the_largest_packet_changes_at_once() {
    let (listening, mut device) = Listening::new("mtu");
    let socket = listening.connect(&mut device);
    for mtu in [1400, 9000] {
        device.set_mtu(mtu);
        assert_eq!(device.caps().mtu, mtu);
    }
    drop(socket);
    turn(&mut device, NOW);
    assert_eq!(device.caps().mtu, 9000);
    let _next = listening.connect(&mut device);
    assert_eq!(device.caps().mtu, 9000);
}
