//! Target: what a policy reads of strangers: greetings of clients, questions, answers of resolvers.

use towpath_gateway::egress::enforcer::{Enforcer, Message};
use towpath_gateway::egress::greeting::{self, Greeting, quic::Conversation};
use towpath_gateway::egress::name::NamePattern;
use towpath_gateway::egress::policy::Policy;
use towpath_gateway::egress::rule::{Action, Check, Destination, Limits, Rule};
use towpath_net::time::Instant;

/// Reads a byte that chooses the format, and a message.
pub fn run(data: &[u8]) {
    let Some((&choice, message)) = data.split_first() else { return };
    match choice % 5 {
        0 => tcp(message),
        1 => {
            greeting::read_again(message);
        }
        2 => {
            let mut conversation = Conversation::default();
            for datagram in message.chunks(1 + message.len() / 2) {
                conversation.read(datagram);
            }
        }
        3 => question(message),
        _ => answer(message),
    }
}

/// A name that was read stays the same, whatever follows.
fn tcp(message: &[u8]) {
    let read = greeting::read(message);
    if let Greeting::Name(name) = &read {
        let more = [message, b"and more"].concat();
        match greeting::read(&more) {
            Greeting::Name(again) => assert_eq!(again, *name),
            // More makes a hello invalid, but never another one.
            other => assert_eq!(other, Greeting::Unnamed),
        }
    }
    greeting::rest(message);
}

fn enforcer() -> Enforcer {
    let pattern: NamePattern = "*.a".parse().expect("a pattern");
    let rule = Rule {
        id: "only".to_owned(),
        action: Action::Allow,
        to: vec![Destination::Name(pattern)],
        ports: Vec::new(),
        check: Check::Greeting,
        overrides_floor: false,
        expires: None,
        limits: Limits::default(),
    };
    Enforcer::new(Policy::new(vec![rule], Action::Deny, true).expect("one rule"), None)
}

/// Only questions for names below `a` pass, and all others are answered with an error.
fn question(message: &[u8]) {
    match enforcer().question(None, message, Instant::START) {
        Message::Pass => {
            let lower = message.to_ascii_lowercase();
            assert!(lower.windows(3).any(|part| part == b"\x01a\0"));
        }
        Message::Answer(answer) => {
            assert_eq!(answer[..2], message[..2]);
            assert!(answer.len() < 400 && answer[2] & 0x80 != 0);
        }
        Message::Drop => {}
    }
}

fn answer(message: &[u8]) {
    let enforcer = enforcer();
    if let Message::Answer(instead) = enforcer.answer(None, message, Instant::START) {
        assert!(instead[2] & 0x80 != 0 && instead[..2] == message[..2]);
    }
    enforcer.answer(Some(1), message, Instant::START);
}
