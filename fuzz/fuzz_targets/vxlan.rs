//! See [`towpath_fuzz::vxlan`].
#![cfg_attr(fuzzing, no_main)]

towpath_fuzz::target!(vxlan);
