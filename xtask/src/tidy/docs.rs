//! Checks that links in documents have a target.

use crate::root;
use crate::source::Source;

/// Checks relative links, and anchors within documents.
pub(super) fn links(files: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        for (number, target) in targets(&file.text) {
            if let Some(problem) = problem(file, target, files) {
                problems.push(format!("{}:{number}: {problem}", file.path));
            }
        }
    }
    problems
}

/// The text after each `](`, with line numbers. Code blocks have no links.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut targets = Vec::new();
    let mut in_code = false;
    for (index, line) in text.lines().enumerate() {
        in_code ^= line.trim_start().starts_with("```");
        if in_code {
            continue;
        }
        for after in line.split("](").skip(1) {
            targets.extend(after.split(')').next().map(|target| (index + 1, target)));
        }
    }
    targets
}

fn problem(file: &Source, target: &str, files: &[Source]) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() { file.path.clone() } else { resolve(&file.path, path)? };
    if !root().join(&path).exists() && !files.iter().any(|other| other.path == path) {
        return Some(format!("{target} does not exist"));
    }
    let document = files.iter().find(|other| other.path == path && path.ends_with(".md"))?;
    let found = anchor.is_empty() || document.text.lines().any(|line| anchor_of(line) == anchor);
    (!found).then(|| format!("{path} has no heading for #{anchor}"))
}

/// Resolves `path` relative to the folder of `from`. `None` if it leads out of the repository.
fn resolve(from: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop()?;
        } else {
            parts.push(part);
        }
    }
    Some(parts.join("/"))
}

/// The anchor of a heading; empty for other lines.
fn anchor_of(line: &str) -> String {
    let title = line.trim_start_matches('#');
    if title.len() == line.len() {
        return String::new();
    }
    let kept = title.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let other = Source::new("docs/other.md", "# Other\n\n## What is `lent`?\n");
        links(&[Source::new("docs/one.md", text), other])
    }

    #[test]
    fn links_to_what_is_there() {
        let text = "[a](other.md) [b](other.md#what-is-lent) [c](../Cargo.toml)\n\
            [d](https://example.org/x) [e](#here)\n## Here\n```\n[f](nowhere)\n```\n";
        assert_eq!(problems(text), Vec::<String>::new());
    }

    #[test]
    fn links_to_what_is_not() {
        assert_eq!(problems("x\n[a](gone.md)"), ["docs/one.md:2: gone.md does not exist"]);
        assert_eq!(problems("[a](other.md#gone)").len(), 1);
        assert_eq!(problems("[a](#gone)").len(), 1);
    }
}
