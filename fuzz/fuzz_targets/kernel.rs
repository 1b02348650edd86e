//! See [`towpath_fuzz::kernel`].
#![cfg_attr(fuzzing, no_main)]

towpath_fuzz::target!(kernel);
