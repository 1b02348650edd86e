//! Checks that modules form a line: each uses only those before it.
//!
//! The line is in the header of a package's `lib.rs` or `main.rs`, in backticks, with arrows
//! between the modules. Modules in braces have the same rank and do not use each other.

use crate::source::Source;

/// Packages whose header has such a line.
const PACKAGES: [&str; 11] = [
    "crates/packet",
    "crates/net",
    "crates/evpn",
    "crates/io",
    "crates/towpath",
    "crates/capi",
    "crates/preload",
    "crates/gateway",
    "crates/cli",
    "crates/bench",
    "crates/sim",
];

pub(super) fn check(files: &[Source]) -> Vec<String> {
    PACKAGES.iter().flat_map(|package| check_package(package, files)).collect()
}

fn check_package(package: &str, files: &[Source]) -> Vec<String> {
    let folder = format!("{package}/src/");
    let roots = [format!("{folder}lib.rs"), format!("{folder}main.rs")];
    let root = |name: &String| files.iter().find(|file| file.path == *name);
    let Some(lib) = roots.iter().find_map(root) else {
        return vec![format!("{} is missing", roots[0])];
    };
    let line = line_of(&lib.text);
    let rank = |module: &str| line.iter().position(|place| place.iter().any(|m| m == module));
    let mut problems = Vec::new();
    for (number, code) in lib.code() {
        let declared = code.trim_start_matches("pub ").strip_prefix("mod ");
        let module = declared.and_then(|module| module.trim_end().strip_suffix(';'));
        if let Some(module) = module.filter(|module| rank(module).is_none()) {
            problems.push(format!("{}:{number}: `{module}` is not in the line", lib.path));
        }
    }
    for file in files.iter().filter(|file| file.path.starts_with(&folder) && !file.is_test()) {
        let inner = &file.path[folder.len()..];
        let own = inner.split(['/', '.']).next().unwrap_or_default();
        let Some(own_rank) = rank(own) else { continue };
        for (number, code) in file.code() {
            for used in used(code).into_iter().filter(|used| used != own) {
                if rank(&used).is_some_and(|used_rank| used_rank >= own_rank) {
                    let place = format!("{}:{number}", file.path);
                    problems.push(format!("{place}: `{own}` uses `{used}`, not an earlier one"));
                }
            }
        }
    }
    problems
}

/// The line in a header; a place has one or several modules.
fn line_of(text: &str) -> Vec<Vec<String>> {
    let header: Vec<&str> =
        text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).collect();
    let header = header.join(" ");
    let Some(line) = header.split('`').find(|part| part.contains('→')) else { return Vec::new() };
    let names = |place: &str| {
        let words = place.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| !word.is_empty()).map(String::from).collect()
    };
    line.split('→').map(names).collect()
}

/// Modules that a line of code names with `crate::`.
fn used(code: &str) -> Vec<String> {
    let word = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    };
    let mut used = Vec::new();
    for after in code.split("crate::").skip(1) {
        match after.strip_prefix('{') {
            Some(list) => {
                let list = list.split("};").next().unwrap_or_default();
                used.extend(list.split(',').map(word).filter(|name| !name.is_empty()));
            }
            None => used.push(word(after)),
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = "//! What.\n//! In a line: `low → {left,\n//! right} → high`.\n\
        mod low;\npub mod left;\nmod right;\nmod high;\n";

    fn problems(path: &str, text: &str) -> usize {
        let files = [Source::new("crates/net/src/lib.rs", LIB), Source::new(path, text)];
        check_package("crates/net", &files).len()
    }

    #[test]
    fn only_what_is_before_may_be_used() {
        assert_eq!(problems("crates/net/src/high.rs", "use crate::low::A;\n"), 0);
        assert_eq!(problems("crates/net/src/low.rs", "use crate::high::A;\n"), 1);
        assert_eq!(problems("crates/net/src/low/inner.rs", "use crate::high::A;\n"), 1);
        assert_eq!(problems("crates/net/src/left.rs", "use crate::right::A;\n"), 1);
        assert_eq!(problems("crates/net/src/left.rs", "use crate::left::A;\n"), 0);
        assert_eq!(problems("crates/net/src/left.rs", "use crate::{low, high};\n"), 1);
        assert_eq!(problems("crates/net/src/low.rs", "    let a = crate::high::A;\n"), 1);
    }

    #[test]
    fn tests_and_comments_may_name_anything() {
        let tests = "#[cfg(test)]\nmod tests {\n    use crate::high::A;\n}\n";
        assert_eq!(problems("crates/net/src/low.rs", tests), 0);
        assert_eq!(problems("crates/net/src/low/tests.rs", "use crate::high::A;\n"), 0);
        assert_eq!(problems("crates/net/src/low.rs", "/// See [`crate::high`].\n"), 0);
    }

    #[test]
    fn every_module_has_a_place() {
        let files = [Source::new("crates/net/src/lib.rs", format!("{LIB}mod lost;\n"))];
        assert_eq!(check_package("crates/net", &files).len(), 1);
    }
}
