//! See [`towpath_fuzz::wire`].
#![cfg_attr(fuzzing, no_main)]

towpath_fuzz::target!(wire);
