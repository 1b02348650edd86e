//! See [`towpath_fuzz::evpn`].
#![cfg_attr(fuzzing, no_main)]

towpath_fuzz::target!(evpn);
