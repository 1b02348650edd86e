//! See [`towpath_fuzz::resolv`].
#![cfg_attr(fuzzing, no_main)]

towpath_fuzz::target!(resolv);
