//! Licence texts of crates and of what the toolchain adds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::crates::{Found, Id};
use crate::output;

/// First letters, in capitals, of the names of files with licences and notices.
const NAMES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
/// Text of the Apache licence, for crates that offer it and have no file.
const APACHE: &str = "LICENSE-APACHE";

/// A part that the toolchain links.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) version: String,
    pub(crate) licence: &'static str,
    /// Whether only the static command contains it.
    is_static: bool,
    texts: Vec<String>,
}

impl Part {
    /// Returns the reference within a bill of materials.
    pub(crate) fn reference(&self) -> String {
        format!("{}@{}", self.name, self.version)
    }
}

/// What the toolchain links besides crates.
pub(crate) struct Platform(Vec<Part>);

impl Platform {
    pub(crate) fn load() -> Result<Self, String> {
        let sysroot = output("rustc", &["--print", "sysroot"])?;
        let library = Path::new(sysroot.trim()).join("share/doc/rust/COPYRIGHT-library.html");
        let version = output("rustc", &["--version"])?;
        let version = version.split(' ').nth(1).ok_or("rustc --version has no version")?;
        let c_library = output("getconf", &["GNU_LIBC_VERSION"])?;
        let c_library = c_library.trim().rsplit(' ').next().unwrap_or_default();
        let compiler = output("cc", &["-dumpfullversion"])?;
        let text =
            |paths: &[&str]| read_first(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        Ok(Self(vec![
            Part {
                name: "rust-std",
                version: version.to_owned(),
                licence: "MIT OR Apache-2.0",
                is_static: false,
                texts: vec![without_tags(&read_first(&[
                    library,
                    "/usr/share/doc/libstd-rust-web-dev/copyright".into(),
                    "/usr/share/doc/libstd-rust-dev/copyright".into(),
                ])?)],
            },
            Part {
                name: "glibc",
                version: c_library.to_owned(),
                licence: "LGPL-2.1-or-later",
                is_static: true,
                texts: vec![
                    text(&[
                        "/usr/share/doc/libc6-dev/copyright",
                        "/usr/share/doc/libc6/copyright",
                    ])?,
                    text(&["/usr/share/common-licenses/LGPL-2.1"])?,
                ],
            },
            Part {
                name: "libgcc",
                version: compiler.trim().to_owned(),
                licence: "GPL-3.0-or-later WITH GCC-exception-3.1",
                is_static: true,
                texts: vec![
                    text(&["/usr/share/doc/libgcc-s1/copyright"])?,
                    text(&["/usr/share/common-licenses/GPL-3"])?,
                ],
            },
        ]))
    }

    /// Returns the parts of a product. `is_static`: it contains the C library.
    pub(crate) fn parts(&self, is_static: bool) -> Vec<&Part> {
        self.0.iter().filter(|part| is_static || !part.is_static).collect()
    }
}

/// Returns the text of the first file that exists.
fn read_first(paths: &[PathBuf]) -> Result<String, String> {
    let text = paths.iter().find_map(|path| fs::read_to_string(path).ok());
    text.ok_or_else(|| {
        let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        format!("no licence text: none of {} can be read", names.join(", "))
    })
}

/// Returns the text of an HTML page.
fn without_tags(page: &str) -> String {
    let (_, body) = page.split_once("<body>").unwrap_or(("", page));
    let mut text = String::new();
    for (index, part) in body.split('<').enumerate() {
        // The first part is before any tag; the others begin with one.
        let shown =
            if index == 0 { part } else { part.split_once('>').map_or("", |(_, rest)| rest) };
        text.push_str(shown);
    }
    let entities = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];
    for (entity, character) in entities {
        text = text.replace(entity, character);
    }
    // Lines of which only tags remained.
    let mut lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.dedup_by(|next, last| next.is_empty() && last.is_empty());
    lines.join("\n")
}

/// Texts, each with the parts that it applies to, so that equal texts appear once.
#[derive(Default)]
pub(crate) struct Texts {
    users: BTreeMap<String, BTreeSet<String>>,
}

impl Texts {
    /// Adds the texts of a crate from the registry.
    pub(crate) fn add_crate(&mut self, id: &Id, found: &Found) -> Result<(), String> {
        let user = format!("{} {} ({})", id.name, id.version, found.licence);
        let mut texts = files(found)?;
        if texts.is_empty() {
            texts.push(missing(id, found)?);
        }
        for text in texts {
            self.add(&text, &user);
        }
        Ok(())
    }

    pub(crate) fn add_platform(&mut self, platform: &Platform) {
        for part in &platform.0 {
            let user = format!("{} {} ({})", part.name, part.version, part.licence);
            for text in &part.texts {
                self.add(text, &user);
            }
        }
    }

    fn add(&mut self, text: &str, user: &str) {
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        let text = lines.join("\n").trim_matches('\n').to_owned();
        self.users.entry(text).or_default().insert(user.to_owned());
    }
}

impl fmt::Display for Texts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Licences of the software that towpath's packages contain.\n")?;
        let mut all: Vec<_> = self.users.iter().collect();
        all.sort_by_key(|(_, users)| *users);
        for (text, users) in all {
            write!(f, "\n{}\n", "=".repeat(80))?;
            for user in users {
                writeln!(f, "{user}")?;
            }
            write!(f, "{}\n\n{text}\n", "-".repeat(80))?;
        }
        Ok(())
    }
}

/// Returns the texts in the folder of a crate, and of the file that its manifest names.
fn files(found: &Found) -> Result<Vec<String>, String> {
    let failed = |path: &Path, error| format!("cannot read {}: {error}", path.display());
    let mut paths: BTreeSet<PathBuf> = found.licence_file.iter().cloned().collect();
    let entries = fs::read_dir(&found.folder).map_err(|error| failed(&found.folder, error))?;
    for path in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if NAMES.iter().any(|start| name.starts_with(start)) {
            paths.insert(path);
        }
    }
    paths.iter().map(|path| fs::read_to_string(path).map_err(|e| failed(path, e))).collect()
}

/// Returns a text for a crate that has no file. Only the Apache licence has one text for all.
fn missing(id: &Id, found: &Found) -> Result<String, String> {
    let Id { name, version } = id;
    if found.licence.split([' ', '/']).any(|word| word == "Apache-2.0") {
        let text = fs::read_to_string(APACHE).map_err(|error| format!("{APACHE}: {error}"))?;
        return Ok(format!("{text}\nCopyright: {}\n", found.authors.join(", ")));
    }
    Err(format!("{name} {version} ({}) has no file with its licence", found.licence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_becomes_text() {
        let page =
            "<head><title>x</title></head><body><h1>A &amp; B</h1>\n<br>\n\n<p>1 &lt; 2</body>";
        assert_eq!(without_tags(page), "A & B\n\n1 < 2");
        assert_eq!(without_tags("plain"), "plain");
    }

    #[test]
    fn equal_texts_appear_once() {
        let mut texts = Texts::default();
        texts.add("one \ntext\n", "b 1");
        texts.add("one\ntext\n\n", "a 1");
        texts.add("other", "c 1");
        let shown = texts.to_string();
        assert_eq!(shown.matches("one\ntext").count(), 1);
        assert!(shown.contains("a 1\nb 1\n----"), "{shown}");
        assert!(shown.contains("c 1\n----"), "{shown}");
    }

    #[test]
    fn a_crate_without_a_text_is_an_error() {
        let id = Id { name: "a".into(), version: "1.0.0".into() };
        let found = Found { licence: "MIT".into(), ..Found::default() };
        let problem = missing(&id, &found).expect_err("MIT needs the text of the crate");
        assert!(problem.contains("a 1.0.0 (MIT)"), "{problem}");
    }
}
