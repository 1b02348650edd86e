//! See [`towpath_fuzz::publish`].
#![cfg_attr(fuzzing, no_main)]

towpath_fuzz::target!(publish);
