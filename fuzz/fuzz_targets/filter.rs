//! See [`towpath_fuzz::filter`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::filter::run(data));
