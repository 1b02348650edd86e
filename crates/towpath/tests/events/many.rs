//! A hundred thousand registrations.

use super::{Case, PATIENCE, queue};
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, getrlimit};
use std::sync::Arc;
use std::time::Instant;
use towpath::events::{Choice, EventKind, Interest, Source, Trigger};

pub(super) const CASES: &[Case] = &[("a_hundred_thousand_registrations", hundred_thousand)];

const REGISTRATIONS: u64 = 100_000;
/// Descriptors left for other uses.
const SPARE: u64 = 200;

/// Goal: every registration is reported once, removed ones are not, and tokens are distinct. As
/// many of them are descriptors as the process may open.
fn hundred_thousand(choice: Choice) {
    let mut queue = queue(choice);
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let descriptors = limit.saturating_sub(SPARE).min(REGISTRATIONS / 4);
    let (mut tokens, mut files, mut notifiers) = (Vec::new(), Vec::new(), Vec::new());
    let now = queue.now();
    for data in 0..REGISTRATIONS {
        let token = match data {
            _ if data < descriptors => {
                let file = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
                files.push(file.clone());
                queue.add(Source::fd(file, Interest::READ, Trigger::OneShot), data)
            }
            _ if data % 2 == 0 => queue.add(Source::at(now), data),
            _ => queue.add(Source::user(), data),
        };
        let token = token.unwrap();
        notifiers.extend(queue.notifier(token));
        tokens.push(token);
    }
    assert_eq!(queue.len() as u64, REGISTRATIONS);
    for file in &files {
        rustix::io::write(file, &1_u64.to_ne_bytes()).unwrap();
    }
    notifiers.iter().for_each(|notifier| notifier.notify());
    for token in tokens.iter().step_by(10) {
        queue.remove(*token).unwrap();
    }
    let wanted = (REGISTRATIONS - REGISTRATIONS / 10) as usize;
    let (mut events, late) = (Vec::new(), Some(Instant::now() + 4 * PATIENCE));
    assert_eq!(queue.wait_many(&mut events, wanted..=usize::MAX, late).unwrap(), wanted);
    events.sort_unstable_by_key(|event| event.data);
    let expected = (0..REGISTRATIONS).filter(|data| data % 10 != 0);
    for (event, data) in events.iter().zip(expected) {
        assert_eq!((event.data, event.token), (data, tokens[data as usize]));
        let is_right = match event.kind {
            EventKind::Ready(ready) => ready.readable && data < descriptors,
            EventKind::Expired { .. } => data % 2 == 0,
            EventKind::Notified { count } => count == 1 && data % 2 == 1,
            _ => false,
        };
        assert!(is_right, "{event:?}");
    }
}
