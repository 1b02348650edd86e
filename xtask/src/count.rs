//! Counts tests from the output of test programs, as they print it.
//!
//! Reads the format of libtest, which libtest-mimic also uses. A test that cannot run prints a line
//! that starts with `skipped:` and returns. With `--show-output`, this line is in the block of its
//! test, and the test counts as skipped instead of passed. Lines outside of blocks do not count:
//! programs that print those also report the test as ignored.

use std::fmt;

/// Tests by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Count {
    pub(crate) fn add(&mut self, other: Count) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Parses the [displayed](fmt::Display) form.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let mut next = |name: &str| {
            let number = words.next()?.parse().ok()?;
            (words.next()?.trim_end_matches(',') == name).then_some(number)
        };
        let [passed, failed, skipped] = [next("passed")?, next("failed")?, next("skipped")?];
        words.next().is_none().then_some(Self { passed, failed, skipped })
    }

    pub(crate) fn total(&self) -> u64 {
        self.passed + self.failed + self.skipped
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// The part of a program's output that is being read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// One line for each test.
    Tests,
    /// Output of passed tests: the test of the current block, and whether it already counted as
    /// skipped.
    Successes(String, bool),
    /// Output of failed tests.
    Failures,
}

/// Reads a program's output line by line.
#[derive(Debug)]
pub(crate) struct Counter {
    count: Count,
    part: Part,
    /// Passed tests of the current program that reported `skipped:`.
    said_skipped: u64,
}

impl Counter {
    pub(crate) fn new() -> Self {
        Self { count: Count::default(), part: Part::Tests, said_skipped: 0 }
    }

    pub(crate) fn count(&self) -> Count {
        self.count
    }

    /// Takes a line; returns the text to show for it.
    pub(crate) fn line(&mut self, line: &str) -> Option<String> {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.result(result);
            return Some(line.into());
        }
        match (line, &mut self.part) {
            ("successes:", Part::Tests) => {
                self.part = Part::Successes(String::new(), false);
                None
            }
            ("failures:", _) => {
                self.part = Part::Failures;
                Some(line.into())
            }
            (_, Part::Successes(test, counted)) => {
                if let Some(name) = block_of(line) {
                    (*test, *counted) = (name.into(), false);
                    return None;
                }
                let reason = line.strip_prefix("skipped:")?;
                let shown = format!("skipped: {test}:{reason}");
                self.said_skipped += u64::from(!std::mem::replace(counted, true));
                Some(shown)
            }
            _ => Some(line.into()),
        }
    }

    /// Parses `ok. 3 passed; 0 failed; 1 ignored; ...`
    fn result(&mut self, text: &str) {
        let number = |word: &str| -> u64 {
            let mut words = text.split([' ', ';', '.']).filter(|word| !word.is_empty());
            let mut last = "";
            words
                .find_map(|next| {
                    let found = (next == word).then(|| last.parse().ok()).flatten();
                    last = next;
                    found
                })
                .unwrap_or(0)
        };
        let skipped = self.said_skipped.min(number("passed"));
        self.count.add(Count {
            passed: number("passed") - skipped,
            failed: number("failed"),
            skipped: number("ignored") + skipped,
        });
        (self.part, self.said_skipped) = (Part::Tests, 0);
    }
}

/// The test of a block that starts with `---- NAME stdout ----`.
fn block_of(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Count, Vec<String>) {
        let mut counter = Counter::new();
        let shown = text.lines().filter_map(|line| counter.line(line)).collect();
        (counter.count(), shown)
    }

    #[test]
    fn results_add_up() {
        let text = "\
test a ... ok
test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.00s
test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out";
        let (count, shown) = read(text);
        assert_eq!(count, Count { passed: 14, failed: 1, skipped: 1 });
        assert_eq!(shown.len(), 3);
    }

    #[test]
    fn a_test_that_says_skipped_did_not_pass() {
        let text = "\
test a ... ok

successes:

---- a stdout ----
noise
skipped: no IPv6
skipped: no IPv4 either

---- b stdout ----
skipped for IPv6: not all of it

successes:
    a
    b

test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        let (count, shown) = read(text);
        assert_eq!(count, Count { passed: 1, failed: 0, skipped: 1 });
        assert!(shown.contains(&"skipped: a: no IPv6".into()), "{shown:?}");
        assert!(!shown.contains(&"noise".into()), "{shown:?}");
    }

    #[test]
    fn ignored_is_not_counted_twice() {
        let text = "\
skipped: ssh: sshd is not installed
test ssh ... ignored, sshd is not installed
test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        assert_eq!(read(text).0, Count { passed: 0, failed: 0, skipped: 1 });
    }

    #[test]
    fn the_last_line_has_its_form() {
        let count = Count { passed: 3, failed: 0, skipped: 1 };
        assert_eq!(count.to_string(), "3 passed, 0 failed, 1 skipped");
        assert_eq!(Count::parse("3 passed, 0 failed, 1 skipped"), Some(count));
        for other in [
            "3 passed, 0 failed",
            "a passed, 0 failed, 1 skipped",
            "3 passed, 0 failed, 1 skipped more",
        ] {
            assert_eq!(Count::parse(other), None, "{other}");
        }
    }
}
