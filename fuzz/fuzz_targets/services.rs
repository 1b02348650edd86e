//! See [`towpath_fuzz::services`].
#![cfg_attr(fuzzing, no_main)]

towpath_fuzz::target!(services);
