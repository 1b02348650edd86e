//! What flows may lend: by numbers alone.

use super::*;
use towpath_packet::{Loans, MemoryConfig};

const MEMORY: usize = 256 << 20;

/// Pieces of frames, of these sizes; `true` is a large one.
fn pieces(memory: &mut Memory, frames: &[(bool, usize)]) -> Vec<Piece> {
    let mut piece = |&(is_large, len): &(bool, usize)| {
        let pool = if is_large { &mut memory.large } else { &mut memory.small };
        pool.take().expect("free").freeze(len)
    };
    frames.iter().map(&mut piece).collect()
}

/// Goal: super-packets are worth lending; small packets, many small frames, and memory that is no
/// frame are not.
#[test]
fn only_full_frames_are_lent() {
    let mut memory = Memory::new(MemoryConfig::within(16 << 20));
    let full = LARGE_FRAME_BYTES;
    let super_packet = [(false, 1982), (true, full), (true, full), (true, full), (true, 14_000)];
    let lent = pieces(&mut memory, &super_packet);
    let held = SMALL_FRAME_BYTES + 4 * LARGE_FRAME_BYTES;
    let call = Call { bytes: 1982 + 3 * full + 14_000, held };
    assert_eq!(Call::of(lent.iter()), Some(call));
    for copied in [
        &[(false, 1448); 64][..],
        &[(true, 9000), (true, 9000), (true, 9000)],
        &[(false, 1448), (true, full), (false, 1448), (true, full), (true, full)],
        &[],
    ] {
        let copied = pieces(&mut memory, copied);
        assert_eq!(Call::of(copied.iter()), None);
    }
    let foreign = Loans::new(1).lend_owned(vec![0; 64 << 10].into()).expect("a descriptor");
    assert_eq!(Call::of(lent.iter().chain([&foreign])), None);
    // What does not go into the call does not count.
    let many = pieces(&mut memory, &[(true, full); SEND_PIECES_MAX]);
    assert!(Call::of(many.iter().chain([&foreign])).is_some());
}

/// Goal: flows together lend no more than their share of the memory, each leaves as much as it
/// has, and nothing is lent when memory is short.
#[test]
fn lending_leaves_memory() {
    let mut memory = Memory::new(MemoryConfig::within(MEMORY));
    let mut lending = Lending::new(Mode::Always);
    let call = Call { bytes: 64 << 10, held: 66 << 10 };
    let most = MEMORY / 256 * LENT_SHARE;
    let mut shares = Vec::new();
    for _ in 0..8 {
        let mut own = 0;
        while lending.has_room(call, own, &mut memory) {
            own += call.held;
            lending.held += call.held;
        }
        shares.push(own);
        assert!(lending.held <= most);
    }
    assert!(shares[0] > most / 2 - 2 * call.held && shares[0] <= most / 2, "{shares:?}");
    assert!(shares.is_sorted_by(|first, next| first > next), "{shares:?}");
    assert!(shares[3] >= call.held, "{shares:?}");

    let mut lending = Lending::new(Mode::Always);
    assert!(lending.has_room(call, 0, &mut memory));
    let half = memory.small.capacity() / 2 + 1;
    let frames: Vec<_> = (0..half).map_while(|_| memory.small.take()).collect();
    assert!(!lending.has_room(call, 0, &mut memory));
    drop(frames);
    assert!(lending.has_room(call, 0, &mut memory));
    lending.held = most;
    assert!(!lending.has_room(call, 0, &mut memory));
}

/// Goal: with `auto`, a flow lends once and goes on if the kernel did not copy that; after a copy
/// neither it nor later flows to the address lend, for a while. With `always` nothing stops them
/// but the loopback.
#[test]
fn a_flow_lends_where_the_kernel_does() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let (socket, _) = TcpSocket::connect(listener.local_addr().expect("bound")).expect("begun");
    let now = Instant::START;
    let lent = |copied| Returns { calls: 1, copied };
    for (mode, copied, before, after) in [
        (Mode::Auto, 0, Terms::Later, Terms::Always),
        (Mode::Auto, 0, Terms::Always, Terms::Always),
        (Mode::Auto, 0, Terms::Never, Terms::Never),
        (Mode::Auto, 1, Terms::Later, Terms::Never),
        (Mode::Auto, 1, Terms::Always, Terms::Never),
        (Mode::Always, 1, Terms::Later, Terms::Always),
        (Mode::Always, 1, Terms::Always, Terms::Always),
    ] {
        let mut lending = Lending::new(mode);
        assert_eq!(lending.terms(&socket, now), Terms::Never, "it is the loopback");
        assert_eq!(lending.terms_after(lent(copied), before, &socket, now), after);
        let remembers = mode == Mode::Auto && copied > 0;
        assert_eq!(lending.copied.len(), usize::from(remembers));
    }
    let mut lending = Lending::new(Mode::Auto);
    for last in 0..2 * COPIED_MAX as u8 {
        lending.copied.truncate(COPIED_MAX - 1);
        lending.copied.push_front(([192, 0, 2, last].into(), now + COPIED_FOR));
    }
    lending.terms_after(lent(1), Terms::Later, &socket, now);
    assert_eq!(lending.copied.len(), COPIED_MAX);
    assert_eq!(
        (lending.terms_of_near(), Lending::new(Mode::Always).terms_of_near()),
        (Terms::Never, Terms::Unknown)
    );
}
