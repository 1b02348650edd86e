//! See [`towpath_fuzz::dhcpv4`].
#![cfg_attr(fuzzing, no_main)]

towpath_fuzz::target!(dhcpv4);
