//! What happened to a device beside packets: refusals and their reasons, sessions and their ends.
//!
//! Everything is counted. For whoever wants to read it, the last [`NEWS_MAX`] events are kept in
//! words; of what is refused or broken in one session only the first [`REFUSALS_TOLD_MAX`] are, so
//! that a front end cannot fill a log by them.

use super::channel::ChannelError;
use super::control::ControlError;
use super::message;
use super::virtq::Broken;
use std::collections::VecDeque;
use std::fmt;

/// News that wait to be read; the oldest go first.
pub const NEWS_MAX: usize = 32;
/// Refusals and broken rings of one session that are told and not only counted.
pub const REFUSALS_TOLD_MAX: u32 = 16;

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// By the connection.
    Channel(ChannelError),
    /// A file that it gave us was cut, so that memory, log or inflight area are lost.
    Cut,
    /// A request could not be carried out, and no acknowledgement was asked for.
    Refused {
        /// The request.
        code: u32,
        /// Why.
        error: ControlError,
    },
}

impl fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Channel(error) => error.fmt(f),
            Self::Cut => f.write_str("the front end has cut a file that it shares with us"),
            Self::Refused { code, error } => write!(
                f,
                "{} is refused, and no acknowledgement was asked for: {error}",
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

/// What happened to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// A front end has connected.
    Began,
    /// A request was refused, and the front end was told.
    Refused {
        /// The request.
        code: u32,
        /// Why.
        error: ControlError,
    },
    /// The driver broke a ring, which is left alone until it is started anew.
    Broken {
        /// The ring.
        ring: u16,
        /// How.
        reason: Broken,
    },
    /// A session is over.
    Ended(SessionEnd),
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Began => write!(f, "a front end has connected"),
            Self::Refused { code, error } => {
                write!(f, "{} is refused: {error}", message::name(*code))
            }
            Self::Broken { ring, reason } => {
                write!(f, "ring {ring} is left alone until the guest starts it anew: {reason}")
            }
            Self::Ended(end) => write!(f, "the connection is over: {end}"),
        }
    }
}

/// Refused requests by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Not known, of a wrong length, with other descriptors than belong to it, or with values that
    /// nothing can have.
    pub malformed: u64,
    /// Wrong at this point: not offered, not agreed upon, or against what was said before.
    pub out_of_place: u64,
    /// Memory or a log that cannot be mapped, or that overlaps.
    pub memory: u64,
    /// A ring that cannot start.
    pub ring: u64,
    /// A descriptor that is no event.
    pub event: u64,
    /// An area for what is in flight that does not fit.
    pub inflight: u64,
    /// The system refused.
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

    /// Each reason and its number.
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

    /// All of them.
    pub fn total(&self) -> u64 {
        self.reasons().iter().map(|(_, count)| count).sum()
    }
}

/// News that wait. See the module text.
#[derive(Default)]
pub(super) struct Board {
    waiting: VecDeque<News>,
    /// Refusals and broken rings told since the session began.
    told: u32,
}

impl Board {
    pub(super) fn put(&mut self, news: News) {
        match news {
            News::Refused { .. } | News::Broken { .. } if self.told == REFUSALS_TOLD_MAX => return,
            News::Refused { .. } | News::Broken { .. } => self.told += 1,
            News::Began => self.told = 0,
            News::Ended(_) => {}
        }
        if self.waiting.len() == NEWS_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(news);
    }

    pub(super) fn take(&mut self) -> Option<News> {
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    /// Goal: nobody who reads finds the end of the session however much was refused before.
    #[test]
    fn a_flood_of_refusals_hides_nothing() {
        let mut board = Board::default();
        for _ in 0..10 {
            board.put(News::Began);
            for code in 0..100 {
                board.put(News::Refused { code, error: ControlError::Os(Errno::NOMEM) });
            }
            board.put(News::Ended(SessionEnd::Channel(ChannelError::Closed)));
        }
        let all: Vec<News> = std::iter::from_fn(|| board.take()).collect();
        assert_eq!(all.len(), NEWS_MAX);
        assert_eq!(all.last(), Some(&News::Ended(SessionEnd::Channel(ChannelError::Closed))));
        let refused = all.iter().filter(|news| matches!(news, News::Refused { .. })).count();
        assert!(refused <= 2 * REFUSALS_TOLD_MAX as usize);
    }
}
