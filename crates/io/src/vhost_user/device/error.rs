//! Why a device could not be created or used.

use crate::endpoint::EndpointError;
use std::fmt;
use std::io;

/// Why a device could not be created or used.
#[derive(Debug)]
pub enum VhostUserError {
    /// Its socket could not be opened.
    Endpoint(EndpointError),
    /// The system refused a resource that every device needs.
    Os(io::Error),
}

impl fmt::Display for VhostUserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoint(error) => error.fmt(f),
            Self::Os(error) => write!(f, "the vhost-user device failed: {error}"),
        }
    }
}

impl std::error::Error for VhostUserError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Endpoint(error) => error.source(),
            Self::Os(error) => Some(error),
        }
    }
}

impl From<EndpointError> for VhostUserError {
    fn from(error: EndpointError) -> Self {
        Self::Endpoint(error)
    }
}

impl From<io::Error> for VhostUserError {
    fn from(error: io::Error) -> Self {
        Self::Os(error)
    }
}
