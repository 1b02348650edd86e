//! See [`towpath_fuzz::frame`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::frame::run(data));
