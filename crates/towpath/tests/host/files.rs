//! Ranges of files that are lent.

use super::*;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::fs::File;

/// Creates a memory file.
fn file(bytes: &[u8], sealed: bool) -> File {
    let mut file = File::from(memfd_create("test", MemfdFlags::ALLOW_SEALING).expect("a file"));
    file.write_all(bytes).expect("room");
    if sealed {
        fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK).expect("seals");
    }
    file
}

fn assert_arrives(peer: &mut TcpStream, expected: &[u8]) {
    let mut received = vec![0; expected.len()];
    peer.read_exact(&mut received).expect("receives");
    assert_same(&received, expected);
}

/// Goal: a sealed file is sent in place even after it was closed, alone and after a header. It
/// comes back early like any other buffer.
#[test]
fn a_sealed_file_is_lent_where_it_is() {
    let (a, b, stream, mut peer) = connection();
    let bytes = pattern(9 << 20, 1);
    let sealed = file(&bytes, true);
    let range = a.file_range(&sealed, 5001, 1 << 20).expect("a range");
    let behind = a.file_range(&sealed, 0, bytes.len()).expect("a range");
    drop(sealed);
    assert!(range.is_mapped() && range[..] == bytes[5001..][..1 << 20]);
    let sending = stream.send_zc(range).expect("sends");
    assert_arrives(&mut peer, &bytes[5001..][..1 << 20]);
    assert!(!sending.returned_within(PATIENCE).expect("back").copied);
    assert_eq!(a.ledger().copied(), 0);
    let sending = stream.send_zc((vec![1, 2, 3], behind)).expect("sends");
    sending.recall();
    let returned = sending.returned_within(PATIENCE).expect("back without a reader");
    assert!(returned.copied && returned.buffer.1.is_mapped());
    drop(returned);
    assert_arrives(&mut peer, &[1, 2, 3]);
    assert_arrives(&mut peer, &bytes);
    drop((stream, peer));
    assert_all_back(&[&a, &b]);
}

/// Goal: for a file that others may change, the bytes at the time of the call are sent whatever
/// happens to the file, and the copy is reported and counted. Tried: overwritten and truncated
/// while lent, ranges beyond the file, no bytes, a pipe.
#[test]
fn a_file_that_may_change_is_read() {
    let (a, b, stream, mut peer) = connection();
    let bytes = pattern(3 << 20, 2);
    let open = file(&bytes, false);
    let range = a.file_range(&open, 1, bytes.len() - 1).expect("a range");
    assert!(!range.is_mapped());
    assert_eq!(a.ledger().copied(), bytes.len() as u64 - 1);
    let sending = stream.send_zc(range).expect("sends");
    rustix::io::pwrite(&open, &[0xff; 4096], 8192).expect("nothing forbids it");
    open.set_len(10).expect("nothing forbids it");
    assert_arrives(&mut peer, &bytes[1..]);
    let returned = sending.returned_within(PATIENCE).expect("back");
    assert!(returned.copied && returned.buffer[..] == bytes[1..]);
    for (offset, len) in [(0, 11), (11, 0), (u64::MAX, 1), (10, usize::MAX)] {
        let refused = a.file_range(&open, offset, len).expect_err("it is not there");
        assert_eq!(refused.kind(), ErrorKind::UnexpectedEof, "{offset} {len}");
    }
    assert!(a.file_range(&open, 10, 0).expect("nothing").is_empty());
    let (reader, _writer) = io::pipe().expect("a pipe");
    let pipe = File::from(std::os::fd::OwnedFd::from(reader));
    assert!(a.file_range(&pipe, 0, 1).is_err());
    drop((returned, stream, peer));
    assert_all_back(&[&a, &b]);
}
