//! See [`towpath_fuzz::offload`].
#![cfg_attr(fuzzing, no_main)]

towpath_fuzz::target!(offload);
