//! See [`towpath_fuzz::control`].
#![cfg_attr(fuzzing, no_main)]

towpath_fuzz::target!(control);
