//! See [`towpath_fuzz::wire`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::wire::run(data));
