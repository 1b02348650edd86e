//! See [`towpath_fuzz::vhost_user_message`].
#![cfg_attr(fuzzing, no_main)]

towpath_fuzz::target!(vhost_user_message);
