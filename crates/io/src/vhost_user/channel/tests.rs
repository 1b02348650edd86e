//! Messages in parts, misplaced descriptors, and messages that never end.

use super::*;
use crate::reactor::{Events, Interest, Reactor};
use crate::vhost_user::message::RingRequest;
use rustix::event::{EventfdFlags, eventfd};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::Duration;

const GET_FEATURES: u32 = 1;
const SET_VRING_KICK: u32 = 12;
const SET_BACKEND_REQ_FD: u32 = 21;

fn pair() -> (UnixStream, Channel) {
    let (front_end, ours) = UnixStream::pair().unwrap();
    (front_end, Channel::new(ours.into()))
}

fn message(code: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = [code, 1, payload.len() as u32].map(u32::to_ne_bytes).concat();
    bytes.extend(payload);
    bytes
}

fn send(socket: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty());
    assert_eq!(sent, Ok(bytes.len()));
}

/// An event, and a reactor that reports whether it is open anywhere: a closed event is not
/// reported.
fn watched() -> (Reactor, OwnedFd) {
    let event = eventfd(1, EventfdFlags::empty()).unwrap();
    let reactor = Reactor::new().unwrap();
    reactor.add(&event, 0, Interest::READ, false).unwrap();
    (reactor, event)
}

fn is_open(reactor: &mut Reactor) -> bool {
    let mut events = Events::default();
    reactor.wait(Some(Duration::ZERO), &mut events).unwrap();
    !events.is_empty()
}

#[test]
fn a_message_may_come_byte_by_byte() {
    let (mut front_end, mut channel) = pair();
    let bytes = message(SET_VRING_KICK, &0x101u64.to_ne_bytes());
    for byte in &bytes {
        assert!(channel.receive().unwrap().is_none());
        front_end.write_all(&[*byte]).unwrap();
    }
    let incoming = channel.receive().unwrap().unwrap();
    let Ok(Request::Ring(1, RingRequest::Kick(None))) = incoming.request else {
        panic!("{incoming:?}")
    };
    assert!(channel.receive().unwrap().is_none());
}

/// Two messages at once; the second has the descriptor.
#[test]
fn descriptors_stay_with_their_message() {
    let (front_end, mut channel) = pair();
    let (_, file) = watched();
    send(&front_end, &message(GET_FEATURES, &[]), &[]);
    send(&front_end, &message(SET_VRING_KICK, &[0; 8]), &[file.as_fd()]);
    let first = channel.receive().unwrap().unwrap();
    assert!(matches!(first.request, Ok(Request::GetFeatures)));
    let second = channel.receive().unwrap().unwrap();
    assert!(matches!(second.request, Ok(Request::Ring(0, RingRequest::Kick(Some(_))))));
}

/// A descriptor may also come with the payload. A malformed message is refused, and the next is
/// accepted.
#[test]
fn a_refused_message_is_followed_by_others() {
    let (front_end, mut channel) = pair();
    let (mut reactor, file) = watched();
    send(&front_end, &message(GET_FEATURES, &[]), &[file.as_fd()]);
    drop(file);
    let refused = channel.receive().unwrap().unwrap();
    let expected = RequestError::Descriptors { code: GET_FEATURES, count: 1 };
    assert_eq!(refused.request.unwrap_err(), expected);
    assert!(!is_open(&mut reactor));
    let (mut reactor, file) = watched();
    let bytes = message(SET_VRING_KICK, &[0; 8]);
    send(&front_end, &bytes[..12], &[]);
    send(&front_end, &bytes[12..], &[file.as_fd()]);
    drop(file);
    let incoming = channel.receive().unwrap().unwrap();
    assert!(is_open(&mut reactor));
    assert!(matches!(incoming.request, Ok(Request::Ring(0, RingRequest::Kick(Some(_))))));
    drop(incoming);
    assert!(!is_open(&mut reactor));
}

#[test]
fn too_many_descriptors_end_the_connection() {
    let (front_end, mut channel) = pair();
    let (mut reactor, file) = watched();
    let nine = [file.as_fd(); DESCRIPTORS_MAX + 1];
    send(&front_end, &message(GET_FEATURES, &[]), &nine);
    assert_eq!(channel.receive().unwrap_err(), ChannelError::Descriptors);
    drop((channel, file));
    assert!(!is_open(&mut reactor));
    // One descriptor with each byte.
    let (front_end, mut channel) = pair();
    let (mut reactor, file) = watched();
    for byte in message(GET_FEATURES, &[]) {
        send(&front_end, &[byte], &[file.as_fd()]);
    }
    assert_eq!(channel.receive().unwrap_err(), ChannelError::Descriptors);
    drop((channel, file));
    assert!(!is_open(&mut reactor));
}

/// Descriptors of a message that never ends are closed with the connection.
#[test]
fn the_end_in_the_middle_of_a_message() {
    let (front_end, mut channel) = pair();
    let (mut reactor, file) = watched();
    send(&front_end, &message(SET_VRING_KICK, &[0; 8])[..15], &[file.as_fd()]);
    drop((front_end, file));
    assert_eq!(channel.receive().unwrap_err(), ChannelError::Closed);
    drop(channel);
    assert!(!is_open(&mut reactor));
}

/// Goal: a descriptor that is neither an event nor memory ends the connection, wherever it is
/// attached. It stays open, so that another thread can close it.
#[test]
fn descriptors_of_other_kinds_end_the_connection() {
    let (front_end, mut channel) = pair();
    let (mut reactor, event) = watched();
    let (_reader, pipe) = std::io::pipe().unwrap();
    let files = [event.as_fd(), pipe.as_fd(), pipe.as_fd()];
    send(&front_end, &message(GET_FEATURES, &[])[..3], &files);
    drop(event);
    assert_eq!(channel.receive().unwrap_err(), ChannelError::Foreign);
    // Also contains the socket.
    assert_eq!(channel.into_files().len(), 2 + 1);
    assert!(!is_open(&mut reactor));
}

#[test]
fn bad_headers_end_the_connection() {
    let cases = [
        ([1, 0, 0], HeaderError::Version(0)),
        ([1, 5, 0], HeaderError::Reply),
        ([1, 1, u32::MAX], HeaderError::TooLong(u32::MAX)),
    ];
    for (words, error) in cases {
        let (mut front_end, mut channel) = pair();
        front_end.write_all(&words.map(u32::to_ne_bytes).concat()).unwrap();
        assert_eq!(channel.receive().unwrap_err(), ChannelError::Header(error));
    }
}

#[test]
fn replies_carry_a_descriptor() {
    let (front_end, channel) = pair();
    let (mut reactor, file) = watched();
    channel.send(31, &Reply::Number(7), Some(file.as_fd())).unwrap();
    drop(file);
    let mut bytes = [0; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let got = recvmsg(&front_end, &mut slices, &mut control, RecvFlags::empty()).unwrap();
    assert_eq!(got.bytes, 20);
    assert_eq!(control.drain().count(), 1);
    drop(control);
    assert!(!is_open(&mut reactor));
}

/// A front end that sends requests and never reads replies.
#[test]
fn unread_replies_end_the_connection() {
    let (front_end, channel) = pair();
    let error = (0..1_000_000).find_map(|_| channel.send(1, &Reply::Number(0), None).err());
    assert_eq!(error, Some(ChannelError::NotRead));
    drop(front_end);
    assert_eq!(channel.send(1, &Reply::Number(0), None), Err(ChannelError::Closed));
}

/// Goal: reports go to the UNIX stream socket that came with the request for it. A front end that
/// does not read them loses nothing and blocks nothing; one that closes the socket gets none.
#[test]
fn reports_go_to_the_back_ends_channel() {
    let (front_end, mut channel) = pair();
    assert!(!channel.report_change(), "there is none yet");
    let (mut reports, socket) = UnixStream::pair().unwrap();
    let bytes = message(SET_BACKEND_REQ_FD, &[]);
    send(&front_end, &bytes[..5], &[]);
    send(&front_end, &bytes[5..], &[socket.as_fd()]);
    drop(socket);
    let incoming = channel.receive().unwrap().unwrap();
    assert!(matches!(incoming.request, Ok(Request::SetBackendChannel)));
    assert!(channel.has_back() && channel.report_change());
    let mut report = [0; 12];
    reports.read_exact(&mut report).unwrap();
    assert_eq!(report, [2, 1, 0].map(u32::to_ne_bytes).as_flattened());
    assert!((0..100_000).all(|_| channel.report_change()), "unread reports say the same");
    drop(reports);
    assert!(!channel.report_change());
    assert_eq!(channel.into_files().len(), 2);
}

/// Goal: a socket of another kind, a second one, or one that no request asks for ends the
/// connection, and stays open so that another thread can close it.
#[test]
fn other_sockets_end_the_connection() {
    let (stream, _) = UnixStream::pair().unwrap();
    let (datagram, _) = UnixDatagram::pair().unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let cases = [
        (SET_BACKEND_REQ_FD, vec![datagram.as_fd()]),
        (SET_BACKEND_REQ_FD, vec![tcp.as_fd()]),
        (SET_BACKEND_REQ_FD, vec![stream.as_fd(); 2]),
        (GET_FEATURES, vec![stream.as_fd()]),
    ];
    for (code, files) in cases {
        let (front_end, mut channel) = pair();
        send(&front_end, &message(code, &[]), &files);
        assert_eq!(channel.receive().unwrap_err(), ChannelError::Foreign, "{code}");
        assert_eq!(channel.into_files().len(), files.len() + 1);
    }
    let (front_end, mut channel) = pair();
    for _ in 0..2 {
        send(&front_end, &message(SET_BACKEND_REQ_FD, &[]), &[stream.as_fd()]);
    }
    assert!(channel.receive().unwrap().is_some());
    assert_eq!(channel.receive().unwrap_err(), ChannelError::Foreign);
}

/// Goal: a request for the channel without its socket, or with something else, is refused, and the
/// next message is accepted.
#[test]
fn a_request_for_the_channel_needs_a_socket() {
    let (front_end, mut channel) = pair();
    let (_, event) = watched();
    for files in [&[][..], &[event.as_fd()]] {
        send(&front_end, &message(SET_BACKEND_REQ_FD, &[]), files);
        let refused = channel.receive().unwrap().unwrap().request.unwrap_err();
        let count = files.len();
        assert_eq!(refused, RequestError::Descriptors { code: SET_BACKEND_REQ_FD, count });
    }
    let (socket, _reports) = UnixStream::pair().unwrap();
    send(&front_end, &message(SET_BACKEND_REQ_FD, &[0]), &[socket.as_fd()]);
    let refused = channel.receive().unwrap().unwrap().request.unwrap_err();
    assert_eq!(refused, RequestError::Length { code: SET_BACKEND_REQ_FD, bytes: 1 });
    send(&front_end, &message(GET_FEATURES, &[]), &[]);
    assert!(matches!(channel.receive().unwrap().unwrap().request, Ok(Request::GetFeatures)));
}
