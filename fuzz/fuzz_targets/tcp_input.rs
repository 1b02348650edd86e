//! See [`towpath_fuzz::tcp_input`].
#![cfg_attr(fuzzing, no_main)]

towpath_fuzz::target!(tcp_input);
