//! Fuzz targets: one module for each, with a function `run` that takes arbitrary bytes.
//!
//! The test `corpus` runs the same functions over the stored corpora, without sanitizer and fuzzing
//! engine. A target panics if something is wrong and returns in all other cases. It depends only on
//! its input.
#![forbid(unsafe_code)]

/// The body of a target's program. Without the fuzzing engine it does nothing, so that the compiler
/// and its lints treat the target the same in both builds.
#[macro_export]
macro_rules! target {
    ($name:ident) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::$name::run(data));
        #[cfg(not(fuzzing))]
        fn main() {
            let _: $crate::Run = $crate::$name::run;
        }
    };
}

pub mod config;
pub mod control;
pub mod dhcpv4;
pub mod dhcpv6;
pub mod egress;
pub mod evpn;
pub mod filter;
pub mod fragment;
pub mod frame;
pub mod input;
pub mod kernel;
pub mod offload;
pub mod packets;
pub mod publish;
pub mod resolv;
pub mod services;
pub mod switch;
pub mod tcp_input;
pub mod vhost_user_message;
pub mod virtq;
pub mod vxlan;
pub mod wire;

/// A target's function.
pub type Run = fn(&[u8]);

/// All targets by name.
pub const TARGETS: &[(&str, Run)] = &[
    ("config", config::run),
    ("control", control::run),
    ("dhcpv4", dhcpv4::run),
    ("dhcpv6", dhcpv6::run),
    ("egress", egress::run),
    ("evpn", evpn::run),
    ("filter", filter::run),
    ("fragment", fragment::run),
    ("frame", frame::run),
    ("kernel", kernel::run),
    ("offload", offload::run),
    ("publish", publish::run),
    ("resolv", resolv::run),
    ("services", services::run),
    ("switch", switch::run),
    ("tcp_input", tcp_input::run),
    ("vhost_user_message", vhost_user_message::run),
    ("virtq", virtq::run),
    ("vxlan", vxlan::run),
    ("wire", wire::run),
];
