//! Entry point for packetdrill: the library as a stack under test.
//!
//! packetdrill runs a script in two threads: one that moves on through the script, and one for
//! system calls that the script says block. It asks the loaded stack what time it is, so time can
//! be virtual: it stands still except in `usleep` and `netdev_receive`, which let it pass from one
//! deadline to the next. A script of minutes runs in milliseconds, and each event happens exactly
//! when it is due.
//!
//! Before time passes, a call that could go on in the other thread does so, up to its asking for
//! the time, which is the last thing that packetdrill does with it: so its end is seen at the right
//! time.
//!
//! `entry` has the functions that packetdrill calls, `settings` reads what scripts set.

mod driver;
mod entry;
mod routes;
mod settings;
