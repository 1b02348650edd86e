//! Why a plugin failed, as both protocols report it.

use std::fmt::Display;

/// A failure, with the code that CNI gives to it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Error {
    pub(super) code: u32,
    pub(super) message: String,
}

/// The version of the protocol, or a verb that this version does not have (CNI §5, Error).
pub(super) const VERSION: u32 = 1;
/// A field of the configuration is not supported.
pub(super) const UNSUPPORTED: u32 = 2;
/// A variable of the environment is missing or not valid.
pub(super) const ENVIRONMENT: u32 = 4;
/// Input, output or a system call failed.
pub(super) const IO: u32 = 5;
/// The configuration is not JSON.
pub(super) const DECODE: u32 = 6;
/// The configuration is not valid.
pub(super) const CONFIGURATION: u32 = 7;
/// The same call may succeed later.
pub(super) const LATER: u32 = 11;
/// No container can be attached now (CNI §2, STATUS).
pub(super) const NOT_AVAILABLE: u32 = 50;
/// CHECK found something that is not as ADD has left it. Codes from 100 on are a plugin's own.
pub(super) const NOT_AS_EXPECTED: u32 = 100;
/// The network has refused the container.
pub(super) const REFUSED: u32 = 101;

impl Error {
    pub(super) fn new(code: u32, message: impl Display) -> Self {
        Self { code, message: message.to_string() }
    }
}

/// Failures without a code of their own are those of sockets and system calls.
impl From<anyhow::Error> for Error {
    fn from(error: anyhow::Error) -> Self {
        Self::new(IO, format_args!("{error:#}"))
    }
}
