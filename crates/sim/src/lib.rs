//! A network that exists only as numbers: seeded links, hosts with applications, and oracles.
//!
//! # Theory of operation
//!
//! A [`World`](world::World) has two [`Host`](host::Host)s and a [`Link`](link::Link) for each
//! direction. It owns the only clock, which jumps to the next deadline of a stack, a link or an
//! application: no time passes otherwise, nothing waits, nothing is read from the system. All
//! chance comes from one [`Rng`](seed::Rng), so that a seed fixes every run to the last bit.
//!
//! What must hold is checked all the time: each frame on a wire by [`oracle::check_frame`], which
//! shares no code with what it judges; each byte that an application reads; and at the end that
//! all memory came back and everything that was sent arrived or was counted as dropped.
//!
//! A failing run prints its seed; `TOWPATH_SEED=<seed>` runs it again.
//!
//! Modules form a line, and each uses only those before it: `{clock, liveness, oracle, seed, trace}
//! → {flow, link} → host → {lan, world} → scenario → {hours, script}`.
#![forbid(unsafe_code)]

pub mod clock;
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
