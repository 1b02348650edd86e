//! Ports of a network whose guests are in the test, over stream sockets and with queues in shared
//! memory.

mod bandwidth;
mod changed_workers;
mod front_ends;
mod queues;
mod rig;
mod running;
mod scribble;
mod workers;
