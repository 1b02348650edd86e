//! The text files of the repository.

use std::fs;
use std::path::Path;

use crate::root;

/// A file with its path relative to the root.
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    pub(crate) fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: path.into(), text: text.into() }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// True if the file contains no production code.
    pub(crate) fn is_test(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name == "tests.rs"
            || ["/tests/", "/testing.rs", "/captured.rs"]
                .iter()
                .any(|part| self.path.contains(part))
    }

    /// Number of lines before the tests at the end of the file.
    pub(crate) fn production_lines(&self) -> usize {
        let mut after_cfg = false;
        for (index, line) in self.text.lines().enumerate() {
            if after_cfg && line.starts_with("mod ") && line.ends_with('{') {
                return index - 1;
            }
            after_cfg = line.starts_with("#[cfg(") && line.contains("test");
        }
        self.text.lines().count()
    }

    /// The production part without comments, line by line, as the compiler sees it. Line numbers
    /// start at one.
    pub(crate) fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().take(self.production_lines()).enumerate().filter_map(|(index, line)| {
            let code = line.split("//").next().unwrap_or_default();
            (!code.trim().is_empty()).then_some((index + 1, code))
        })
    }
}

/// All text files to check, in the order of their paths.
pub(crate) fn all() -> Result<Vec<Source>, String> {
    let mut files = Vec::new();
    walk(&root(), "", &mut files)?;
    files.sort_by(|one, two| one.path.cmp(&two.path));
    Ok(files)
}

fn walk(folder: &Path, path: &str, files: &mut Vec<Source>) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for entry in entries {
        let entry = entry.map_err(|error| error.to_string())?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let inner = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
        let kind = entry.file_type().map_err(|error| error.to_string())?;
        if kind.is_dir() && !is_left_out(&inner) {
            walk(&entry.path(), &inner, files)?;
        } else if kind.is_file() && is_text(&inner) {
            let text = fs::read_to_string(entry.path()).map_err(|e| format!("{inner}: {e}"))?;
            files.push(Source::new(inner, text));
        }
    }
    Ok(())
}

/// Folders that are not part of the project's text.
fn is_left_out(path: &str) -> bool {
    [".git", "target", "fuzz/corpus", "fuzz/artifacts", "demo-out"].contains(&path)
}

fn is_text(path: &str) -> bool {
    let endings = [".rs", ".md", ".toml", ".h", ".c", ".sh", "Makefile", ".ci/run"];
    endings.iter().any(|ending| path.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_at_the_end_are_no_production_code() {
        let text = "//! A.\nfn a() {} // unsafe\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n";
        let file = Source::new("crates/net/src/a.rs", text);
        assert_eq!(file.production_lines(), 2);
        assert_eq!(file.code().collect::<Vec<_>>(), [(2, "fn a() {} ")]);
        let declared = Source::new("a.rs", "fn a() {}\n#[cfg(test)]\nmod tests;\n");
        assert_eq!(declared.production_lines(), 3);
    }

    #[test]
    fn the_repository_is_found() {
        let files = all().unwrap();
        for path in ["Cargo.toml", "xtask/src/source.rs", "crates/packet/src/lib.rs"] {
            assert!(files.iter().any(|file| file.path == path), "{path}");
        }
        assert!(files.iter().all(|file| !file.path.contains("corpus/")));
    }
}
