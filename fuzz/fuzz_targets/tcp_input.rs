//! See [`towpath_fuzz::tcp_input`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::tcp_input::run(data));
