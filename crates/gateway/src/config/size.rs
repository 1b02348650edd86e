//! Parses sizes in bytes as people write them.

/// The text is not a size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a number of bytes, with or without the suffix K, M or G, for example 256M")]
pub struct SizeError;

/// Parses a size in bytes: digits, optionally followed by `K`, `M` or `G` for powers of 1024.
///
/// # Errors
/// [`SizeError`] for any other text and for numbers that do not fit.
pub fn parse_size(text: &str) -> Result<usize, SizeError> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number: Option<usize> = digits.parse().ok();
    number.and_then(|number| number.checked_mul(1 << shift)).ok_or(SizeError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("256M"), Ok(256 << 20));
        assert_eq!(parse_size("1g"), Ok(1 << 30));
        assert_eq!(parse_size("65536"), Ok(65536));
        for text in ["", "M", "-1M", "99999999999G", "1\u{e9}"] {
            assert_eq!(parse_size(text), Err(SizeError), "{text}");
        }
    }
}
