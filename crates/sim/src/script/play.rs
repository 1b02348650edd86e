//! Playing a script on a subject.

use super::numbers::{Numbers, READS, WRITES, differences};
use super::packet::{ACK, SYN, Segment};
use super::{
    Action, Assertion, Call, Error, Expected, Fd, Live, Micros, Outcome, Script, Subject, When,
    errno_name, icmp_frame,
};
use crate::oracle;
use std::collections::{BTreeMap, VecDeque};

/// Tolerances of times.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// A segment may leave this much too early or too late.
    pub time: Micros,
    /// A larger tolerance for long intervals: percent of the time since the previous step.
    pub percent: u64,
    /// A timestamp may be this far off, in milliseconds.
    pub timestamp: u32,
}

impl Tolerance {
    /// For virtual time: timers are rounded to milliseconds at most.
    pub const VIRTUAL: Self = Self { time: 4000, percent: 1, timestamp: 4 };
    /// For real time on a busy machine, whose timers tick every 4 ms.
    pub const REAL: Self = Self { time: 50_000, percent: 3, timestamp: 60 };

    fn of(&self, span: Micros) -> Micros {
        self.time.max(span * self.percent / 100)
    }
}

/// A segment that left, with the numbers of the script.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The time.
    pub at: Micros,
    /// The segment.
    pub segment: Segment,
}

/// Longest wait for a step with the time `*`.
const PATIENCE: Micros = 300_000_000;
/// Error number of a call that would wait.
const EAGAIN: i32 = 11;
/// Error number of a connect that has started.
const EINPROGRESS: i32 = 115;
/// Error number of a connect that had started before.
const EALREADY: i32 = 114;
/// `MSG_DONTWAIT`.
const DONTWAIT: i64 = 0x40;
/// `MSG_OOB`.
const OOB: i64 = 1;
/// `MSG_PEEK`.
const PEEK: i64 = 2;
/// `O_RDWR`, and with `O_NONBLOCK`.
const FLAGS: [i64; 2] = [2, 2 | 0o4000];

/// A descriptor of the script.
#[derive(Clone, Copy, Debug, Default)]
struct Descriptor {
    nonblocking: bool,
    /// A connection was started: further calls query its result.
    begun: bool,
    connecting: bool,
    written: u64,
    read: u64,
}

/// A call that waits.
struct Waiting {
    line: usize,
    call: Call,
    expected: Expected,
    /// Bytes that a write has sent so far.
    done: usize,
    /// When it must return: between these times.
    from: Micros,
    to: Micros,
}

struct Player<'a> {
    subject: &'a mut dyn Subject,
    tolerance: Tolerance,
    numbers: Numbers,
    descriptors: BTreeMap<Fd, Descriptor>,
    latest: Fd,
    left: VecDeque<(Micros, Live)>,
    waiting: Option<Waiting>,
    observed: Vec<Observed>,
    /// The time from which relative times count.
    base: Micros,
    line: usize,
}

impl Script {
    /// Plays the script on `subject`, whose clock is at its start. Returns the segments that left.
    ///
    /// # Errors
    /// The first step that the subject did not follow.
    pub fn run(
        &self,
        subject: &mut dyn Subject,
        tolerance: Tolerance,
    ) -> Result<Vec<Observed>, Error> {
        for (name, value) in &self.settings {
            subject.set(name, value).map_err(|what| Error { line: 1, what })?;
        }
        let numbers = Numbers::new(subject.ends(self.v6));
        let base = subject.now();
        let mut player = Player {
            subject,
            tolerance,
            numbers,
            descriptors: BTreeMap::new(),
            latest: -1,
            left: VecDeque::new(),
            waiting: None,
            observed: Vec::new(),
            base,
            line: 0,
        };
        for step in &self.steps {
            player.line = step.line;
            player.step(step.when, &step.action)?;
        }
        player.finish()
    }
}

impl Player<'_> {
    fn fail<T>(&self, what: String) -> Result<T, Error> {
        Err(Error { line: self.line, what })
    }

    fn step(&mut self, when: When, action: &Action) -> Result<(), Error> {
        if let Action::Expect(segment) = action {
            return self.expect(when, segment);
        }
        let at = match when {
            When::At(at) => at,
            When::After(span) | When::Waiting(span, _) | When::Between(span, _) => self.base + span,
            When::Any => self.subject.now(),
        };
        self.pass(at)?;
        let start = self.base;
        self.base = at;
        match action {
            Action::Expect(_) => Ok(()),
            Action::Inject(segment) => {
                if segment.flags & (SYN | ACK) == SYN && self.observed.is_empty() {
                    self.numbers.renew();
                }
                let frame = self.numbers.live(segment).frame(&self.numbers.ends);
                self.subject.inject(&frame);
                self.retry()
            }
            Action::InjectIcmp(icmp) => {
                let frame = icmp_frame(icmp, &self.numbers.quoted(icmp.seq), &self.numbers.ends);
                self.subject.inject(&frame);
                self.retry()
            }
            Action::Assert(assertions) => {
                assertions.iter().try_for_each(|assertion| self.assert(assertion))
            }
            Action::Call(call, expected) => {
                let end = match when {
                    When::Waiting(_, end) => Some(start + end),
                    _ => None,
                };
                self.call(call, *expected, end)
            }
        }
    }

    /// Lets time pass until `until`, and keeps the segments that leave meanwhile.
    fn pass(&mut self, until: Micros) -> Result<(), Error> {
        while let Some(frame) = self.subject.run(until) {
            self.keep(frame);
            self.retry()?;
        }
        self.retry()
    }

    fn keep(&mut self, (at, frame): (Micros, Vec<u8>)) {
        if let Some(live) = Live::parse(&frame) {
            self.left.push_back((at, live));
        }
    }

    fn expect(&mut self, when: When, expected: &Segment) -> Result<(), Error> {
        let (from, to) = match when {
            When::At(at) => (at, at),
            When::After(span) | When::Waiting(span, _) => (self.base + span, self.base + span),
            When::Between(from, to) => (self.base + from, self.base + to),
            When::Any => (0, self.subject.now() + PATIENCE),
        };
        let slack = self.tolerance.of(to.saturating_sub(self.base));
        let (from, to) = (from.saturating_sub(slack), to.saturating_add(slack));
        while self.left.is_empty() {
            let Some(frame) = self.subject.run(to) else {
                return self.fail(format!("nothing left by {}\n  expected  {expected}", at(to)));
            };
            self.keep(frame);
            self.retry()?;
        }
        let Some((time, live)) = self.left.pop_front() else { return Ok(()) };
        let (actual, wrong) = self.numbers.observe(&live, Some(expected));
        let differences = differences(expected, &actual, self.tolerance.timestamp);
        let compared = format!("\n  expected  {expected}\n  actual    {actual}");
        if !differences.is_empty() {
            return self.fail(format!("{} differ{compared}", differences.join(", ")));
        }
        if let Some(wrong) = wrong {
            return self.fail(format!("{wrong}{compared}"));
        }
        if time < from || time > to {
            let (from, to) = (at(from), at(to));
            return self.fail(format!("left at {}, not in {from} to {to}{compared}", at(time)));
        }
        self.base = time;
        self.observed.push(Observed { at: time, segment: actual });
        Ok(())
    }

    fn assert(&mut self, assertion: &Assertion) -> Result<(), Error> {
        let Assertion { field, comparison, value } = assertion;
        let Some(actual) = self.subject.info(self.latest, field) else {
            return self.fail(format!("no {field} of descriptor {}", self.latest));
        };
        if comparison.holds(actual, *value) {
            return Ok(());
        }
        self.fail(format!("{field} is {actual}, {comparison:?} {value} was wanted"))
    }

    /// Makes a call. `end` says when a call that waits has to return.
    fn call(&mut self, call: &Call, expected: Expected, end: Option<Micros>) -> Result<(), Error> {
        if self.waiting.is_some() {
            return self.fail("the call before still waits".into());
        }
        let now = self.subject.now();
        let slack = self.tolerance.of(end.unwrap_or(now).saturating_sub(now));
        let to = end.unwrap_or(now) + slack;
        let from = end.unwrap_or(now).saturating_sub(slack);
        let (line, call) = (self.line, call.clone());
        self.waiting = Some(Waiting { line, call, expected, done: 0, from, to });
        self.attempt(end.is_some())
    }

    /// Repeats the waiting call.
    fn retry(&mut self) -> Result<(), Error> {
        match &self.waiting {
            None => Ok(()),
            Some(waiting) if self.subject.now() > waiting.to => {
                let line = waiting.line;
                Err(Error { line, what: format!("the call still waits at {}", at(waiting.to)) })
            }
            Some(_) => self.attempt(true),
        }
    }

    fn attempt(&mut self, may_wait: bool) -> Result<(), Error> {
        let Some(mut waiting) = self.waiting.take() else { return Ok(()) };
        let line = waiting.line;
        let outcome = self.make(&mut waiting)?;
        let actual = match outcome {
            Outcome::Done(value) => Ok(value),
            Outcome::Reported(value, reported) => {
                self.check_reported(&waiting, reported)?;
                Ok(value)
            }
            Outcome::Failed(errno) => Err(errno),
            Outcome::Blocked if self.is_nonblocking(&waiting.call) => {
                if waiting.done > 0 {
                    Ok(waiting.done as i64)
                } else {
                    Err(self.would_wait(&waiting.call))
                }
            }
            Outcome::Blocked if may_wait => {
                self.waiting = Some(waiting);
                return Ok(());
            }
            Outcome::Blocked => return self.fail("the call waits".into()),
        };
        let wanted = match waiting.expected {
            Expected { errno: Some(errno), .. } => Err(errno),
            Expected { value, .. } => Ok(value),
        };
        let show = |result: Result<i64, i32>| match result {
            Ok(value) => value.to_string(),
            Err(errno) => format!("-1 {}", errno_name(errno)),
        };
        if actual != wanted {
            let what = format!("the call returned {}, not {}", show(actual), show(wanted));
            return Err(Error { line, what });
        }
        if self.subject.now() < waiting.from {
            let what = format!("the call returned at {}, too early", at(self.subject.now()));
            return Err(Error { line, what });
        }
        Ok(())
    }

    /// Makes a call once, and counts the bytes that it moved.
    fn make(&mut self, waiting: &mut Waiting) -> Result<Outcome, Error> {
        if let Call::Connect(fd) | Call::Write { fd, .. } = waiting.call
            && waiting.call.connects()
            && !std::mem::replace(&mut self.descriptors.entry(fd).or_default().begun, true)
        {
            self.numbers.renew();
        }
        match waiting.call.clone() {
            Call::Write { fd, len, .. } => Ok(self.write(fd, len, waiting)),
            Call::Read { fd, len, flags, fill } => self.read(fd, len, flags, fill, waiting),
            Call::SetNonblocking(fd, nonblocking) => {
                self.descriptors.entry(fd).or_default().nonblocking = nonblocking;
                Ok(Outcome::Done(0))
            }
            Call::GetFlags(fd) => {
                let nonblocking = self.descriptors.entry(fd).or_default().nonblocking;
                Ok(Outcome::Done(FLAGS[usize::from(nonblocking)]))
            }
            Call::Socket { fd, nonblocking } => {
                let outcome = self.subject.call(&waiting.call, &mut []);
                self.open(fd, nonblocking, outcome);
                Ok(outcome)
            }
            Call::Accept { fd, nonblocking, .. } => {
                let outcome = self.subject.call(&waiting.call, &mut []);
                self.open(fd, nonblocking, outcome);
                Ok(outcome)
            }
            call => Ok(self.subject.call(&call, &mut [])),
        }
    }

    fn open(&mut self, fd: Fd, nonblocking: bool, outcome: Outcome) {
        if outcome == Outcome::Done(fd) {
            self.descriptors.insert(fd, Descriptor { nonblocking, ..Descriptor::default() });
            self.latest = fd;
        }
    }

    fn write(&mut self, fd: Fd, len: usize, waiting: &mut Waiting) -> Outcome {
        let written = self.descriptors.entry(fd).or_default().written;
        let mut data = vec![0; len - waiting.done];
        oracle::fill(WRITES, written, &mut data);
        match self.subject.call(&waiting.call, &mut data) {
            Outcome::Done(count) => {
                self.descriptors.entry(fd).or_default().written += count as u64;
                waiting.done += count as usize;
                if waiting.done == len { Outcome::Done(len as i64) } else { Outcome::Blocked }
            }
            other => other,
        }
    }

    fn read(
        &mut self,
        fd: Fd,
        len: usize,
        flags: i64,
        fill: Option<u8>,
        waiting: &Waiting,
    ) -> Result<Outcome, Error> {
        let mut data = vec![0; len];
        let outcome = self.subject.call(&waiting.call, &mut data);
        let Outcome::Done(count) = outcome else { return Ok(outcome) };
        let descriptor = self.descriptors.entry(fd).or_default();
        let got = &data[..(count as usize).min(len)];
        let right = match fill {
            Some(value) => got.iter().all(|byte| *byte == value),
            None => oracle::matches(READS, descriptor.read, got),
        };
        let place = descriptor.read;
        if flags & PEEK == 0 {
            descriptor.read += count as u64;
        }
        if right {
            Ok(outcome)
        } else {
            self.fail(format!("wrong bytes were read from {place} on"))
        }
    }

    fn check_reported(&self, waiting: &Waiting, reported: i64) -> Result<(), Error> {
        let (what, wanted) = match waiting.call {
            Call::GetOption { value, .. } => ("the value", value),
            Call::Poll { revents, .. } => ("revents", revents),
            Call::AtMark { value, .. } => ("the mark", value),
            _ => return Ok(()),
        };
        if reported == wanted {
            return Ok(());
        }
        Err(Error { line: waiting.line, what: format!("{what} is {reported}, not {wanted}") })
    }

    fn is_nonblocking(&self, call: &Call) -> bool {
        let (fd, flags) = match call {
            Call::Read { fd, flags, .. } | Call::Write { fd, flags, .. } => (fd, *flags),
            Call::Accept { listener, .. } => (listener, 0),
            Call::Connect(fd) => (fd, 0),
            _ => return false,
        };
        // A call that reads urgent data never waits.
        flags & (DONTWAIT | OOB) != 0
            || self.descriptors.get(fd).is_some_and(|known| known.nonblocking)
    }

    /// The error of a call that does not wait.
    fn would_wait(&mut self, call: &Call) -> i32 {
        let (Call::Connect(fd) | Call::Write { fd, .. }) = call else { return EAGAIN };
        if !call.connects() {
            return EAGAIN;
        }
        let descriptor = self.descriptors.entry(*fd).or_default();
        let again = std::mem::replace(&mut descriptor.connecting, true);
        if again { EALREADY } else { EINPROGRESS }
    }

    /// Checks that no segment and no call is left.
    fn finish(mut self) -> Result<Vec<Observed>, Error> {
        let now = self.subject.now();
        self.pass(now)?;
        if let Some(waiting) = &self.waiting {
            let what = "the call still waits at the end".into();
            return Err(Error { line: waiting.line, what });
        }
        match self.left.pop_front() {
            None => Ok(self.observed),
            Some((time, live)) => {
                let (actual, _) = self.numbers.observe(&live, None);
                self.fail(format!("left at {} and was not expected:\n  {actual}", at(time)))
            }
        }
    }
}

/// Formats a time for messages.
fn at(micros: Micros) -> String {
    format!("{}.{:06} s", micros / 1_000_000, micros % 1_000_000)
}
