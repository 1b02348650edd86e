//! Files with a policy for flows to the outside: the table `[egress]`.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use serde_json::Value;
use towpath_gateway::control::egress;
use towpath_gateway::control::fields::{Fields, Wrong};
use towpath_gateway::egress::policy::Policy;

use crate::config::document::Document;

/// Longest policy file in bytes: enough for the most rules.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// The table of a file that has the policy.
const TABLE: &str = "egress";

/// Parses the policy file at `path`.
pub(crate) fn read(path: &Path) -> anyhow::Result<Policy> {
    let text = read_text(path)?;
    parse(&text).map_err(|message| anyhow!("{}:{message}", path.display()))
}

/// Reads a file that may have a policy.
pub(crate) fn read_text(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
        .with_context(|| format!("cannot read {}", path.display()))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        bail!("{} is larger than {FILE_BYTES_MAX} bytes, the limit of policies", path.display());
    }
    Ok(text)
}

/// Parses a policy file; an error has line and column.
pub(crate) fn parse(text: &str) -> Result<Policy, String> {
    let (document, mut fields) = Document::read(text)?;
    let policy = of_table(&mut fields).and_then(|policy| {
        fields.finish()?;
        policy.ok_or_else(|| Wrong {
            path: String::new(),
            message: format!("the file has no table [{TABLE}], so it has no policy"),
        })
    });
    policy.map_err(|wrong| document.explain(&wrong))
}

/// Returns true if the file at `path` has something beside a policy, as network files do.
pub(crate) fn has_other_tables(path: &Path) -> anyhow::Result<bool> {
    let text = read_text(path)?;
    let (_, fields) = Document::read(&text).map_err(|m| anyhow!("{}:{m}", path.display()))?;
    let value = fields.into_value();
    Ok(value.as_object().is_some_and(|tables| tables.keys().any(|name| name != TABLE)))
}

/// Returns the policy of the file at `path` as the control socket takes it. The caller has checked
/// it.
pub(crate) fn as_request(path: &Path) -> anyhow::Result<Value> {
    let text = read_text(path)?;
    let read = Document::read(&text).and_then(|(document, mut fields)| {
        fields.fields(TABLE).map_err(|wrong| document.explain(&wrong))
    });
    let table = read.map_err(|message| anyhow!("{}:{message}", path.display()))?;
    Ok(table.map_or(Value::Null, Fields::into_value))
}

/// Takes the policy from the table of a file, if it has one.
pub(crate) fn of_table(fields: &mut Fields) -> Result<Option<Policy>, Wrong> {
    fields.fields(TABLE)?.map(egress::policy).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bad input: no table, other tables, mistakes; each with its line and column.
    #[test]
    fn mistakes_in_files_are_reported_with_their_place() {
        for (text, expected) in [
            ("", "1:1: the file has no table [egress]"),
            ("[egres]\n", "1:2: unknown key 'egres'; did you mean 'egress'?"),
            ("egress = 1", "1:1: 'egress': expected a table, got 1"),
            ("[egress]\ndefault = 'maybe'", "2:1: 'default': 'maybe': expected allow or deny"),
            ("[egress]\n\n[[egress.rule]]\nto = 'a'", "3:"),
            ("[egress]\n[[egress.rule]]\naction = 'allow'\nprots = 'tcp'", "4:1: unknown key"),
            ("[egress", "1:"),
        ] {
            let error = parse(text).err().unwrap();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
        parse("[egress]\n[[egress.rule]]\naction = 'allow'\nto = ['a.example']\n").unwrap();
    }
}
