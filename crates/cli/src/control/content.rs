//! What requests contain: policies and operations, parsed.
//!
//! A long request is parsed by a thread of its own, [`Reader`]: a policy of 5,000 rules takes
//! milliseconds, in which no packet would move. That thread also frees the policy that it replaces.
//! It is started with the instance, because a confined process may not be able to start threads
//! later.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::{io, thread};

use rustix::event::{EventfdFlags, eventfd};
use serde_json::Value;
use towpath_gateway::control::egress;
use towpath_gateway::control::fields::Fields;
use towpath_gateway::control::http::{BodyRoom, Request};
use towpath_gateway::control::operations;
use towpath_gateway::egress::policy::Policy;
use towpath_gateway::network::Operation;

use crate::control::policy::EGRESS;
use crate::control::published::TRANSACTION;

/// Most values in a body, with the empty ones. A value takes up to 640 bytes while it is parsed:
/// 160 MiB for a moment.
const VALUES_MAX: usize = 1 << 18;

/// What a request contains. Errors are messages for the client.
pub(crate) enum Content {
    /// A policy for all guests.
    Policy(Result<Arc<Policy>, String>),
    /// Operations of a transaction.
    Operations(Result<Vec<Operation>, String>),
    /// Something else, which is not parsed here.
    Other,
}

/// A long request that has been parsed.
pub(crate) struct Parsed {
    /// Number of its connection.
    pub(crate) number: u64,
    /// The whole request.
    pub(crate) bytes: Vec<u8>,
    pub(crate) content: Content,
}

/// What the thread of a [`Reader`] has to do.
enum Task {
    /// Parses the request of connection `number`.
    Parse { number: u64, bytes: Vec<u8> },
    /// Frees a policy, unless something else has it.
    Free(Arc<Policy>),
}

/// Parses long requests on a thread of its own, one at a time.
pub(crate) struct Reader {
    tasks: Sender<Task>,
    parsed: Receiver<Parsed>,
    /// An event for each request that is parsed, after it was passed back.
    bell: Arc<OwnedFd>,
    is_busy: bool,
}

impl Content {
    /// Parses the body of a request.
    pub(crate) fn of(request: &Request<'_>) -> Self {
        let Request { method, path, body } = *request;
        match (method, path) {
            ("POST", EGRESS) => Self::Policy(count(body).and_then(|()| policy(body)).map(Arc::new)),
            ("POST", TRANSACTION) => {
                Self::Operations(count(body).and_then(|()| operations::transaction(body)))
            }
            _ => Self::Other,
        }
    }
}

impl Reader {
    /// Starts the thread, which ends when this is dropped.
    ///
    /// # Errors
    /// Those of eventfd(2) and of starting a thread.
    pub(crate) fn start() -> io::Result<Self> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (tasks, taken) = channel();
        let (done, parsed) = channel();
        let ring = bell.clone();
        let parse = move || {
            for task in taken {
                let (number, bytes) = match task {
                    Task::Parse { number, bytes } => (number, bytes),
                    Task::Free(policy) => {
                        drop(policy);
                        continue;
                    }
                };
                let request = Request::parse(&bytes, BodyRoom::LONG);
                let content = request.ok().flatten().map(|request| Content::of(&request));
                let content = content.unwrap_or(Content::Other);
                if done.send(Parsed { number, bytes, content }).is_err() {
                    return;
                }
                // Fails only if the event is there already.
                let _ = rustix::io::write(&ring, &1_u64.to_ne_bytes());
            }
        };
        thread::Builder::new().name("requests".to_owned()).spawn(parse)?;
        Ok(Self { tasks, parsed, bell, is_busy: false })
    }

    /// Returns the file that is readable when a request is parsed.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Returns true if it parses a request, and takes no other.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Hands over a request, whole, of connection `number`. The reader must not be busy.
    pub(crate) fn begin(&mut self, number: u64, bytes: Vec<u8>) {
        // The thread ends only with this.
        self.is_busy = self.tasks.send(Task::Parse { number, bytes }).is_ok();
    }

    /// Leaves it to the thread to free a policy.
    pub(crate) fn free(&self, policy: Arc<Policy>) {
        // Without the thread, it is freed here.
        let _ = self.tasks.send(Task::Free(policy));
    }

    /// Returns the request that has been parsed, if one has.
    pub(crate) fn take(&mut self) -> Option<Parsed> {
        // With its event, so that none is left.
        if !self.is_busy || rustix::io::read(&self.bell, &mut [0; 8]).is_err() {
            return None;
        }
        let parsed = self.parsed.try_recv().ok()?;
        self.is_busy = false;
        Some(parsed)
    }
}

/// Refuses a body that would need too much memory. Each value but the first follows a comma or the
/// bracket of its list or object.
fn count(body: &[u8]) -> Result<(), String> {
    let values = body.iter().filter(|byte| b",[{".contains(byte)).count() + 1;
    match values <= VALUES_MAX {
        true => Ok(()),
        false => Err(format!(
            "the body has about {values} values; at most {VALUES_MAX} are accepted at once"
        )),
    }
}

fn policy(body: &[u8]) -> Result<Policy, String> {
    let value = serde_json::from_slice::<Value>(body).map_err(|error| error.to_string())?;
    let policy = Fields::of(value, "").and_then(egress::policy);
    policy.map_err(|wrong| format!("{}: {}", wrong.path, wrong.message))
}
