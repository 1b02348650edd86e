//! Fair memory: how much of the pool flows may hold while one side takes nothing.
//!
//! All flows share the frames. Bytes for hosts and bytes for programs each have a budget. Together
//! the budgets leave half of the pool to bytes that move:
//!
//! - For hosts: bytes that a host socket did not take stay in the connection's receive queue. All
//!   these queues together hold at most [`OUT_SHARE`] of either size of frames. The queues of one
//!   guest may grow to half of what other guests leave of that, and each queue to a quarter of what
//!   the others leave of the guest's part ([`allowance`]). So each further slow reader gets less,
//!   and some memory always remains. Bytes beyond the allowance go back to their sender
//!   (`Connection::hold_off`): they are dropped unacknowledged, and the sender keeps them until the
//!   host socket has room. Many host sockets are full only briefly. So within [`MOMENT_SHARE`] a
//!   flow may keep more for [`MOMENT`], unacknowledged, so that it can still go back; and for
//!   another [`MOMENT`] if it has passed on as much as it holds. A smaller window means that less
//!   has to go back. So a new flow advertises its part of the memory ([`Io::equal_window`]), and
//!   later up to half of what it has passed on ([`PROVEN_DIVISOR`]), if that is more.
//! - For programs: while [`PLENTY`] of the memory is free, host sockets are read ahead of the
//!   program's window. Below that, three bounds hold. Host sockets are read only as far as the
//!   window takes the bytes. No flow may have more in flight than a quarter of what is left above
//!   [`HOST_READ_SHARE`]. No guest may have more in flight than half of what others leave of
//!   [`IN_SHARE`]. Unread bytes stay in the host's socket. A kernel acknowledges at once what its
//!   window takes, so flows whose program does not read hold nothing. The last two bounds are for
//!   peers that acknowledge nothing.
//!
//! docs/limits.md has the sums.

use super::lent::LENT_OF_LARGE;
use super::{HOST_READ_SHARE, Io};
use std::time::Duration;
use towpath_net::stack::{Frames, TcpHandle, Usage};
use towpath_packet::Memory;
use towpath_packet::pool::{LARGE_FRAME_BYTES, SMALL_FRAME_BYTES};

/// Share of memory, in 1/256, that bytes for hosts may hold while hosts take nothing.
const OUT_SHARE: usize = 64;
/// Share of memory, in 1/256, that flows may hold in addition for [`MOMENT`].
const MOMENT_SHARE: usize = 32;
/// How long a host socket may be full before bytes beyond the flow's allowance go back: less than
/// senders wait before they retransmit.
pub(super) const MOMENT: Duration = Duration::from_millis(50);
/// Share of memory, in 1/256, that must be free to read host sockets ahead of windows.
const PLENTY: u32 = 192;
/// Free share of memory, in 1/256, below which every flow may have equally much in flight to the
/// program.
const SCARCE: u32 = 112;
/// Share of memory, in 1/256, that bytes for guests may hold once less than [`PLENTY`] is free.
const IN_SHARE: usize = 128;
/// Divisor of the remaining memory: the part that one flow may have.
const FLOW_DIVISOR: usize = 4;
/// Divisor of the remaining memory: the part that one guest may have.
const GUEST_DIVISOR: usize = 2;
/// Divisor of the remaining memory: the part that one flow may hold for [`MOMENT`].
const MOMENT_DIVISOR: usize = 2;
/// Bytes of frames that a byte of the window may take, for a window that should fit the allowance:
/// frames are not filled to the last byte. What exceeds the allowance is kept for [`MOMENT`].
const WINDOW_DIVISOR: usize = 2;
/// Bytes of frames that a byte of the window may take, for a window that should fit what a flow may
/// hold for [`MOMENT`]. What exceeds that goes back at once, so this is the worst case: a segment
/// of 1,448 bytes in a small frame of 2 KiB, which weighs [`SMALL_WEIGHT`] times its size.
const BRIEF_WINDOW_DIVISOR: usize = 6;
/// Largest window limit: the largest window that receive buffers make.
const WINDOW_MAX: usize = 6 << 20;
/// Smallest window limit: enough to keep a flow moving.
const WINDOW_MIN: usize = 16 << 10;
/// Divisor of the bytes that a flow has passed on: the part that its window may advertise.
const PROVEN_DIVISOR: u64 = 2;
/// Window limits change in steps of this part of their size, so that they do not change with each
/// packet.
const WINDOW_STEPS: usize = 4;
/// Most that a byte of a frame weighs: a quarter of the memory is in small frames.
const SMALL_WEIGHT: usize = 4;
/// Least that a flow may have in flight to the program: one large frame.
const SEND_SHARE_MIN: usize = LARGE_FRAME_BYTES;

// Bytes that wait for hosts and bytes that were read ahead leave half of the memory.
const _: () = assert!(OUT_SHARE + 256 - PLENTY as usize <= 128, "half is left to bytes that move");
const _: () = assert!(MOMENT_SHARE <= 64, "it is part of that half");
// Guests that acknowledge nothing, and hosts that acknowledge nothing of what was lent, leave
// enough to read from hosts.
const _: () = assert!(
    OUT_SHARE + IN_SHARE + LENT_OF_LARGE < 256 - HOST_READ_SHARE as usize,
    "memory is left to read from hosts"
);

/// Returns the weight of frames, in bytes of a pool with one size of frames. The share of either
/// frame size that is held is no more than the share of this weight in the whole pool.
fn weight(frames: Frames, memory: &Memory) -> usize {
    let whole = memory.capacity_bytes();
    let weigh = |bytes: usize, frames: usize, frame_bytes: usize| {
        bytes.saturating_mul(whole) / (frames * frame_bytes).max(1)
    };
    weigh(frames.small, memory.small.capacity(), SMALL_FRAME_BYTES)
        + weigh(frames.large, memory.large.capacity(), LARGE_FRAME_BYTES)
}

/// Returns how much of `budget` a guest may hold, where all guests together hold `total` and this
/// one holds `own`: half of what the others leave; or for a program alone, all that is left.
fn of_guest(budget: usize, is_guest: bool, total: usize, own: usize) -> usize {
    let left = budget.saturating_sub(total.saturating_sub(own));
    if is_guest { left / GUEST_DIVISOR } else { left }
}

/// How far a flow's host socket may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadAhead {
    /// Regardless of the program's window.
    Free,
    /// As much as the window takes, with at most this many bytes in flight.
    Within(usize),
}

impl Io<'_> {
    /// Returns how far the host socket of this flow, one of `flows`, may be read now.
    pub(super) fn read_ahead(&mut self, handle: TcpHandle, flows: usize) -> ReadAhead {
        let is_plenty = self.memory.has_free(PLENTY);
        let (port, guest) = self.stack.tcp_account(handle);
        if is_plenty && port.is_none() {
            return ReadAhead::Free;
        }
        let unit = self.memory.capacity_bytes() / 256;
        let total = weight(self.stack.tcp_usage().sending, self.memory);
        let own = weight(guest.sending, self.memory);
        let most = of_guest(unit * IN_SHARE, port.is_some(), total, own);
        if own >= most && port.is_some() {
            return ReadAhead::Within(0);
        }
        // Bytes read ahead may stay long, so as much again is left to the guest's other flows.
        if is_plenty && own < most / 2 {
            return ReadAhead::Free;
        }
        let free = self.memory.free_share();
        let left = unit * free.saturating_sub(HOST_READ_SHARE) as usize / FLOW_DIVISOR;
        if free >= SCARCE {
            return ReadAhead::Within(left.max(SEND_SHARE_MIN));
        }
        // Peers that acknowledge nothing hold the memory: the rest is divided equally.
        let equal = self.memory.capacity_bytes() / 4 / flows.max(1);
        ReadAhead::Within(equal.min(left).max(SEND_SHARE_MIN / 2))
    }

    /// Returns true if so little is held for hosts that this flow of a program, one of `flows`, may
    /// hold all it can use.
    pub(super) fn holds_little_for_hosts(&self, handle: TcpHandle, flows: usize) -> bool {
        let Frames { small, large } = self.stack.tcp_usage().receiving;
        let budget = self.memory.capacity_bytes() / 256 * OUT_SHARE;
        let quarter = budget / 4;
        (small + large) * SMALL_WEIGHT <= quarter
            && (budget - quarter) / FLOW_DIVISOR >= WINDOW_MAX * WINDOW_DIVISOR
            && self.equal_window(flows) >= WINDOW_MAX
            && self.stack.tcp_account(handle).0.is_none()
    }

    /// Returns the window that one of `flows` may advertise before it has passed anything on: all
    /// windows together advertise the memory once.
    pub(super) fn equal_window(&self, flows: usize) -> usize {
        equal_window(self.memory.capacity_bytes(), flows)
    }

    /// Returns how much a flow holds for its host, and how much it may hold. `brief` is what other
    /// flows hold for [`MOMENT`].
    pub(super) fn held_for_host(&self, handle: TcpHandle, brief: usize) -> HeldForHost {
        let Some(connection) = self.stack.tcp(handle) else { return HeldForHost::default() };
        let (small, large) = connection.received_held();
        let held = weight(Frames { small, large }, self.memory);
        let (port, guest) = self.stack.tcp_account(handle);
        let total = self.stack.tcp_usage();
        let allowance = allowance(held, port.is_some(), total, &guest, self.memory);
        let moments = self.memory.capacity_bytes() / 256 * MOMENT_SHARE;
        HeldForHost { held, allowance, briefly: moments.saturating_sub(brief) / MOMENT_DIVISOR }
    }
}

/// What a flow holds for its host, in bytes of [`weight`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeldForHost {
    pub(super) held: usize,
    /// How much it may hold without a time limit.
    pub(super) allowance: usize,
    /// How much it may hold for [`MOMENT`].
    pub(super) briefly: usize,
}

impl HeldForHost {
    /// Returns the largest window that the flow should advertise, so that nothing it has asked for
    /// goes back. `passed` is the number of bytes that it has passed on; `equal` is
    /// [`Io::equal_window`].
    pub(super) fn window_limit(&self, passed: u64, equal: usize) -> u32 {
        let part = |most: usize, divisor| most.saturating_sub(self.held) / divisor;
        let bytes = part(self.allowance, WINDOW_DIVISOR);
        let bytes = bytes.max(part(self.briefly, BRIEF_WINDOW_DIVISOR));
        window_limit(bytes.min(equal.max((passed / PROVEN_DIVISOR) as usize)))
    }
}

fn equal_window(memory_bytes: usize, flows: usize) -> usize {
    (memory_bytes / flows.max(1)).max(WINDOW_MIN)
}

/// Returns the window limit for a window of `bytes`.
pub(super) fn window_limit(bytes: usize) -> u32 {
    if bytes >= WINDOW_MAX {
        return u32::MAX;
    }
    let step = (bytes.next_power_of_two() / 2 / WINDOW_STEPS).max(1);
    (bytes - bytes % step) as u32
}

/// Returns how much a flow, which holds `own` now, may hold for its host: a quarter of what the
/// guest's other flows leave of the guest's part.
fn allowance(own: usize, is_guest: bool, total: &Usage, guest: &Usage, memory: &Memory) -> usize {
    let budget = memory.capacity_bytes() / 256 * OUT_SHARE;
    let total = weight(total.receiving, memory);
    let guest = weight(guest.receiving, memory);
    let part = of_guest(budget, is_guest, total, guest);
    part.saturating_sub(guest.saturating_sub(own)) / FLOW_DIVISOR
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_packet::MemoryConfig;

    const MEMORY: usize = 16 << 20;

    fn receiving(small: usize, large: usize) -> Usage {
        Usage { receiving: Frames { small, large }, ..Usage::default() }
    }

    fn add(usage: &mut Usage, more: &Usage) {
        usage.receiving.small += more.receiving.small;
        usage.receiving.large += more.receiving.large;
    }

    /// Goal: however many flows of however many guests hold as much as they may, some of the budget
    /// is left, and all of them together hold no more than their share of either size of frames.
    #[test]
    fn flows_that_hold_what_they_may_leave_some() {
        let memory = Memory::new(MemoryConfig::within(MEMORY));
        for (small, large) in [(1, 0), (0, 1), (1, 8)] {
            for guests in [0, 1, 4] {
                let unit = receiving(small * SMALL_FRAME_BYTES, large * LARGE_FRAME_BYTES);
                let weight_of = |count: usize| count * weight(unit.receiving, &memory);
                let mut total = Usage::default();
                for guest in 0..guests.max(1) {
                    let mut account = Usage::default();
                    for _ in 0..10_000 {
                        let mut own = 0;
                        while weight_of(own + 1)
                            <= allowance(weight_of(own), guests > 0, &total, &account, &memory)
                        {
                            own += 1;
                            add(&mut total, &unit);
                            add(&mut account, &unit);
                        }
                    }
                    let next = Usage::default();
                    let left = allowance(0, guests > 0, &total, &next, &memory);
                    assert!(left > 0, "guest {guest} of {guests} leaves {left}");
                }
                let Frames { small, large } = total.receiving;
                let pool = |frames, bytes| frames * bytes * OUT_SHARE / 256;
                assert!(small <= pool(memory.small.capacity(), SMALL_FRAME_BYTES));
                assert!(large <= pool(memory.large.capacity(), LARGE_FRAME_BYTES));
            }
        }
    }

    /// Goal: the windows of flows that have passed nothing on advertise no more than the memory,
    /// down to the minimum. A flow that moves advertises more, as far as it may hold that.
    #[test]
    fn windows_grow_with_what_was_passed_on() {
        let (free, full) = (64 << 20, HeldForHost::default());
        let share = HeldForHost { allowance: free, ..full };
        for flows in [1, 10, 1000, 65_536] {
            let equal = equal_window(MEMORY, flows);
            assert!(equal == WINDOW_MIN || equal * flows <= MEMORY, "{flows} flows");
            let mut before = share.window_limit(0, equal);
            assert!(before as usize <= equal || before == u32::MAX);
            for passed in (16..28).map(|bits| 1 << bits) {
                let limit = share.window_limit(passed, equal);
                assert!(limit >= before, "{limit} after {before}");
                before = limit;
            }
            assert_eq!(before, u32::MAX, "in the end the window is not limited");
            assert_eq!(full.window_limit(1 << 30, equal), 0, "it may hold nothing");
        }
    }

    /// Goal: the allowance of a flow grows back as others give memory back, and its own bytes do
    /// not count against it. What one guest holds leaves the same to another.
    #[test]
    fn an_allowance_grows_back() {
        let memory = Memory::new(MemoryConfig::within(MEMORY));
        let none = Usage::default();
        let first = allowance(0, true, &none, &none, &memory);
        let held = receiving(0, LARGE_FRAME_BYTES * 20);
        let weight = weight(held.receiving, &memory);
        assert_eq!(allowance(weight, true, &held, &held, &memory), first);
        assert!(allowance(0, true, &held, &held, &memory) < first);
        let other = allowance(0, true, &held, &none, &memory);
        assert!(other < first && other >= allowance(0, true, &held, &held, &memory));
    }

    /// Goal: everything that a flow receives for its window within [`MOMENT`] fits what it may hold
    /// then, even in the frames that weigh most for their bytes.
    #[test]
    fn windows_of_a_moment_fit_what_may_be_held() {
        const SEGMENT: usize = 1448;
        for briefly in [64 << 10, 256 << 10, 1 << 20] {
            let share = HeldForHost { briefly, ..HeldForHost::default() };
            let window = share.window_limit(u64::MAX, 0) as usize;
            let held = window.div_ceil(SEGMENT) * SMALL_FRAME_BYTES * SMALL_WEIGHT;
            assert!(window > 0 && held <= briefly, "{held} of {briefly} for {window}");
        }
    }
}
