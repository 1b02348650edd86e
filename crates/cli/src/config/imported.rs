//! Policies of other programs, converted to the file that `--egress` reads.
//!
//! Formats, which differ in their keys: settings of sandbox-runtime (`network.allowedDomains`,
//! `network.deniedDomains`), policies of OpenSandbox (`defaultAction`, `egress` with `action` and
//! `target`), lists of E2B (`allowOut`, `denyOut`), and texts with a destination in each line, `!`
//! before those that are denied and `#` before comments.
//!
//! What a format has besides is not converted silently: it is an error.

use anyhow::{Context, anyhow, bail};
use serde_json::Value;
use towpath_gateway::control::egress::short_rule;
use towpath_gateway::egress::rule::{Action, Rule};

/// A destination and what becomes of flows to it.
type Given = (Action, String);

/// Returns the policy file that decides as `text` does.
///
/// # Errors
/// The text has none of the formats, or something in it cannot be converted.
pub(crate) fn convert(text: &str) -> anyhow::Result<String> {
    let (given, default) = match serde_json::from_str::<Value>(text) {
        Ok(value) => of_json(&value)?,
        Err(error) if text.trim_start().starts_with('{') => {
            bail!("the file is not JSON: {error}")
        }
        Err(_) => (of_lines(text), Action::Deny),
    };
    // What is denied comes first: in these formats order has no meaning.
    let (mut rules, mut number) = (Vec::new(), 0);
    for action in [Action::Deny, Action::Allow] {
        for (_, to) in given.iter().filter(|(its, _)| *its == action) {
            number += 1;
            let rule = short_rule(action, to, format!("imported-{number}"));
            rules.push(rule.map_err(|error| anyhow!("'{to}': {error}"))?);
        }
    }
    let default = word(default);
    let mut file = format!("[egress]\ndefault = \"{default}\"\n");
    rules.iter().for_each(|rule| file.push_str(&table(rule)));
    Ok(file)
}

fn table(rule: &Rule) -> String {
    let quoted = |text: String| format!("\"{text}\"");
    let to: Vec<_> = rule.to.iter().map(|to| quoted(to.to_string())).collect();
    let ports: Vec<_> = rule.ports.iter().map(|ports| quoted(ports.to_string())).collect();
    let ports = match ports.is_empty() {
        true => String::new(),
        false => format!("ports = [{}]\n", ports.join(", ")),
    };
    let (id, action, to) = (&rule.id, word(rule.action), to.join(", "));
    format!("\n[[egress.rule]]\nid = \"{id}\"\naction = \"{action}\"\nto = [{to}]\n{ports}")
}

fn word(action: Action) -> &'static str {
    match action {
        Action::Allow => "allow",
        Action::Deny => "deny",
    }
}

fn of_lines(text: &str) -> Vec<Given> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let given = lines.filter(|line| !line.is_empty()).map(|line| match line.strip_prefix('!') {
        Some(denied) => (Action::Deny, denied.trim().to_owned()),
        None => (Action::Allow, line.to_owned()),
    });
    given.collect()
}

fn of_json(value: &Value) -> anyhow::Result<(Vec<Given>, Action)> {
    let has = |key| value.get(key).is_some();
    if let Some(network) = value.get("network") {
        only(network, &["allowedDomains", "deniedDomains"], "network.")?;
        let mut given = list(network, "allowedDomains", Action::Allow)?;
        given.extend(list(network, "deniedDomains", Action::Deny)?);
        return Ok((given, Action::Deny));
    }
    if has("egress") || has("defaultAction") {
        only(value, &["egress", "defaultAction"], "")?;
        let default = value.get("defaultAction").map_or(Ok(Action::Deny), action)?;
        let rules = value.get("egress").and_then(Value::as_array).context("'egress' is no list")?;
        let given = rules.iter().map(|rule| {
            only(rule, &["action", "target"], "egress.")?;
            let target = rule["target"].as_str().context("a rule has no 'target'")?;
            Ok((action(&rule["action"])?, target.to_owned()))
        });
        return Ok((given.collect::<anyhow::Result<_>>()?, default));
    }
    if has("allowOut") || has("denyOut") {
        only(value, &["allowOut", "denyOut"], "")?;
        let mut given = list(value, "allowOut", Action::Allow)?;
        let denied = list(value, "denyOut", Action::Deny)?;
        // There, what is allowed is an exception of what is denied.
        let is_all = |to: &str| to == "*" || to == "0.0.0.0/0";
        let denies_all = denied.iter().any(|(_, to)| is_all(to));
        given.extend(denied.into_iter().filter(|(_, to)| !is_all(to)));
        return Ok((given, if denies_all { Action::Deny } else { Action::Allow }));
    }
    bail!(
        "the file has none of the keys that policies have: expected network (sandbox-runtime), \
         egress (OpenSandbox), allowOut or denyOut (E2B), or a text with a destination in each line"
    )
}

fn action(value: &Value) -> anyhow::Result<Action> {
    match value.as_str() {
        Some("allow") => Ok(Action::Allow),
        Some("deny") => Ok(Action::Deny),
        _ => bail!("{value} is no action; expected \"allow\" or \"deny\""),
    }
}

fn list(value: &Value, key: &str, action: Action) -> anyhow::Result<Vec<Given>> {
    let Some(list) = value.get(key) else { return Ok(Vec::new()) };
    let texts = list.as_array().and_then(|all| all.iter().map(Value::as_str).collect());
    let texts: Vec<&str> = texts.with_context(|| format!("'{key}' is no list of strings"))?;
    Ok(texts.into_iter().map(|text| (action, text.to_owned())).collect())
}

/// Refuses keys that would be lost.
fn only(value: &Value, known: &[&str], path: &str) -> anyhow::Result<()> {
    let object = value.as_object().with_context(|| format!("{value} is no object"))?;
    match object.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => {
            bail!("'{path}{key}' cannot be converted; leave it out, and see what it meant")
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::policy_file;

    /// Returns the lines that matter of a converted policy, which must be a policy.
    fn converted(text: &str) -> Vec<String> {
        let file = convert(text).unwrap();
        policy_file::parse(&file).unwrap();
        let lines = file.lines().filter(|line| !line.is_empty() && !line.starts_with("id"));
        lines.filter(|line| *line != "[[egress.rule]]").map(str::to_owned).collect()
    }

    #[test]
    fn policies_of_others_are_converted() {
        let sandbox_runtime = r#"{"network": {
            "allowedDomains": ["a.example", "*.b.example"], "deniedDomains": ["x.b.example"]}}"#;
        let expected = [
            "[egress]",
            "default = \"deny\"",
            "action = \"deny\"",
            "to = [\"x.b.example\"]",
            "action = \"allow\"",
            "to = [\"a.example\"]",
            "action = \"allow\"",
            "to = [\"*.b.example\"]",
        ];
        assert_eq!(converted(sandbox_runtime), expected);
        let lines = "# domains\n a.example\n*.b.example # all\n!x.b.example\n\n";
        assert_eq!(converted(lines), expected);
        let open_sandbox = r#"{"defaultAction": "allow", "egress": [
            {"action": "deny", "target": "10.0.0.0/8"},
            {"action": "allow", "target": "a.example"}]}"#;
        let found = converted(open_sandbox);
        assert_eq!(
            (found[1].as_str(), found[3].as_str()),
            ("default = \"allow\"", "to = [\"10.0.0.0/8\"]")
        );
        let e2b = r#"{"allowOut": ["a.example:443"], "denyOut": ["0.0.0.0/0"]}"#;
        let found = converted(e2b);
        assert_eq!(
            found[1..4],
            ["default = \"deny\"", "action = \"allow\"", "to = [\"a.example\"]"]
        );
        assert_eq!(found[4], "ports = [\"tcp/443\", \"udp/443\"]");
    }

    /// Bad input: other keys, other types, other actions, destinations that are none.
    #[test]
    fn what_cannot_be_converted_is_refused() {
        for (text, expected) in [
            ("{", "the file is not JSON"),
            ("{}", "none of the keys"),
            ("[]", "none of the keys"),
            (r#"{"network": {"allowedDomains": "a"}}"#, "'allowedDomains' is no list of strings"),
            (r#"{"network": {"allowUnixSockets": []}}"#, "'network.allowUnixSockets' cannot be"),
            (r#"{"network": 1}"#, "1 is no object"),
            (r#"{"egress": 1}"#, "'egress' is no list"),
            (r#"{"egress": [{"action": "log", "target": "a"}]}"#, "\"log\" is no action"),
            (r#"{"egress": [{"action": "deny"}]}"#, "a rule has no 'target'"),
            (r#"{"egress": [{"action": "deny", "target": "a", "port": 1}]}"#, "'egress.port'"),
            (r#"{"denyOut": [1]}"#, "'denyOut' is no list of strings"),
            ("a b\n", "'a b': 'a b': each part"),
            ("https://a.example\n", "a name without a scheme"),
        ] {
            let error = format!("{:#}", convert(text).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
