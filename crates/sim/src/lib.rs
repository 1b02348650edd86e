//! A simulated network: seeded links, hosts with applications, and oracles.
//!
//! # Theory of operation
//!
//! A [`World`](world::World) has two [`Host`](host::Host)s and a [`Link`](link::Link) for each
//! direction. It owns the only clock, which jumps to the next deadline of a stack, a link or an
//! application: no other time passes, nothing waits, and nothing is read from the system. All
//! random numbers come from one [`Rng`](seed::Rng), so a seed determines every run completely.
//!
//! Invariants are checked all the time: each frame on a wire by [`oracle::check_frame`], which
//! shares no code with the stack; each byte that an application reads; and at the end that all
//! memory came back, and that everything sent has arrived or was counted as dropped.
//!
//! A failing run prints its seed; `TOWPATH_SEED=<seed>` repeats it.
//!
//! Modules form a line, and each uses only those before it: `{clock, liveness, oracle, seed, trace}
//! → {flow, link} → host → {lan, world} → scenario → {contest, hours, script}`.
#![forbid(unsafe_code)]

pub mod clock;
pub mod contest;
pub mod flow;
pub mod host;
pub mod hours;
pub mod lan;
pub mod link;
pub mod liveness;
pub mod oracle;
pub mod scenario;
pub mod script;
pub mod seed;
pub mod trace;
pub mod world;
