//! See [`towpath_fuzz::dhcpv6`].
#![cfg_attr(fuzzing, no_main)]

towpath_fuzz::target!(dhcpv6);
