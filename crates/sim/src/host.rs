//! A host: a stack, its memory and its applications.

use crate::flow::{Flow, Plan};
use crate::link::{Link, received};
use crate::seed::Rng;
use std::collections::HashMap;
use std::net::SocketAddr;
use towpath_net::stack::{Config, ConnectError, Context, Stack, TcpHandle};
use towpath_net::tcp::{Connection, Events};
use towpath_net::time::Instant;
use towpath_packet::{Burst, Caps, Ledger, Loans, Memory, MemoryConfig};

/// Most loans of application memory at a time.
const LOANS_MAX: usize = 4096;

/// A stack, its memory and its applications.
pub struct Host {
    /// The stack.
    pub stack: Stack,
    /// Packets and frames.
    pub memory: Memory,
    /// Counts copies.
    pub ledger: Ledger,
    /// Loans of application memory.
    pub loans: Loans,
    /// Connections, in the order in which they began.
    pub flows: Vec<Flow>,
    /// Frames dropped because there was no memory.
    pub no_memory: u64,
    /// The plan for the incoming connections of each listening address.
    listeners: HashMap<SocketAddr, Plan>,
    by_handle: HashMap<TcpHandle, usize>,
    /// Flows that are not finished.
    live: Vec<usize>,
}

impl Host {
    /// Makes a host.
    pub fn new(config: Config, caps: Caps, memory: MemoryConfig) -> Self {
        Self {
            stack: Stack::new(config, caps),
            memory: Memory::new(memory),
            ledger: Ledger::new(),
            loans: Loans::new(LOANS_MAX),
            flows: Vec::new(),
            no_memory: 0,
            listeners: HashMap::new(),
            by_handle: HashMap::new(),
            live: Vec::new(),
        }
    }

    /// Accepts connections to `local` and handles each by `plan`.
    pub fn listen(&mut self, local: SocketAddr, plan: Plan) {
        self.stack.tcp_listen(local);
        self.listeners.insert(local, plan);
    }

    /// Connects and acts by `plan`.
    pub fn connect(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        plan: Plan,
        now: Instant,
    ) -> Result<usize, ConnectError> {
        let handle = self.stack.tcp_connect(local, remote, now)?;
        Ok(self.adopt(handle, local, remote, plan, now))
    }

    fn adopt(
        &mut self,
        handle: TcpHandle,
        local: SocketAddr,
        remote: SocketAddr,
        plan: Plan,
        now: Instant,
    ) -> usize {
        let (writes, reads) = (stream(local, remote), stream(remote, local));
        self.by_handle.insert(handle, self.flows.len());
        self.live.push(self.flows.len());
        self.flows.push(Flow::new(handle, local, plan, (writes, reads), now));
        self.flows.len() - 1
    }

    /// Stops accepting connections to `local`.
    pub fn unlisten(&mut self, local: SocketAddr, now: Instant) {
        self.stack.tcp_unlisten(local, now);
        self.listeners.remove(&local);
    }

    /// The flow of the latest connection of `local`.
    pub fn flow(&self, local: SocketAddr) -> Option<&Flow> {
        self.flows.iter().rev().find(|flow| flow.local == local)
    }

    /// Packets, small and large frames, and loans that are still out.
    pub fn out_counts(&self) -> [usize; 4] {
        let memory = &self.memory;
        let (small, large) = (memory.small.out_count(), memory.large.out_count());
        [memory.packets.out_count(), small, large, self.loans.out_count()]
    }

    /// Receives frames from the link. True if there were any.
    pub fn receive(&mut self, link: &mut Link, now: Instant) -> bool {
        let mut burst = Burst::new();
        let mut any = false;
        while let Some(frame) = link.arrive(now) {
            any = true;
            match received(&frame.bytes, &mut self.memory) {
                Some(mut packet) => {
                    packet.set_offload(frame.offload);
                    burst.push(packet).expect("emptied when full");
                }
                None => self.no_memory += 1,
            }
            if burst.is_full() {
                self.input(&mut burst, now);
            }
        }
        self.input(&mut burst, now);
        any
    }

    fn input(&mut self, burst: &mut Burst, now: Instant) {
        if burst.is_empty() {
            return;
        }
        let mut cx = Context { memory: &mut self.memory, ledger: &self.ledger, now };
        self.stack.input(burst, &mut cx);
        assert!(burst.is_empty(), "a stack takes all packets");
    }

    /// Lets applications react to events and time. True if anything happened.
    pub fn act(&mut self, rng: &mut Rng, now: Instant) -> bool {
        let mut any = false;
        while let Some((handle, events)) = self.stack.next_event() {
            any = true;
            self.on_event(handle, events, now);
        }
        let (stack, memory, loans) = (&mut self.stack, &mut self.memory, &mut self.loans);
        for index in &self.live {
            any |= self.flows[*index].act(stack, memory, loans, rng, now);
        }
        let flows = &self.flows;
        self.live.retain(|index| !flows[*index].is_done());
        any
    }

    fn on_event(&mut self, handle: TcpHandle, events: Events, now: Instant) {
        if events.contains(Events::INCOMING) {
            let connection = self.stack.tcp(handle).expect("an event names a connection");
            let (local, remote) = (connection.local(), connection.remote());
            let plan = self.listeners.get(&local).copied().expect("only listeners accept");
            self.adopt(handle, local, remote, plan, now);
            if let Some(within) = plan.answers_within {
                let expect = |connection: &mut Connection| connection.expect_answers(within);
                self.stack.with_tcp(handle, now, expect);
            }
        }
        let index = *self.by_handle.get(&handle).expect("every connection has a flow");
        self.flows[index].on_events(events);
    }

    /// Transmits the stack's packets. True if there were any.
    pub fn transmit(&mut self, link: &mut Link, rng: &mut Rng, now: Instant) -> bool {
        let mut any = false;
        let mut burst = Burst::new();
        loop {
            let mut cx = Context { memory: &mut self.memory, ledger: &self.ledger, now };
            self.stack.output(&mut burst, &mut cx);
            if burst.is_empty() {
                return any;
            }
            any = true;
            while let Some(packet) = burst.pop() {
                link.send(packet, now, rng, &mut self.memory, &self.ledger);
            }
        }
    }

    /// Runs the stack's timers if one is due.
    pub fn on_deadline(&mut self, now: Instant) {
        if self.stack.next_deadline().is_some_and(|at| at <= now) {
            let mut cx = Context { memory: &mut self.memory, ledger: &self.ledger, now };
            self.stack.on_deadline(&mut cx);
            let next = self.stack.next_deadline();
            assert!(next.is_none_or(|at| at > now), "a deadline that was served is over");
        }
    }

    /// When work is due without a frame.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let flows = self.live.iter().filter_map(|index| self.flows[*index].deadline(now)).min();
        [self.stack.next_deadline(), flows].into_iter().flatten().min()
    }
}

/// Number of the stream from `source` to `destination`.
fn stream(source: SocketAddr, destination: SocketAddr) -> u64 {
    u64::from(source.port()) << 16 | u64::from(destination.port())
}
