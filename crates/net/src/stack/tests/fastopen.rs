//! Fast Open data that a stack caches about peers (RFC 7413 §4.1.3), as in Linux.

use super::bench::*;
use crate::stack::{Connect, TcpHandle};
use crate::tcp::fastopen::{CLIENT, CLIENT_NO_COOKIE};
use crate::tcp::{Settings, State};
use crate::time::Duration;
use crate::wire::tcp::{FastOpenCookie, Flags, Options};
use core::net::SocketAddr;
use towpath_packet::Caps;

struct Client {
    b: Bench,
    settings: Settings,
    port: u16,
    /// Last opened connection: handle, endpoints, and the number after its SYN.
    last: Option<(TcpHandle, SocketAddr, SocketAddr, u32)>,
}

impl Client {
    fn new(settings: Settings) -> Self {
        Self { b: Bench::host(Caps::plain(1500)), settings, port: 1000, last: None }
    }

    /// Configuration of the next connection.
    fn connect(&mut self) -> Connect {
        self.port += 1;
        let ends = (SocketAddr::new(OURS4, self.port), SocketAddr::new(PEER4, 80));
        Connect { fast_open: true, ..Connect::new(ends.0, ends.1, &self.settings) }
    }

    /// Opens a connection: returns the option of its SYN and the room for data. The peer answers
    /// with these options.
    fn open(&mut self, answer: &Options) -> (Option<FastOpenCookie>, usize) {
        let connect = self.connect();
        let now = self.b.now;
        let handle = self.b.stack.tcp_connect_with(&connect, now).expect("free");
        let room = self.b.stack.tcp(handle).expect("begun").syn_room();
        let syn = self.b.one();
        let (header, options) = syn.tcp();
        let ack = header.sequence.wrapping_add(1);
        let flags = Flags::SYN | Flags::ACK;
        let bytes = segment(connect.remote, connect.local, flags, (7, ack), answer, b"");
        self.b.input(&bytes).output();
        let state = self.b.stack.tcp(handle).map(|connection| connection.state());
        assert_eq!(state, Some(State::Established));
        self.last = Some((handle, connect.local, connect.remote, ack));
        (options.fast_open, room)
    }

    /// The peer sends data on the last connection, which is then closed.
    fn use_and_end(&mut self) {
        let (handle, local, remote, ack) = self.last.take().expect("there was one");
        let (flags, none) = (Flags::ACK | Flags::PSH, Options::default());
        let bytes = segment(remote, local, flags, (8, ack), &none, b"data");
        self.b.input(&bytes).output();
        let now = self.b.now;
        self.b.stack.with_tcp(handle, now, |connection| connection.abort());
        self.b.stack.tcp_release(handle, now);
        self.b.output();
    }

    /// An unanswered SYN is sent three times.
    fn swallow(&mut self) {
        let connect = self.connect();
        let now = self.b.now;
        let handle = self.b.stack.tcp_connect_with(&connect, now).expect("free");
        let mut sent = self.b.output().len();
        for _ in 0..3 {
            sent += self.b.wait(Duration::from_secs(1)).len();
        }
        assert!(sent >= 3, "retransmitted");
        let now = self.b.now;
        self.b.stack.with_tcp(handle, now, |connection| connection.abort());
        self.b.output();
    }
}

fn answer(cookie: Option<FastOpenCookie>) -> Options {
    Options { mss: Some(1000), fast_open: cookie, ..Options::default() }
}

fn cookie(byte: u8) -> FastOpenCookie {
    FastOpenCookie::new(&[byte; 8]).expect("a valid cookie length")
}

/// RFC 7413 §4.1.3: cookie and segment size are cached, and new values replace old ones. As in
/// Linux, room is left for all options.
#[test]
fn cookie_and_segment_size_are_kept() {
    let mut c = Client::new(Settings::default());
    assert_eq!(c.open(&answer(Some(cookie(1)))), (Some(FastOpenCookie::REQUEST), 0));
    assert_eq!(c.open(&answer(Some(cookie(2)))), (Some(cookie(1)), 960));
    assert_eq!(c.open(&answer(None)), (Some(cookie(2)), 960));
    assert_eq!(c.open(&answer(None)), (Some(cookie(2)), 960), "nothing new: unchanged");
    c.b.stack.forget_peers();
    assert_eq!(c.open(&answer(None)), (Some(FastOpenCookie::REQUEST), 0));
}

/// As in Linux, the experimental option is tried once when a peer sends no cookie, then the
/// standard one again; a cookie is returned in the option in which it came.
#[test]
fn the_experimental_option_is_tried_once() {
    let old = FastOpenCookie::REQUEST.in_option(true);
    let mut c = Client::new(Settings::default());
    assert_eq!(c.open(&answer(None)).0, Some(FastOpenCookie::REQUEST));
    assert_eq!(c.open(&answer(None)).0, Some(old));
    assert_eq!(c.open(&answer(None)).0, Some(FastOpenCookie::REQUEST));
    assert_eq!(c.open(&answer(None)).0, Some(FastOpenCookie::REQUEST));
    let mut c = Client::new(Settings::default());
    c.open(&answer(None));
    assert_eq!(c.open(&answer(Some(cookie(1).in_option(true)))).0, Some(old));
    assert_eq!(c.open(&answer(None)), (Some(cookie(1).in_option(true)), 960));
}

/// A cookie that was not requested is not cached.
#[test]
fn without_cookies_none_is_kept() {
    let settings = Settings { fastopen: CLIENT | CLIENT_NO_COOKIE, ..Settings::default() };
    let mut c = Client::new(settings);
    assert_eq!(c.open(&answer(Some(cookie(1)))), (None, 1420));
    c.settings.fastopen = CLIENT;
    assert_eq!(c.open(&answer(None)), (Some(FastOpenCookie::REQUEST), 0));
}

/// RFC 7413 §7.3.1: Fast Open is not tried on a blackholed path for a while, then for longer.
#[test]
fn a_path_that_swallows_is_left_alone() {
    let settings = Settings { fastopen_blackhole_timeout_sec: 60, ..Settings::default() };
    let mut c = Client::new(settings);
    c.open(&answer(Some(cookie(1))));
    c.swallow();
    assert_eq!(c.open(&answer(None)), (None, 0));
    c.b.wait(Duration::from_secs(60));
    assert_eq!(c.open(&answer(None)).0, Some(cookie(1)), "retried");
    c.swallow();
    c.b.wait(Duration::from_secs(100));
    assert_eq!(c.open(&answer(None)).0, None, "the second pause is twice as long");
    c.b.wait(Duration::from_secs(20));
    assert_eq!(c.open(&answer(None)).0, Some(cookie(1)));
}

/// As in Linux, data on a connection opened after the pause resets the doubling, data on an earlier
/// connection does not.
#[test]
fn a_path_that_works_again_is_trusted() {
    let settings = Settings { fastopen_blackhole_timeout_sec: 60, ..Settings::default() };
    let mut c = Client::new(settings);
    c.open(&answer(Some(cookie(1))));
    c.swallow();
    c.use_and_end();
    c.b.wait(Duration::from_secs(60));
    c.swallow();
    c.b.wait(Duration::from_secs(100));
    assert_eq!(c.open(&answer(None)).0, None, "the second pause is twice as long");
    c.b.wait(Duration::from_secs(20));
    assert_eq!(c.open(&answer(None)).0, Some(cookie(1)));
    c.use_and_end();
    c.swallow();
    c.b.wait(Duration::from_secs(60));
    assert_eq!(c.open(&answer(None)).0, Some(cookie(1)), "the first pause length again");
}

/// The longest pause is 64 times the shortest. Zero disables pauses, regardless of earlier
/// failures.
#[test]
fn pauses_have_a_bound() {
    let settings = Settings { fastopen_blackhole_timeout_sec: 10, ..Settings::default() };
    let mut c = Client::new(settings);
    c.open(&answer(Some(cookie(1))));
    for times in 0..9 {
        c.swallow();
        let pause = 10 << times.min(6);
        c.b.wait(Duration::from_secs(pause - 4));
        assert_eq!(c.open(&answer(None)).0, None, "pause {times}");
        c.b.wait(Duration::from_secs(4));
    }
    c.swallow();
    c.settings.fastopen_blackhole_timeout_sec = 0;
    assert_eq!(c.open(&answer(None)).0, Some(cookie(1)));
}
