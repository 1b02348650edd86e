//! See [`towpath_fuzz::offload`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::offload::run(data));
