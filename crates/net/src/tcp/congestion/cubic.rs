//! CUBIC (RFC 9438) in fixed-point arithmetic, with HyStart (`cubic/cubic-bulk-166k.pkt`).
//!
//! Between two reductions the window follows `W(t) = C (t - K)^3 + W_max`: fast towards the window
//! of the last loss, slowly around it, fast again beyond. Time `t` is in units of 1/1024 s, the
//! window in segments. If NewReno would be faster at the same loss rate, the window follows NewReno
//! (RFC 9438 §4.3).
//!
//! Limits: the curve is clipped at [`OFFSET_MAX`] from its origin, far beyond any window.

use super::hystart::HyStart;
use super::{CaState, Controller, RttSample, Start, Window};
use crate::tcp::seq::Seq;
use crate::time::{Duration, Instant};

/// State of CUBIC between events.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cubic {
    /// Acknowledged segments that grow the window by one segment.
    per_segment: u32,
    /// Window at the last loss, or less after fast convergence (RFC 9438 §4.7).
    w_max: u32,
    /// Window and time of the last calculation.
    last: Option<(u32, Instant)>,
    epoch: Option<Epoch>,
    /// Least round-trip time, in microseconds; zero before the first sample.
    delay_min_us: u32,
    hystart: HyStart,
}

/// The period since the last reduction.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    start: Instant,
    /// Window at which the curve is flat.
    origin: u32,
    /// Time from the start to the origin, in 1/1024 s.
    k: u64,
    /// Segments acknowledged and not yet credited to `reno_cwnd`.
    acked: u32,
    /// Window that NewReno would have by now.
    reno_cwnd: u32,
}

impl Cubic {
    /// Calculates how many acknowledged segments grow the window by one.
    fn update(&mut self, cwnd: u32, acked: u32, now: Instant) {
        let (last, epoch) = (self.last, &mut self.epoch);
        if let Some(epoch) = epoch {
            epoch.acked = epoch.acked.saturating_add(acked);
        }
        if let Some((last_cwnd, at)) = last {
            if last_cwnd == cwnd && ticks(now) - ticks(at) <= UPDATE_TICKS {
                return;
            }
            if let Some(epoch) = epoch
                && ticks(at) == ticks(now)
            {
                self.per_segment = epoch.at_least_reno(cwnd, self.per_segment);
                return;
            }
        }
        self.last = Some((cwnd, now));
        let w_max = self.w_max;
        let epoch = epoch.get_or_insert_with(|| Epoch::begin(cwnd, w_max, acked, now));
        let delay = u64::from(self.delay_min_us).div_ceil(TICK_US);
        let elapsed = ticks(now) - ticks(epoch.start) + delay;
        let target = epoch.target((elapsed << TIME_SHIFT) * TICK_US / 1_000_000);
        let mut per_segment =
            if target > cwnd { cwnd / (target - cwnd) } else { cwnd.saturating_mul(FLAT) };
        if w_max == 0 {
            // Nothing is known of the path yet.
            per_segment = per_segment.min(UNKNOWN_PATH);
        }
        self.per_segment = epoch.at_least_reno(cwnd, per_segment);
    }
}

impl Epoch {
    fn begin(cwnd: u32, w_max: u32, acked: u32, now: Instant) -> Self {
        let below = w_max.saturating_sub(cwnd);
        Self {
            start: now,
            origin: w_max.max(cwnd),
            k: cube_root(K_FACTOR * u64::from(below)),
            acked,
            reno_cwnd: cwnd,
        }
    }

    /// Window on the curve at time `t` (RFC 9438 §4.2 equation (1)).
    fn target(&self, t: u64) -> u32 {
        let offset = t.abs_diff(self.k).min(OFFSET_MAX);
        let delta = ((C_1024 * offset * offset * offset) >> (10 + 3 * TIME_SHIFT)) as u32;
        if t < self.k {
            self.origin.saturating_sub(delta)
        } else {
            self.origin.saturating_add(delta)
        }
    }

    /// Makes growth at least as fast as NewReno's (RFC 9438 §4.3), and at most half a segment of
    /// window per segment acknowledged.
    fn at_least_reno(&mut self, cwnd: u32, per_segment: u32) -> u32 {
        let per_reno_segment = ((cwnd * RENO_SCALE) >> 3).max(1);
        let grown = self.acked.saturating_sub(1) / per_reno_segment;
        self.acked -= grown * per_reno_segment;
        self.reno_cwnd = self.reno_cwnd.saturating_add(grown);
        let mut per_segment = per_segment;
        if self.reno_cwnd > cwnd {
            per_segment = per_segment.min(cwnd / (self.reno_cwnd - cwnd));
        }
        per_segment.max(FASTEST)
    }
}

impl Controller for Cubic {
    fn new(start: &Start) -> Self {
        Self { hystart: HyStart::new(start.next, start.now), ..Self::default() }
    }

    fn ssthresh(&mut self, window: &Window) -> u32 {
        self.epoch = None;
        let cwnd = window.cwnd();
        // RFC 9438 §4.7: a flow with a loss below its last maximum leaves room for new flows.
        let converge = cwnd < self.w_max;
        self.w_max = if converge { cwnd * (BETA_SCALE + BETA) / (2 * BETA_SCALE) } else { cwnd };
        (cwnd * BETA / BETA_SCALE).max(2)
    }

    fn grow(&mut self, window: &mut Window, acked: u32, now: Instant) {
        let left = if window.in_slow_start() { window.slow_start(acked) } else { acked };
        if left > 0 {
            self.update(window.cwnd(), left, now);
            window.avoid(self.per_segment, left);
        }
    }

    fn on_rtt(&mut self, window: &mut Window, sample: &RttSample) {
        let young = |epoch: Epoch| sample.now.since(epoch.start) < SAMPLE_AFTER_LOSS;
        if self.epoch.is_some_and(young) {
            return;
        }
        let delay_us = u32::try_from(sample.rtt.as_micros()).unwrap_or(u32::MAX).max(1);
        if self.delay_min_us == 0 || self.delay_min_us > delay_us {
            self.delay_min_us = delay_us;
        }
        if window.in_slow_start()
            && self.hystart.ends_slow_start(window.cwnd(), self.delay_min_us, delay_us, sample)
        {
            window.set_ssthresh(window.cwnd());
        }
    }

    fn on_transmit_start(&mut self, _: &mut Window, idle: Duration, _: bool, now: Instant) {
        // RFC 9438 §5.8: an idle period of the application does not probe the path.
        if let Some(epoch) = &mut self.epoch {
            epoch.start = (epoch.start + idle).min(now);
        }
    }

    fn on_state(&mut self, _: &mut Window, state: CaState, next: Seq, now: Instant) {
        if state == CaState::Loss {
            *self = Self::new(&Start { next, now });
        }
    }
}

fn ticks(at: Instant) -> u64 {
    at.micros() / TICK_US
}

/// Greatest `x` with `x^3 <= a`.
fn cube_root(a: u64) -> u64 {
    let mut root = 0u64;
    for bit in (0..22).rev() {
        let with = root | 1 << bit;
        if with * with * with <= a {
            root = with;
        }
    }
    root
}

/// Time is measured in 1/2^10 s.
const TIME_SHIFT: u32 = 10;
/// C of RFC 9438, 0.4, in units of 1/1024.
const C_1024: u64 = 410;
/// `K^3 = (W_max - cwnd) / C`, in the unit of time.
const K_FACTOR: u64 = (1 << (10 + 3 * TIME_SHIFT)) / C_1024;
/// Part of the window that remains after a loss (beta of RFC 9438), in units of 1/1024.
const BETA: u32 = 717;
/// The unit of [`BETA`].
const BETA_SCALE: u32 = 1024;
/// Eighths of a window to acknowledge per segment of growth for NewReno with CUBIC's beta: 8/3
/// (1+b)/(1-b).
const RENO_SCALE: u32 = 8 * (BETA_SCALE + BETA) / 3 / (BETA_SCALE - BETA);
/// Windows to acknowledge per segment of growth where the curve says not to grow.
const FLAT: u32 = 100;
/// Most segments to acknowledge per segment of growth before the first loss: 5% per round trip.
const UNKNOWN_PATH: u32 = 20;
/// Fewest segments to acknowledge per segment of growth: 1.5 times per round trip.
const FASTEST: u32 = 2;
/// Largest distance from the origin, 128 s: the largest product below 2^63.
const OFFSET_MAX: u64 = 1 << 17;
const _: () = assert!(C_1024 * OFFSET_MAX * OFFSET_MAX < (1 << 63) / OFFSET_MAX);
/// Microseconds of a tick, 1/250 s: the curve is evaluated at most once in a tick. With a shorter
/// round trip the window grows at the last cost of a segment, which is less than the curve asks
/// for.
const TICK_US: u64 = 4000;
/// With an unchanged window the curve is evaluated again after more ticks than this (1/32 s).
const UPDATE_TICKS: u64 = 7;
/// Round trips measured this soon after a loss do not show the delay of an empty path.
const SAMPLE_AFTER_LOSS: Duration = Duration::from_secs(1);
