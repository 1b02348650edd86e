//! Questions to resolvers, and their answers (RFC 1035), as far as a policy has to know them.

use crate::egress::name::Name;
use simple_dns::rdata::{HTTPS, RData, SVCB, SVCParam};
use simple_dns::{Packet, PacketFlag, ResourceRecord};
use std::net::IpAddr;
use std::time::Duration;

/// Length of a message's header (RFC 1035 §4.1.1).
const HEADER_LEN: usize = 12;
/// In the third byte of a header: a response; the operation; recursion is desired.
const RESPONSE: u8 = 0x80;
const OPCODE: u8 = 0x78;
const RECURSION_DESIRED: u8 = 0x01;
/// In the fourth byte: recursion is available; the response code.
const RECURSION_AVAILABLE: u8 = 0x80;
const CODE: u8 = 0x0f;
const REFUSED: u8 = 5;
/// Types of records.
const TYPE_NULL: u16 = 10;
const TYPE_TXT: u16 = 16;
const TYPE_SRV: u16 = 33;
const TYPE_OPT: u16 = 41;
const TYPE_SVCB: u16 = 64;
const TYPE_HTTPS: u16 = 65;
const TYPE_ANY: u16 = 255;
/// Last parameter of services that is passed on: mandatory ones, protocols, no default protocol,
/// and the port come before hints of addresses and keys (RFC 9460 §14.3.2).
const SERVICE_KEY_MAX: u16 = 3;
/// Class of the Internet.
const CLASS_IN: u16 = 1;
/// Bytes of a record's type, class, time to live and length.
const RECORD_LEN: usize = 10;
/// Option with an extended error (RFC 8914 §2).
const EXTENDED_ERROR: u16 = 15;
/// Largest datagram that is announced in answers: what needs no fragments on usual paths.
const DATAGRAM_MAX: u16 = 1232;
/// Most aliases between a name and its addresses.
const ALIASES_MAX: usize = 16;

/// The question of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// The name, unless it has characters that no host's name has. Of a service, such as
    /// `_https._tcp.a.example`, it is the name of the host (RFC 2782).
    pub(super) name: Option<Name>,
    record_type: u16,
    /// Where the question ends in the message.
    end: usize,
    /// The question has a record with options (RFC 6891), so its answer may have one.
    has_options: bool,
}

/// A positive or negative answer.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) asked: Asked,
    pub(super) name: Name,
    /// Addresses of the name, and for how long they are valid.
    pub(super) addresses: Vec<(IpAddr, Duration)>,
}

/// Why a question is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The policy allows nothing at that name.
    Policy,
    /// The guest asks too often.
    Rate,
    /// The name leads to a closed address.
    Closed,
}

impl Refusal {
    /// Returns the extended error (RFC 8914 §4) and its text.
    fn error(self) -> (u16, &'static str) {
        match self {
            // Blocked; Not Ready, which asks for patience.
            Self::Policy => (15, "egress policy: this name is not allowed"),
            Self::Closed => (15, "egress policy: the name leads to a closed address"),
            Self::Rate => (14, "egress policy: too many questions; ask again later"),
        }
    }
}

/// Parses a question; `None` if the message is no query with one question.
pub(super) fn question(message: &[u8]) -> Option<Asked> {
    let flags = *message.get(2)?;
    (flags & (RESPONSE | OPCODE) == 0).then(|| asked(message)).flatten()
}

/// Parses the question section of a message.
fn asked(message: &[u8]) -> Option<Asked> {
    let count = |at: usize| Some(u16::from_be_bytes([*message.get(at)?, *message.get(at + 1)?]));
    let [questions, additional] = [count(4)?, count(10)?];
    if questions != 1 {
        return None;
    }
    let (mut text, mut at) = (Vec::new(), HEADER_LEN);
    loop {
        let len = usize::from(*message.get(at)?);
        at += 1;
        match len {
            0 => break,
            // A pointer could only lead to the name itself.
            64.. => return None,
            _ => {}
        }
        text.extend_from_slice(message.get(at..at + len)?);
        text.push(b'.');
        at += len;
    }
    let (record_type, class) = (count(at)?, count(at + 2)?);
    let is_query = text.len() <= 254 && class == CLASS_IN;
    let name = Name::from_bytes(if record_type == TYPE_SRV { host_of(&text) } else { &text });
    let end = at + 4;
    // A query has nothing before its options. Their record has the root as its name.
    let options = message.get(end..end + 3);
    let has_options = additional > 0 && options == Some(&[0, 0, TYPE_OPT as u8][..]);
    is_query.then_some(Asked { name, record_type, end, has_options })
}

/// Returns the name without the labels of a service and its protocol, if it begins with those.
fn host_of(name: &[u8]) -> &[u8] {
    let mut labels = name.splitn(3, |byte| *byte == b'.');
    match [labels.next(), labels.next(), labels.next()] {
        [Some([b'_', ..]), Some([b'_', ..]), Some(host)] => host,
        _ => name,
    }
}

/// Returns true for questions that towpath answers itself with nothing. Texts and unspecified data
/// carry whatever a server likes, and no address.
pub(super) fn is_answered_empty(asked: &Asked) -> bool {
    matches!(asked.record_type, TYPE_ANY | TYPE_TXT | TYPE_NULL)
}

/// Returns the question of an answer about services (RFC 9460); `None` if it is about something
/// else.
pub(super) fn about_services(message: &[u8]) -> Option<Asked> {
    let is_response = message.get(2)? & RESPONSE != 0;
    asked(message)
        .filter(|asked| is_response && matches!(asked.record_type, TYPE_SVCB | TYPE_HTTPS))
}

/// Returns an answer about services without what a policy cannot check. Its records are those of
/// the name itself that lead to the name itself, with the protocols and the port, and nothing else:
/// no keys for Encrypted Client Hello, which hide names in greetings; no addresses, which the
/// client asks for as well; nothing unknown. Of what is not understood, or leads to another name,
/// nothing is left, and clients do without.
pub(super) fn without_keys(message: &[u8], asked: &Asked) -> Vec<u8> {
    let code = message[3] & CODE;
    stripped(message, asked, code).unwrap_or_else(|| reply(message, asked, code, None))
}

fn stripped(message: &[u8], asked: &Asked, code: u8) -> Option<Vec<u8>> {
    let packet = Packet::parse(message).ok()?;
    let asked = Asked { has_options: packet.opt().is_some(), ..asked.clone() };
    let bare = reply(message, &asked, code, None);
    let mut answer = Packet::parse(&bare).ok()?;
    for record in &packet.answers {
        let owner = record.name.to_string().parse::<Name>().ok();
        let rdata = match &record.rdata {
            _ if owner.is_none() || owner != asked.name => continue,
            RData::SVCB(service) => plain(service).map(RData::SVCB),
            RData::HTTPS(HTTPS(service)) => plain(service).map(|plain| RData::HTTPS(plain.into())),
            _ => None,
        };
        let Some(rdata) = rdata else { continue };
        let name = record.name.clone();
        answer.answers.push(ResourceRecord::new(name, record.class, record.ttl, rdata));
    }
    answer.build_bytes_vec_compressed().ok()
}

/// Returns a record without the parameters that are not passed on; `None` if it needs one of them,
/// or leads to another name (RFC 9460 §2.4, §8).
fn plain<'a>(service: &SVCB<'a>) -> Option<SVCB<'a>> {
    let leads_to_itself = service.priority > 0 && service.target.get_labels().is_empty();
    let mut plain = leads_to_itself.then(|| SVCB::new(service.priority, service.target.clone()))?;
    for parameter in service.iter_params() {
        match parameter {
            SVCParam::Mandatory(keys) if keys.last() > Some(&SERVICE_KEY_MAX) => return None,
            known if known.key_code() <= SERVICE_KEY_MAX => plain.set_param(known.clone()),
            _ => {}
        }
    }
    Some(plain)
}

/// Returns the answer that there are no such records.
pub(super) fn empty(message: &[u8], asked: &Asked) -> Vec<u8> {
    reply(message, asked, 0, None)
}

/// Returns the answer that a question is refused, and why.
pub(super) fn refuse(message: &[u8], asked: &Asked, why: Refusal) -> Vec<u8> {
    reply(message, asked, REFUSED, Some(why))
}

fn reply(message: &[u8], asked: &Asked, code: u8, why: Option<Refusal>) -> Vec<u8> {
    let mut reply = message[..asked.end].to_vec();
    reply[2] = RESPONSE | reply[2] & RECURSION_DESIRED;
    reply[3] = RECURSION_AVAILABLE | code;
    // One question, no records.
    reply[4..HEADER_LEN].copy_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
    if !asked.has_options {
        return reply;
    }
    let mut options = Vec::new();
    if let Some((error, text)) = why.map(Refusal::error) {
        options.extend(EXTENDED_ERROR.to_be_bytes());
        options.extend((text.len() as u16 + 2).to_be_bytes());
        options.extend(error.to_be_bytes());
        options.extend(text.as_bytes());
    }
    reply[HEADER_LEN - 1] = 1;
    reply.push(0);
    reply.extend(TYPE_OPT.to_be_bytes());
    reply.extend(DATAGRAM_MAX.to_be_bytes());
    reply.extend([0; 4]);
    reply.extend((options.len() as u16).to_be_bytes());
    reply.extend(options);
    debug_assert!(reply.len() >= asked.end + 1 + RECORD_LEN);
    reply
}

/// Parses an answer, and follows the aliases in it from the name that was asked for.
pub(super) fn response(message: &[u8]) -> Option<Response> {
    let mut asked = asked(message)?;
    let packet = Packet::parse(message).ok()?;
    if !packet.has_flags(PacketFlag::RESPONSE) {
        return None;
    }
    asked.has_options = packet.opt().is_some();
    let name = asked.name.clone()?;
    let name_of = |name: &simple_dns::Name<'_>| name.to_string().parse::<Name>().ok();
    // An answer over TCP may have thousands of records.
    let owners: Vec<_> = packet.answers.iter().map(|record| name_of(&record.name)).collect();
    let (mut current, mut ttl) = (name.clone(), u32::MAX);
    for _ in 0..ALIASES_MAX {
        let mut addresses = Vec::new();
        let mut alias = None;
        for (record, owner) in packet.answers.iter().zip(&owners) {
            if owner.as_ref() != Some(&current) {
                continue;
            }
            let valid = Duration::from_secs(ttl.min(record.ttl).into());
            match &record.rdata {
                RData::A(a) => addresses.push((IpAddr::from(a.address.to_be_bytes()), valid)),
                RData::AAAA(a) => addresses.push((IpAddr::from(a.address.to_be_bytes()), valid)),
                RData::CNAME(cname) => alias = Some((name_of(&cname.0)?, record.ttl)),
                _ => {}
            }
        }
        match alias.filter(|_| addresses.is_empty()) {
            Some((next, its_ttl)) => (current, ttl) = (next, ttl.min(its_ttl)),
            None => return Some(Response { asked, name, addresses }),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use simple_dns::rdata::{A, AAAA, CNAME};
    use simple_dns::{CLASS, QCLASS, QTYPE, Question, ResourceRecord, TYPE};
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn dns_name(text: &str) -> simple_dns::Name<'_> {
        simple_dns::Name::new_unchecked(text)
    }

    fn query(name: &str, record_type: TYPE, has_options: bool) -> Vec<u8> {
        let mut packet = Packet::new_query(0x1234);
        packet.set_flags(PacketFlag::RECURSION_DESIRED);
        let (record_type, class) = (QTYPE::TYPE(record_type), QCLASS::CLASS(CLASS::IN));
        packet.questions.push(Question::new(dns_name(name), record_type, class, false));
        let mut bytes = packet.build_bytes_vec().unwrap();
        if has_options {
            bytes[11] = 1;
            bytes.extend([0, 0, 41, 4, 0xd0, 0, 0, 0, 0, 0, 0]);
        }
        bytes
    }

    fn answer(name: &str, records: Vec<(&str, u32, RData<'_>)>) -> Vec<u8> {
        let question = query(name, TYPE::A, false);
        let mut packet = Packet::parse(&question).unwrap().into_reply();
        for (name, ttl, rdata) in records {
            packet.answers.push(ResourceRecord::new(dns_name(name), CLASS::IN, ttl, rdata));
        }
        packet.build_bytes_vec_compressed().unwrap()
    }

    fn a(last: u8) -> RData<'static> {
        RData::A(A { address: Ipv4Addr::new(192, 0, 2, last).to_bits() })
    }

    fn alias(to: &str) -> RData<'_> {
        RData::CNAME(CNAME(dns_name(to)))
    }

    #[test]
    fn questions_are_read() {
        for has_options in [false, true] {
            let asked = question(&query("A.Example", TYPE::A, has_options)).unwrap();
            assert_eq!(asked.name, Some("a.example".parse().unwrap()));
            assert_eq!((asked.has_options, is_answered_empty(&asked)), (has_options, false));
        }
        for record_type in [TYPE::TXT, TYPE::NULL] {
            assert!(is_answered_empty(&question(&query("a", record_type, false)).unwrap()));
        }
        for (asked, name) in [
            ("_https._tcp.A.Example", Some("a.example")),
            ("a.example", Some("a.example")),
            ("_tcp.a.example", Some("_tcp.a.example")),
            ("_https._tcp", None),
        ] {
            let found = question(&query(asked, TYPE::SRV, false)).unwrap();
            assert_eq!(found.name, name.map(|name| name.parse().unwrap()), "{asked}");
            let of_address = question(&query(asked, TYPE::A, false)).unwrap();
            assert_eq!(of_address.name, Some(asked.parse().unwrap()));
        }
    }

    /// Bad input: nothing, parts of questions, none and two, answers, other operations and classes,
    /// pointers, names with other characters.
    #[test]
    fn what_is_no_question_is_dropped() {
        let good = query("a.example", TYPE::A, false);
        for len in 0..good.len() {
            assert_eq!(question(&good[..len]), None, "{len} bytes");
        }
        let changed = |at: usize, to: u8| {
            let mut bytes = good.clone();
            bytes[at] = to;
            question(&bytes)
        };
        let last = good.len() - 1;
        for (at, to) in [(5, 0), (5, 2), (2, 0x80), (2, 0x10), (last, 3), (12, 0xc0), (12, 0x40)] {
            assert_eq!(changed(at, to), None, "byte {at}");
        }
        assert_eq!(changed(13, b' ').unwrap().name, None);
    }

    #[test]
    fn refusals_say_why() {
        let question_bytes = query("a.example", TYPE::A, true);
        let asked = question(&question_bytes).unwrap();
        let refused = refuse(&question_bytes, &asked, Refusal::Policy);
        let packet = Packet::parse(&refused).unwrap();
        assert_eq!((packet.id(), packet.rcode()), (0x1234, simple_dns::RCODE::Refused));
        assert!(packet.has_flags(PacketFlag::RESPONSE | PacketFlag::RECURSION_DESIRED));
        assert_eq!((packet.questions.len(), packet.answers.len()), (1, 0));
        let [option] = &packet.opt().unwrap().opt_codes[..] else { panic!("one option") };
        assert_eq!((option.code, &option.data[..2]), (EXTENDED_ERROR, &[0, 15][..]));
        assert!(option.data.ends_with(b"this name is not allowed"));
        let plain = query("a.example", TYPE::A, false);
        let refused = refuse(&plain, &question(&plain).unwrap(), Refusal::Rate);
        assert!(Packet::parse(&refused).unwrap().opt().is_none());
        let empty = empty(&question_bytes, &asked);
        let packet = Packet::parse(&empty).unwrap();
        assert_eq!((packet.rcode(), packet.answers.len()), (simple_dns::RCODE::NoError, 0));
    }

    #[test]
    fn answers_lead_from_the_name_to_its_addresses() {
        let v6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
        let plain = answer(
            "a.example",
            vec![
                ("a.example", 300, a(1)),
                ("A.Example", 60, RData::AAAA(AAAA { address: v6.to_bits() })),
                ("other.example", 60, a(9)),
            ],
        );
        let found = response(&plain).unwrap();
        let secs = Duration::from_secs;
        let first = (IpAddr::from([192, 0, 2, 1]), secs(300));
        assert_eq!(found.addresses, [first, (v6.into(), secs(60))]);
        let chain = answer(
            "a.example",
            vec![
                ("c.example", 500, a(3)),
                ("b.example", 20, alias("c.example")),
                ("a.example", 90, alias("b.example")),
            ],
        );
        let found = response(&chain).unwrap();
        assert_eq!(found.name.as_str(), "a.example");
        assert_eq!(found.addresses, [(IpAddr::from([192, 0, 2, 3]), secs(20))]);
        assert_eq!(response(&answer("a.example", vec![])).unwrap().addresses, []);
    }

    /// Bad input: aliases in a circle, questions in place of answers, parts of answers.
    #[test]
    fn what_is_no_answer_is_dropped() {
        let circle = answer(
            "a.example",
            vec![("a.example", 9, alias("b.example")), ("b.example", 9, alias("a.example"))],
        );
        assert!(response(&circle).is_none());
        assert!(response(&query("a.example", TYPE::A, false)).is_none());
        let good = answer("a.example", vec![("a.example", 300, a(1))]);
        for len in 0..good.len() {
            assert!(response(&good[..len]).is_none(), "{len} bytes");
        }
    }

    /// Returns an answer about services.
    fn services(name: &str, records: Vec<(&str, SVCB<'_>)>) -> Vec<u8> {
        let mut bytes = query(name, TYPE::Unknown(TYPE_HTTPS), false);
        bytes[2] |= RESPONSE;
        let mut packet = Packet::parse(&bytes).unwrap();
        for (name, service) in records {
            let rdata = RData::HTTPS(service.into());
            packet.answers.push(ResourceRecord::new(dns_name(name), CLASS::IN, 60, rdata));
        }
        packet.build_bytes_vec_compressed().unwrap()
    }

    /// Returns a parameter of a service. Key 0 makes the keys for hidden names mandatory.
    fn parameter<'a>(key: u16, value: &'a str) -> SVCParam<'a> {
        match key {
            0 => SVCParam::Mandatory([5].into()),
            1 => SVCParam::Alpn(vec![value.try_into().unwrap()]),
            2 => SVCParam::NoDefaultAlpn,
            3 => SVCParam::Port(443),
            4 => SVCParam::Ipv4Hint(vec![0x7f00_0001]),
            5 => SVCParam::Ech(value.as_bytes().into()),
            6 => SVCParam::Ipv6Hint(vec![1]),
            key => SVCParam::Unknown(key, value.as_bytes().into()),
        }
    }

    fn cleaned(answer: &[u8]) -> Vec<u8> {
        without_keys(answer, &about_services(answer).unwrap())
    }

    /// Goal: protocols and ports of services are passed on; keys for hidden names, addresses and
    /// what leads elsewhere are not.
    #[test]
    fn services_lose_what_cannot_be_checked() {
        let at = |target| {
            let known = [1, 3, 4, 5, 6, 7].map(|key| parameter(key, "h2"));
            known.into_iter().fold(SVCB::new(1, dns_name(target)), SVCB::with_param)
        };
        let alias = SVCB::new(0, dns_name("b.example"));
        let answer = services(
            "a.example",
            vec![
                ("a.example", at("")),
                ("a.example", at("b.example")),
                ("a.example", alias),
                ("b.example", at("")),
            ],
        );
        let clean = cleaned(&answer);
        assert!(!clean.windows(4).any(|part| part == [127, 0, 0, 1]));
        let packet = Packet::parse(&clean).unwrap();
        assert!(packet.has_flags(PacketFlag::RESPONSE));
        let [record] = &packet.answers[..] else { panic!("{packet:?}") };
        let plain = [1, 3].map(|key| parameter(key, "h2"));
        let plain = plain.into_iter().fold(SVCB::new(1, dns_name("")), SVCB::with_param);
        assert_eq!((&record.rdata, record.ttl), (&RData::HTTPS(plain.into()), 60));
        let missing = {
            let mut bytes = answer.clone();
            bytes[3] = 3;
            bytes
        };
        assert_eq!(cleaned(&missing)[3] & CODE, 3, "no such name");
        assert!(about_services(&query("a.example", TYPE::Unknown(TYPE_HTTPS), false)).is_none());
    }

    /// Bad input: records that end early, parameters out of order. Nothing is left of them.
    #[test]
    fn of_services_that_are_not_understood_nothing_is_left() {
        let service = [1, 5].map(|key| parameter(key, "h2"));
        let service = service.into_iter().fold(SVCB::new(1, dns_name("")), SVCB::with_param);
        let answer = services("a.example", vec![("a.example", service)]);
        let is_empty = |bytes: &[u8]| Packet::parse(&cleaned(bytes)).unwrap().answers.is_empty();
        assert!(!is_empty(&answer));
        let question_len = query("a.example", TYPE::A, false).len();
        for len in question_len..answer.len() {
            assert!(is_empty(&answer[..len]), "{len} bytes");
        }
        let mut out_of_order = answer.clone();
        let last = answer.len() - 8;
        assert_eq!(answer[last..last + 2], [0, 5]);
        out_of_order[last + 1] = 1;
        assert!(is_empty(&out_of_order));
    }

    proptest::proptest! {
        /// Any bytes are read without a panic, and each question can be refused.
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..80)) {
            response(&bytes);
            if let Some(asked) = question(&bytes) {
                refuse(&bytes, &asked, Refusal::Rate);
            }
            if let Some(asked) = about_services(&bytes) {
                without_keys(&bytes, &asked);
            }
        }

        /// Whatever a record for a service has, only what may be passed on is left, and the answer
        /// is one that clients understand.
        #[test]
        fn services_have_no_keys(
            priority in 0..3u16,
            target in proptest::sample::select(vec!["", "b.example"]),
            parameters in proptest::collection::btree_map(0..9u16, "[a-z]{0,5}", 0..5),
        ) {
            let mut service = SVCB::new(priority, dns_name(target));
            for (key, value) in &parameters {
                service.set_param(parameter(*key, value));
            }
            let clean = cleaned(&services("a.example", vec![("a.example", service)]));
            let packet = Packet::parse(&clean).unwrap();
            let is_left = priority > 0 && target.is_empty() && !parameters.contains_key(&0);
            proptest::prop_assert_eq!(packet.answers.len(), usize::from(is_left));
            for record in &packet.answers {
                let RData::HTTPS(service) = &record.rdata else { panic!("{record:?}") };
                let keys: Vec<u16> = service.iter_params().map(SVCParam::key_code).collect();
                let kept = parameters.keys().copied().filter(|key| *key < 4);
                let expected: Vec<u16> = kept.collect();
                proptest::prop_assert_eq!(keys, expected);
            }
        }
    }
}
