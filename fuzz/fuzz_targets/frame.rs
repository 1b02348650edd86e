//! See [`towpath_fuzz::frame`].
#![cfg_attr(fuzzing, no_main)]

towpath_fuzz::target!(frame);
