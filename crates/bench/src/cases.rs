//! Cases: named figures, and the user's selection of them.
//!
//! Names are stable: other documents and stored figures refer to them.

use std::borrow::Cow;

/// A figure with a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) name: Cow<'static, str>,
    pub(super) unit: &'static str,
    pub(super) better: Better,
}

/// Which values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    High,
    Low,
}

/// The cases that the user selected.
#[derive(Clone, Debug)]
pub(super) struct Selection(Vec<&'static Case>);

impl Selection {
    /// Selects the cases of `all` whose names match one of `globs`.
    pub(super) fn new(all: impl Iterator<Item = &'static Case>, globs: &[String]) -> Self {
        let fits = |case: &&Case| globs.iter().any(|glob| matches(glob, &case.name));
        Self(all.filter(fits).collect())
    }

    /// Adds a case, if it is not selected yet.
    pub(super) fn add(&mut self, case: &'static Case) {
        if !self.has(case) {
            self.0.push(case);
        }
    }

    /// Removes a case.
    pub(super) fn remove(&mut self, case: &Case) {
        self.0.retain(|kept| *kept != case);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn has(&self, case: &Case) -> bool {
        self.0.contains(&case)
    }

    pub(super) fn cases(&self) -> &[&'static Case] {
        &self.0
    }
}

impl Case {
    pub(super) const fn high(name: &'static str, unit: &'static str) -> Self {
        Self { name: Cow::Borrowed(name), unit, better: Better::High }
    }

    pub(super) const fn low(name: &'static str, unit: &'static str) -> Self {
        Self { name: Cow::Borrowed(name), unit, better: Better::Low }
    }
}

/// Whether `name` matches `glob`, in which `*` stands for any text.
fn matches(glob: &str, name: &str) -> bool {
    let Some((first, others)) = glob.split_once('*') else { return glob == name };
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<_> = others.split('*').collect();
    let last = parts.pop().expect("split yields one part at least");
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        assert!(matches("*", "rr_p50_us"));
        assert!(matches("rr_*", "rr_p50_us"));
        assert!(matches("*_us", "rr_p50_us"));
        assert!(matches("tcp_*_1flow", "tcp_out_mtu1500_1flow"));
        assert!(matches("tcp*out*1flow", "tcp_out_mtu1500_1flow"));
        assert!(!matches("tcp_*_1flow", "tcp_out_mtu1500_8flows"));
        assert!(!matches("*aba", "ba"));
        assert!(!matches("ab*ba", "aba"), "parts must not overlap");
        assert!(!matches("rr", "rr_p50_us"));
    }
}
