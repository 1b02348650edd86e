//! `towpath policy`, and the answers to requests for another policy and for the file of the audit.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use serde_json::json;
use towpath_gateway::control::http::Response;
use towpath_gateway::egress::enforcer::Enforcer;
use towpath_gateway::egress::name::Name;
use towpath_gateway::egress::policy::{Policy, Verdict};
use towpath_gateway::egress::rule::{Action, Check, Destination, FlowTo, Limits, Rule};

use crate::config::args::{PolicyAction, PolicyArguments};
use crate::config::netfile::{NetFile, PortDefaults};
use crate::config::{imported, policy_file};
use crate::control::{ask, instances, published};
use crate::exit::{Ending, Failure};
use crate::messages::Messages;

/// Path of requests for another policy.
pub(crate) const EGRESS: &str = "/v1/egress";
/// Path of requests to open the file of the audit again.
pub(crate) const AUDIT: &str = "/v1/audit";
/// The file is no policy, or denies a flow.
const NO: u8 = 1;

/// Checks, explains or replaces a policy.
pub(crate) fn policy(arguments: &PolicyArguments) -> Result<Ending, Failure> {
    match &arguments.action {
        PolicyAction::Check { file } => {
            let Some(policies) = read_all(file) else { return Ok(Ending::Code(NO)) };
            let text = policies.iter().map(|(port, policy)| match port {
                Some(port) => format!("port {port}:\n{}", listed(policy)),
                None => listed(policy),
            });
            print(&text.collect::<String>())
        }
        PolicyAction::Explain { file, flow, names } => {
            let Some(policy) = read(file) else { return Ok(Ending::Code(NO)) };
            let (text, is_allowed) = explained(&policy, *flow, names);
            print(&text)?;
            Ok(Ending::Code(if is_allowed { 0 } else { NO }))
        }
        PolicyAction::Import { file } => {
            let text = policy_file::read_text(file)?;
            let converted = imported::convert(&text);
            print(&converted.with_context(|| file.display().to_string())?)
        }
        PolicyAction::Reopen { pid } => {
            let path = instances::of_process(*pid)?;
            ask::ask(&path, "POST", AUDIT, None)?;
            Ok(Ending::Code(0))
        }
        PolicyAction::Set { pid, file, port } => {
            if read(file).is_none() {
                return Ok(Ending::Code(NO));
            }
            let path = instances::of_process(*pid)?;
            let policy = policy_file::as_request(file)?;
            match port {
                None => ask::ask(&path, "POST", EGRESS, Some(&policy))?,
                Some(port) => {
                    let operations = json!({ "operations": [{ "set": port, "egress": policy }] });
                    ask::ask(&path, "POST", published::TRANSACTION, Some(&operations))?
                }
            };
            Ok(Ending::Code(0))
        }
    }
}

/// Reads a policy file; reports what is wrong with it.
fn read(path: &Path) -> Option<Policy> {
    let read = policy_file::read(path);
    read.map_err(|error| Messages::Quiet.error(format_args!("{error:#}"))).ok()
}

/// Reads the policies of a policy file or a network file, those of ports with the port's name;
/// reports what is wrong with it.
fn read_all(path: &Path) -> Option<Vec<(Option<String>, Arc<Policy>)>> {
    let read = policy_file::has_other_tables(path).and_then(|has_others| match has_others {
        false => Ok(vec![(None, Arc::new(policy_file::read(path)?))]),
        true => NetFile::open(path, &PortDefaults::default(), Messages::Normal)
            .map(NetFile::into_policies),
    });
    read.map_err(|error| Messages::Quiet.error(format_args!("{error:#}"))).ok()
}

fn print(text: &str) -> Result<Ending, Failure> {
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(Ending::Code(0))
}

/// Lists the rules, one in each line.
fn listed(policy: &Policy) -> String {
    let mut text: String = policy.rules().iter().map(|rule| line(rule) + "\n").collect();
    let (default, floors) = (word(policy.default_action()), policy.has_floors());
    let floors = if floors { "closed addresses need override-floor" } else { "none is closed" };
    let bounds = bounds(policy.limits());
    text.push_str(&format!("default: {default}; {floors}{bounds}\n"));
    text
}

fn line(rule: &Rule) -> String {
    let to: Vec<_> = rule.to.iter().map(ToString::to_string).collect();
    let ports: Vec<_> = rule.ports.iter().map(ToString::to_string).collect();
    let ports = if ports.is_empty() { "all ports".to_owned() } else { ports.join(",") };
    let has_names = rule.to.iter().any(|to| matches!(to, Destination::Name(_)));
    let check = match rule.check {
        Check::Greeting if has_names => ", checked in DNS and greeting",
        Check::Dns if has_names => ", checked in DNS",
        _ => "",
    };
    let floor = if rule.overrides_floor { ", also closed addresses" } else { "" };
    let end = rule.expires.map(|end| format!(", until {}", moment(end))).unwrap_or_default();
    let (action, to, bounds) = (word(rule.action), to.join(","), bounds(rule.limits));
    format!("{}: {action} {to} {ports}{check}{floor}{end}{bounds}", rule.id)
}

/// Writes seconds since 1970-01-01 as policies have them: a date, or a date and a time in UTC (RFC
/// 3339).
fn moment(seconds: u64) -> String {
    let (mut day, time) = (seconds / 86_400, seconds % 86_400);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let mut year = 1970;
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for len in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < len {
            break;
        }
        day -= len;
        month += 1;
    }
    let date = format!("{year:04}-{month:02}-{:02}", day + 1);
    match time {
        0 => date,
        _ => format!("{date}T{:02}:{:02}:{:02}Z", time / 3600, time / 60 % 60, time % 60),
    }
}

fn bounds(limits: Limits) -> String {
    let flows = limits.flows.map(|most| format!(", at most {most} flows of a guest"));
    let rate = limits.new_flows.map(|most| format!(", at most {most} new ones a second"));
    let out = limits.bandwidth_out.map(|bits| format!(", at most {} out", rate_of(bits)));
    let into = limits.bandwidth_in.map(|bits| format!(", at most {} in", rate_of(bits)));
    let quota = limits.quota.map(|bytes| format!(", at most {bytes} bytes in all"));
    [flows, rate, out, into, quota].into_iter().flatten().collect()
}

/// Writes bits per second in the largest unit that has no fraction.
fn rate_of(bits: u64) -> String {
    let units = [(1_000_000_000, "Gbit"), (1_000_000, "Mbit"), (1000, "kbit"), (1, "bit")];
    let fits = units.iter().find(|(unit, _)| bits.is_multiple_of(*unit));
    fits.map_or_else(String::new, |(unit, name)| format!("{}{name}/s", bits / unit))
}

fn word(action: Action) -> &'static str {
    match action {
        Action::Allow => "allow",
        Action::Deny => "deny",
    }
}

/// Explains what a policy decides about a flow; returns true if it is allowed.
fn explained(policy: &Policy, flow: FlowTo, names: &[Name]) -> (String, bool) {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_secs());
    let mut text = String::new();
    for name in names.iter().filter(|name| !policy.may_resolve(name, now)) {
        text.push_str(&format!("{name}: denied: questions for this name are refused\n"));
    }
    let known = names.iter().filter(|name| policy.may_resolve(name, now));
    let mut verdict = policy.judge(flow, known.clone(), false, now);
    if let (Verdict::Greeting, Some(name)) = (verdict, names.first()) {
        text.push_str(&format!("{flow}: the greeting decides; it has the name {name}\n"));
        verdict = policy.judge_named(flow, name, known, false, now);
    }
    let (result, is_allowed) = match verdict {
        Verdict::Allow(rule) => {
            let own = bounds(policy.rule_limits(rule));
            (format!("allowed by {}{own}", policy.rule_id(rule)), true)
        }
        Verdict::Deny(rule, reason) => {
            (format!("denied by {}: {reason}", policy.rule_id(rule)), false)
        }
        Verdict::Greeting => ("its greeting decides".to_owned(), false),
    };
    text.push_str(&format!("{flow}: {result}\n"));
    if is_allowed && !policy.limits().is_none() {
        text.push_str(&format!("all flows of a guest{}\n", bounds(policy.limits())));
    }
    (text, is_allowed)
}

/// Answers a request to open the file of the audit again.
pub(crate) fn reopen_audit(enforcer: Option<&Arc<Enforcer>>) -> Response {
    match enforcer.is_some_and(|enforcer| enforcer.reopen_audit()) {
        true => Response::json(200, &json!({})),
        false => Response::error(
            409,
            "this instance has no audit whose file could be opened; start it with --audit, or try \
             again if it has one",
        ),
    }
}

/// Answers a request for another policy. The one before goes to `replaced`.
pub(crate) fn replace(
    enforcer: Option<&Arc<Enforcer>>,
    policy: Result<Arc<Policy>, String>,
    replaced: &mut Vec<Arc<Policy>>,
) -> Response {
    let Some(enforcer) = enforcer else {
        let message = "this instance has no policy, so none can be replaced; start it with \
                       --allow, --deny or --egress";
        return Response::error(409, message);
    };
    match policy {
        Ok(policy) => {
            replaced.extend(enforcer.set_policy(policy));
            Response::json(200, &json!({ "policy": enforcer.generation() }))
        }
        Err(message) => Response::error(400, &message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_gateway::control::egress as parser;
    use towpath_gateway::control::fields::Fields;

    fn policy() -> Policy {
        let value = json!({ "rule": [
            { "id": "web", "action": "allow", "to": ["a.example", "*.b.example"],
              "ports": "tcp/443" },
            { "id": "git", "action": "allow", "to": "git.example", "check": "dns" },
        ] });
        Fields::of(value, "").and_then(parser::policy).unwrap()
    }

    #[test]
    fn rules_are_listed() {
        assert_eq!(
            listed(&policy()),
            "web: allow a.example,*.b.example tcp/443, checked in DNS and greeting\n\
             git: allow git.example all ports, checked in DNS\n\
             default: deny; closed addresses need override-floor\n"
        );
    }

    /// Goal: a list shows the end of a rule in the form in which policies have it.
    #[test]
    fn ends_are_shown() {
        for end in [
            "1970-01-01",
            "1999-12-31T23:59:59Z",
            "2000-02-29T00:00:01Z",
            "2000-03-01",
            "2027-01-31",
            "2100-02-28T12:00:00Z",
            "2100-03-01",
            "9999-12-31",
        ] {
            let value = json!({ "rule": [
                { "id": "net", "action": "allow", "to": "192.0.2.0/24", "expires": end },
            ] });
            let policy = Fields::of(value, "").and_then(parser::policy).unwrap();
            let shown = listed(&policy);
            assert!(
                shown.starts_with(&format!("net: allow 192.0.2.0/24 all ports, until {end}\n")),
                "{shown}"
            );
        }
    }

    /// Goal: lists and explanations show what bounds a flow: of its rule, and of all flows.
    #[test]
    fn bounds_are_shown() {
        let value = json!({ "bandwidth-out": "1500kbit", "quota": "1M", "rule": [
            { "id": "net", "action": "allow", "to": "192.0.2.0/24", "bandwidth-in": "20Mbit" },
        ] });
        let policy = Fields::of(value, "").and_then(parser::policy).unwrap();
        assert_eq!(
            listed(&policy),
            "net: allow 192.0.2.0/24 all ports, at most 20Mbit/s in\n\
             default: deny; closed addresses need override-floor, at most 1500kbit/s out, at most \
             1048576 bytes in all\n"
        );
        let (text, _) = explained(&policy, "tcp://192.0.2.1:80".parse().unwrap(), &[]);
        assert_eq!(
            text,
            "tcp://192.0.2.1:80: allowed by net, at most 20Mbit/s in\n\
             all flows of a guest, at most 1500kbit/s out, at most 1048576 bytes in all\n"
        );
    }

    #[test]
    fn verdicts_are_explained() {
        let explain = |flow: &str, names: &[&str]| {
            let names: Vec<Name> = names.iter().map(|name| name.parse().unwrap()).collect();
            explained(&policy(), flow.parse().unwrap(), &names)
        };
        let flow = "tcp://192.0.2.1:443";
        for (names, expected, is_allowed) in [
            (&[][..], "tcp://192.0.2.1:443: denied by default: no rule allows it\n", false),
            (&["git.example"], "tcp://192.0.2.1:443: allowed by git\n", true),
            (
                &["a.example"],
                "tcp://192.0.2.1:443: the greeting decides; it has the name a.example\n\
                 tcp://192.0.2.1:443: allowed by web\n",
                true,
            ),
            (
                &["c.example"],
                "c.example: denied: questions for this name are refused\n\
                 tcp://192.0.2.1:443: denied by default: no rule allows it\n",
                false,
            ),
        ] {
            assert_eq!(explain(flow, names), (expected.to_owned(), is_allowed));
        }
        let metadata = explain("tcp://169.254.169.254:80", &["a.example"]).0;
        assert!(metadata.ends_with("denied by default: no rule allows it\n"), "{metadata}");
    }

    /// Goal: what the documentation shows passes `policy check`.
    #[test]
    fn examples_of_the_documentation_are_policies() {
        let text = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/policy.md");
        let text = std::fs::read_to_string(text).unwrap();
        let blocks = text.split("```toml\n").skip(1);
        let blocks: Vec<&str> = blocks.map(|rest| rest.split("```").next().unwrap()).collect();
        assert!(blocks.len() >= 6, "{}", blocks.len());
        let folder = std::env::temp_dir();
        let folder = folder.join(format!("towpath-policy-examples-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("example.toml");
        for block in blocks {
            std::fs::write(&file, block).unwrap();
            let policies = read_all(&file).unwrap_or_else(|| panic!("no policy: {block}"));
            assert!(policies.iter().all(|(_, policy)| !policy.rules().is_empty()), "{block}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
