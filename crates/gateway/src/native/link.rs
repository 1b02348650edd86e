//! Messages between the gateway and the supervisor.
//!
//! They are a few numbers in the machine's byte order. Each question of the gateway has a number of
//! its own, which its answer repeats, so that a late answer is not taken for that to another
//! question. The supervisor does not wait for the gateway: what it asks for, a [`Request`], begins
//! with the number 0, and so does what the gateway says about that.
//!
//! With a policy the supervisor asks for a verdict about each connection. It reports the ends of
//! those that were admitted, many in one message, and sends the next such message when the gateway
//! has taken the last one. The gateway names the connections that a new policy withdraws, each
//! once. So all messages on the way to the gateway fit its buffer, and the supervisor never waits.
//! The gateway may wait until the supervisor reads.

use super::judge::{FlowEnd, Judge, NativeVerdict};
use super::table::{Ended, NativeCounters, Table, state_name};
use crate::egress::enforcer::Enforcer;
use crate::flows::{FlowKind, FlowPage, FlowQuery, LISTED_MAX, ListedFlow, NativeListen};
use crate::publish::PublishId;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, send, sendmsg,
};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
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
const LISTENING: u64 = 3;
const STOP: u64 = 4;
const VERDICT: u64 = 5;
const TAKEN: u64 = 6;
const WITHDRAW: u64 = 7;
/// The number of messages that are neither a question nor the answer to one.
const UNASKED: u64 = 0;
/// Kinds of requests.
const LISTEN: u64 = 0;
const ENDED: u64 = 1;
const JUDGE: u64 = 2;
const FLOWS_ENDED: u64 = 3;
/// Words of the end of a flow: its number, whether its bytes are known, and those.
const END_WORDS: usize = 4;
/// Most ends in a message.
pub(super) const ENDS_PER_MESSAGE: usize = 256;
/// Most withdrawn flows in a message.
const WITHDRAWN_PER_MESSAGE: usize = 1024;
/// Most messages that the gateway takes in a turn, so that packets do not wait.
const MESSAGES_PER_TURN: usize = 64;
/// Words of a flow in a page.
const FLOW_WORDS: usize = 14;
/// Words of an answer in front of the flows: its number, visited flows, and the next page.
const PAGE_WORDS: usize = 3;
const WORDS_MAX: usize = PAGE_WORDS + LISTED_MAX * FLOW_WORDS;
const _: () = assert!(2 + ENDS_PER_MESSAGE * END_WORDS <= WORDS_MAX);
const _: () = assert!(2 + WITHDRAWN_PER_MESSAGE <= WORDS_MAX);
/// Bit of the state of a flow that the host began.
const INBOUND_BIT: u32 = 8;
/// Instead of the next page, or of a published port: there is none.
const NONE: u64 = u64::MAX;

/// What the supervisor asks the gateway for.
#[derive(Debug)]
pub enum Request {
    /// [`listen_natively`](crate::worker::Worker::listen_natively).
    Listen(WantedListener),
    /// [`native_ended`](crate::worker::Worker::native_ended).
    Ended(PublishId),
}

/// A socket of the host that is to listen for the program.
#[derive(Debug)]
pub struct WantedListener {
    number: u64,
    /// The socket, which has no address yet.
    pub socket: OwnedFd,
    /// The program's port.
    pub port: u16,
    /// Connections that may wait, as the program says.
    pub backlog: i32,
}

/// The gateway's end.
#[derive(Debug)]
pub struct Link {
    channel: OwnedFd,
    asked: u64,
    last: NativeCounters,
    requests: VecDeque<Request>,
    /// Asks the policy, if there is one.
    judge: Option<Judge>,
    /// What the supervisor has said about connections that are judged.
    said: VecDeque<Said>,
}

/// What the supervisor says about connections that are judged.
#[derive(Debug)]
enum Said {
    /// The one with this number leads there.
    Begins(u64, SocketAddr),
    Ended(Vec<FlowEnd>),
}

impl Link {
    fn new(channel: OwnedFd) -> Self {
        Self {
            channel,
            asked: 0,
            last: NativeCounters::default(),
            requests: VecDeque::new(),
            judge: None,
            said: VecDeque::new(),
        }
    }

    /// Takes the channel to a supervisor, and waits until it serves. `enforcer` judges the
    /// connections.
    pub(super) fn open(channel: OwnedFd, enforcer: Option<Arc<Enforcer>>) -> io::Result<Self> {
        match receive_words(channel.as_fd(), RecvFlags::empty())?.0.first() {
            Some(0) => Ok(Self { judge: enforcer.map(Judge::new), ..Self::new(channel) }),
            Some(errno) => Err(io::Error::from_raw_os_error(*errno as i32)),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Takes what has arrived unasked: a request, or a late answer. Call it when the channel is
    /// readable; returns false if the supervisor has gone, and with it the program's way to
    /// connect.
    pub fn is_served(&mut self) -> bool {
        let first = self.receive(RecvFlags::empty()).map(drop);
        let more = (1..MESSAGES_PER_TURN).map(|_| self.receive(RecvFlags::DONTWAIT).map(drop));
        let ended = [first].into_iter().chain(more).find_map(Result::err);
        ended.is_none_or(|errno| errno == Errno::AGAIN)
    }

    /// Returns the next request. Some may have arrived with the answer to a question.
    pub fn next_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// Answers [`Request::Listen`].
    pub fn answer_listen(&self, wanted: &WantedListener, listens: NativeListen) {
        let (id, is_in_use) = match listens {
            NativeListen::At(id) => (id.0, false),
            NativeListen::InUse => (NONE, true),
            NativeListen::Inside => (NONE, false),
        };
        self.tell([LISTENING, wanted.number, id, is_in_use.into()]);
    }

    /// Stops the program's listeners at a port that is not published any more, or leads elsewhere.
    pub fn stop(&self, port: PublishId) {
        self.tell([STOP, port.0, 0, 0]);
    }

    fn tell(&self, [kind, first, second, third]: [u64; 4]) {
        tell(self.channel.as_fd(), &[UNASKED, kind, first, second, third]);
    }

    /// Answers the supervisor's questions about connections, and tells it which ones a new policy
    /// denies. Does nothing without a policy.
    pub fn judge(&mut self, now: Instant) {
        let (channel, Some(judge)) = (self.channel.as_fd(), &mut self.judge) else { return };
        for said in self.said.drain(..) {
            match said {
                Said::Begins(number, to) => {
                    let verdict = judge.judge(number, to, now).number();
                    tell(channel, &[UNASKED, VERDICT, number, verdict, 0]);
                }
                Said::Ended(ends) => {
                    ends.into_iter().for_each(|end| judge.end(end, now));
                    tell(channel, &[UNASKED, TAKEN, 0, 0, 0]);
                }
            }
        }
        for withdrawn in judge.review(now).chunks(WITHDRAWN_PER_MESSAGE) {
            tell(channel, &[&[UNASKED, WITHDRAW], withdrawn].concat());
        }
    }

    /// The program has ended: the audit gets the ends of all connections that were admitted.
    pub fn finish(&mut self, now: Instant) {
        if self.judge.is_none() {
            return;
        }
        // A message has some of them, and the next one follows when it has been taken.
        while self.ask([COUNTERS, 0, 0, 0], LAST_PATIENCE).is_some() {
            let is_last = !self.said.iter().any(|said| matches!(said, Said::Ended(_)));
            self.judge(now);
            if is_last {
                break;
            }
        }
        if let Some(judge) = &mut self.judge {
            judge.finish(now);
        }
    }

    /// Receives a message; returns it unless it was a request.
    fn receive(&mut self, flags: RecvFlags) -> Result<Option<Vec<u64>>, Errno> {
        let (words, socket) = receive_words(self.channel.as_fd(), flags)?;
        let request = match *words.as_slice() {
            [UNASKED, LISTEN, number, port, backlog] => socket.map(|socket| {
                let (port, backlog) = (port as u16, backlog as i32);
                Request::Listen(WantedListener { number, socket, port, backlog })
            }),
            [UNASKED, ENDED, port] => Some(Request::Ended(PublishId(port))),
            [UNASKED, JUDGE, number, high, low, port] => {
                self.said.push_back(Said::Begins(number, address([high, low, port])));
                None
            }
            [UNASKED, FLOWS_ENDED, ref ends @ ..] => {
                let (ends, _) = ends.as_chunks();
                self.said.push_back(Said::Ended(ends.iter().map(flow_end).collect()));
                None
            }
            _ => return Ok(Some(words)),
        };
        self.requests.extend(request);
        Ok(None)
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
            // The answer to an earlier question may come first, or requests. Few of these can be on
            // the way, so the patience begins anew after each.
            wait_readable(&[self.channel.as_fd()], Some(patience)).ok()??;
            let numbers = self.receive(RecvFlags::empty()).ok()?;
            if let Some(numbers) = numbers.filter(|all| all.first() == Some(&self.asked)) {
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

/// A question, or what the gateway says about a request.
#[derive(Debug)]
pub(super) struct Question {
    number: u64,
    pub(super) asked: Asked,
}

/// What it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Counters,
    Flows(FlowQuery),
    /// The end of the flow with this ID.
    End((u32, u32)),
    /// None: what became of the socket of this request.
    Listening(u64, NativeListen),
    /// None: listeners at this port have to stop.
    Stop(PublishId),
    /// None: what becomes of the connection with this number.
    Verdict(u64, NativeVerdict),
    /// None: the last ends have been taken.
    Taken,
    /// None: a new policy denies the connections with these numbers.
    Withdraw(Vec<u64>),
}

/// Receives a question; `None` if the gateway has gone.
pub(super) fn receive(link: BorrowedFd<'_>) -> Option<Question> {
    let (words, _) = receive_words(link, RecvFlags::empty()).ok()?;
    if let [UNASKED, WITHDRAW, numbers @ ..] = words.as_slice() {
        return Some(Question { number: UNASKED, asked: Asked::Withdraw(numbers.to_vec()) });
    }
    let [number, kind, first, second, third] = *words.first_chunk::<QUESTION_WORDS>()?;
    let asked = match kind {
        FLOWS => Asked::Flows(FlowQuery { from: first, most: second as usize, moved_min: third }),
        END => Asked::End((first as u32, second as u32)),
        LISTENING => Asked::Listening(first, listens(second, third)),
        STOP => Asked::Stop(PublishId(first)),
        // What is not understood is the narrower way.
        VERDICT => {
            Asked::Verdict(first, NativeVerdict::of(second).unwrap_or(NativeVerdict::Interface))
        }
        TAKEN => Asked::Taken,
        _ => Asked::Counters,
    };
    Some(Question { number, asked })
}

fn listens(id: u64, is_in_use: u64) -> NativeListen {
    match (id, is_in_use) {
        (NONE, 0) => NativeListen::Inside,
        (NONE, _) => NativeListen::InUse,
        _ => NativeListen::At(PublishId(id)),
    }
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
    match &question.asked {
        Asked::Counters => words.extend(table.counters(diag).numbers()),
        Asked::Flows(query) => {
            let page = table.page(query, diag, now);
            words.extend([page.visited as u64, page.next.unwrap_or(NONE)]);
            words.extend(page.flows.iter().flat_map(words_of));
        }
        Asked::End(id) => words.push(table.reset(*id, diag).number()),
        _ => return true,
    }
    match send(link, &bytes(&words), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        // A gateway that does not read gets no more answers.
        Ok(_) | Err(Errno::AGAIN) => true,
        Err(_) => false,
    }
}

/// Asks the gateway to let a socket listen for the program's `port`; its answer repeats `number`.
///
/// # Errors
/// EAGAIN if the gateway does not read; others if it has gone.
pub(super) fn ask_to_listen(
    link: BorrowedFd<'_>,
    number: u64,
    (port, backlog): (u16, i32),
    socket: BorrowedFd<'_>,
) -> Result<(), Errno> {
    // The backlog as the kernel takes it: without a sign.
    let words = bytes(&[UNASKED, LISTEN, number, port.into(), backlog.cast_unsigned().into()]);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let sockets = [socket];
    let fits = control.push(SendAncillaryMessage::ScmRights(&sockets));
    assert!(fits, "there is room for one descriptor");
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(link, &[IoSlice::new(&words)], &mut control, flags).map(drop)
}

/// Tells the gateway that a socket that listened at a published port has ended.
pub(super) fn listener_ended(link: BorrowedFd<'_>, port: PublishId) {
    // If the gateway has gone, the link tells.
    let _ = send(link, &bytes(&[UNASKED, ENDED, port.0]), SendFlags::NOSIGNAL);
}

/// Asks the gateway for the verdict about a connection that leads `to` the host; its answer repeats
/// `number`.
///
/// # Errors
/// EAGAIN if the gateway does not read; others if it has gone.
pub(super) fn ask_verdict(link: BorrowedFd<'_>, number: u64, to: SocketAddr) -> Result<(), Errno> {
    let [high, low, port] = address_words(to);
    let words = [UNASKED, JUDGE, number, high, low, port];
    send(link, &bytes(&words), SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop)
}

/// Reports ends of connections that were admitted, at most [`ENDS_PER_MESSAGE`].
///
/// # Errors
/// EAGAIN if the gateway does not read; others if it has gone.
pub(super) fn report_ends(link: BorrowedFd<'_>, ends: &[FlowEnd]) -> Result<(), Errno> {
    let mut words = vec![UNASKED, FLOWS_ENDED];
    words.extend(ends.iter().flat_map(|end| {
        let [out, into] = end.bytes.unwrap_or_default();
        [end.number, end.bytes.is_some().into(), out, into]
    }));
    send(link, &bytes(&words), SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop)
}

fn flow_end(&[number, is_known, out, into]: &[u64; END_WORDS]) -> FlowEnd {
    FlowEnd { number, bytes: (is_known != 0).then_some([out, into]) }
}

/// Sends a message of the gateway that is no question.
fn tell(channel: BorrowedFd<'_>, words: &[u64]) {
    // The supervisor reads everything before long. If it has gone, the channel is readable.
    let _ = send(channel, &bytes(words), SendFlags::NOSIGNAL);
}

/// Tells the gateway that the supervisor serves, or why it cannot.
pub(super) fn report(link: BorrowedFd<'_>, error: Option<Errno>) -> Result<(), Errno> {
    let errno = error.map_or(0, |errno| errno.raw_os_error().unsigned_abs());
    send(link, &bytes(&[errno.into()]), SendFlags::NOSIGNAL).map(drop)
}

/// Receives a message, for which it waits unless `flags` say otherwise; an empty one is the end.
fn receive_words(
    channel: BorrowedFd<'_>,
    flags: RecvFlags,
) -> Result<(Vec<u64>, Option<OwnedFd>), Errno> {
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let mut buffer = vec![0; WORDS_MAX * size_of::<u64>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let length = loop {
        let mut parts = [IoSliceMut::new(&mut buffer)];
        match recvmsg(channel, &mut parts, &mut control, flags) {
            Ok(received) => break received.bytes,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    };
    if length == 0 {
        return Err(Errno::PIPE);
    }
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let (words, _) = buffer[..length].as_chunks();
    Ok((words.iter().map(|word| u64::from_ne_bytes(*word)).collect(), file))
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
    } | u64::from(flow.is_inbound) << INBOUND_BIT;
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
        is_inbound: state >> INBOUND_BIT & 1 == 1,
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
    use crate::egress::policy::Policy;
    use crate::egress::rule::Action;

    /// Goal: flows arrive as they were sent.
    #[test]
    fn flows_are_words() {
        for (program, peer, is_inbound) in [
            ("10.0.2.15:4000", "192.0.2.1:80", false),
            ("[fd00::1]:4000", "[2001:db8::1]:443", true),
        ] {
            let sent = ListedFlow {
                kind: FlowKind::Native,
                id: (7, u32::MAX),
                program: program.parse().unwrap(),
                peer: Some(peer.parse().unwrap()),
                is_inbound,
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

    /// Goal: requests that arrive before an answer are kept, with their sockets, and are answered.
    #[test]
    fn requests_are_answered() {
        let (ours, theirs) = towpath_io::namespace::channel::Channel::pair().unwrap();
        let theirs = OwnedFd::from(theirs);
        let mut link = Link::new(ours.into());
        let socket = std::fs::File::open("/dev/null").unwrap();
        ask_to_listen(theirs.as_fd(), 7, (80, -1), socket.as_fd()).unwrap();
        listener_ended(theirs.as_fd(), PublishId(3));
        let answer: Vec<u64> = [1].into_iter().chain([0; NativeCounters::LEN]).collect();
        send(&theirs, &bytes(&answer), SendFlags::empty()).unwrap();
        link.counters();
        assert_eq!(receive(theirs.as_fd()).unwrap().asked, Asked::Counters);
        let Some(Request::Listen(wanted)) = link.next_request() else { panic!("no request") };
        assert_eq!((wanted.port, wanted.backlog), (80, -1));
        assert!(matches!(link.next_request(), Some(Request::Ended(PublishId(3)))));
        assert!(link.next_request().is_none());
        for listens in [NativeListen::At(PublishId(5)), NativeListen::InUse, NativeListen::Inside] {
            link.answer_listen(&wanted, listens);
            let said = receive(theirs.as_fd()).unwrap();
            assert_eq!(said.asked, Asked::Listening(7, listens));
        }
        link.stop(PublishId(9));
        assert_eq!(receive(theirs.as_fd()).unwrap().asked, Asked::Stop(PublishId(9)));
    }

    /// Goal: questions about connections and reports of their ends arrive, and are answered.
    #[test]
    fn connections_are_judged() {
        let (ours, theirs) = towpath_io::namespace::channel::Channel::pair().unwrap();
        let theirs = OwnedFd::from(theirs);
        let policy = |default| Policy::new(Vec::new(), default, true).unwrap();
        let enforcer = Arc::new(Enforcer::new(policy(Action::Allow), None));
        report(theirs.as_fd(), None).unwrap();
        let mut link = Link::open(ours.into(), Some(enforcer.clone())).unwrap();
        let ask = |number, to: &str| ask_verdict(theirs.as_fd(), number, to.parse().unwrap());
        ask(3, "203.0.113.1:80").unwrap();
        ask(4, "[2001:db8::1]:53").unwrap();
        ask(5, "203.0.113.2:80").unwrap();
        assert!(link.is_served());
        link.judge(Instant::START);
        let asked = || receive(theirs.as_fd()).unwrap().asked;
        assert_eq!(asked(), Asked::Verdict(3, NativeVerdict::Native));
        assert_eq!(asked(), Asked::Verdict(4, NativeVerdict::Denied));
        assert_eq!(asked(), Asked::Verdict(5, NativeVerdict::Native));
        let ends = [(5, Some([1, u64::MAX])), (9, None)];
        let ends = ends.map(|(number, bytes)| FlowEnd { number, bytes });
        assert_eq!(
            ends,
            ends.map(|end| {
                flow_end(&[
                    end.number,
                    end.bytes.is_some().into(),
                    end.bytes.map_or(0, |all| all[0]),
                    end.bytes.map_or(0, |all| all[1]),
                ])
            })
        );
        report_ends(theirs.as_fd(), &ends).unwrap();
        enforcer.set_policy(policy(Action::Deny));
        assert!(link.is_served());
        link.judge(Instant::START);
        assert_eq!(asked(), Asked::Taken);
        assert_eq!(asked(), Asked::Withdraw(vec![3]), "the other one is over");
        drop(theirs);
        assert!(!link.is_served());
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
