//! A front end that sends arbitrary messages to a device whose link and MTU change meanwhile.

use super::device::VhostUser;
use super::session::Offer;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::MemfdFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use towpath_packet::time::Instant;
use towpath_packet::{Burst, Context, Device, Ledger, Memory, MemoryConfig};

/// Most messages of one input.
const MESSAGES_MAX: usize = 64;
/// Bytes of the file that stands for guest memory.
const FILE_BYTES: u64 = 1 << 16;
/// In the byte for the flags, which needs the lowest four bits only: the state of the link, and
/// whether the MTU is small.
const LINK_DOWN: u8 = 1 << 6;
const SMALL_MTU: u8 = 1 << 7;

/// Sends the messages that `data` encodes. Each has one byte for the request, one for the flags,
/// two for the length of the payload and one for the kinds of descriptors, and then the payload.
/// All replies are read. Before each message the device gets the link and the MTU that the flags
/// say. At the end no descriptor that was sent is still open.
pub fn front_end(data: &[u8]) {
    let (socket, ours) = UnixStream::pair().expect("descriptors");
    let offer = Offer { pairs: 2, mac: Some([2; 6]), ..Offer::default() };
    let device = VhostUser::from_socket(ours.into(), offer);
    let mut device = device.expect("descriptors");
    let config = MemoryConfig { packets: 16, small_frames: 16, large_frames: 4 };
    let (mut memory, mut burst, ledger) = (Memory::new(config), Burst::new(), Ledger::new());
    let (mut end, pipe) = std::io::pipe().expect("descriptors");
    let (mut reports, channel) = UnixStream::pair().expect("descriptors");
    let files = files(pipe.into(), channel.into());
    let mut left = data;
    for number in 0..MESSAGES_MAX {
        let Some(([code, flags, low, high, kinds], rest)) = left.split_first_chunk() else { break };
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let payload = &rest[..length.min(rest.len())];
        left = &rest[payload.len()..];
        let words = [u32::from(*code), u32::from(*flags), length as u32];
        let bytes = [&words.map(u32::to_ne_bytes).concat(), payload].concat();
        device.set_mtu(if flags & SMALL_MTU == 0 { 1500 } else { 576 });
        device.set_link(flags & LINK_DOWN == 0).expect("it has no socket to open");
        send(&socket, &bytes, *kinds, &files);
        // An error would be the system's; nothing that the front end does is one.
        let now = Instant::START + Duration::from_millis(number as u64);
        let cx = &mut Context { memory: &mut memory, ledger: &ledger, now };
        device.turn(true, cx).expect("descriptors");
        device.receive(&mut burst, cx).expect("descriptors");
        device.transmit(&mut burst, cx).expect("descriptors");
        let _ = recv(&socket, &mut [0; 4096][..], rustix::net::RecvFlags::DONTWAIT);
    }
    burst.clear();
    drop((device, files, socket));
    assert_eq!(end.read(&mut [0]).expect("a pipe"), 0, "a descriptor is still open");
    std::io::copy(&mut reports, &mut std::io::sink()).expect("the socket is closed, too");
}

/// One descriptor of each kind that messages carry, and one that none carries.
fn files(pipe: OwnedFd, channel: OwnedFd) -> [OwnedFd; 4] {
    let file = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).expect("descriptors");
    rustix::fs::ftruncate(&file, FILE_BYTES).expect("memory");
    let event = eventfd(0, EventfdFlags::CLOEXEC).expect("descriptors");
    [file, event, pipe, channel]
}

/// Sends as many descriptors as the low four bits of `kinds` say, starting with the kind in the
/// high four bits. Fails if the device has disconnected the front end.
fn send(socket: &UnixStream, bytes: &[u8], kinds: u8, files: &[OwnedFd; 4]) {
    let (count, first) = (usize::from(kinds & 15), usize::from(kinds >> 4));
    let kinds = (0..count).map(|number| files[(first + number) % files.len()].as_fd());
    let descriptors: Vec<BorrowedFd<'_>> = kinds.collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(15))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is room");
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _ = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags);
}
