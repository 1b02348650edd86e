//! Domain names as rules, queries and greetings of clients have them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Longest name, in characters: 255 octets less the first length and the final zero (RFC 1035
/// §2.3.4).
const NAME_CHARS_MAX: usize = 253;
/// Longest label, in characters (RFC 1035 §2.3.4).
const LABEL_CHARS_MAX: usize = 63;

/// A domain name in lower case, without the final dot. Its labels consist of letters, digits,
/// hyphens and underscores, so it can be written into a log line or a file as it is. Clones share
/// the text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// Returns the name's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the names that this one is below, nearest first, without the name itself:
    /// `b.example`, `example` for `a.b.example`.
    pub fn parents(&self) -> impl Iterator<Item = &str> {
        let text = self.as_str();
        text.match_indices('.').map(|(at, _)| &text[at + 1..])
    }

    /// Returns the name that `bytes` spell.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        std::str::from_utf8(bytes).ok()?.parse().ok()
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let bare = text.strip_suffix('.').unwrap_or(text);
        if bare.len() > NAME_CHARS_MAX {
            return Err(NameError::Long);
        }
        if !bare.is_ascii() {
            return Err(NameError::Unicode);
        }
        let is_label = |label: &str| {
            (1..=LABEL_CHARS_MAX).contains(&label.len())
                && label.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-' || c == b'_')
        };
        if !bare.split('.').all(is_label) {
            return Err(NameError::Label);
        }
        Ok(Self(bare.to_ascii_lowercase().into()))
    }
}

impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a text is no domain name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It is too long.
    #[error("it has more than {NAME_CHARS_MAX} characters")]
    Long,
    /// It has characters outside ASCII.
    #[error("it is not ASCII; write the name as it is in DNS, such as xn--bcher-kva.example")]
    Unicode,
    /// A label is empty, too long, or has characters that names do not have.
    #[error(
        "each part between dots must have 1 to {LABEL_CHARS_MAX} letters, digits, hyphens and \
         underscores"
    )]
    Label,
}

/// The names that a rule is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NamePattern {
    /// This name alone.
    Exact(Name),
    /// All names below this one, at any depth, without the name itself.
    Below(Name),
}

impl FromStr for NamePattern {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match text.strip_prefix("*.") {
            Some(parent) => Ok(Self::Below(parent.parse()?)),
            None => Ok(Self::Exact(text.parse()?)),
        }
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => write!(f, "{name}"),
            Self::Below(name) => write!(f, "*.{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_in_lower_case_without_the_final_dot() {
        let name: Name = "Files.Example.ORG.".parse().unwrap();
        assert_eq!(name.as_str(), "files.example.org");
        assert_eq!(name.parents().collect::<Vec<_>>(), ["example.org", "org"]);
        assert_eq!("a".parse::<Name>().unwrap().parents().count(), 0);
        assert_eq!(Name::from_bytes(b"_dns.a-b").unwrap().as_str(), "_dns.a-b");
    }

    /// Bad input: empty names and labels, long ones, other characters, wildcards in the middle.
    #[test]
    fn other_texts_are_refused() {
        let long_label = "a".repeat(64);
        let long_name = vec!["a".repeat(63); 4].join(".");
        for (text, error) in [
            ("", NameError::Label),
            (".", NameError::Label),
            ("a..b", NameError::Label),
            (".a", NameError::Label),
            ("a b", NameError::Label),
            ("a/b", NameError::Label),
            ("a\0", NameError::Label),
            ("a.*.b", NameError::Label),
            ("*", NameError::Label),
            ("*.", NameError::Label),
            ("*.*.a", NameError::Label),
            ("bücher.example", NameError::Unicode),
            (&long_label, NameError::Label),
            (&long_name, NameError::Long),
        ] {
            assert_eq!(text.parse::<NamePattern>(), Err(error), "{text:?}");
        }
        assert_eq!(Name::from_bytes(b"\xff\xfe"), None);
    }

    #[test]
    fn patterns_are_written_as_they_were_read() {
        for text in ["example.org", "*.example.org"] {
            assert_eq!(text.parse::<NamePattern>().unwrap().to_string(), text);
        }
    }
}
