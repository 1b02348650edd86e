//! See [`towpath_fuzz::vhost_user_message`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_fuzz::vhost_user_message::run(data));
