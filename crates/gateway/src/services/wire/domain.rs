//! Domain names in DHCP and router advertisements: host names (RFC 952, RFC 1123 §2.1) in the wire
//! format of RFC 1035 §3.1.
//!
//! A [`DomainName`] has only letters, digits and hyphens, in lower case, so that it can be written
//! into resolv.conf, a zone or a log line as it is. Other names are rejected.
//!
//! Names are control-plane data: unlike most formats, this one allocates, at most the size of the
//! message.

use std::fmt;
use std::str::FromStr;

/// A domain name of one or more labels, without the final dot.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainName(String);

impl DomainName {
    /// The text, in lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The labels, leftmost first.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.0.split('.')
    }

    /// The leftmost label: the host name without its domain.
    pub fn first_label(&self) -> Self {
        Self(self.labels().next().unwrap_or_default().into())
    }

    /// True if the name has a single label.
    pub fn is_single_label(&self) -> bool {
        !self.0.contains('.')
    }

    /// This name as a subdomain of `parent`; `None` if that is too long.
    pub fn below(&self, parent: &Self) -> Option<Self> {
        let mut text = self.0.clone();
        text.push('.');
        text.push_str(&parent.0);
        (text.len() <= NAME_CHARS_MAX).then_some(Self(text))
    }

    /// Appends the uncompressed wire form to `bytes`.
    pub fn emit(&self, bytes: &mut Vec<u8>) {
        for label in self.labels() {
            bytes.push(label.len() as u8);
            bytes.extend_from_slice(label.as_bytes());
        }
        bytes.push(0);
    }
}

impl FromStr for DomainName {
    type Err = InvalidDomainName;

    fn from_str(text: &str) -> Result<Self, InvalidDomainName> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let valid = text.len() <= NAME_CHARS_MAX && text.split('.').all(is_label);
        if valid { Ok(Self(text.to_ascii_lowercase())) } else { Err(InvalidDomainName) }
    }
}

impl fmt::Display for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Error of a text that is not a domain name of letters, digits and hyphens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidDomainName;

impl fmt::Display for InvalidDomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a name of letters, digits and hyphens such as vm1 or lan.example")
    }
}

impl core::error::Error for InvalidDomainName {}

/// True for letters, digits and hyphens without a hyphen at either end (RFC 1123 §2.1).
fn is_label(label: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=LABEL_CHARS_MAX).contains(&label.len())
        && label.bytes().all(inner)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// Wire form of a list of names, uncompressed (RFC 8415 §10, RFC 8106 §5.2).
pub fn emit_list(names: &[DomainName]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for name in names {
        name.emit(&mut bytes);
    }
    bytes
}

/// Wire form of a list of names that compresses shared suffixes (RFC 3397 §2, RFC 1035 §4.1.4).
pub fn emit_compressed_list(names: &[DomainName]) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Suffixes written so far, with their offsets.
    let mut endings: Vec<(&str, u16)> = Vec::new();
    for name in names {
        let mut rest = name.as_str();
        let pointer = loop {
            if let Some(&(_, at)) = endings.iter().find(|(ending, _)| *ending == rest) {
                break Some(at);
            }
            if bytes.len() <= usize::from(POINTER_MAX) {
                endings.push((rest, bytes.len() as u16));
            }
            let (label, after) = rest.split_once('.').unwrap_or((rest, ""));
            bytes.push(label.len() as u8);
            bytes.extend_from_slice(label.as_bytes());
            rest = after;
            if rest.is_empty() {
                break None;
            }
        };
        match pointer {
            Some(at) => bytes.extend_from_slice(&(POINTER << 8 | at).to_be_bytes()),
            None => bytes.push(0),
        }
    }
    bytes
}

/// Reads a list of names that fills `bytes`, compressed or not. `None` if a name is truncated,
/// points forward, or is not a valid [`DomainName`]. Pointers must point backward, so that parsing
/// terminates.
pub fn parse_list(bytes: &[u8]) -> Option<Vec<DomainName>> {
    let mut names = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let (name, after) = parse_at(bytes, at)?;
        names.push(name);
        at = after;
    }
    Some(names)
}

/// Reads the name that fills `bytes`: labels up to an empty one. A partial name, without its
/// domain, may omit the empty label (RFC 4702 §2.3.1, RFC 4704 §4.2).
pub fn parse_partial(bytes: &[u8]) -> Option<DomainName> {
    let mut text = String::new();
    let mut rest = bytes;
    while let Some((&len, after)) = rest.split_first().filter(|(len, _)| **len != 0) {
        let (label, after) = after.split_at_checked(usize::from(len))?;
        push_label(&mut text, label)?;
        rest = after;
    }
    matches!(rest, [] | [0]).then(|| text.parse().ok())?
}

/// Reads the name at `start`; also returns the offset of the next name.
fn parse_at(bytes: &[u8], start: usize) -> Option<(DomainName, usize)> {
    let mut text = String::new();
    let mut at = start;
    let mut limit = start;
    let mut after = None;
    loop {
        let len = *bytes.get(at)?;
        if len == 0 {
            return Some((text.parse().ok()?, after.unwrap_or(at + 1)));
        }
        if len >= POINTER as u8 {
            let low = *bytes.get(at + 1)?;
            let target = usize::from(u16::from_be_bytes([len, low]) & POINTER_MAX);
            // Each pointer must point before the previous target, so their number is bounded.
            if target >= limit {
                return None;
            }
            after = after.or(Some(at + 2));
            (at, limit) = (target, target);
            continue;
        }
        let label = bytes.get(at + 1..at + 1 + usize::from(len))?;
        push_label(&mut text, label)?;
        at += 1 + usize::from(len);
    }
}

/// Appends a label; `None` if it is invalid or the name becomes too long.
fn push_label(text: &mut String, label: &[u8]) -> Option<()> {
    let label = core::str::from_utf8(label).ok().filter(|label| is_label(label))?;
    if !text.is_empty() {
        text.push('.');
    }
    text.push_str(label);
    (text.len() <= NAME_CHARS_MAX).then_some(())
}

/// Maximum length of a label (RFC 1035 §2.3.4).
const LABEL_CHARS_MAX: usize = 63;

/// Maximum length of a name: 255 octets less the first length and the final zero (RFC 1035 §2.3.4).
const NAME_CHARS_MAX: usize = 253;

/// Marks a pointer: its two high bits.
const POINTER: u16 = 0xc0;
/// Largest offset of a pointer.
const POINTER_MAX: u16 = 0x3fff;

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;
    fn names(texts: &[&str]) -> Vec<DomainName> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn text_is_letters_digits_and_hyphens() {
        assert_eq!("Vm-1.LAN.".parse::<DomainName>().unwrap().to_string(), "vm-1.lan");
        let long_label = "a".repeat(64);
        let long_name = std::vec!["a".repeat(63); 4].join(".");
        for text in
            ["", ".", "a..b", ".a", "-a", "a-", "a_b", "a b", "ä", "a\0", &long_label, &long_name]
        {
            assert_eq!(text.parse::<DomainName>(), Err(InvalidDomainName), "{text:?}");
        }
        let longest = &long_name[..253];
        let longest: DomainName = longest.parse().unwrap();
        assert_eq!(longest.below(&names(&["a"])[0]), None);
    }

    /// RFC 3397 §2: the example of that section, in lower case.
    #[test]
    fn the_list_of_rfc_3397() {
        let list = names(&["eng.apple.com", "marketing.apple.com"]);
        let bytes = b"\x03eng\x05apple\x03com\x00\x09marketing\xc0\x04";
        assert_eq!(emit_compressed_list(&list), bytes);
        assert_eq!(parse_list(bytes), Some(list.clone()));
        assert_eq!(parse_list(&emit_list(&list)), Some(list));
        assert_eq!(parse_list(b""), Some(vec![]));
    }

    /// Bad input: truncated labels, a missing end, forward pointers, self-pointers, loops, other
    /// label types, empty names, invalid characters.
    #[test]
    fn bad_lists_are_refused() {
        for bytes in [
            &b"\x03en"[..],
            b"\x03eng",
            b"\x03eng\xc0",
            b"\xc0\x00",
            b"\x01a\xc0\x00",
            b"\x01a\x00\x01b\xc0\x03",
            b"\x01a\x00\xc0\x07\x01b\x00",
            b"\x41a\x00",
            b"\x80a\x00",
            b"\x00",
            b"\x01.\x00",
            b"\x02\xff\xfe\x00",
        ] {
            assert_eq!(parse_list(bytes), None, "{bytes:?}");
        }
        let mut long = b"\x3f".to_vec();
        long.extend([b'a'; 63]);
        let long = long.repeat(4);
        assert_eq!(parse_partial(&long), None, "255 characters");
        assert_eq!(parse_partial(b"\x03vm1"), Some(names(&["vm1"])[0].clone()));
        assert_eq!(parse_partial(b"\x03vm1\x03lan\x00"), Some(names(&["vm1.lan"])[0].clone()));
        for bytes in [&b""[..], b"\x00", b"\x03vm", b"\x03vm1\x00x", b"\xc0\x00"] {
            assert_eq!(parse_partial(bytes), None, "{bytes:?}");
        }
    }

    proptest::proptest! {
        /// Any bytes are parsed without a panic, and parsed names survive a round trip.
        #[test]
        fn what_was_read_can_be_written(bytes in proptest::collection::vec(
            proptest::prop_oneof![0u8..5, b'a'..=b'c', 0xc0u8..=0xc0], 0..64)) {
            if let Some(list) = parse_list(&bytes) {
                assert_eq!(parse_list(&emit_compressed_list(&list)).as_ref(), Some(&list));
                assert_eq!(parse_list(&emit_list(&list)).as_ref(), Some(&list));
            }
            let _ = parse_partial(&bytes);
        }
    }
}
