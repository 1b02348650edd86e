//! The system on which a script is played.

use super::{Call, Ends, Fd, Micros};

/// Port of a listening script.
pub const LISTEN_PORT: u16 = 8080;
/// Port of the script.
pub const REMOTE_PORT: u16 = 45_678;
/// The script's link-layer address.
pub const REMOTE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It returned this.
    Done(i64),
    /// It returned this, together with this value of a socket option or of poll.
    Reported(i64, i64),
    /// It failed with this errno.
    Failed(i32),
    /// It would wait.
    Blocked,
}

/// A TCP with sockets, a link and a clock. No call of a subject ever waits: if a script's call
/// waits, the player repeats it.
pub trait Subject {
    /// Both ends. The local port is used for `bind` only, the remote one for `connect`.
    fn ends(&self, v6: bool) -> Ends;

    /// Applies a setting.
    ///
    /// # Errors
    /// The reason: the setting is not supported, or the value is invalid.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String>;

    /// The current time.
    fn now(&self) -> Micros;

    /// Lets time pass until `until` or until a frame leaves. Returns the frame with its time.
    fn run(&mut self, until: Micros) -> Option<(Micros, Vec<u8>)>;

    /// Delivers a frame.
    fn inject(&mut self, frame: &[u8]);

    /// Makes a call of the application. `data` contains the bytes of a write, or receives those of
    /// a read. Flags that only select whether to wait are ignored. Repeating a connect that has
    /// started queries its result. New descriptors have the script's numbers.
    fn call(&mut self, call: &Call, data: &mut [u8]) -> Outcome;

    /// A field of TCP_INFO by its name, including `tcpi_`. `None` if there is no such field or
    /// socket.
    fn info(&mut self, fd: Fd, field: &str) -> Option<i64>;
}
