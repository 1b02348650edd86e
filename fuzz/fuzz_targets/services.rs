//! See [`towpath_fuzz::services`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::services::run(data));
