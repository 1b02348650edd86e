//! Recalls without memory for the copy: the loan continues past its term, nothing is closed or
//! lost, other loans are not delayed, the failure is counted, and the recall is retried at a low
//! rate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use towpath_net::socket::{Borrower, Error, Family, Notice, SendTo, SocketId, Sockets};
use towpath_net::stack::{Address, Config, Context, Limits, Stack};
use towpath_net::tcp::Settings;
use towpath_net::time::{Duration, Instant};
use towpath_net::wire::MacAddr;
use towpath_packet::{Burst, Ledger, Loans, Memory, MemoryConfig, Recall, Site};
use towpath_sim::scenario::able;

/// The system's allocator, which gives only small memory to a thread that has set a flag.
struct Exhausted;

thread_local! {
    static EXHAUSTED: Cell<bool> = const { Cell::new(false) };
}

/// Largest allocation that still succeeds.
const SMALL: usize = 8000;

// SAFETY: forwards all calls to the system's allocator, or fails as an allocator may.
unsafe impl GlobalAlloc for Exhausted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if EXHAUSTED.get() && layout.size() > SMALL {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller fulfils the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller fulfils the same contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Exhausted = Exhausted;

/// A host that lends, on a device that keeps all packets.
struct Lender {
    sockets: Sockets,
    memory: Memory,
    ledger: Ledger,
    loans: Loans,
    socket: SocketId,
    now: Instant,
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Lender {
    fn new() -> Self {
        let address = |host| IpAddr::V4(Ipv4Addr::new(192, 0, 2, host));
        let config = Config {
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            addresses: vec![Address { address: address(1), prefix_len: 24 }],
            next_hops: Vec::new(),
            transparent: false,
            secret: [1, 2],
            tcp: Settings::default(),
            limits: Limits::default(),
        };
        let mut stack = Stack::new(config, able(65_520));
        stack.set_neighbor(address(2), MacAddr([2, 0, 0, 0, 0, 2]));
        let mut sockets = Sockets::new(stack);
        let socket = sockets.datagram(Family::V4).expect("room");
        Self {
            sockets,
            memory: Memory::new(MemoryConfig::within(16 << 20)),
            ledger: Ledger::new(),
            loans: Loans::new(8),
            socket,
            now: Instant::START,
        }
    }

    fn with<R>(&mut self, act: impl FnOnce(&mut Sockets, &mut Context<'_>) -> R) -> R {
        let Self { sockets, memory, ledger, now, .. } = self;
        act(sockets, &mut Context { memory, ledger, now: *now })
    }

    /// Lends all of `memory` for `term`.
    fn send(&mut self, memory: &Arc<Vec<u8>>, term: Duration) {
        let Self { sockets, memory: frames, ledger, loans, socket, now } = self;
        let mut cx = Context { memory: frames, ledger, now: *now };
        let lend = |most: usize, to: Borrower| {
            loans.lend_recallable(memory, (0, most as u32), to.lender, to.token)
        };
        let to = Some(SocketAddr::new(Ipv4Addr::new(192, 0, 2, 2).into(), 53));
        let how = SendTo { to, term: Some(term), ..SendTo::default() };
        let sent = sockets.send_lent_datagram(*socket, memory.len(), &how, lend, &mut cx);
        assert_eq!(sent, Ok(memory.len()));
    }

    /// Advances to a time and does the work that is due.
    fn at(&mut self, moment: Instant) {
        self.now = moment;
        self.with(|sockets, cx| sockets.on_deadline(cx));
    }

    fn notice(&mut self) -> Result<Notice, Error> {
        self.sockets.take_notice(self.socket)
    }
}

/// Goal: see the module text. Invalid input: a system without memory, at the end of a term and at a
/// recall.
#[test]
fn without_memory_for_the_copy_the_loan_goes_on() {
    let mut lender = Lender::new();
    let (large, small) = (Arc::new(vec![1; 40_000]), Arc::new(vec![2; 1000]));
    lender.send(&large, ms(20));
    lender.send(&small, ms(20));
    let mut port = Burst::new();
    lender.with(|sockets, cx| sockets.output(&mut port, cx));
    assert_eq!(port.len(), 2);

    EXHAUSTED.set(true);
    let end = Instant::START + ms(20);
    lender.at(end);
    assert_eq!(lender.notice(), Ok(Notice::Lent { first: 1, last: 1, copied: true }), "small");
    assert_eq!(lender.notice(), Err(Error::WouldBlock), "large");
    assert_eq!((Arc::strong_count(&small), Arc::strong_count(&large)), (1, 2));
    let stats = lender.sockets.lent_stats(lender.now);
    assert_eq!((stats.terms_fired, stats.recalls, stats.starved), (1, 1, 1));
    assert_eq!((stats.groups, stats.oldest), (1, Some(ms(20))));

    // One attempt in ten milliseconds, however often the host is run.
    for millis in 1..=100 {
        lender.at(end + ms(millis));
        let next = lender.sockets.next_deadline().expect("tried again");
        assert!(next > lender.now && next <= lender.now + ms(10));
    }
    assert_eq!(lender.sockets.lent_stats(lender.now).starved, 11);
    let socket = lender.socket;
    let asked = lender.with(|sockets, cx| sockets.recall(socket, (0, 0), cx));
    assert_eq!(asked, Ok(Recall::NoMemory));
    assert_eq!(lender.sockets.lent_stats(lender.now).starved, 12);
    assert_eq!(lender.ledger.copied_at(Site::Recall), 1000, "what was not copied does not count");

    EXHAUSTED.set(false);
    let next = lender.sockets.next_deadline().expect("tried again");
    lender.at(next);
    assert_eq!(lender.notice(), Ok(Notice::Lent { first: 0, last: 0, copied: true }));
    let stats = lender.sockets.lent_stats(lender.now);
    assert_eq!((stats.groups, stats.terms_fired, stats.recalls, stats.starved), (0, 2, 2, 12));
    for (memory, byte) in [(large, 1), (small, 2)] {
        let mut memory = Arc::try_unwrap(memory).expect("the only reference");
        let len = memory.len();
        memory.fill(0xa5);
        let packet = port.pop().expect("kept by the port");
        let mut bytes = vec![0; len];
        let mut at = 0;
        for piece in packet.pieces() {
            at += lender.ledger.copy(Site::Linearise, piece, &mut bytes[at..]);
        }
        assert_eq!((at, bytes), (len, vec![byte; len]), "what was lent");
    }
    assert_eq!(lender.loans.out_count(), 0);
}

/// Goal: a loan that ends while there is no memory to recall it comes back without a copy.
#[test]
fn what_cannot_be_recalled_comes_back_with_its_last_piece() {
    let mut lender = Lender::new();
    let memory = Arc::new(vec![1; 40_000]);
    lender.send(&memory, ms(20));
    let mut port = Burst::new();
    lender.with(|sockets, cx| sockets.output(&mut port, cx));
    EXHAUSTED.set(true);
    lender.at(Instant::START + ms(20));
    assert_eq!(lender.notice(), Err(Error::WouldBlock));
    drop(port);
    lender.at(Instant::START + ms(30));
    EXHAUSTED.set(false);
    assert_eq!(lender.notice(), Ok(Notice::Lent { first: 0, last: 0, copied: false }));
    let stats = lender.sockets.lent_stats(lender.now);
    assert_eq!((stats.groups, stats.terms_fired, stats.starved), (0, 0, 1));
    assert_eq!(lender.loans.out_count(), 0);
}
