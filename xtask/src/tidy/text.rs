//! Checks the shape and words of files.

use crate::source::Source;

/// Most lines of a file without its tests.
const LINES_MAX: usize = 600;
/// Most characters of a line of Rust.
const WIDTH_MAX: usize = 100;

/// Words that must not be committed. They are split here so that this file passes.
const BANNED: [&str; 5] = [
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("dbg", "!("),
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
];
/// Prefixes of paths on a particular machine.
const MACHINE_PATHS: [&str; 2] = [concat!("/wo", "rk/"), concat!("/ho", "me/")];
/// Marks open work; the number of an issue follows in parentheses: `(#12)`.
const LATER: &str = concat!("TO", "DO");

/// Checks headers, numbers of lines and widths of Rust files.
pub(super) fn shape(files: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let path = &file.path;
        if !file.text.starts_with("//!") {
            problems.push(format!("{path}:1: no `//!` header that says what the file is for"));
        }
        let lines = file.production_lines();
        if !file.is_test() && lines > LINES_MAX {
            problems.push(format!("{path}: {lines} lines without tests, limit {LINES_MAX}"));
        }
        for (index, line) in file.text.lines().enumerate() {
            let width = line.chars().count();
            if width > WIDTH_MAX {
                problems.push(format!("{path}:{}: {width} characters", index + 1));
            }
        }
    }
    problems
}

/// Checks words in all files.
pub(super) fn words(files: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    for file in files {
        for (index, line) in file.text.lines().enumerate() {
            let mut complain = |what: &str| {
                problems.push(format!("{}:{}: {what}", file.path, index + 1));
            };
            // Documents may mention these words.
            if !file.path.ends_with(".md") {
                BANNED.iter().filter(|word| has_word(line, word)).for_each(|word| complain(word));
                if line.split(LATER).skip(1).any(|after| !after.starts_with("(#")) {
                    complain(&format!("{LATER} without an issue: write {LATER}(#12)"));
                }
            }
            for path in MACHINE_PATHS.iter().filter(|path| line.contains(**path)) {
                complain(&format!("{path} is a path of a particular machine"));
            }
        }
    }
    problems
}

/// Whether `word` is in `line` as a whole word.
fn has_word(line: &str, word: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back().is_some_and(is_letter);
        let after = line[at + word.len()..].chars().next().is_some_and(is_letter);
        !before && (!after || word.ends_with('('))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape_of(path: &str, text: &str) -> Vec<String> {
        shape(&[Source::new(path, text)])
    }

    fn words_of(path: &str, text: &str) -> Vec<String> {
        words(&[Source::new(path, text)])
    }

    #[test]
    fn a_file_has_a_header() {
        assert!(shape_of("a.rs", "//! What.\n").is_empty());
        assert_eq!(shape_of("a.rs", "use b;\n").len(), 1);
        assert!(shape_of("a.toml", "[b]\n").is_empty());
    }

    #[test]
    fn tests_do_not_count_for_the_length() {
        let production = format!("//! What.\n{}", "fn a() {}\n".repeat(LINES_MAX - 1));
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "    fn b() {}\n".repeat(100));
        assert!(shape_of("a.rs", &format!("{production}{tests}")).is_empty());
        assert_eq!(shape_of("a.rs", &format!("{production}fn a() {{}}\n")).len(), 1);
        assert!(shape_of("x/tests/a.rs", &format!("{production}fn a() {{}}\n")).is_empty());
    }

    #[test]
    fn width_is_in_characters() {
        assert!(shape_of("a.rs", &format!("//! {}\n", "§".repeat(96))).is_empty());
        assert_eq!(shape_of("a.rs", &format!("//! {}\n", "a".repeat(97))).len(), 1);
    }

    #[test]
    fn banned_words_are_found() {
        let later = |rest| words_of("a.rs", &format!("// {LATER}{rest}"));
        assert!(later("(#12): more").is_empty());
        assert_eq!(later(": more").len(), 1);
        assert_eq!(words_of("a.rs", &format!("    {}x)", BANNED[2])).len(), 1);
        assert!(words_of("a.rs", "let xxx = XXXL;").is_empty());
        assert!(words_of("a.md", BANNED[0]).is_empty());
        assert_eq!(words_of("a.md", MACHINE_PATHS[0]).len(), 1);
    }
}
