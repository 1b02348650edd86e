//! See [`towpath_fuzz::fragment`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::fragment::run(data));
