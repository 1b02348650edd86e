//! See [`towpath_fuzz::egress`].
#![cfg_attr(fuzzing, no_main)]

towpath_fuzz::target!(egress);
