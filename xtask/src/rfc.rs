//! Lists the sections of RFCs that the code cites, and whether a test cites them too.
//!
//! Citations have the form `RFC 9293 §3.10.7.4`. The list is for information, not a check.

use std::collections::BTreeMap;

use crate::source::{self, Source};

/// Number of citations of each section, in code and in tests.
type Citations = BTreeMap<(u32, String), (u32, u32)>;

pub(crate) fn run() -> Result<(), String> {
    let mut citations = Citations::new();
    for file in source::all()?.iter().filter(|file| file.is_rust()) {
        collect(file, &mut citations);
    }
    println!("{:<24} {:>6} {:>6}", "section", "code", "tests");
    for ((number, section), (code, tests)) in &citations {
        let name = format!("RFC {number} {section}");
        let note = if *tests == 0 { "  no test cites it" } else { "" };
        println!("{name:<24} {code:>6} {tests:>6}{note}");
    }
    let tested = citations.values().filter(|(_, tests)| *tests > 0).count();
    println!("{} sections cited, {tested} of them in tests", citations.len());
    Ok(())
}

fn collect(file: &Source, citations: &mut Citations) {
    let production = file.production_lines();
    for (index, line) in file.text.lines().enumerate() {
        let in_test = file.is_test() || index >= production;
        for part in line.split("RFC ").skip(1) {
            let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
            let Ok(number) = digits.parse() else { continue };
            // Several sections may follow one number: `RFC 4861 §6.1, §7.1`.
            let mut rest = part[digits.len()..].trim_start();
            while let Some(section) = rest.strip_prefix('§') {
                let end = section.find(|c: char| !c.is_ascii_alphanumeric() && c != '.');
                let (section, after) = section.split_at(end.unwrap_or(section.len()));
                let place = (number, format!("§{}", section.trim_end_matches('.')));
                let counts = citations.entry(place).or_default();
                *(if in_test { &mut counts.1 } else { &mut counts.0 }) += 1;
                rest = after.trim_start_matches([',', ' ']);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn citations_are_found() {
        let text =
            "// RFC 9293 §3.10.7.4, §3.8. And RFC 826.\n#[cfg(test)]\nmod tests {\n// RFC 1 §2\n}";
        let mut citations = Citations::new();
        collect(&Source::new("crates/net/src/x.rs", text), &mut citations);
        assert_eq!(citations.get(&(9293, "§3.10.7.4".into())), Some(&(1, 0)));
        assert_eq!(citations.get(&(9293, "§3.8".into())), Some(&(1, 0)));
        assert_eq!(citations.get(&(1, "§2".into())), Some(&(0, 1)));
        assert_eq!(citations.len(), 3);
    }
}
