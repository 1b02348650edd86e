//! See [`towpath_fuzz::virtq`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::virtq::run(data));
