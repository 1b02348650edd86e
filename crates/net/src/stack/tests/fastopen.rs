//! What a stack remembers of peers for Fast Open (RFC 7413 §4.1.3), as Linux's tcp_metrics.

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
    /// The connection opened last, its ends and the number after our SYN.
    last: Option<(TcpHandle, SocketAddr, SocketAddr, u32)>,
}

impl Client {
    fn new(settings: Settings) -> Self {
        Self { b: Bench::host(Caps::plain(1500)), settings, port: 1000, last: None }
    }

    /// How the next connection begins.
    fn connect(&mut self) -> Connect {
        self.port += 1;
        let ends = (SocketAddr::new(OURS4, self.port), SocketAddr::new(PEER4, 80));
        Connect { fast_open: true, ..Connect::new(ends.0, ends.1, &self.settings) }
    }

    /// A connection's SYN: its option, and how much data may go with it. The peer answers with
    /// these options.
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

    /// The peer sends data on the last connection, which then ends.
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

    /// A SYN that nobody answers is sent three times.
    fn swallow(&mut self) {
        let connect = self.connect();
        let now = self.b.now;
        let handle = self.b.stack.tcp_connect_with(&connect, now).expect("free");
        let mut sent = self.b.output().len();
        for _ in 0..3 {
            sent += self.b.wait(Duration::from_secs(1)).len();
        }
        assert!(sent >= 3, "sent again");
        let now = self.b.now;
        self.b.stack.with_tcp(handle, now, |connection| connection.abort());
        self.b.output();
    }
}

fn answer(cookie: Option<FastOpenCookie>) -> Options {
    Options { mss: Some(1000), fast_open: cookie, ..Options::default() }
}

fn cookie(byte: u8) -> FastOpenCookie {
    FastOpenCookie::new(&[byte; 8]).expect("a length of cookies")
}

/// RFC 7413 §4.1.3: cookie and segment size are kept, new ones instead of old ones. Linux leaves
/// room for all options.
#[test]
fn cookie_and_segment_size_are_kept() {
    let mut c = Client::new(Settings::default());
    assert_eq!(c.open(&answer(Some(cookie(1)))), (Some(FastOpenCookie::REQUEST), 0));
    assert_eq!(c.open(&answer(Some(cookie(2)))), (Some(cookie(1)), 960));
    assert_eq!(c.open(&answer(None)), (Some(cookie(2)), 960));
    assert_eq!(c.open(&answer(None)), (Some(cookie(2)), 960), "no news change nothing");
    c.b.stack.forget_peers();
    assert_eq!(c.open(&answer(None)), (Some(FastOpenCookie::REQUEST), 0));
}

/// Linux asks once with the experimental option when a peer gives no cookie, then with today's
/// again; a cookie comes back in the option in which it came.
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

/// A cookie that nobody asked for is not kept.
#[test]
fn without_cookies_none_is_kept() {
    let settings = Settings { fastopen: CLIENT | CLIENT_NO_COOKIE, ..Settings::default() };
    let mut c = Client::new(settings);
    assert_eq!(c.open(&answer(Some(cookie(1)))), (None, 1420));
    c.settings.fastopen = CLIENT;
    assert_eq!(c.open(&answer(None)), (Some(FastOpenCookie::REQUEST), 0));
}

/// RFC 7413 §7.3.1: a path that swallows Fast Open is left alone for a while, then longer.
#[test]
fn a_path_that_swallows_is_left_alone() {
    let settings = Settings { fastopen_blackhole_timeout_sec: 60, ..Settings::default() };
    let mut c = Client::new(settings);
    c.open(&answer(Some(cookie(1))));
    c.swallow();
    assert_eq!(c.open(&answer(None)), (None, 0));
    c.b.wait(Duration::from_secs(60));
    assert_eq!(c.open(&answer(None)).0, Some(cookie(1)), "tried again");
    c.swallow();
    c.b.wait(Duration::from_secs(100));
    assert_eq!(c.open(&answer(None)).0, None, "the second pause is twice as long");
    c.b.wait(Duration::from_secs(20));
    assert_eq!(c.open(&answer(None)).0, Some(cookie(1)));
}

/// Linux's tcp_fastopen_active_disable_ofo_check: data on a connection after the pause ends the
/// doubling, one on a connection from before it does not.
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
    assert_eq!(c.open(&answer(None)).0, Some(cookie(1)), "a first pause again");
}

/// The longest pause is 64 times the shortest; zero means no pause, and what was counted before
/// does not matter then.
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
