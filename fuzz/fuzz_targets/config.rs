//! See [`towpath_fuzz::config`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::config::run(data));
