//! See [`towpath_fuzz::config`].
#![cfg_attr(fuzzing, no_main)]

towpath_fuzz::target!(config);
