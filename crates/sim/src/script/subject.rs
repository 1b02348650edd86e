//! What a script is played on.

use super::{Call, Ends, Fd, Micros};

/// Port of a listening script.
pub const LISTEN_PORT: u16 = 8080;
/// Port of the script's side.
pub const REMOTE_PORT: u16 = 45_678;
/// The script's link-layer address.
pub const REMOTE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// What a call did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It returned this.
    Done(i64),
    /// It returned this, and told this value: of a socket option or of poll.
    Told(i64, i64),
    /// It failed with this errno.
    Failed(i32),
    /// It would wait.
    Blocked,
}

/// A TCP with sockets, a link and a clock. No call of a subject ever waits: whether a script's
/// call waits is the business of the player, who makes it again.
pub trait Subject {
    /// Both ends. The local port counts for `bind` only, the remote one for `connect`.
    fn ends(&self, v6: bool) -> Ends;

    /// Applies a setting; an error says why not.
    ///
    /// # Errors
    /// The setting is not known here, or the value makes no sense.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String>;

    /// Now.
    fn now(&self) -> Micros;

    /// Lets time pass until `until` or until a frame leaves: the frame, with its time.
    fn run(&mut self, until: Micros) -> Option<(Micros, Vec<u8>)>;

    /// A frame arrives.
    fn inject(&mut self, frame: &[u8]);

    /// The application calls. `data` is what a write sends, and where a read puts what it got.
    /// Flags that only say whether to wait are of no concern. A connect that was begun is asked
    /// about by the same call again. New descriptors have the script's number.
    fn call(&mut self, call: &Call, data: &mut [u8]) -> Outcome;

    /// A field of TCP_INFO by its name, with `tcpi_`; `None` if there is no such field or socket.
    fn info(&mut self, fd: Fd, field: &str) -> Option<i64>;
}
