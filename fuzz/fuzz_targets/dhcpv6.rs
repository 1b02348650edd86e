//! See [`towpath_fuzz::dhcpv6`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::dhcpv6::run(data));
