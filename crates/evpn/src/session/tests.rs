//! Sessions without a network: two of them talk to each other, or a script does.

use super::*;

const SETTINGS: Settings = Settings {
    as_number: 65001,
    router_id: Ipv4Addr::new(192, 0, 2, 11),
    hold_seconds: 9,
    is_passive: false,
};

fn at(seconds: u64) -> Instant {
    Instant::START + Duration::from_secs(seconds)
}

fn peer() -> Open {
    Open {
        as_number: 65001,
        hold_seconds: 90,
        router_id: Ipv4Addr::new(192, 0, 2, 1),
        speaks_evpn: true,
        has_wide_as: true,
        refreshes: true,
        restart: None,
    }
}

fn bytes(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes);
    bytes
}

/// A session whose connection is open.
fn connected() -> Session {
    let mut session = Session::new(SETTINGS, at(0));
    session.tick(at(0));
    assert_eq!(session.state(), State::Connect);
    session.connected(at(0));
    session
}

/// A session that is established with `open`.
fn established(open: Open) -> Session {
    let mut session = connected();
    session.receive(&bytes(|out| message::open(&open, out)), at(0));
    session.receive(&bytes(message::keepalive), at(0));
    assert_eq!(session.state(), State::Established);
    assert_eq!(session.next_event(), Some(Event::Established));
    let len = session.output().len();
    session.sent(len, at(0));
    session
}

/// The last message of a session's output.
fn last_sent(session: &Session) -> Message {
    let mut rest = session.output();
    let mut last = None;
    while let Some(len) = message::length(rest).unwrap() {
        last = Some(message::parse(&rest[..len], true).unwrap());
        rest = &rest[len..];
    }
    last.unwrap()
}

#[test]
fn two_messages_establish_a_session() {
    let mut session = connected();
    let Message::Open(own) = last_sent(&session) else { panic!("no open") };
    assert_eq!((own.as_number, own.hold_seconds), (65001, 9));
    session.receive(&bytes(|out| message::open(&peer(), out)), at(0));
    assert_eq!(session.state(), State::OpenConfirm);
    assert_eq!(last_sent(&session), Message::Keepalive);
    session.receive(&bytes(message::keepalive), at(0));
    assert_eq!(session.state(), State::Established);
}

/// Goal: messages arrive in any pieces. Method: one byte at a time, and all at once.
#[test]
fn messages_arrive_in_any_pieces() {
    let input = [bytes(|out| message::open(&peer(), out)), bytes(message::keepalive)].concat();
    for size in [1, 7, 19, 4096] {
        let mut session = connected();
        for piece in input.chunks(size) {
            session.receive(piece, at(0));
        }
        assert_eq!(session.state(), State::Established, "pieces of {size}");
        assert_eq!(session.counters().received, 2);
    }
}

#[test]
fn neighbours_that_do_not_fit_are_refused() {
    let cases = [
        (Open { as_number: 65002, ..peer() }, 2),
        (Open { router_id: SETTINGS.router_id, ..peer() }, 3),
        (Open { speaks_evpn: false, ..peer() }, 7),
    ];
    for (open, subcode) in cases {
        let mut session = connected();
        session.receive(&bytes(|out| message::open(&open, out)), at(0));
        assert_eq!(session.state(), State::Idle);
        let Message::Notification(sent) = last_sent(&session) else { panic!("no notification") };
        assert_eq!((sent.code, sent.subcode), (2, subcode));
    }
}

/// RFC 6608: the subcode names the state.
#[test]
fn messages_out_of_turn_end_the_session() {
    let mut session = connected();
    session.receive(&bytes(message::keepalive), at(0));
    assert_eq!(session.reason(), Some(&Reason::Sent(Notification::new(5, 1))));
    let mut session = established(peer());
    session.receive(&bytes(|out| message::open(&peer(), out)), at(0));
    assert_eq!(session.reason(), Some(&Reason::Sent(Notification::new(5, 3))));
    assert_eq!(session.next_event(), Some(Event::Down(None)));
}

#[test]
fn silence_ends_the_session_after_the_hold_time() {
    let mut session = established(peer());
    session.receive(&bytes(message::keepalive), at(5));
    session.tick(at(13));
    assert_eq!(session.state(), State::Established);
    session.tick(at(14));
    assert_eq!(session.reason(), Some(&Reason::Silent));
    let Message::Notification(sent) = last_sent(&session) else { panic!("no notification") };
    assert_eq!((sent.code, sent.subcode), (4, 0));
}

#[test]
fn keepalives_leave_at_a_third_of_the_hold_time() {
    let mut session = established(peer());
    session.tick(at(2));
    assert!(session.output().is_empty());
    session.tick(at(3));
    assert_eq!(last_sent(&session), Message::Keepalive);
    let len = session.output().len();
    // One that was not sent yet is enough.
    session.receive(&bytes(message::keepalive), at(5));
    session.tick(at(6));
    assert_eq!(session.output().len(), len);
}

/// RFC 9687: a neighbour that sends but takes nothing.
#[test]
fn a_neighbour_that_takes_nothing_is_given_up() {
    let mut session = established(peer());
    for second in 1..22 {
        session.receive(&bytes(message::keepalive), at(second));
        session.tick(at(second));
        // The output waits from the first keepalive at 3 seconds, twice the hold time.
        let expected = if second < 21 { State::Established } else { State::Idle };
        assert_eq!(session.state(), expected, "{second}");
    }
}

#[test]
fn attempts_pause() {
    let mut session = Session::new(SETTINGS, at(0));
    session.tick(at(0));
    session.closed(at(0));
    assert_eq!(session.state(), State::Idle);
    let next = session.deadline().unwrap().since(at(0));
    assert!(next <= RETRY && next >= RETRY * 3 / 4, "{next:?}");
    session.tick(at(5));
    assert_eq!(session.state(), State::Connect);
    // One that hangs is given up.
    session.tick(at(15));
    assert_eq!(session.state(), State::Idle);
}

#[test]
fn routes_stay_if_the_neighbour_restarts_gracefully() {
    let keep = Some(Duration::from_secs(120));
    let restart = |covers_notifications| {
        established(Open {
            restart: Some(Restart { seconds: 120, covers_notifications }),
            ..peer()
        })
    };
    let mut session = restart(false);
    session.closed(at(1));
    assert_eq!(session.next_event(), Some(Event::Down(keep)));
    let cease = |subcode| bytes(|out| message::notification(&Notification::new(6, subcode), out));
    for (covers, subcode, expected) in [(false, 2, None), (true, 2, keep), (true, 9, None)] {
        let mut session = restart(covers);
        session.receive(&cease(subcode), at(1));
        assert_eq!(session.next_event(), Some(Event::Down(expected)), "{covers} {subcode}");
    }
    let mut session = established(peer());
    session.closed(at(1));
    assert_eq!(session.next_event(), Some(Event::Down(None)));
}
