//! See [`towpath_fuzz::resolv`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::resolv::run(data));
