//! Checks the language of comments and documents.
//!
//! The project writes plain English: short, active sentences with the field's terms. A program can
//! only find words that usually stand for the opposite. A guest, a thread or a program is "it";
//! Words for persons hide which of them is meant. An API reports or returns; it does not tell.

use crate::source::Source;

/// Words and phrases to avoid, and what to write instead.
const AVOIDED: [(&str, &str); 21] = [
    ("he", PERSON),
    ("him", PERSON),
    ("himself", PERSON),
    ("she", PERSON),
    ("whoever", PERSON),
    ("whomever", PERSON),
    ("somebody", PERSON),
    ("anybody", PERSON),
    ("nobody", PERSON),
    ("everybody", PERSON),
    ("told", REPORT),
    ("hears of", REPORT),
    ("is heard", REPORT),
    ("as ever", "say what happens"),
    ("for ever", "\"forever\", \"never\" or \"no longer\""),
    ("by turns", "\"in turn\" or \"alternately\""),
    ("is had", "use an active verb"),
    ("what there is", "name it"),
    ("sees to", "name what it does"),
    ("of its own accord", "\"by itself\""),
    ("be it", "\"whether ... or ...\""),
];
const PERSON: &str = "name it: the caller, the guest, the peer, a thread, no program";
const REPORT: &str = "\"reports\", \"returns\", \"notifies\" or \"receives\"";

/// First words of a comment that make sense only beside another one.
const DEPENDENT: [&str; 4] = ["The same.", "The same for ", "Likewise.", "As above."];

pub(super) fn check(files: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    for file in files {
        for (number, text) in prose(file) {
            let lower = text.to_ascii_lowercase();
            for (words, advice) in AVOIDED.iter().filter(|(words, _)| has_words(&lower, words)) {
                problems.push(format!("{}:{number}: avoid \"{words}\": {advice}", file.path));
            }
            if DEPENDENT.iter().any(|start| text.starts_with(start)) {
                problems.push(format!("{}:{number}: a comment must make sense alone", file.path));
            }
        }
    }
    problems
}

/// The lines of a file that are prose, with their numbers: comments, and documents without code.
fn prose(file: &Source) -> Vec<(usize, &str)> {
    let lines = file.text.lines().enumerate().map(|(index, line)| (index + 1, line.trim_start()));
    let comment = |marks: &'static [&'static str]| {
        move |(number, line)| {
            let rest = marks.iter().find_map(|mark| str::strip_prefix(line, mark));
            rest.map(|rest| (number, rest.trim_start()))
        }
    };
    match file.path.rsplit('.').next() {
        Some("rs") => lines.filter_map(comment(&["///", "//!", "//"])).collect(),
        Some("h" | "c") => lines.filter_map(comment(&["/*", "*", "//"])).collect(),
        Some("md") => {
            let mut is_code = false;
            lines
                .filter(|(_, line)| {
                    let is_fence = line.starts_with("```");
                    is_code ^= is_fence;
                    !is_code && !is_fence
                })
                .collect()
        }
        _ => lines.filter_map(comment(&["#"])).collect(),
    }
}

/// True if `words` stand in a text in lower case, outside of longer words and of names of code.
fn has_words(text: &str, words: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_`:-".contains(c);
    text.match_indices(words).any(|(at, _)| {
        let before = text[..at].chars().next_back().is_some_and(is_part);
        let mut after = text[at + words.len()..].chars();
        let next = after.next();
        // A colon or a hyphen at the end is punctuation unless the word goes on.
        let is_longer = match next {
            Some(':' | '-') => after.next().is_some_and(is_part),
            next => next.is_some_and(is_part),
        };
        !before && !is_longer
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> usize {
        check(&[Source::new(path, text)]).len()
    }

    #[test]
    fn comments_are_checked_and_code_is_not() {
        let word = AVOIDED[0].0;
        assert_eq!(problems("a.rs", &format!("/// What {word} reads.\n")), 1);
        assert_eq!(problems("a.rs", &format!("let {word} = 1; // {word}\n")), 0);
        assert_eq!(problems("a.h", &format!("/* What {word} reads. */\n")), 1);
        assert_eq!(problems("a.toml", &format!("# What {word} reads.\n")), 1);
        assert_eq!(problems("a.md", &format!("What {word} reads.\n```\n{word}\n```\n")), 1);
    }

    #[test]
    fn words_are_whole() {
        for text in ["the header", "`he`", "he_read", "she-oak", "Foo::he"] {
            assert_eq!(problems("a.md", text), 0, "{text}");
        }
        for text in ["He reads.", "what he: reads", "(he)", "so that he\n"] {
            assert_eq!(problems("a.md", text), 1, "{text}");
        }
    }

    #[test]
    fn a_comment_stands_alone() {
        let [start, ..] = DEPENDENT;
        assert_eq!(problems("a.rs", &format!("    /// {start}\n")), 1);
        assert_eq!(problems("a.rs", "/// The same file again.\n"), 0);
    }
}
