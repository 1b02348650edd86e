//! Events of a device other than packets: refusals with their reasons, sessions and their ends.
//!
//! Everything is counted. In addition, the last [`EVENTS_MAX`] events are kept with their details.
//! Of the refusals and broken rings of one session only the first [`REFUSALS_REPORTED_MAX`] are
//! kept, so that a front end cannot fill a log with them.

use super::channel::ChannelError;
use super::control::ControlError;
use super::message;
use super::virtq::Broken;
use std::collections::VecDeque;
use std::fmt;

/// Most unread events; the oldest are dropped.
pub const EVENTS_MAX: usize = 32;
/// Most refusals and broken rings of one session that become events, and are not only counted.
pub const REFUSALS_REPORTED_MAX: u32 = 16;

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The connection ended.
    Channel(ChannelError),
    /// The link was set down, and the front end takes no reports.
    LinkDown,
    /// A shared file was truncated, so that guest memory, the dirty log or the in-flight region is
    /// lost.
    MemoryLost,
    /// A request could not be carried out, and no acknowledgement was requested.
    Refused {
        /// The request number.
        code: u32,
        /// The reason.
        error: ControlError,
    },
}

impl fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Channel(error) => error.fmt(f),
            Self::LinkDown => f.write_str("the link was set down"),
            Self::MemoryLost => f.write_str("the front end truncated a file that it shares"),
            Self::Refused { code, error } => write!(
                f,
                "{} is rejected, and the front end requested no acknowledgement: {error}",
                message::name(*code)
            ),
        }
    }
}

impl std::error::Error for SessionEnd {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Channel(error) => error.source(),
            _ => None,
        }
    }
}

impl From<ChannelError> for SessionEnd {
    fn from(error: ChannelError) -> Self {
        Self::Channel(error)
    }
}

/// An event of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// A front end has connected.
    Began,
    /// A request was refused, and the refusal was acknowledged.
    Refused {
        /// The request number.
        code: u32,
        /// The reason.
        error: ControlError,
    },
    /// The driver broke a ring, which stays stopped until it is started again.
    Broken {
        /// The ring.
        ring: u16,
        /// The reason.
        reason: Broken,
    },
    /// A session ended.
    Ended(SessionEnd),
}

impl fmt::Display for DeviceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Began => write!(f, "a front end connected"),
            Self::Refused { code, error } => {
                write!(f, "{} is rejected: {error}", message::name(*code))
            }
            Self::Broken { ring, reason } => {
                write!(f, "ring {ring} is stopped until the guest restarts it: {reason}")
            }
            Self::Ended(end) => write!(f, "the session ended: {end}"),
        }
    }
}

/// Number of refused requests, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Unknown, of the wrong length, with the wrong descriptors, or with impossible values.
    pub malformed: u64,
    /// Not permitted in this state: not offered, not negotiated, or in conflict with earlier
    /// requests.
    pub out_of_place: u64,
    /// Memory or a dirty log that cannot be mapped, or regions that overlap.
    pub memory: u64,
    /// A ring that cannot start.
    pub ring: u64,
    /// A descriptor that is not an event.
    pub event: u64,
    /// An in-flight region that does not fit or cannot be mapped.
    pub inflight: u64,
    /// A system call failed.
    pub system: u64,
}

impl Refusals {
    pub(super) fn count(&mut self, error: &ControlError) {
        *match error {
            ControlError::Request(_) => &mut self.malformed,
            ControlError::Refusal(_) => &mut self.out_of_place,
            ControlError::Memory(_) => &mut self.memory,
            ControlError::Start(..) => &mut self.ring,
            ControlError::Kick(_) | ControlError::NoEvent(_) => &mut self.event,
            ControlError::Inflight(_) | ControlError::InflightMap(_) => &mut self.inflight,
            ControlError::Os(_) => &mut self.system,
        } += 1;
    }

    /// Each reason and its count.
    pub fn reasons(&self) -> [(&'static str, u64); 7] {
        let Self { malformed, out_of_place, memory, ring, event, inflight, system } = *self;
        [
            ("malformed", malformed),
            ("out_of_place", out_of_place),
            ("memory", memory),
            ("ring", ring),
            ("event", event),
            ("inflight", inflight),
            ("system", system),
        ]
    }

    /// Sum of all reasons.
    pub fn total(&self) -> u64 {
        self.reasons().iter().map(|(_, count)| count).sum()
    }
}

/// Unread events; see the module documentation.
#[derive(Default)]
pub(super) struct EventLog {
    waiting: VecDeque<DeviceEvent>,
    /// Refusals and broken rings reported in this session.
    reported: u32,
}

impl EventLog {
    pub(super) fn put(&mut self, event: DeviceEvent) {
        match event {
            DeviceEvent::Refused { .. } | DeviceEvent::Broken { .. }
                if self.reported == REFUSALS_REPORTED_MAX =>
            {
                return;
            }
            DeviceEvent::Refused { .. } | DeviceEvent::Broken { .. } => self.reported += 1,
            DeviceEvent::Began => self.reported = 0,
            DeviceEvent::Ended(_) => {}
        }
        if self.waiting.len() == EVENTS_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(event);
    }

    pub(super) fn take(&mut self) -> Option<DeviceEvent> {
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    /// Goal: the end of a session is always reported, however much was refused before.
    #[test]
    fn a_flood_of_refusals_hides_nothing() {
        let mut log = EventLog::default();
        for _ in 0..10 {
            log.put(DeviceEvent::Began);
            for code in 0..100 {
                log.put(DeviceEvent::Refused { code, error: ControlError::Os(Errno::NOMEM) });
            }
            log.put(DeviceEvent::Ended(SessionEnd::Channel(ChannelError::Closed)));
        }
        let all: Vec<DeviceEvent> = std::iter::from_fn(|| log.take()).collect();
        assert_eq!(all.len(), EVENTS_MAX);
        assert_eq!(
            all.last(),
            Some(&DeviceEvent::Ended(SessionEnd::Channel(ChannelError::Closed)))
        );
        let refused =
            all.iter().filter(|event| matches!(event, DeviceEvent::Refused { .. })).count();
        assert!(refused <= 2 * REFUSALS_REPORTED_MAX as usize);
    }
}
