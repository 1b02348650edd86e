//! See [`towpath_fuzz::filter`].
#![cfg_attr(fuzzing, no_main)]

towpath_fuzz::target!(filter);
