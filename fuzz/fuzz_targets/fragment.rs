//! See [`towpath_fuzz::fragment`].
#![cfg_attr(fuzzing, no_main)]

towpath_fuzz::target!(fragment);
