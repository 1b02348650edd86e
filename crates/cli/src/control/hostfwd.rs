//! Requests and answers in the form of slirp4netns's API socket: a JSON object each.
//!
//! `add_hostfwd` publishes a port, `remove_hostfwd` closes it by the number that the answer to the
//! first has, `list_hostfwd` lists the ports that were published so. Addresses are IPv4. Answers
//! have the words and the order of slirp4netns 1.2; the text of an error may say more.

use std::fmt::{Display, Write as _};
use std::net::Ipv4Addr;

use serde_json::{Deserializer, Value, json};
use towpath_gateway::publish::{self, Protocol, Publish, Target};

/// Bytes that a request must be shorter than.
pub(crate) const REQUEST_BYTES_MAX: usize = 4096;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Add(Forward),
    List,
    Remove(u64),
}

/// A port of the host that leads to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forward {
    pub(crate) protocol: Protocol,
    pub(crate) host: Ipv4Addr,
    pub(crate) host_port: u16,
    pub(crate) guest: Ipv4Addr,
    pub(crate) guest_port: u16,
}

impl Request {
    /// Parses a request to the program whose address is `guest`; `None` if more bytes are needed,
    /// of which `is_end` says that none come.
    ///
    /// # Errors
    /// What is wrong, for [`refusal`].
    pub(crate) fn parse(
        bytes: &[u8],
        is_end: bool,
        guest: Option<Ipv4Addr>,
    ) -> Option<Result<Self, &'static str>> {
        if bytes.len() >= REQUEST_BYTES_MAX {
            return Some(Err("too large message"));
        }
        match Deserializer::from_slice(bytes).into_iter::<Value>().next() {
            Some(Ok(value)) => Some(Self::of_value(&value, guest)),
            Some(Err(error)) if error.is_eof() && !is_end => None,
            None if !is_end => None,
            Some(Err(_)) | None => Some(Err("cannot parse JSON")),
        }
    }

    fn of_value(value: &Value, guest: Option<Ipv4Addr>) -> Result<Self, &'static str> {
        let object = value.as_object().ok_or("json_object() failed")?;
        let execute = object.get("execute").and_then(Value::as_str).ok_or("no execute found")?;
        let arguments = object.get("arguments").unwrap_or(&Value::Null);
        match execute {
            "add_hostfwd" => Forward::of_arguments(arguments, guest).map(Self::Add),
            "list_hostfwd" => Ok(Self::List),
            "remove_hostfwd" => {
                let id = arguments["id"].as_u64();
                id.map(Self::Remove).ok_or(UNKNOWN_ID)
            }
            _ => Err("unknown execute"),
        }
    }
}

impl Forward {
    fn of_arguments(arguments: &Value, guest: Option<Ipv4Addr>) -> Result<Self, &'static str> {
        let protocol = match arguments["proto"].as_str() {
            Some("tcp" | "tcp4") => Protocol::Tcp,
            Some("udp" | "udp4") => Protocol::Udp,
            _ => return Err("add_hostfwd: bad arguments.proto"),
        };
        let host = address(&arguments["host_addr"], Some(Ipv4Addr::UNSPECIFIED));
        let host = host.ok_or("add_hostfwd: bad arguments.host_addr")?;
        let host_port = port(&arguments["host_port"]);
        let host_port = host_port.ok_or("add_hostfwd: bad arguments.host_port")?;
        let to = address(&arguments["guest_addr"], guest);
        let to = to.filter(|to| guest.is_some() && publish::is_target((*to).into()));
        let to = to.ok_or("add_hostfwd: bad arguments.guest_addr")?;
        let guest_port = port(&arguments["guest_port"]);
        let guest_port = guest_port.ok_or("add_hostfwd: bad arguments.guest_port")?;
        Ok(Self { protocol, host, host_port, guest: to, guest_port })
    }

    /// Returns the published port of the program with the address `program`.
    pub(crate) fn publish(&self, program: Option<Ipv4Addr>) -> Publish {
        let is_programs = Some(self.guest) == program;
        Publish {
            protocol: self.protocol,
            host: Some(self.host.into()),
            interface: None,
            host_port: self.host_port,
            program_port: self.guest_port,
            target: if is_programs { Target::Program } else { Target::Address(self.guest.into()) },
            optional: false,
        }
    }
}

/// What is wrong with the number of a port.
pub(crate) const UNKNOWN_ID: &str = "remove_hostfwd: bad arguments.id";

/// Returns the answer to a request that is wrong or fails.
pub(crate) fn refusal(why: impl Display) -> String {
    json!({ "error": { "desc": format!("bad request: {why}") } }).to_string()
}

/// Returns the answer to a request that published a port.
pub(crate) fn added(id: u64) -> String {
    json!({ "return": { "id": id } }).to_string()
}

/// Returns the answer to a request that closed a port.
pub(crate) fn removed() -> String {
    json!({ "return": {} }).to_string()
}

/// Returns the list of ports. slirp4netns documents it within `return`, but sends it without.
pub(crate) fn list<'a>(all: impl Iterator<Item = (u64, &'a Forward)>) -> String {
    let mut text = String::from("{\"entries\":[");
    for (index, (id, forward)) in all.enumerate() {
        let separator = if index == 0 { "" } else { "," };
        let protocol = match forward.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        };
        let Forward { host, host_port, guest, guest_port, .. } = forward;
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "{separator}{{\"id\":{id},\"proto\":\"{protocol}\",\"host_addr\":\"{host}\",\
             \"host_port\":{host_port},\"guest_addr\":\"{guest}\",\"guest_port\":{guest_port}}}"
        );
    }
    text + "]}"
}

/// Reads an address; `default` if there is none.
fn address(value: &Value, default: Option<Ipv4Addr>) -> Option<Ipv4Addr> {
    match value {
        Value::Null => default,
        Value::String(text) if text.is_empty() => default,
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

fn port(value: &Value) -> Option<u16> {
    value.as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 100);

    fn read(text: &str) -> Option<Result<Request, &'static str>> {
        Request::parse(text.as_bytes(), false, Some(GUEST))
    }

    fn add(arguments: &str) -> Result<Request, &'static str> {
        let text = format!("{{\"execute\":\"add_hostfwd\",\"arguments\":{arguments}}}");
        read(&text).expect("it is complete")
    }

    #[test]
    fn requests() {
        let plain = add(r#"{"proto":"tcp","host_port":8080,"guest_port":80}"#);
        let forward = Forward {
            protocol: Protocol::Tcp,
            host: Ipv4Addr::UNSPECIFIED,
            host_port: 8080,
            guest: GUEST,
            guest_port: 80,
        };
        assert_eq!(plain, Ok(Request::Add(forward)));
        let whole = r#"{"proto":"tcp4","host_addr":"","host_port":8080,
                        "guest_addr":"10.0.2.100","guest_port":80}"#;
        assert_eq!(add(whole), plain);
        let udp = r#"{"proto":"udp","host_addr":"127.0.0.1","host_port":1,"guest_port":65535}"#;
        let host = Ipv4Addr::LOCALHOST;
        let (protocol, host_port, guest_port) = (Protocol::Udp, 1, 65535);
        let udp_forward = Forward { protocol, host, host_port, guest_port, ..forward };
        assert_eq!(add(udp), Ok(Request::Add(udp_forward)));
        assert_eq!(read(r#"{"execute":"list_hostfwd"}"#), Some(Ok(Request::List)));
        let remove = r#" {"execute":"remove_hostfwd","arguments":{"id":42}} more"#;
        assert_eq!(read(remove), Some(Ok(Request::Remove(42))));
    }

    /// Goal: a request is read as it arrives, and answered when it is complete.
    #[test]
    fn a_request_may_arrive_in_parts() {
        let whole = r#"{"execute":"list_hostfwd"}"#;
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end]), None, "{end}");
            let ended = Request::parse(&whole.as_bytes()[..end], true, None);
            assert_eq!(ended, Some(Err("cannot parse JSON")), "{end}");
        }
        assert_eq!(read(&" ".repeat(REQUEST_BYTES_MAX - 1)), None);
        let long = Some(Err("too large message"));
        assert_eq!(read(&" ".repeat(REQUEST_BYTES_MAX)), long);
        assert_eq!(read(&format!("{whole:4096}")), long, "whole, but too long");
    }

    #[test]
    fn mistakes() {
        for (text, expected) in [
            ("x", "cannot parse JSON"),
            ("{,", "cannot parse JSON"),
            ("[]", "json_object() failed"),
            ("42", "json_object() failed"),
            ("{}", "no execute found"),
            (r#"{"execute":1}"#, "no execute found"),
            (r#"{"execute":"x"}"#, "unknown execute"),
            (r#"{"execute":"remove_hostfwd"}"#, UNKNOWN_ID),
            (r#"{"execute":"remove_hostfwd","arguments":{"id":-1}}"#, UNKNOWN_ID),
            (r#"{"execute":"remove_hostfwd","arguments":[]}"#, UNKNOWN_ID),
            (r#"{"execute":"add_hostfwd"}"#, "add_hostfwd: bad arguments.proto"),
        ] {
            assert_eq!(read(text), Some(Err(expected)), "{text}");
        }
        for (name, value) in [
            ("proto", "\"sctp\""),
            ("proto", "\"tcp6\""),
            ("proto", "6"),
            ("host_addr", "\"::1\""),
            ("host_addr", "\"x\""),
            ("host_addr", "1"),
            ("host_port", "0"),
            ("host_port", "65536"),
            ("host_port", "-1"),
            ("host_port", "\"80\""),
            ("host_port", "80.5"),
            ("guest_addr", "\"127.0.0.1\""),
            ("guest_addr", "\"0.0.0.0\""),
            ("guest_addr", "[]"),
            ("guest_port", "null"),
            ("guest_port", "1e9"),
        ] {
            let mut arguments = json!({ "proto": "tcp", "host_port": 80, "guest_port": 80 });
            arguments[name] = serde_json::from_str(value).expect("it is JSON");
            let expected = format!("add_hostfwd: bad arguments.{name}");
            let refused = add(&arguments.to_string()).expect_err(&expected);
            assert_eq!(refused, expected, "{arguments}");
        }
        let no_ipv4 = r#"{"execute":"add_hostfwd","arguments":
                          {"proto":"tcp","host_port":80,"guest_port":80}}"#;
        let refused = Request::parse(no_ipv4.as_bytes(), true, None);
        assert_eq!(refused, Some(Err("add_hostfwd: bad arguments.guest_addr")));
    }

    /// Goal: a port leads to the program, or to another address inside.
    #[test]
    fn addresses_of_guests() {
        for (guest, target) in [
            ("10.0.2.100", Target::Program),
            ("10.0.2.101", Target::Address([10, 0, 2, 101].into())),
        ] {
            let arguments = json!({
                "proto": "tcp", "host_port": 80, "guest_port": 81, "guest_addr": guest,
            });
            let Ok(Request::Add(forward)) = add(&arguments.to_string()) else { panic!("{guest}") };
            assert_eq!(forward.publish(Some(GUEST)).target, target);
        }
    }

    #[test]
    fn answers() {
        assert_eq!(added(42), r#"{"return":{"id":42}}"#);
        assert_eq!(removed(), r#"{"return":{}}"#);
        assert_eq!(refusal("a \"b\""), r#"{"error":{"desc":"bad request: a \"b\""}}"#);
        assert_eq!(list([].into_iter()), r#"{"entries":[]}"#);
        let host = Ipv4Addr::LOCALHOST;
        let (protocol, host_port, guest_port) = (Protocol::Udp, 53, 5353);
        let one = Forward { protocol, host, host_port, guest: GUEST, guest_port };
        let entry = |id| {
            format!(
                "{{\"id\":{id},\"proto\":\"udp\",\"host_addr\":\"127.0.0.1\",\"host_port\":53,\
                 \"guest_addr\":\"10.0.2.100\",\"guest_port\":5353}}"
            )
        };
        let listed = list([(1, &one), (7, &one)].into_iter());
        assert_eq!(listed, format!("{{\"entries\":[{},{}]}}", entry(1), entry(7)));
        serde_json::from_str::<Value>(&listed).expect("it is JSON");
    }
}
