//! Checks that `docs/limits.md` matches the code.
//!
//! Its tables have the columns `name`, `value` and `file`, all in backticks. A row names a constant
//! of that file and its expression, or `Type::field` and its default.

use crate::source::Source;

const PAGE: &str = "docs/limits.md";

pub(super) fn check(files: &[Source]) -> Vec<String> {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else {
        return vec![format!("{PAGE} is missing")];
    };
    let mut problems = Vec::new();
    let mut rows = 0;
    for (index, line) in page.text.lines().enumerate() {
        let Some([name, value, path]) = row(line) else { continue };
        rows += 1;
        if let Some(problem) = problem(name, value, path, files) {
            problems.push(format!("{PAGE}:{}: {problem}", index + 1));
        }
    }
    if rows == 0 {
        problems.push(format!("{PAGE} has no row that can be checked"));
    }
    problems
}

/// Name, value and file of a row, if its first three cells are in backticks.
fn row(line: &str) -> Option<[&str; 3]> {
    let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
    let mut code = || cells.next()?.strip_prefix('`')?.strip_suffix('`');
    Some([code()?, code()?, code()?])
}

fn problem(name: &str, value: &str, path: &str, files: &[Source]) -> Option<String> {
    let Some(file) = files.iter().find(|file| file.path == path) else {
        return Some(format!("{path} does not exist"));
    };
    let text = dense(&file.text);
    let value = dense(value);
    let field = name.rsplit("::").next().unwrap_or(name);
    let found: Vec<&str> = if name.contains("::") {
        values(&text, &format!("{field}:"), &[",", "}"])
    } else {
        let constants = values(&text, &format!("const{field}:"), &[";"]);
        constants.iter().filter_map(|value| Some(value.split_once('=')?.1)).collect()
    };
    if found.is_empty() {
        return Some(format!("{path} has no {name}"));
    }
    // If a field's value contains a comma, `values` truncated it there.
    let is_there =
        found.iter().any(|found| *found == value) || text.contains(&format!("{field}:{value},"));
    (!is_there).then(|| format!("{name} is {} in {path}", found[0]))
}

/// The text after each `start`, up to one of `ends`.
fn values<'a>(text: &'a str, start: &str, ends: &[&str]) -> Vec<&'a str> {
    let to_end = |after: &'a str| {
        let end = ends.iter().filter_map(|end| after.find(end)).min();
        &after[..end.unwrap_or(after.len())]
    };
    text.split(start).skip(1).map(to_end).collect()
}

/// The text without whitespace and comments.
fn dense(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.flat_map(str::chars).filter(|c| !c.is_whitespace()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "\
pub const A_MAX: usize = 4 *
    16; // why
const T: Duration = Duration::from_secs(3);
fn default() -> Self {
    Self { flows: 65_536, time: Duration::from_secs(2), last: 1 }
}
";

    fn problems(rows: &str) -> Vec<String> {
        check(&[Source::new(PAGE, rows), Source::new("a.rs", CODE)])
    }

    #[test]
    fn rows_that_are_right() {
        let rows = "\
| name | value | file |
|---|---|---|
| `A_MAX` | `4 * 16` | `a.rs` | why |
| `T` | `Duration::from_secs(3)` | `a.rs` | |
| `Limits::flows` | `65_536` | `a.rs` |
| `Limits::time` | `Duration::from_secs(2)` | `a.rs` |
| `Limits::last` | `1` | `a.rs` |
";
        assert_eq!(problems(rows), Vec::<String>::new());
    }

    #[test]
    fn rows_that_are_wrong() {
        assert_eq!(problems("| `A_MAX` | `65` | `a.rs` |").len(), 1);
        assert_eq!(problems("| `B_MAX` | `64` | `a.rs` |").len(), 1);
        assert_eq!(problems("| `A_MAX` | `4 * 16` | `b.rs` |").len(), 1);
        assert_eq!(problems("| `Limits::flows` | `1` | `a.rs` |").len(), 1);
        assert_eq!(problems("no table").len(), 1);
    }
}
