//! The result of a check: as a line for people, as JSON, and on the way between processes.

use std::fmt;

use serde_json::{Value, json};

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// As it should be.
    Ok,
    /// towpath works, with less.
    Warning,
    /// `towpath run` does not work.
    Failure,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The name of the check.
    pub(crate) check: String,
    pub(crate) status: Status,
    /// What was observed.
    pub(crate) value: String,
    /// What to do.
    pub(crate) fix: Option<String>,
}

impl Status {
    const NAMES: [(Status, &'static str); 3] =
        [(Self::Ok, "ok"), (Self::Warning, "warning"), (Self::Failure, "failure")];

    fn name(self) -> &'static str {
        let found = Self::NAMES.into_iter().find(|(status, _)| *status == self);
        found.map_or("", |(_, name)| name)
    }

    fn of_name(name: &str) -> Option<Self> {
        let found = Self::NAMES.into_iter().find(|(_, known)| *known == name);
        found.map(|(status, _)| status)
    }
}

impl Finding {
    fn new(status: Status, check: &str, value: impl Into<String>) -> Self {
        Self { check: check.to_owned(), status, value: value.into(), fix: None }
    }

    /// A check that found nothing wrong.
    pub(crate) fn ok(check: &str, value: impl Into<String>) -> Self {
        Self::new(Status::Ok, check, value)
    }

    /// A check that found something without which towpath works.
    pub(crate) fn warning(check: &str, value: impl Into<String>) -> Self {
        Self::new(Status::Warning, check, value)
    }

    /// A check that found why `towpath run` does not work.
    pub(crate) fn failure(check: &str, value: impl Into<String>) -> Self {
        Self::new(Status::Failure, check, value)
    }

    /// Adds what to do.
    pub(crate) fn fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }

    /// Returns the finding as an object.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "check": self.check,
            "status": self.status.name(),
            "value": self.value,
            "fix": self.fix,
        })
    }

    /// Reads the text of [`to_json`](Self::to_json).
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let object: Value = serde_json::from_str(text).ok()?;
        let field = |name: &str| object[name].as_str().map(str::to_owned);
        Some(Self {
            check: field("check")?,
            status: Status::of_name(object["status"].as_str()?)?,
            value: field("value")?,
            fix: field("fix"),
        })
    }
}

/// One line, without a line break at its end.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<8} {:<12} {}", self.status.name(), self.check, self.value)?;
        match &self.fix {
            Some(fix) => write!(f, "; fix: {fix}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_arrive_as_sent() {
        let all = [
            Finding::ok("a", "1\n2"),
            Finding::warning("b", "").fix("\"x\""),
            Finding::failure("c", "\u{1b}"),
        ];
        for finding in all {
            let text = finding.to_json().to_string();
            assert!(!text.contains('\n'), "one line: {text}");
            assert_eq!(Finding::parse(&text), Some(finding));
        }
        for wrong in ["", "{}", "[]", "{\"check\":\"a\",\"status\":\"fine\",\"value\":\"\"}"] {
            assert_eq!(Finding::parse(wrong), None, "{wrong}");
        }
    }
}
