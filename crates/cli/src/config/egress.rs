//! What carries out the policy for flows to the outside, from options.

use std::fs::OpenOptions;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use towpath_gateway::control::egress;
use towpath_gateway::egress::audit::{Audit, FILE_BYTES_DEFAULT, Next};
use towpath_gateway::egress::enforcer::Enforcer;
use towpath_gateway::egress::policy::Policy;
use towpath_gateway::egress::rule::Action;
use towpath_io::log_files::LogFiles;
use towpath_io::outside;

use crate::config::args::EgressArguments;
use crate::config::policy_file;

/// Returns what carries out the policy of the options, or else `of_file`, or those of ports if
/// there are some; `None` if there is no policy.
///
/// # Errors
/// An option or the file is not valid, or the audit cannot be written: nothing may start then.
pub(crate) fn enforcer(
    arguments: &EgressArguments,
    of_file: Option<Policy>,
    has_ports: bool,
) -> anyhow::Result<Option<Arc<Enforcer>>> {
    if let Some(path) = &arguments.learn {
        let audit = audit(arguments)?;
        let opened = OpenOptions::new().write(true).create(true).truncate(true).open(path);
        let file = opened.with_context(|| format!("cannot open {} for writing", path.display()))?;
        return Ok(Some(Arc::new(Enforcer::learning(file, audit)?)));
    }
    let policy = policy(arguments, of_file)?;
    if policy.is_none() && !has_ports {
        if arguments.audit.is_some() {
            bail!("option --audit: there is no policy; give --allow, --egress or --learn as well");
        }
        return Ok(None);
    }
    let audit = audit(arguments)?;
    Ok(Some(Arc::new(match policy {
        Some(policy) => Enforcer::new(policy, audit),
        None => Enforcer::for_ports(audit),
    })))
}

fn policy(arguments: &EgressArguments, of_file: Option<Policy>) -> anyhow::Result<Option<Policy>> {
    let EgressArguments { allow, deny, egress, .. } = arguments;
    if let Some(path) = egress {
        return policy_file::read(path).map(Some);
    }
    if allow.is_empty() && deny.is_empty() {
        return Ok(of_file);
    }
    let rules = |option: &'static str, action, texts: &[String]| {
        let rule = move |(text, number): (&String, usize)| {
            let rule = egress::short_rule(action, text, format!("{option}-{number}"));
            rule.map_err(|error| anyhow!("option --{option} '{text}': {error}"))
        };
        texts.iter().zip(1..).map(rule).collect::<Vec<_>>()
    };
    let mut all = rules("deny", Action::Deny, deny);
    all.extend(rules("allow", Action::Allow, allow));
    let all = all.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let default = if allow.is_empty() { Action::Allow } else { Action::Deny };
    Ok(Some(Policy::new(all, default, true)?))
}

/// Returns the names of the files of the audit, if there is one.
///
/// # Errors
/// The working directory is gone.
pub(crate) fn audit_files(arguments: &EgressArguments) -> anyhow::Result<Option<LogFiles>> {
    let older = arguments.audit_files.unwrap_or(AUDIT_FILES_DEFAULT);
    let files = arguments.audit.as_deref().map(|path| LogFiles::new(path, older)).transpose();
    files.context("option --audit")
}

/// Opens the audit. A pipe or a device has no bound.
fn audit(arguments: &EgressArguments) -> anyhow::Result<Option<Audit>> {
    let Some(path) = &arguments.audit else { return Ok(None) };
    let Some(files) = audit_files(arguments)? else { return Ok(None) };
    let opened = files.open().and_then(|file| Ok((file.metadata()?.is_file(), file)));
    let (is_regular, file) =
        opened.with_context(|| format!("cannot open {} for writing", path.display()))?;
    let size = arguments.audit_size.unwrap_or(FILE_BYTES_DEFAULT);
    let most = if is_regular { size } else { u64::MAX };
    Ok(Some(Audit::new(file, most, move |next| {
        let is_empty = next == Next::Empty;
        let own = || if is_empty { files.rotate() } else { files.open() };
        outside::next_log(is_empty).unwrap_or_else(own)
    })))
}

/// Older files of an audit that are kept, by default.
const AUDIT_FILES_DEFAULT: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_rules() {
        let arguments = EgressArguments {
            allow: vec!["a.example:443".to_owned(), "*.b.example".to_owned()],
            deny: vec!["x.b.example".to_owned()],
            ..EgressArguments::default()
        };
        let policy = policy(&arguments, None).unwrap().unwrap();
        let ids: Vec<_> = policy.rules().iter().map(|rule| rule.id.as_str()).collect();
        assert_eq!(ids, ["deny-1", "allow-1", "allow-2"]);
        let wrong = EgressArguments { allow: vec!["a b".to_owned()], ..Default::default() };
        let error = super::policy(&wrong, None).unwrap_err().to_string();
        assert!(error.starts_with("option --allow 'a b': 'a b': each part"), "{error}");
        let audit = EgressArguments { audit: Some("/nowhere/x".into()), ..Default::default() };
        assert!(
            enforcer(&audit, None, false).unwrap_err().to_string().contains("there is no policy")
        );
    }
}
