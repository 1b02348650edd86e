//! Native sockets: decides which connections of the program the kernel carries alone.
//!
//! # Theory of operation
//!
//! The *supervisor* is a process of its own, beside the gateway, which has given up the rights
//! that this needs. It answers the calls that [`towpath_io::native`] reports:
//!
//! - connect(2) on a TCP socket of the program: if [`NativeRoutes`] lead to the host, it connects a
//!   socket of the host and puts it in the place of the program's. In any other case it connects
//!   the program's own socket: the connection takes the interface, where the gateway decides. It
//!   answers as the kernel would: at once for a non-blocking socket, and when the connection is
//!   made or has failed for another. No call waits for another one meanwhile.
//! - connect(2) on a native socket: the result is that of the connection that it has.
//! - listen(2): runs here, on the very socket that was checked, or a socket of the host listens in
//!   its place (`listening`). A socket that has had a peer may not listen.
//! - getsockname(2) and getpeername(2) on a native socket: the addresses that the program would see
//!   with its interface.
//!
//! With a policy, the gateway judges each connection before it is made (`judging`).
//!
//! A table has a record of each open native connection. The gateway asks for counters, for lists,
//! and for the end of a connection by a [`Link`].
//!
//! docs/theory/native.md argues why this is safe. Limits: [`WAITING_MAX`], those of `listening` and
//! `judging`, and flows of the configuration.

mod address;
mod judge;
mod judging;
mod link;
mod listening;
mod table;
mod ticket;

pub use link::{Link, Request, WantedListener};
pub use table::{Ended, NativeCounters};

use crate::config::Config;
use crate::flows::{NativeRoutes, allow_many_files};
use address::Address;
use judging::{Asked as AskedVerdict, Judging};
use link::Question;
use listening::Listening;
use rustix::io::Errno;
use rustix::net::{AddressFamily, sockopt};
use rustix::process::Pid;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;
use table::{Flow, Kept, Table};
use ticket::Ticket;
use towpath_io::namespace::channel::wait_readable;
use towpath_io::native::caller::Caller;
use towpath_io::native::calls::{Asked, Call, Calls};
use towpath_io::native::diag::Diag;
use towpath_io::native::socket::{self, Origin, Sockets, State, Unfit};
use towpath_io::reactor::{Events, Interest, Reactor};
use towpath_net::slab::{Key, Slab};
use towpath_net::time::Instant;

/// Most connections that are being made for calls that wait. A descriptor each; further ones take
/// the interface.
pub const WAITING_MAX: usize = 1024;

/// Files with tokens of their own; the others are waiting connections.
const CALLS: u64 = u64::MAX;
const ENDS: u64 = u64::MAX - 1;
const LINK: u64 = u64::MAX - 2;
/// Ends that one turn takes, so that calls do not wait for a burst of them.
const ENDS_PER_TURN: usize = 64;
/// Ends that are taken before an answer to the gateway: more than the socket holds.
const ENDS_PER_ANSWER: usize = 4096;
/// How long the last ends may take to arrive when the program has gone, and how often to look.
const SETTLE: Duration = Duration::from_millis(20);
const SETTLE_ROUNDS: usize = 5;

/// What follows from a call.
enum Next {
    /// The kernel runs it.
    Allow,
    /// It returns this.
    Answer(Result<(), Errno>),
    /// It has been answered, or its caller is gone, or it waits.
    Nothing,
}

/// A call that waits until its connection is made.
struct Waiting {
    call: Call,
    socket: OwnedFd,
    /// Where the socket goes; `None` if it is there already.
    place: Option<Place>,
    /// When the call returns in any case (`SO_SNDTIMEO`).
    until: Option<Instant>,
}

/// The descriptor that a socket of the host replaces, and the connection that it has.
struct Place {
    number: RawFd,
    closes_on_exec: bool,
    /// The program's calls on it wait.
    waits: bool,
    /// The peer as the program sees it, and as the host has it.
    peers: [SocketAddr; 2],
    /// The policy has admitted the connection.
    ticket: Option<Ticket>,
}

/// Starts the supervisor of a program, from a process that has one thread. `files` are those of
/// [`Message::Native`](towpath_io::namespace::channel::Message::Native); the caller closes them
/// afterwards, so that calls fail, and do not hang, if the supervisor ends.
///
/// # Errors
/// Those of the kernel.
pub fn begin(config: &Config, files: [BorrowedFd<'_>; 3]) -> io::Result<Link> {
    let channel = towpath_io::native::start(files, |files, link| {
        match Supervisor::new(config, files, link) {
            Ok(supervisor) => {
                link::report(link, None)?;
                supervisor.serve(link)
            }
            Err(error) => Ok(link::report(link, Some(socket::errno(&error)))?),
        }
    })?;
    Link::open(channel, config.egress.clone())
}

/// Answers the calls of the program.
struct Supervisor {
    calls: Calls,
    sockets: Sockets,
    routes: NativeRoutes,
    diag: Diag,
    reactor: Reactor,
    waiting: Slab<Option<Waiting>>,
    table: Table,
    /// The link, to ask the gateway for listeners.
    gateway: OwnedFd,
    /// Listeners of published ports may be native ([`Config::join_loopback`]).
    listens: bool,
    listening: Listening,
    /// A policy judges connections.
    judges: bool,
    judging: Judging,
    /// When to look again for listeners that have to stop.
    stops_at: Option<Instant>,
    clock: std::time::Instant,
    /// No process has the filter any more.
    is_over: bool,
}

impl Supervisor {
    /// Copies the listener of the program's filter and the samples of its sockets.
    #[expect(clippy::disallowed_methods, reason = "the supervisor has a clock of its own")]
    fn new(config: &Config, files: [BorrowedFd<'_>; 3], link: BorrowedFd<'_>) -> io::Result<Self> {
        let own = |file: BorrowedFd<'_>| file.try_clone_to_owned();
        let [listener, v4, v6] = [own(files[0])?, own(files[1])?, own(files[2])?];
        let reactor = Reactor::new()?;
        let (calls, mut diag) = (Calls::new(listener), Diag::open()?);
        // Otherwise flows would never end for the policy, and a new policy could not be enforced.
        if config.egress.is_some() && !diag.knows_sockets() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        reactor.add(&calls, CALLS, Interest::READ, false)?;
        reactor.add(&diag, ENDS, Interest::READ, false)?;
        Ok(Self {
            calls,
            sockets: Sockets::new([v4, v6])?,
            routes: NativeRoutes::new(config),
            diag,
            reactor,
            waiting: Slab::default(),
            table: Table::new(config.flows_max),
            gateway: own(link)?,
            listens: config.join_loopback,
            listening: Listening::default(),
            judges: config.egress.is_some(),
            judging: Judging::default(),
            stops_at: None,
            clock: std::time::Instant::now(),
            is_over: false,
        })
    }

    /// Answers calls, and the gateway's questions on `link`, until the gateway closes it.
    fn serve(mut self, link: BorrowedFd<'_>) -> io::Result<()> {
        allow_many_files();
        self.reactor.add(link, LINK, Interest::READ, false)?;
        let mut events = Events::new();
        loop {
            let timers = [self.expire(), self.stop_later(), self.withdraw_later()];
            self.report_ends();
            let timeout = timers.into_iter().flatten().min();
            self.reactor.wait(timeout, &mut events)?;
            for event in events.iter() {
                match event.token {
                    CALLS if event.ready.readable => match self.calls.next() {
                        Ok(Some(call)) => self.on_call(&call),
                        Ok(None) => {}
                        Err(_) => self.end()?,
                    },
                    CALLS => self.end()?,
                    ENDS => self.take_ends(ENDS_PER_TURN),
                    LINK => {
                        if !self.answer_link(link) {
                            return Ok(());
                        }
                    }
                    token => self.on_progress(token),
                }
            }
        }
    }

    /// The program's last process has ended.
    fn end(&mut self) -> io::Result<()> {
        self.is_over = true;
        self.reactor.remove(&self.calls)
    }

    fn now(&self) -> Instant {
        let elapsed = self.clock.elapsed();
        Instant::from_micros(u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX))
    }

    fn on_call(&mut self, call: &Call) {
        self.forget(call.thread);
        self.listening.forget(call);
        self.judging.forget(call);
        let next = match call.asked {
            Asked::Connect { socket, at, len } => self.on_connect(call, socket, at, len),
            Asked::Listen { socket, backlog } => Ok(self.on_listen(call, socket, backlog)),
            Asked::Name { socket, at, len_at, of_peer } => {
                self.on_name(call, socket, [at, len_at], of_peer)
            }
            Asked::Other => Ok(Next::Allow),
        };
        self.conclude(call, next);
    }

    fn conclude(&self, call: &Call, next: Result<Next, Errno>) {
        match next {
            Ok(Next::Allow) => self.calls.allow(call),
            Ok(Next::Answer(result)) => {
                self.calls.answer(call, result);
            }
            Ok(Next::Nothing) => {}
            // What cannot be looked at is left to the kernel, which refuses to connect TCP.
            Err(_) => self.calls.allow(call),
        }
    }

    /// Forgets what a thread waited for: it makes another call.
    fn forget(&mut self, thread: Pid) {
        let is_same = |waiting: &Waiting| waiting.call.thread == thread;
        let found = self.waiting.iter().find_map(|(key, one)| is_same(one).then_some(key));
        if let Some(key) = found {
            self.take_waiting(key);
        }
    }

    /// Removes a connection that is being made, also from the reactor, which would otherwise watch
    /// the program's socket from now on.
    fn take_waiting(&mut self, key: Key) -> Option<Waiting> {
        let waiting = self.waiting.remove(key)?;
        let _ = self.reactor.remove(&waiting.socket);
        Some(waiting)
    }

    fn on_connect(&mut self, call: &Call, number: RawFd, at: u64, len: u32) -> Result<Next, Errno> {
        let caller = match Caller::open(call.thread) {
            Ok(caller) => caller,
            Err(errno) => {
                self.table.keep(Kept::Unseen);
                return Err(errno);
            }
        };
        let file = caller.file(number)?;
        let origin = self.sockets.origin(&file);
        if origin == Origin::Other {
            return Ok(Next::Allow);
        }
        let address = Address::read(&caller, at, len)?;
        if !self.calls.is_waiting(call) {
            return Ok(Next::Nothing);
        }
        let peer = match address {
            Address::Of(peer) => peer,
            Address::Unspecified if origin != Origin::Host => {
                return Ok(Next::Answer(socket::connect(&file, None)));
            }
            Address::Unspecified => return Ok(Next::Answer(Err(Errno::OPNOTSUPP))),
            Address::Invalid(errno) => return Ok(Next::Answer(Err(errno))),
        };
        match origin {
            Origin::Host => self.connect_again(call, file),
            Origin::Inside => match self.open_host(&caller, (number, &file), peer)? {
                Ok((host, place, true)) if self.judges => {
                    self.ask_verdict(AskedVerdict { call: *call, own: file, host, place })
                }
                Ok((host, place, _)) => self.connect_native(call, host, place),
                Err(why) => {
                    self.table.keep(why);
                    self.connect_own(call, file, peer)
                }
            },
            Origin::OtherStream | Origin::Other => self.connect_own(call, file, peer),
        }
    }

    /// Connects the program's own socket.
    fn connect_own(&mut self, call: &Call, file: OwnedFd, to: SocketAddr) -> Result<Next, Errno> {
        let waits = !socket::is_nonblocking(&file)?;
        match socket::connect(&file, Some(to)) {
            Err(Errno::INPROGRESS | Errno::ALREADY) if waits => Ok(self.wait(call, file, None)),
            result => Ok(Next::Answer(result)),
        }
    }

    /// Opens a socket of the host for a connection to where `peer` leads. Returns its place, and
    /// whether that is outside; or why the program's own socket has to connect.
    fn open_host(
        &mut self,
        caller: &Caller,
        (number, file): (RawFd, &OwnedFd),
        peer: SocketAddr,
    ) -> Result<Result<(OwnedFd, Place, bool), Kept>, Errno> {
        let is_scoped = matches!(peer, SocketAddr::V6(v6) if v6.scope_id() != 0);
        let is_same_family = peer.is_ipv4() == (socket::family(file)? == AddressFamily::INET);
        let outside = self.routes.leads_to(peer);
        let to = outside.or_else(|| self.own_listener(peer));
        let to = to.filter(|_| is_same_family && !is_scoped);
        let Some(to) = to else { return Ok(Err(Kept::Destination)) };
        if self.is_full() {
            return Ok(Err(Kept::Full));
        }
        if caller.has_other_ways(number, file)? {
            return Ok(Err(Kept::OtherWays));
        }
        let host = match self.sockets.open_like(file) {
            Ok(host) => host,
            Err(Unfit::Bound) => return Ok(Err(Kept::Bound)),
            Err(Unfit::Option) => return Ok(Err(Kept::Option)),
            Err(Unfit::System(_)) => return Ok(Err(Kept::Full)),
        };
        let waits = !socket::is_nonblocking(file)?;
        let closes_on_exec = caller.closes_on_exec(number)?;
        let peers = [peer, address::like(to, peer)];
        let place = Place { number, closes_on_exec, waits, peers, ticket: None };
        Ok(Ok((host, place, outside.is_some())))
    }

    /// Connects a socket of the host for a place.
    fn connect_native(&mut self, call: &Call, host: OwnedFd, place: Place) -> Result<Next, Errno> {
        let waits = place.waits;
        Ok(match rustix::net::connect(&host, &place.peers[1]) {
            Ok(()) => self.give(call, &host, place, Ok(())),
            Err(Errno::INPROGRESS) if !waits => {
                self.give(call, &host, place, Err(Errno::INPROGRESS))
            }
            // A peer on this machine answers during the call.
            Err(Errno::INPROGRESS) => match socket::state(&host)? {
                State::Connected => self.give(call, &host, place, Ok(())),
                _ => self.wait(call, host, Some(place)),
            },
            Err(errno) => {
                self.table.refused();
                Next::Answer(Err(errno))
            }
        })
    }

    /// Returns true if there is no room for another connection. Connections whose end was not
    /// reported make room.
    fn is_full(&mut self) -> bool {
        if self.waiting.count() >= WAITING_MAX {
            let gone = self.waiting.iter().filter(|(_, one)| !self.calls.is_waiting(&one.call));
            let gone: Vec<Key> = gone.map(|(key, _)| key).collect();
            gone.into_iter().for_each(|key| drop(self.take_waiting(key)));
        }
        let now = self.now();
        self.waiting.count() >= WAITING_MAX || self.table.is_full(&mut self.diag, now)
    }

    /// Gives a connected or connecting socket to the caller, and answers.
    fn give(
        &mut self,
        call: &Call,
        host: &OwnedFd,
        place: Place,
        result: Result<(), Errno>,
    ) -> Next {
        let Place { number, closes_on_exec, waits, peers: [peer, to], ticket } = place;
        let made_ready = || {
            if waits {
                socket::set_blocking(host)?;
            }
            let inode = rustix::fs::fstat(host)?.st_ino as u32;
            Ok((sockopt::socket_cookie(host)?, inode, socket::local(host)?))
        };
        let (cookie, inode, local) = match made_ready() {
            Ok(names) => names,
            Err(errno) => return Next::Answer(Err(errno)),
        };
        if !self.calls.replace(call, number, host.as_fd(), closes_on_exec) {
            // The caller is gone, or its limit of descriptors is below the number by now.
            return Next::Answer(Err(Errno::BADF));
        }
        let (local_plain, peer) = (address::canonical(local), address::canonical(peer));
        let program = match peer.ip().is_loopback() {
            true => local_plain,
            false => self.routes.local_inside(local_plain),
        };
        let seen = [program, peer];
        let flow = Flow::new(cookie, [local, to], seen, self.now());
        self.table.begin(flow.given(inode, ticket));
        // A caller that was interrupted makes its call again, and finds the native socket.
        if self.calls.answer(call, result) && result.is_ok() {
            self.table.collect(cookie);
        }
        Next::Nothing
    }

    /// Answers the call when the connection is made.
    fn wait(&mut self, call: &Call, socket: OwnedFd, place: Option<Place>) -> Next {
        let key = self.waiting.next_key();
        let token = u64::from(key.generation) << 32 | u64::from(key.index);
        if self.waiting.count() >= WAITING_MAX
            || self.reactor.add(&socket, token, Interest::WRITE, false).is_err()
        {
            return Next::Answer(Err(Errno::AGAIN));
        }
        let limit = socket::time_limit(&socket).unwrap_or_default();
        let until = limit.map(|limit| self.now() + limit);
        self.waiting.insert(Waiting { call: *call, socket, place, until });
        Next::Nothing
    }

    /// Answers calls whose time limit has passed; returns when the next one passes.
    fn expire(&mut self) -> Option<Duration> {
        loop {
            let limits = self.waiting.iter().filter_map(|(key, one)| Some((one.until?, key)));
            let (until, key) = limits.min()?;
            let left = until.since(self.now());
            if !left.is_zero() {
                return Some(left);
            }
            let Some(Waiting { call, socket, place, .. }) = self.take_waiting(key) else {
                continue;
            };
            // As the kernel does: the connection goes on.
            let late = Err(Errno::INPROGRESS);
            let next = match place {
                Some(place) => self.give(&call, &socket, place, late),
                None => Next::Answer(late),
            };
            if let Next::Answer(result) = next {
                self.calls.answer(&call, result);
            }
        }
    }

    /// A connection that a call waits for has been made, or has failed.
    fn on_progress(&mut self, token: u64) {
        let key = Key { index: token as u32, generation: (token >> 32) as u32 };
        let Some(waiting) = self.waiting.get(key) else { return };
        let state = socket::state(&waiting.socket);
        if state == Ok(State::Connecting) {
            return;
        }
        let Some(Waiting { call, socket, place, .. }) = self.take_waiting(key) else { return };
        let next = match (state, place) {
            (Ok(State::Connected), Some(place)) => self.give(&call, &socket, place, Ok(())),
            (Ok(State::Connected), None) => {
                let cookie = sockopt::socket_cookie(&socket).unwrap_or_default();
                self.table.collect(cookie);
                Next::Answer(Ok(()))
            }
            (_, place) => {
                let error = socket::take_error(&socket);
                if place.is_some() {
                    self.table.refused();
                } else if self.sockets.origin(&socket) != Origin::Host {
                    // As the kernel does for a call that waits, so that the program can try anew.
                    let _ = socket::connect(&socket, None);
                }
                Next::Answer(Err(error))
            }
        };
        if let Next::Answer(result) = next {
            self.calls.answer(&call, result);
        }
    }

    /// connect(2) on a native socket: its connection is made already, or is being made. There is
    /// never another one.
    fn connect_again(&mut self, call: &Call, file: OwnedFd) -> Result<Next, Errno> {
        let result = match socket::state(&file)? {
            State::Connected if self.table.collect(sockopt::socket_cookie(&file)?) => Ok(()),
            State::Connected => Err(Errno::ISCONN),
            State::Connecting if socket::is_nonblocking(&file)? => Err(Errno::ALREADY),
            State::Connecting => return Ok(self.wait(call, file, None)),
            State::Closed => Err(socket::take_error(&file)),
        };
        Ok(Next::Answer(result))
    }

    /// getsockname(2) and getpeername(2).
    fn on_name(
        &mut self,
        call: &Call,
        number: RawFd,
        [at, len_at]: [u64; 2],
        of_peer: bool,
    ) -> Result<Next, Errno> {
        let caller = Caller::open(call.thread)?;
        let file = caller.file(number)?;
        if self.sockets.origin(&file) != Origin::Host {
            return Ok(Next::Allow);
        }
        let actual = if of_peer { socket::peer(&file) } else { socket::local(&file) };
        let actual = match actual {
            Ok(actual) => actual,
            Err(errno) => return Ok(Next::Answer(Err(errno))),
        };
        let cookie = sockopt::socket_cookie(&file)?;
        let inside = match (self.table.names(cookie), self.listening.bound(cookie)) {
            (Some([own, _]), _) | (None, Some(own)) if !of_peer => own,
            (Some([_, peer]), _) => peer,
            // accept(2) has shown the peer's address as it is.
            _ if !of_peer && self.listening.port_inside(actual).is_some() => {
                self.accepted_at(actual)
            }
            // A socket of the host that the program has inherited shows its own addresses.
            _ => return Ok(Next::Allow),
        };
        let address = address::like(inside, actual);
        if !self.calls.is_waiting(call) {
            return Ok(Next::Nothing);
        }
        Ok(Next::Answer(address::write(&caller, at, len_at, address)))
    }

    /// Takes reports of sockets that have ended, `most` at a time.
    fn take_ends(&mut self, most: usize) {
        for _ in 0..most {
            let Some(ended) = self.diag.next_end() else { break };
            if !self.table.end(&ended) {
                self.listening_ended(&ended);
            }
        }
        if self.diag.take_lost() {
            self.check_listeners();
        }
    }

    /// Acts on a message of the gateway; returns false if the gateway has gone.
    fn answer_link(&mut self, link: BorrowedFd<'_>) -> bool {
        let Some(question) = link::receive(link) else { return false };
        match question.asked {
            link::Asked::Listening(number, at) => self.on_listening(number, at),
            link::Asked::Stop(port) => {
                self.listening.revoke(port);
                self.stops_at = Some(self.now());
            }
            link::Asked::Verdict(number, verdict) => self.on_verdict(number, verdict),
            link::Asked::Taken => self.ends_taken(),
            link::Asked::Withdraw(numbers) => self.withdraw(numbers),
            _ => return self.answer_question(link, &question),
        }
        true
    }

    fn answer_question(&mut self, link: BorrowedFd<'_>, question: &Question) -> bool {
        self.take_ends(ENDS_PER_ANSWER);
        for _ in 0..SETTLE_ROUNDS {
            // The kernel reports the last ends soon after the program's. Which connections its
            // listeners have had is not known before.
            if !self.is_over || self.table.is_empty() && !self.listening.has_listened() {
                break;
            }
            let more = wait_readable(&[self.diag.as_fd()], Some(SETTLE));
            if matches!(more, Ok(None)) && self.table.is_empty() {
                break;
            }
            self.take_ends(ENDS_PER_ANSWER);
        }
        self.find_connections();
        self.report_ends();
        self.table.listen(self.listening.len());
        let now = self.now();
        link::answer(link, question, &mut self.table, &mut self.diag, now)
    }
}
