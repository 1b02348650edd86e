//! See [`towpath_fuzz::dhcpv4`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::dhcpv4::run(data));
