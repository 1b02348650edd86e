//! See [`towpath_fuzz::publish`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::publish::run(data));
