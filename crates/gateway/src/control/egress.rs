//! Parses policies: in files and network files, in requests of the control socket, and rules on the
//! command line.
//!
//! A policy is an object with `"default": "deny"` (or `"allow"`), `"floor": "strict"` (or `"off"`)
//! and `"rule"`, a list of objects:
//! - `"action": "allow"` or `"deny"`.
//! - `"to"`: names, `*.NAME` for all names below one, addresses, networks; `*`, or nothing, for
//!   everywhere.
//! - `"ports"`: `tcp/443`, `udp/5000-5100`, `tcp`, `udp`, `icmp`; nothing for all.
//! - `"check"`: how a name is checked: `"sni"` or `"dns"`. `"none"` for addresses alone.
//! - `"flows"`: most flows of a guest at once; `"new-flows"`: most that begin in a second. In the
//!   policy, of all flows; in a rule that allows, of those that it allows.
//! - `"bandwidth-out"` and `"bandwidth-in"`, such as `"10Mbit"`: most payload of a guest in a
//!   second; `"quota"`, such as `"2G"`: most in all. In the policy and in rules, as `"flows"`.
//! - `"override-floor": true`, `"expires": "2027-01-31"` or `"2027-01-31T12:00:00Z"`, `"id": TEXT`.
//!
//! Nothing unknown is accepted: a policy that is not wholly understood is none.

use super::fields::{Fields, Wrong};
use crate::config::parse_size;
use crate::egress::policy::Policy;
use crate::egress::rule::{Action, Check, Destination, Limits, Ports, Rule, Transport};

/// Longest name of a rule, in characters.
const ID_CHARS_MAX: usize = 64;
/// Largest bound of flows. No instance has more.
const FLOWS_MAX: u64 = 1 << 20;
/// Smallest bandwidth in bits per second: a byte.
pub const BANDWIDTH_MIN: u64 = 8;
/// Largest bandwidth in bits per second: more than any machine moves.
pub const BANDWIDTH_MAX: u64 = 1_000_000_000_000;
/// Largest quota in bytes.
const QUOTA_MAX: u64 = 1 << 50;

/// Parses a policy from all fields of the object.
pub fn policy(mut fields: Fields) -> Result<Policy, Wrong> {
    let default = fields.parsed_by("default", action)?.unwrap_or(Action::Deny);
    let has_floors = fields.parsed_by("floor", |text| match text {
        "strict" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected strict or off".to_owned()),
    })?;
    let limits = limits(&mut fields)?;
    let tables = fields.all("rule")?;
    let rules = tables.into_iter().zip(1..).map(|(table, number)| rule(table, number));
    let rules = rules.collect::<Result<Vec<_>, _>>()?;
    let path = fields.path().to_owned();
    fields.finish()?;
    let made = Policy::new(rules, default, has_floors.unwrap_or(true));
    let made = made.map_err(|error| Wrong { path, message: error.to_string() })?;
    Ok(made.with_limits(limits))
}

/// Parses one rule, the `number`th.
fn rule(mut fields: Fields, number: usize) -> Result<Rule, Wrong> {
    let id = fields.parsed_by("id", id)?.unwrap_or_else(|| format!("rule-{number}"));
    let Some(action) = fields.parsed_by("action", action)? else {
        return Err(fields.all_wrong("the rule has no 'action'; expected allow or deny"));
    };
    let has_to = fields.has("to");
    let mut to: Vec<Destination> = fields.list("to")?;
    if has_to && to.is_empty() {
        let message = "'to' is empty; leave it out for everywhere".to_owned();
        return Err(fields.wrong("to", message));
    }
    if !has_to {
        to.push(Destination::Anywhere);
    }
    let has_ports = fields.has("ports");
    let ports: Vec<Ports> = fields.list("ports")?;
    if has_ports && ports.is_empty() {
        let message = "'ports' is empty; leave it out for all".to_owned();
        return Err(fields.wrong("ports", message));
    }
    let has_names = to.iter().any(|to| matches!(to, Destination::Name(_)));
    let check = fields.parsed_by("check", |text| match text {
        "sni" if has_names => Ok(Some(Check::Greeting)),
        "dns" if has_names => Ok(Some(Check::Dns)),
        "none" if has_names => Err("names must be checked; expected sni or dns".to_owned()),
        "none" => Ok(None),
        "sni" | "dns" => Err("the rule has no name that could be checked; leave it out".to_owned()),
        _ => Err("expected sni, dns or none".to_owned()),
    })?;
    let rule = Rule {
        id,
        action,
        to,
        ports,
        check: check.flatten().unwrap_or(Check::Greeting),
        overrides_floor: fields.yes_or_no("override-floor")?.unwrap_or(false),
        expires: fields.parsed_by("expires", moment)?,
        limits: limits(&mut fields)?,
    };
    if !rule.limits.is_none() && rule.action == Action::Deny {
        let which = first_of(rule.limits);
        let message = format!("'{which}' bounds what a rule allows; this one denies");
        return Err(fields.wrong(which, message));
    }
    if rule.overrides_floor && rule.action == Action::Deny {
        let message = "only a rule that allows can override a floor".to_owned();
        return Err(fields.wrong("override-floor", message));
    }
    fields.finish()?;
    Ok(rule)
}

/// Parses the bounds of flows and of their bytes.
fn limits(fields: &mut Fields) -> Result<Limits, Wrong> {
    let mut bound = |name| {
        let number = fields.number(name, 1, FLOWS_MAX)?;
        // `FLOWS_MAX` fits.
        Ok(number.map(|number| number as u32))
    };
    let (flows, new_flows) = (bound("flows")?, bound("new-flows")?);
    let mut rate = |name| {
        let what = "bits per second such as \"10Mbit\", from 8bit to 1000Gbit";
        fields.read(name, what, |value| value.as_str().and_then(bandwidth))
    };
    let (bandwidth_out, bandwidth_in) = (rate("bandwidth-out")?, rate("bandwidth-in")?);
    let what = format_args!("a number of bytes from 1 to {QUOTA_MAX}, such as \"2G\"").to_string();
    let quota = fields.read("quota", what, |value| {
        let text = |text: &str| parse_size(text).ok().and_then(|size| size.try_into().ok());
        let bytes = value.as_u64().or_else(|| value.as_str().and_then(text));
        bytes.filter(|bytes| (1..=QUOTA_MAX).contains(bytes))
    })?;
    Ok(Limits { flows, new_flows, bandwidth_out, bandwidth_in, quota })
}

/// Parses bits per second: digits and a unit, as tc(8) has them.
pub(super) fn bandwidth(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let unit: u64 = match unit.to_ascii_lowercase().as_str() {
        "bit" => 1,
        "kbit" => 1000,
        "mbit" => 1_000_000,
        "gbit" => 1_000_000_000,
        _ => return None,
    };
    let bits = number.parse::<u64>().ok()?.checked_mul(unit)?;
    (BANDWIDTH_MIN..=BANDWIDTH_MAX).contains(&bits).then_some(bits)
}

/// Returns the name of the first bound that is given.
fn first_of(limits: Limits) -> &'static str {
    match limits {
        Limits { flows: Some(_), .. } => "flows",
        Limits { new_flows: Some(_), .. } => "new-flows",
        Limits { bandwidth_out: Some(_), .. } => "bandwidth-out",
        Limits { bandwidth_in: Some(_), .. } => "bandwidth-in",
        _ => "quota",
    }
}

/// Parses a rule of the command line: `DEST`, `DEST:PORT` or `DEST:FIRST-LAST`. Ports are those of
/// TCP and UDP.
///
/// # Errors
/// What is wrong, for the user.
pub fn short_rule(action: Action, text: &str, id: String) -> Result<Rule, String> {
    let (to, ports) = split_ports(text)?;
    let to = to.parse().map_err(|error| format!("'{to}': {error}"))?;
    let ports = ports.map(|ports| {
        let both = [Transport::Tcp, Transport::Udp];
        let parsed = both.map(|transport| format!("{transport}/{ports}").parse::<Ports>());
        let parsed: Result<Vec<_>, _> = parsed.into_iter().collect();
        parsed.map_err(|error| format!("'{ports}': {error}"))
    });
    let ports = ports.transpose()?.unwrap_or_default();
    let check = Check::Greeting;
    Ok(Rule {
        id,
        action,
        to: vec![to],
        ports,
        check,
        overrides_floor: false,
        expires: None,
        limits: Limits::default(),
    })
}

/// Splits a destination from its ports. IPv6 addresses with ports are in brackets.
fn split_ports(text: &str) -> Result<(&str, Option<&str>), String> {
    if let Some(rest) = text.strip_prefix('[') {
        let (address, rest) = rest.split_once(']').ok_or("']' is missing behind the address")?;
        return match rest.strip_prefix(':') {
            Some(ports) => Ok((address, Some(ports))),
            None if rest.is_empty() => Ok((address, None)),
            None => Err(format!("expected ':' and a port behind ']', got '{rest}'")),
        };
    }
    match text.split_once(':') {
        // A URL, which is refused as a destination.
        Some((_, rest)) if rest.starts_with("//") => Ok((text, None)),
        // An IPv6 address alone.
        Some((_, rest)) if rest.contains(':') => Ok((text, None)),
        Some((to, ports)) => Ok((to, Some(ports))),
        None => Ok((text, None)),
    }
}

fn action(text: &str) -> Result<Action, String> {
    match text {
        "allow" => Ok(Action::Allow),
        "deny" => Ok(Action::Deny),
        _ => Err("expected allow or deny".to_owned()),
    }
}

fn id(text: &str) -> Result<String, String> {
    let is_valid = (1..=ID_CHARS_MAX).contains(&text.len())
        && text.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c))
        && text != "default";
    match is_valid {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "expected 1 to {ID_CHARS_MAX} letters, digits, '-', '_' and '.', other than default"
        )),
    }
}

/// Parses a date, or a date and a time in UTC (RFC 3339), to seconds since 1970-01-01.
fn moment(text: &str) -> Result<u64, String> {
    read_moment(text).ok_or_else(|| {
        "expected a date or a time in UTC such as 2027-01-31 or 2027-01-31T12:00:00Z".to_owned()
    })
}

fn read_moment(text: &str) -> Option<u64> {
    let number = |text: &str, len: usize| {
        let is_number = text.len() == len && text.bytes().all(|c| c.is_ascii_digit());
        is_number.then(|| text.parse::<u64>().ok()).flatten()
    };
    let (date, time) = match text.split_once('T') {
        Some((date, time)) => (date, time.strip_suffix('Z')?),
        None => (text, "00:00:00"),
    };
    let parts = |text: &str, separator, lens: [usize; 3]| {
        let mut parts = text.split(separator).zip(lens).map(|(part, len)| number(part, len));
        let all = [parts.next()??, parts.next()??, parts.next()??];
        (text.matches(separator).count() == 2).then_some(all)
    };
    let [year, month, day] = parts(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = parts(time, ':', [2, 2, 2])?;
    let is_leap = year % 4 == 0 && year % 100 != 0 || year % 400 == 0;
    let lens = [31, if is_leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let len = *lens.get(usize::try_from(month.checked_sub(1)?).ok()?)?;
    let is_valid =
        year >= 1970 && (1..=len).contains(&day) && hour < 24 && minute < 60 && second < 60;
    if !is_valid {
        return None;
    }
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    let before: u64 = lens[..month as usize - 1].iter().sum();
    let days = (year - 1970) * 365 + leaps(year - 1) - leaps(1969) + before + day - 1;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::policy::{RULES_MAX, Reason, Verdict};
    use crate::egress::rule::FlowTo;
    use serde_json::{Value, json};

    fn read(value: Value) -> Result<Policy, String> {
        let fields = Fields::of(value, "").and_then(policy);
        fields.map_err(|wrong| format!("{}: {}", wrong.path, wrong.message))
    }

    #[test]
    fn policies_are_read() {
        let policy = read(json!({ "rule": [
            { "id": "packages", "action": "allow", "to": ["a.example", "*.b.example"],
              "ports": ["tcp/443", "udp/443"] },
            { "action": "allow", "to": "10.3.0.0/16,10.4.0.1", "ports": "tcp/5432", "check": "none",
              "override-floor": true, "expires": "2027-01-31" },
            { "action": "deny" },
        ] }))
        .unwrap();
        let [first, second, third] = policy.rules() else { panic!("three rules") };
        assert_eq!((first.id.as_str(), first.to.len(), first.ports.len()), ("packages", 2, 2));
        assert_eq!((second.id.as_str(), second.expires), ("rule-2", Some(1_801_353_600)));
        assert!(second.overrides_floor && second.to.len() == 2);
        assert_eq!((third.action, &third.to[..]), (Action::Deny, &[Destination::Anywhere][..]));
        let flow = FlowTo { transport: Transport::Tcp, address: [127, 0, 0, 1].into(), port: 1 };
        let none = read(json!({})).unwrap();
        let verdict = none.judge(flow, [].into_iter(), false, 0);
        assert_eq!(verdict, Verdict::Deny(None, Reason::Default));
        let open = read(json!({ "default": "allow", "floor": "off" })).unwrap();
        assert_eq!(open.judge(flow, [].into_iter(), false, 0), Verdict::Allow(None));
    }

    #[test]
    fn bounds_are_read() {
        let policy = read(json!({
            "flows": 9, "bandwidth-out": "64kbit", "quota": "2G",
            "rule": [{ "action": "allow", "bandwidth-in": "1000Gbit", "quota": 1500 },
                     { "action": "allow", "bandwidth-in": "8bit", "bandwidth-out": "1mbit" }],
        }))
        .unwrap();
        let none = Limits::default();
        let all = Limits { flows: Some(9), bandwidth_out: Some(64_000), ..none };
        assert_eq!(policy.limits(), Limits { quota: Some(2 << 30), ..all });
        let first = Limits { bandwidth_in: Some(BANDWIDTH_MAX), quota: Some(1500), ..none };
        let second =
            Limits { bandwidth_in: Some(8), bandwidth_out: Some(1_000_000), ..Limits::default() };
        assert_eq!([0, 1].map(|number| policy.rule_limits(Some(number))), [first, second]);
    }

    /// Bad input: each kind of mistake, with the place that the message names.
    #[test]
    fn mistakes_are_reported_with_their_place() {
        let one = |rule: Value| json!({ "rule": [rule] });
        let allow = |mut rule: Value| {
            rule["action"] = "allow".into();
            one(rule)
        };
        for (value, expected) in [
            (
                json!({ "defualt": "deny" }),
                ".defualt: unknown key 'defualt'; did you mean 'default'",
            ),
            (json!({ "default": "drop" }), ".default: 'default': 'drop': expected allow or deny"),
            (json!({ "floor": true }), ".floor: 'floor': expected a string, got true"),
            (json!({ "floor": "none" }), "expected strict or off"),
            (json!({ "rule": {} }), ".rule: 'rule': expected a list of tables"),
            (one(json!({})), ".rule.0: the rule has no 'action'"),
            (one(json!({ "action": "reject" })), ".rule.0.action: 'action': 'reject': expected"),
            (allow(json!({ "id": "" })), ".rule.0.id: 'id': '': expected 1 to 64"),
            (allow(json!({ "id": "a b" })), "letters, digits"),
            (allow(json!({ "id": "default" })), "other than default"),
            (allow(json!({ "to": [] })), ".rule.0.to: 'to' is empty"),
            (allow(json!({ "to": "" })), "'to' is empty"),
            (allow(json!({ "to": 7 })), "expected a string or a list of strings, got 7"),
            (allow(json!({ "to": "a b" })), "'to': 'a b': each part between dots"),
            (allow(json!({ "to": "a.*.b" })), "each part between dots"),
            (allow(json!({ "to": "b\u{fc}cher.example" })), "as it is in DNS"),
            (allow(json!({ "to": "10.0.0.1/8" })), "write 10.0.0.0/8 for the whole network"),
            (allow(json!({ "to": "10.0.0.0/33" })), "a number from 0 to 32"),
            (allow(json!({ "to": "2001:db8::/129" })), "a number from 0 to 128"),
            (allow(json!({ "to": "https://a.example" })), "a name without a scheme"),
            (allow(json!({ "to": "a.example:443" })), "give ports in 'ports'"),
            (allow(json!({ "ports": [] })), ".rule.0.ports: 'ports' is empty"),
            (allow(json!({ "ports": "443" })), "expected tcp, udp or icmp"),
            (allow(json!({ "ports": ["tcp/0"] })), "a port must be a number from 1 to 65535"),
            (allow(json!({ "ports": "tcp/9-1" })), "the range ends before it begins"),
            (allow(json!({ "ports": "icmp/8" })), "icmp has no ports"),
            (allow(json!({ "to": "a", "check": "none" })), "names must be checked"),
            (allow(json!({ "to": "10.0.0.1", "check": "sni" })), "no name that could be checked"),
            (allow(json!({ "to": "a", "check": "tls" })), "expected sni, dns or none"),
            (allow(json!({ "override-floor": "yes" })), "expected true or false"),
            (one(json!({ "action": "deny", "override-floor": true })), "only a rule that allows"),
            (one(json!({ "action": "deny", "new-flows": 5 })), "'new-flows' bounds what a rule"),
            (allow(json!({ "flows": 0 })), "'flows': expected a number from 1 to 1048576, got 0"),
            (json!({ "new-flows": "many" }), "'new-flows': expected a number"),
            (allow(json!({ "expires": "tomorrow" })), ".rule.0.expires: 'expires': 'tomorrow'"),
            (allow(json!({ "expires": "2027-02-29" })), "expected a date"),
            (allow(json!({ "expires": "2027-01-31T12:00:00" })), "in UTC"),
            (allow(json!({ "portz": "tcp" })), ".rule.0.portz: unknown key 'portz'; did you mean"),
        ] {
            let error = read(value.clone()).err().unwrap();
            assert!(error.contains(expected), "{value}: {error}");
        }
        let many = vec![json!({ "action": "allow" }); RULES_MAX + 1];
        assert!(read(json!({ "rule": many })).err().unwrap().contains("are too many"));
    }

    /// Bad input: no unit, another unit, a fraction, signs, and numbers that are too small, too
    /// large or of more than 64 bits.
    #[test]
    fn wrong_bounds_are_reported_with_their_place() {
        let one = |rule: Value| json!({ "rule": [rule] });
        let allow = |mut rule: Value| {
            rule["action"] = "allow".into();
            one(rule)
        };
        for (value, expected) in [
            (one(json!({ "action": "deny", "quota": 5 })), ".rule.0.quota: 'quota' bounds what"),
            (
                json!({ "bandwidth-out": 10 }),
                ".bandwidth-out: 'bandwidth-out': expected bits per second such as \"10Mbit\"",
            ),
            (
                allow(json!({ "bandwidth-in": "10" })),
                ".rule.0.bandwidth-in: 'bandwidth-in': expected",
            ),
            (json!({ "bandwidth-in": "0Mbit" }), "from 8bit to 1000Gbit, got '0Mbit'"),
            (json!({ "bandwidth-in": "-1Mbit" }), "expected bits per second"),
            (json!({ "bandwidth-in": "1.5Mbit" }), "expected bits per second"),
            (json!({ "bandwidth-in": "7bit" }), "expected bits per second"),
            (json!({ "bandwidth-in": "1001Gbit" }), "expected bits per second"),
            (json!({ "bandwidth-in": "99999999999999999999bit" }), "expected bits per second"),
            (json!({ "bandwidth-in": "18446744073709551615Gbit" }), "expected bits per second"),
            (json!({ "bandwidth-in": "10MB" }), "expected bits per second"),
            (json!({ "bandwidth-in": "10 Mbit" }), "expected bits per second"),
            (json!({ "bandwidth-in": "" }), "expected bits per second"),
            (json!({ "quota": 0 }), "expected a number of bytes from 1 to 1125899906842624"),
            (json!({ "quota": -5 }), "such as \"2G\", got -5"),
            (json!({ "quota": 1.5 }), "expected a number of bytes"),
            (json!({ "quota": "2T" }), "expected a number of bytes"),
            (json!({ "quota": "1048577G" }), "expected a number of bytes"),
            (json!({ "quota": "99999999999G" }), "expected a number of bytes"),
            (json!({ "bandwith-in": "1Mbit" }), "did you mean 'bandwidth-in'"),
        ] {
            let error = read(value.clone()).err().unwrap();
            assert!(error.contains(expected), "{value}: {error}");
        }
    }

    #[test]
    fn moments_are_read() {
        for (text, seconds) in [
            ("1970-01-01", 0),
            ("1970-03-01", 59 * 86_400),
            ("2000-02-29T00:00:01Z", 951_782_401),
            ("2024-12-31T23:59:59Z", 1_735_689_599),
            ("2100-03-01", 4_107_542_400),
        ] {
            assert_eq!(moment(text), Ok(seconds), "{text}");
        }
        for wrong in [
            "",
            "1969-12-31",
            "2027-1-1",
            "2027-13-01",
            "2027-00-01",
            "2027-04-31",
            "2027-01-01Z",
            "2027-01-01T24:00:00Z",
            "2027-01-01T00:60:00Z",
            "2027-01-01T00:00Z",
            "+027-01-01",
            "2027-01-01-01",
            "2100-02-29",
        ] {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rules_of_the_command_line() {
        let read = |text| short_rule(Action::Allow, text, "option-1".to_owned());
        for (text, to, ports) in [
            ("a.example", "a.example", &[][..]),
            ("*.a.example:443", "*.a.example", &["tcp/443", "udp/443"]),
            ("10.3.0.0/16:5000-5010", "10.3.0.0/16", &["tcp/5000-5010", "udp/5000-5010"]),
            ("2001:db8::/32", "2001:db8::/32", &[]),
            ("[2001:db8::1]:53", "2001:db8::1", &["tcp/53", "udp/53"]),
            ("[2001:db8::1]", "2001:db8::1", &[]),
            ("*", "*", &[]),
            ("*:443", "*", &["tcp/443", "udp/443"]),
        ] {
            let rule = read(text).unwrap();
            assert_eq!(rule.to[0].to_string(), to, "{text}");
            let written: Vec<_> = rule.ports.iter().map(ToString::to_string).collect();
            assert_eq!(written, ports, "{text}");
        }
        for (text, expected) in [
            ("", "each part between dots"),
            ("a b:443", "'a b': each part"),
            ("a.example:", "'': a port must be"),
            ("a.example:https", "'https': a port must be"),
            ("[2001:db8::1:443", "']' is missing"),
            ("[2001:db8::1]443", "expected ':' and a port"),
            ("https://a.example", "a name without a scheme"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
