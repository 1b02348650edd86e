//! See [`towpath_fuzz::switch`].
#![cfg_attr(fuzzing, no_main)]

towpath_fuzz::target!(switch);
