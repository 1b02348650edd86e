//! See [`towpath_fuzz::kernel`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::kernel::run(data));
