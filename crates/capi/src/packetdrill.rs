//! Entry point for packetdrill: the library as a stack under test.
//!
//! packetdrill runs a script in two threads: one executes the script, the other one makes system
//! calls that the script marks as blocking. packetdrill asks the loaded stack for the time, so time
//! can be virtual: it passes only in `usleep` and `netdev_receive`, from one deadline to the next.
//! A script of minutes runs in milliseconds, and each event happens exactly when it is due.
//!
//! Before time passes, a call in the other thread that can continue does so, until that thread asks
//! for the time, which is the last thing that packetdrill does with a call. So its end is seen at
//! the right time.
//!
//! `entry` contains the functions that packetdrill calls, `settings` reads what scripts set.

mod driver;
mod entry;
mod routes;
mod settings;
