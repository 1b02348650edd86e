//! See [`towpath_fuzz::switch`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::switch::run(data));
