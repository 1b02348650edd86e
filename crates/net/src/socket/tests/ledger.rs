//! Copies per byte of each path through the sockets, as the ledger counts them.

use super::bench::*;
use crate::socket::{Borrower, Family, LentCall, ReadMost, SendFlags, SendTo, SocketId};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use towpath_packet::{Loans, Piece, Site};

/// Bytes sent on each path; they fit the initial window.
const BYTES: usize = 10_000;

/// Bytes copied for sends, receives and other reasons, and bytes carried, at both ends together.
fn counted(b: &Bench) -> (u64, u64, u64, u64) {
    let others = [Site::Squeeze, Site::Pack, Site::Recall, Site::IcmpQuote];
    let others = others.iter().map(|&site| b.copied_at(site)).sum();
    (b.copied_at(Site::SocketSend), b.copied_at(Site::SocketReceive), others, b.carried())
}

/// Memory of an application.
fn memory() -> Arc<Vec<u8>> {
    Arc::new(vec![7; BYTES])
}

fn send_stream(b: &mut Bench, id: SocketId, lends: bool) {
    if !lends {
        assert_eq!(b.send(CLIENT, id, &memory()), Ok(BYTES));
        return b.settle();
    }
    let (mut loans, memory, mut at) = (Loans::new(64), memory(), 0);
    let lend = |most: usize, Borrower { lender, token }: Borrower| {
        let len = most.min(BYTES - at);
        let piece: Option<Piece> = loans.lend_shared(&memory, (at, len as u32), lender, token);
        at += len;
        piece
    };
    let sent = b.with(CLIENT, |host, cx| {
        host.send_lent(id, &mut LentCall::default(), BYTES, SendFlags::default(), lend, cx)
    });
    assert_eq!(sent, Ok(BYTES));
    b.settle();
}

fn receive_stream(b: &mut Bench, id: SocketId, lent: bool) {
    let most = ReadMost { bytes: BYTES, pieces: 64, private: true };
    let (mut left, mut held) = (BYTES, Vec::new());
    while left > 0 {
        left -= match lent {
            true => b.with(SERVER, |host, cx| host.receive_lent(id, &most, &mut held, cx)),
            false => b.receive(SERVER, id).map(|bytes| bytes.len()),
        }
        .expect("open socket");
    }
}

/// Goal: one copy at each end that copies, and no other copies, on streams.
#[test]
fn copies_per_byte_of_streams() {
    for (lends, lent) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut b = Bench::new();
        let (server, client) = b.connected();
        send_stream(&mut b, client, lends);
        receive_stream(&mut b, server, lent);
        let all = BYTES as u64;
        let wanted = (all * u64::from(!lends), all * u64::from(!lent), 0, 2 * all);
        assert_eq!(counted(&b), wanted, "lends {lends}, received without a copy {lent}");
    }
}

/// Goal: one copy at each end that copies, and no other copies, on datagrams.
#[test]
fn copies_per_byte_of_datagrams() {
    for (lends, lent) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut b = Bench::new();
        let server = b.hosts[SERVER].datagram(Family::V4).expect("room");
        b.hosts[SERVER].bind(server, at(53)).expect("free");
        let client = b.hosts[CLIENT].datagram(Family::V4).expect("room");
        let to = SendTo { to: Some(at(53)), ..SendTo::default() };
        let sent = b.with(CLIENT, |host, cx| match lends {
            true => {
                let mut piece = Loans::new(1).lend_owned(vec![7; BYTES].into()).ok();
                host.send_lent_datagram(client, BYTES, &to, |_, _| piece.take(), cx)
            }
            false => host.send_datagram(client, &[&memory()], &to, cx),
        });
        assert_eq!(sent, Ok(BYTES));
        b.settle();
        let most = ReadMost { bytes: BYTES, pieces: 64, private: true };
        let received = b.with(SERVER, |host, cx| match lent {
            true => host.receive_datagram_lent(server, &most, &mut Vec::new(), cx),
            false => host.receive_datagram(server, &mut [&mut [0; BYTES]], false, cx.ledger),
        });
        assert_eq!(received.map(|received| received.copied), Ok(BYTES));
        let all = BYTES as u64;
        let wanted = (all * u64::from(!lends), all * u64::from(!lent), 0, 2 * all);
        assert_eq!(counted(&b), wanted, "lends {lends}, received without a copy {lent}");
    }
}
