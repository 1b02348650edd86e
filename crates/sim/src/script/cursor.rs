//! A cursor over text, with line numbers for messages. It never panics and never moves backwards.

use super::Error;

/// A position in a script.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { rest: text, line: 1 }
    }

    /// Line of the next character, from 1.
    pub(super) fn line(&self) -> usize {
        self.line
    }

    pub(super) fn fail<T>(&self, what: impl Into<String>) -> Result<T, Error> {
        Err(Error { line: self.line, what: what.into() })
    }

    /// An error that quotes the text at the current position.
    pub(super) fn wanted<T>(&self, what: &str) -> Result<T, Error> {
        let here = self.rest.lines().next().unwrap_or("");
        let here: String = here.chars().take(HERE_CHARS_MAX).collect();
        let here = if here.is_empty() { "the end of the line".into() } else { format!("`{here}`") };
        self.fail(format!("{what} expected, not {here}"))
    }

    fn advance(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    /// Skips blanks within the line.
    pub(super) fn blanks(&mut self) {
        let blank = |c: char| c == ' ' || c == '\t' || c == '\r';
        self.advance(self.rest.len() - self.rest.trim_start_matches(blank).len());
    }

    /// Skips blanks, line ends and comments.
    pub(super) fn space(&mut self) -> Result<(), Error> {
        loop {
            self.advance(self.rest.len() - self.rest.trim_start().len());
            if self.rest.starts_with("//") || self.rest.starts_with('#') {
                self.advance(self.rest.find('\n').unwrap_or(self.rest.len()));
            } else if self.rest.starts_with("/*") {
                match self.rest.find("*/") {
                    Some(end) => self.advance(end + 2),
                    None => return self.fail("this comment does not end"),
                };
            } else {
                return Ok(());
            }
        }
    }

    pub(super) fn is_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// True at the end of a line or the start of a comment.
    pub(super) fn is_line_end(&self) -> bool {
        let ends = ["\n", "//", "/*", "#"];
        self.rest.is_empty() || ends.iter().any(|end| self.rest.starts_with(end))
    }

    pub(super) fn sees(&self, text: &str) -> bool {
        self.rest.starts_with(text)
    }

    /// True if a digit is next, after blanks.
    pub(super) fn sees_digit(&self) -> bool {
        let mut ahead = *self;
        ahead.blanks();
        ahead.rest.starts_with(|c: char| c.is_ascii_digit())
    }

    /// Takes `text`, if it is next, after blanks.
    pub(super) fn eat(&mut self, text: &str) -> bool {
        let mut ahead = *self;
        ahead.blanks();
        if !ahead.sees(text) {
            return false;
        }
        ahead.advance(text.len());
        *self = ahead;
        true
    }

    pub(super) fn expect(&mut self, text: &str) -> Result<(), Error> {
        if self.eat(text) { Ok(()) } else { self.wanted(&format!("`{text}`")) }
    }

    /// Takes `word`, if it is next as a whole word.
    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let mut ahead = *self;
        if ahead.word() == Some(word) {
            *self = ahead;
            return true;
        }
        false
    }

    /// Takes a word of letters, digits and underscores that does not begin with a digit.
    pub(super) fn word(&mut self) -> Option<&'a str> {
        self.blanks();
        if self.rest.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        let word = self.run(|c| c.is_ascii_alphanumeric() || c == '_');
        (!word.is_empty()).then_some(word)
    }

    /// Takes the longest text whose characters `belong`, which may be empty.
    pub(super) fn run(&mut self, belong: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !belong(c)).unwrap_or(self.rest.len());
        self.advance(end)
    }

    /// Takes the text before `end`, and `end` itself.
    pub(super) fn until(&mut self, end: &str) -> Result<&'a str, Error> {
        match self.rest.find(end) {
            Some(at) => {
                let text = self.advance(at);
                self.advance(end.len());
                Ok(text)
            }
            None => self.fail(format!("`{end}` is missing")),
        }
    }

    /// Parses an integer, decimal or with `0x`, optionally negative.
    pub(super) fn integer(&mut self) -> Result<i64, Error> {
        self.blanks();
        let start = *self;
        let negative = self.eat("-");
        let digits = self.run(|c| c.is_ascii_alphanumeric());
        let value = match digits.strip_prefix("0x") {
            Some(hex) => i64::from_str_radix(hex, 16),
            None => digits.parse(),
        };
        match value {
            Ok(value) => Ok(if negative { -value } else { value }),
            Err(_) => start.wanted("a number"),
        }
    }

    /// Parses a number that fits `T`.
    pub(super) fn number<T: TryFrom<i64>>(&mut self) -> Result<T, Error> {
        let start = *self;
        let value = self.integer()?;
        T::try_from(value).or_else(|_| start.wanted("a number in range"))
    }

    /// Parses seconds with decimals, and returns microseconds.
    pub(super) fn seconds(&mut self) -> Result<u64, Error> {
        self.blanks();
        let start = *self;
        let whole = self.run(|c| c.is_ascii_digit());
        // `1...2` is a range: its dots are not decimal points.
        let fraction = if self.sees(".") && !self.sees("...") {
            self.advance(1);
            self.run(|c| c.is_ascii_digit())
        } else {
            ""
        };
        if whole.is_empty() && fraction.is_empty() || fraction.len() > 6 {
            return start.wanted("a time in seconds, to the microsecond,");
        }
        let whole: u64 = if whole.is_empty() { Ok(0) } else { whole.parse() }.unwrap_or(u64::MAX);
        let micros: u64 = format!("{fraction:0<6}").parse().unwrap_or(0);
        if whole > SECONDS_MAX {
            return start.wanted("a time within some years");
        }
        Ok(whole * 1_000_000 + micros)
    }
}

/// Most characters of a line that a message quotes.
const HERE_CHARS_MAX: usize = 40;

/// Latest time in a script: more than three years.
const SECONDS_MAX: u64 = 100_000_000;
