//! Buffers of all kinds that a queue sends: each arrives, and comes back with its original type.

use super::sockets::{connection, hosts};
use super::{Case, PATIENCE, queue, until_over};
use std::io::Read;
use std::sync::Arc;
use std::thread;
use towpath::events::{Choice, Completion, Config, EventKind, EventQueue, Sent, Stream, Token};
use towpath::host::{Chain, Host, Lend, Part};

pub(super) const CASES: &[Case] = &[
    ("a_buffer_of_any_kind_is_sent_and_comes_back", sent),
    ("a_buffer_of_any_kind_is_handed_back", refused),
];

/// Longer than what is always copied.
const LEN: usize = 100_000;

fn bytes() -> Vec<u8> {
    (0..LEN).map(|at| (at * 31 + at / 251) as u8).collect()
}

/// Sends a buffer in one of the two ways. Returns its result.
fn send<B: Lend>(queue: &mut EventQueue, stream: &Stream, buffer: B, lends: bool) -> Sent {
    let begun = match lends {
        true => queue.send_zerocopy(stream.clone(), buffer, None, 9),
        false => queue.send(stream.clone(), buffer, None, 9),
    };
    let token: Token = begun.map_err(|refused| refused.error).unwrap();
    assert_eq!(until_over(queue, token), [EventKind::Accepted { bytes: LEN }]);
    match queue.take(token) {
        Some(Completion::Sent(sent)) => sent,
        other => panic!("{other:?}"),
    }
}

/// Goal: on both kinds of streams a buffer arrives whole, contiguous or not, and comes back with
/// its original type. On a kernel socket a non-contiguous buffer is copied, and the result says so.
fn sent(choice: Choice) {
    let hosts: (Host, Host) = hosts();
    let (own, mut own_peer) = connection(&hosts);
    own_peer.set_nonblocking(false).unwrap();
    own_peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let (kernels, mut kernels_peer) = super::kernel_streams::tcp();
    kernels_peer.set_read_timeout(Some(PATIENCE)).unwrap();
    // Four buffers, each in two ways.
    let read = |peer: &mut dyn Read| {
        let mut received = vec![0; LEN];
        for number in 0..8 {
            peer.read_exact(&mut received).unwrap();
            assert!(received == bytes(), "buffer {number}");
        }
    };
    let streams: [(Stream, bool); 2] = [((&own).into(), true), (kernels.into(), false)];
    thread::scope(|scope| {
        let readers =
            [scope.spawn(|| read(&mut own_peer)), scope.spawn(|| read(&mut kernels_peer))];
        for (stream, is_own) in &streams {
            let mut queue = queue(choice);
            for lends in [false, true] {
                let back = send(&mut queue, stream, bytes(), lends);
                assert_eq!(back.result.unwrap(), LEN);
                assert!(back.buffer.downcast::<Vec<u8>>().unwrap() == bytes());

                let shared: Arc<[u8]> = bytes().into();
                let back = send(&mut queue, stream, shared.clone(), lends);
                let same = back.buffer.downcast::<Arc<[u8]>>().unwrap();
                assert!(Arc::ptr_eq(&same, &shared));

                let long = [&[7; 10][..], &bytes(), &[7; 10]].concat();
                let part = Part::new(long, 10..10 + LEN).unwrap();
                let back = send(&mut queue, stream, part, lends);
                let part = back.buffer.downcast::<Part<Vec<u8>>>().unwrap();
                assert_eq!(part.range(), 10..10 + LEN);

                let (first, second) = (bytes()[..30].to_vec(), bytes()[30..].to_vec());
                let chain = Chain(vec![first, Vec::new(), second]);
                let back = send(&mut queue, stream, chain.clone(), lends);
                assert!(back.copied || *is_own, "the kernel needs contiguous bytes");
                assert!(back.buffer.downcast::<Chain<Vec<u8>>>().unwrap() == chain);
            }
            assert!(queue.is_empty());
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

/// Goal: a full queue hands back buffers with their original type.
fn refused(choice: Choice) {
    let config = Config { registrations: 0, ..super::config(choice) };
    let mut queue = EventQueue::with(&config).unwrap();
    let hosts = hosts();
    let (own, _peer) = connection(&hosts);
    let (kernels, _other) = super::kernel_streams::tcp();
    for stream in [Stream::from(&own), kernels.into()] {
        let chain = Chain(vec![vec![1], vec![2]]);
        let refused = queue.send(stream.clone(), chain.clone(), None, 9).unwrap_err();
        assert_eq!(refused.buffer, chain);
        let text = "towpath".to_owned();
        let refused = queue.send_zerocopy(stream, text.clone(), None, 9).unwrap_err();
        assert_eq!(refused.buffer, text);
    }
}
