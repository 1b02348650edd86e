//! Descriptors that front ends must not send: files of unresponsive servers, and others.

use super::*;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::mpsc::channel;

/// Bytes of the header of requests, of the header of answers, and of attributes (linux/fuse.h).
const ASK_BYTES: usize = 40;
const ANSWER_BYTES: usize = 16;
const ATTRIBUTE_BYTES: usize = 88;
/// Later than everything that a bench did before.
const LATER: Instant = Instant::from_micros(2_000_000);

/// A file whose FUSE server has not answered since it was opened. Any call on it waits until the
/// server ends.
struct Silent {
    server: File,
    file: OwnedFd,
}

impl Silent {
    /// `None` without the right to mount, or without FUSE.
    fn open() -> Option<Self> {
        let mut server = File::options().read(true).write(true).open("/dev/fuse").ok()?;
        let folder = std::env::temp_dir().join(format!("towpath-silent-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        let options = std::ffi::CString::new(options).unwrap();
        let mounted = mount("silent", &folder, "fuse", MountFlags::empty(), options.as_c_str());
        let file = mounted.ok().map(|()| {
            let path = folder.join("file");
            let opener =
                std::thread::spawn(move || File::options().read(true).write(true).open(path));
            // INIT, LOOKUP, OPEN.
            while answer(&mut server) != 14 {}
            let file = opener.join().unwrap();
            unmount(&folder, UnmountFlags::DETACH).unwrap();
            file.unwrap().into()
        });
        std::fs::remove_dir(&folder).unwrap();
        file.map(|file| Self { server, file })
    }
}

/// Answers a request; returns its code.
fn answer(server: &mut File) -> u32 {
    let mut asked = [0; 1 << 16];
    let bytes = server.read(&mut asked).unwrap();
    assert!(bytes >= ASK_BYTES);
    let code = u32::from_ne_bytes(asked[4..8].try_into().unwrap());
    let mut attributes = [0_u8; ATTRIBUTE_BYTES];
    // Inode, size and mode of a file as large as a region.
    attributes[..8].copy_from_slice(&2_u64.to_ne_bytes());
    attributes[8..16].copy_from_slice(&REGION.to_ne_bytes());
    attributes[60..64].copy_from_slice(&0o100_666_u32.to_ne_bytes());
    attributes[64..68].copy_from_slice(&1_u32.to_ne_bytes());
    let payload = match code {
        // INIT: version 7.31.
        26 => [&[7_u32, 31].map(u32::to_ne_bytes).concat()[..], &[0; 56]].concat(),
        // LOOKUP: the inode, and attributes that must be requested again each time.
        1 => [&2_u64.to_ne_bytes()[..], &[0; 32], &attributes].concat(),
        3 => [&[0; 16][..], &attributes].concat(),
        14 => vec![0; 16],
        _ => Vec::new(),
    };
    let bytes = ANSWER_BYTES + payload.len();
    let header = [(bytes as u32).to_ne_bytes(), 0_u32.to_ne_bytes()].concat();
    server.write_all(&[&header[..], &asked[8..16], &payload].concat()).unwrap();
    code
}

/// Messages with one descriptor: code and payload.
fn messages() -> Vec<(u32, Vec<u8>)> {
    let words = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|w| w.to_ne_bytes()).collect() };
    let inflight = [&words(&[REGION, 0])[..], &[2, 0, SIZE as u8, 0]].concat();
    vec![
        (5, words(&[1, BASE + 2 * REGION, REGION, 1 << 40, 0])),
        (6, words(&[REGION, 0])),
        (12, words(&[0])),
        (13, words(&[0])),
        (14, words(&[0])),
        (SET_INFLIGHT_FD, inflight),
        (ADD_MEM_REG, words(&[0, BASE + 2 * REGION, REGION, 1 << 40, 0])),
    ]
}

/// Goal: a file of an unresponsive server blocks nothing, whatever message it comes with: neither
/// when it is checked nor when it is closed. It ends the session.
#[test]
fn files_of_a_silent_server_block_no_other_operation() {
    let Some(Silent { server, file }) = Silent::open() else {
        println!("skipped: no right to mount, or no FUSE");
        return;
    };
    let (sender, done) = channel();
    let file = Arc::new(file);
    let sent = file.clone();
    let thread = std::thread::spawn(move || {
        for (code, payload) in messages() {
            let mut bench = Bench::started(0);
            send(&bench.socket, code, 1, &payload, &[sent.as_fd()]);
            bench.turn(LATER);
            let end = bench.end();
            drop(bench);
            sender.send((code, end)).unwrap();
        }
    });
    let ends: Vec<_> =
        messages().iter().map_while(|_| done.recv_timeout(Duration::from_secs(20)).ok()).collect();
    // From here on, calls that wait for the server fail.
    drop(server);
    thread.join().unwrap();
    let foreign = Some(SessionEnd::Channel(ChannelError::Foreign));
    let all: Vec<_> = messages().into_iter().map(|(code, _)| (code, foreign)).collect();
    assert_eq!(ends, all);
}

/// Goal: a descriptor that is neither an event nor memory ends the session and is closed. An event
/// in place of memory, or memory in place of an event, is refused.
#[test]
fn descriptors_of_other_kinds_are_not_taken() {
    for (code, payload) in messages() {
        let mut bench = Bench::started(0);
        let (mut reader, writer) = std::io::pipe().unwrap();
        send(&bench.socket, code, 1, &payload, &[writer.as_fd()]);
        drop(writer);
        bench.turn(LATER);
        assert_eq!(bench.end(), Some(SessionEnd::Channel(ChannelError::Foreign)), "{code}");
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "it is closed");

        let mut bench = Bench::started(0);
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        let memory = bench.ram.file().try_clone().unwrap();
        let is_event = (12..=14).contains(&code);
        let wrong = if is_event { memory } else { event };
        send(&bench.socket, code, 1 | 8, &payload, &[wrong.as_fd()]);
        bench.turn(LATER);
        let (reply, _) = bench.reply(code);
        assert_eq!(reply, 1_u64.to_ne_bytes(), "{code}");
        assert!(bench.device.is_connected());
    }
}

/// Goal: a port with too many pending closes accepts no front ends until some are done.
#[test]
fn a_port_that_waits_for_its_closing_gets_no_packets() {
    use crate::vhost_user::closing::{CLOSING_MAX, Closing};
    let folder = std::env::temp_dir().join(format!("towpath-closing-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("socket");
    let mut device = VhostUser::listen(&path, Offer::default()).unwrap();
    device.closing = Closing::waiting(CLOSING_MAX);
    let _socket = UnixStream::connect(&path).unwrap();
    turn(&mut device, NOW);
    let next = device.next_deadline().expect("it looks again");
    assert!(!device.is_connected() && next > NOW);
    device.closing = Closing::waiting(CLOSING_MAX - 1);
    turn(&mut device, next);
    assert!(device.is_connected());
    drop(device);
    let _ = std::fs::remove_file(&path);
    std::fs::remove_dir(&folder).unwrap();
}
