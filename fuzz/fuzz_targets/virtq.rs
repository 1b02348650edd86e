//! See [`towpath_fuzz::virtq`].
#![cfg_attr(fuzzing, no_main)]

towpath_fuzz::target!(virtq);
