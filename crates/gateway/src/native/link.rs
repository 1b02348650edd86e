//! Questions of the gateway to the supervisor, and the answers.
//!
//! Both are messages of a few numbers in the machine's byte order. Each question has a number of
//! its own, which its answer repeats, so that a late answer is not taken for that to another
//! question.

use super::table::{Ended, NativeCounters, Table, state_name};
use crate::flows::{FlowKind, FlowPage, FlowQuery, LISTED_MAX, ListedFlow};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use towpath_io::namespace::channel::wait_readable;
use towpath_io::native::diag::Diag;
use towpath_net::time::Instant;

/// How long the gateway waits for an answer. No packet moves meanwhile.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long it waits at the end, when nothing moves any more.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

/// Words of a question: its number, its kind, and a [`FlowQuery`] or the ID of a flow.
const QUESTION_WORDS: usize = 5;
const COUNTERS: u64 = 0;
const FLOWS: u64 = 1;
const END: u64 = 2;
/// Words of a flow in a page.
const FLOW_WORDS: usize = 14;
/// Words of an answer in front of the flows: its number, visited flows, and the next page.
const PAGE_WORDS: usize = 3;
const WORDS_MAX: usize = PAGE_WORDS + LISTED_MAX * FLOW_WORDS;
/// Instead of the next page: there is none.
const NONE: u64 = u64::MAX;

/// The gateway's end.
#[derive(Debug)]
pub struct Link {
    channel: OwnedFd,
    asked: u64,
    last: NativeCounters,
}

impl Link {
    fn new(channel: OwnedFd) -> Self {
        Self { channel, asked: 0, last: NativeCounters::default() }
    }

    /// Takes the channel to a supervisor, and waits until it serves.
    pub(super) fn open(channel: OwnedFd) -> io::Result<Self> {
        match receive_words(channel.as_fd())?.first() {
            Some(0) => Ok(Self::new(channel)),
            Some(errno) => Err(io::Error::from_raw_os_error(*errno as i32)),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Takes what has arrived unasked: a late answer. Call it when the channel is readable; returns
    /// false if the supervisor has gone, and with it the program's way to connect.
    pub fn is_served(&self) -> bool {
        receive_words(self.channel.as_fd()).is_ok()
    }

    /// Returns the counters; those of the last answer if the supervisor is busy.
    pub fn counters(&mut self) -> NativeCounters {
        self.ask_counters(PATIENCE)
    }

    /// Returns the counters after the program has ended.
    pub fn last_counters(&mut self) -> NativeCounters {
        self.ask_counters(LAST_PATIENCE)
    }

    fn ask_counters(&mut self, patience: Duration) -> NativeCounters {
        let numbers = self.ask([COUNTERS, 0, 0, 0], patience);
        let numbers = numbers.and_then(|numbers| numbers.get(1..)?.try_into().ok());
        self.last = numbers.map_or(self.last, NativeCounters::of);
        self.last
    }

    /// Returns a page of the open native flows; `None` if the supervisor is busy.
    pub fn flows(&mut self, query: &FlowQuery) -> Option<FlowPage> {
        let FlowQuery { from, most, moved_min } = *query;
        let numbers = self.ask([FLOWS, from, most as u64, moved_min], PATIENCE)?;
        let [_, visited, next] = *numbers.first_chunk::<PAGE_WORDS>()?;
        let (flows, _) = numbers[PAGE_WORDS..].as_chunks::<FLOW_WORDS>();
        let flows = flows.iter().map(flow).collect();
        Some(FlowPage { flows, visited: visited as usize, next: (next != NONE).then_some(next) })
    }

    /// Ends the flow with this [ID](ListedFlow::id) by a reset, whichever process has its socket;
    /// `None` if the supervisor is busy, which may end it later.
    pub fn end(&mut self, (index, generation): (u32, u32)) -> Option<Ended> {
        let numbers = self.ask([END, index.into(), generation.into(), 0], PATIENCE)?;
        Ended::of(*numbers.get(1)?)
    }

    /// Asks a question and waits for its answer.
    fn ask(&mut self, question: [u64; 4], patience: Duration) -> Option<Vec<u64>> {
        self.asked += 1;
        let [kind, first, second, third] = question;
        let words = [self.asked, kind, first, second, third];
        send(&self.channel, &bytes(&words), SendFlags::DONTWAIT | SendFlags::NOSIGNAL).ok()?;
        loop {
            // The answer to an earlier question may come first. Few of these can be on the way, so
            // the patience begins anew after each.
            wait_readable(&[self.channel.as_fd()], Some(patience)).ok()??;
            let numbers = receive_words(self.channel.as_fd()).ok()?;
            if numbers.first() == Some(&self.asked) {
                return Some(numbers);
            }
        }
    }
}

impl AsFd for Link {
    /// Readable when something has arrived unasked, or the supervisor has gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// A question.
#[derive(Debug)]
pub(super) struct Question {
    number: u64,
    asked: Asked,
}

/// What it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Counters,
    Flows(FlowQuery),
    /// The end of the flow with this ID.
    End((u32, u32)),
}

/// Receives a question; `None` if the gateway has gone.
pub(super) fn receive(link: BorrowedFd<'_>) -> Option<Question> {
    let words = receive_words(link).ok()?;
    let [number, kind, first, second, third] = *words.first_chunk::<QUESTION_WORDS>()?;
    let asked = match kind {
        FLOWS => Asked::Flows(FlowQuery { from: first, most: second as usize, moved_min: third }),
        END => Asked::End((first as u32, second as u32)),
        _ => Asked::Counters,
    };
    Some(Question { number, asked })
}

/// Answers a question; returns false if the gateway has gone.
pub(super) fn answer(
    link: BorrowedFd<'_>,
    question: &Question,
    table: &mut Table,
    diag: &mut Diag,
    now: Instant,
) -> bool {
    let mut words = vec![question.number];
    match question.asked {
        Asked::Counters => words.extend(table.counters(diag).numbers()),
        Asked::Flows(query) => {
            let page = table.page(&query, diag, now);
            words.extend([page.visited as u64, page.next.unwrap_or(NONE)]);
            words.extend(page.flows.iter().flat_map(words_of));
        }
        Asked::End(id) => words.push(table.reset(id, diag).number()),
    }
    match send(link, &bytes(&words), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        // A gateway that does not read gets no more answers.
        Ok(_) | Err(Errno::AGAIN) => true,
        Err(_) => false,
    }
}

/// Tells the gateway that the supervisor serves, or why it cannot.
pub(super) fn report(link: BorrowedFd<'_>, error: Option<Errno>) -> Result<(), Errno> {
    let errno = error.map_or(0, |errno| errno.raw_os_error().unsigned_abs());
    send(link, &bytes(&[errno.into()]), SendFlags::NOSIGNAL).map(drop)
}

/// Waits for a message, if there is none, and receives it; an empty one is the end.
fn receive_words(channel: BorrowedFd<'_>) -> Result<Vec<u64>, Errno> {
    let mut buffer = vec![0; WORDS_MAX * size_of::<u64>()];
    let (length, _) =
        rustix::io::retry_on_intr(|| recv(channel, &mut buffer[..], RecvFlags::empty()))?;
    if length == 0 {
        return Err(Errno::PIPE);
    }
    let (words, _) = buffer[..length].as_chunks();
    Ok(words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn words_of(flow: &ListedFlow) -> [u64; FLOW_WORDS] {
    let [a, b, c] = address_words(flow.program);
    let [d, e, f] = address_words(flow.peer.unwrap_or(flow.program));
    let state = match flow.state {
        "open" => 1,
        "connecting" => 2,
        _ => 4,
    };
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let id = u64::from(flow.id.1) << 32 | u64::from(flow.id.0);
    let [age, since] = [micros(flow.age), micros(flow.moved_in_time)];
    let ListedFlow { bytes_out, bytes_in, moved_out, moved_in, .. } = *flow;
    [id, a, b, c, d, e, f, state, age, bytes_out, bytes_in, moved_out, moved_in, since]
}

fn flow(words: &[u64; FLOW_WORDS]) -> ListedFlow {
    let [id, a, b, c, d, e, f, state, age, bytes_out, bytes_in, moved_out, moved_in, since] =
        *words;
    ListedFlow {
        kind: FlowKind::Native,
        id: (id as u32, (id >> 32) as u32),
        program: address([a, b, c]),
        peer: Some(address([d, e, f])),
        is_inbound: false,
        state: state_name(state as u8),
        age: Duration::from_micros(age),
        bytes_out,
        bytes_in,
        moved_out,
        moved_in,
        moved_in_time: Duration::from_micros(since),
        tcp: None,
    }
}

/// An address as IPv6, and its port. Flows have canonical addresses.
fn address_words(address: SocketAddr) -> [u64; 3] {
    let bits = match address.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64, address.port().into()]
}

fn address([high, low, port]: [u64; 3]) -> SocketAddr {
    let v6 = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
    SocketAddr::new(IpAddr::from(v6).to_canonical(), port as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: flows arrive as they were sent.
    #[test]
    fn flows_are_words() {
        for (program, peer) in
            [("10.0.2.15:4000", "192.0.2.1:80"), ("[fd00::1]:4000", "[2001:db8::1]:443")]
        {
            let sent = ListedFlow {
                kind: FlowKind::Native,
                id: (7, u32::MAX),
                program: program.parse().unwrap(),
                peer: Some(peer.parse().unwrap()),
                is_inbound: false,
                state: "closing",
                age: Duration::from_micros(1),
                bytes_out: 2,
                bytes_in: u64::MAX,
                moved_out: 3,
                moved_in: 4,
                moved_in_time: Duration::from_micros(5),
                tcp: None,
            };
            let received = flow(&words_of(&sent));
            assert_eq!(format!("{received:?}"), format!("{sent:?}"));
        }
    }

    /// Goal: a late answer is skipped, and a supervisor that has gone is noticed.
    #[test]
    fn answers_belong_to_questions() {
        let (ours, theirs) = towpath_io::namespace::channel::Channel::pair().unwrap();
        let theirs = OwnedFd::from(theirs);
        let mut link = Link::new(ours.into());
        let expected = NativeCounters::of([3; NativeCounters::LEN]);
        let mut late = vec![7];
        late.extend(NativeCounters::default().numbers());
        send(&theirs, &bytes(&late), SendFlags::empty()).unwrap();
        let mut right = vec![1];
        right.extend(expected.numbers());
        send(&theirs, &bytes(&right), SendFlags::empty()).unwrap();
        assert_eq!(link.counters(), expected);
        let question = receive(theirs.as_fd()).unwrap();
        assert_eq!((question.number, question.asked), (1, Asked::Counters));
        drop(theirs);
        assert_eq!(link.counters(), expected, "the last known ones");
        assert!(link.flows(&FlowQuery { from: 0, most: 1, moved_min: 0 }).is_none());
    }
}
