//! The manual pages: those in the repository, and what troff says about them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::*;

/// A folder that ends with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("towpath-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the pages of section 1 in a folder.
fn pages(folder: &Path) -> BTreeMap<String, String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap());
    let page = |name: String| {
        let text = fs::read_to_string(folder.join(&name)).unwrap();
        (name, text)
    };
    names.filter(|name| name.ends_with(".1")).map(page).collect()
}

fn make(name: &str) -> (Folder, BTreeMap<String, String>) {
    let folder = Folder::new(name);
    let made = output(towpath(["man"]).arg(&folder.0));
    assert_eq!(made.status.code(), Some(0), "{}", errors(&made));
    let pages = pages(&folder.0);
    (folder, pages)
}

#[test]
fn the_manual_in_the_repository_is_current() {
    let stored = pages(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/man")));
    let (_folder, made) = make("current");
    assert!(made.contains_key("towpath.1") && made.contains_key("towpath-run.1"));
    let names = |pages: &BTreeMap<String, String>| pages.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&stored), names(&made), "out of date: run `cargo xtask man`");
    for (name, page) in &made {
        assert!(stored[name] == *page, "{name} is out of date: run `cargo xtask man`");
    }
}

#[test]
fn a_folder_that_is_missing_is_an_error() {
    let output = output(&mut towpath(["man", "/no/such/dir"]));
    assert_eq!(output.status.code(), Some(125));
    assert!(errors(&output).starts_with("towpath: cannot write to /no/such/dir/towpath.1: "));
}

/// Goal: troff has no warning about a page, and shows its headings.
#[test]
fn pages_are_formatted_without_warnings() {
    skip_if!(missing("groff").then_some("groff is not installed"));
    let (folder, pages) = make("groff");
    for name in pages.keys() {
        let mut groff = Command::new("groff");
        groff.args(["-man", "-ww", "-Kutf8", "-Tutf8", "-P-cbu"]).arg(folder.0.join(name));
        let shown = output(&mut groff);
        assert!(shown.status.success() && shown.stderr.is_empty(), "{name}: {}", errors(&shown));
        for heading in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "SEE ALSO"] {
            assert!(text(&shown).contains(heading), "{name}: {heading}");
        }
    }
}

/// Goal: mandoc, with its own opinion, has no warning about a page either.
#[test]
fn mandoc_has_no_warnings() {
    skip_if!(missing("mandoc").then_some("mandoc is not installed"));
    let (folder, pages) = make("mandoc");
    for name in pages.keys() {
        let mut mandoc = Command::new("mandoc");
        let checked = output(mandoc.args(["-T", "lint", "-W", "warning"]).arg(folder.0.join(name)));
        // The pages have the version of the command, and no date.
        let all = text(&checked);
        let warnings: Vec<&str> = all.lines().filter(|line| !line.contains("date")).collect();
        assert!(warnings.is_empty(), "{name}: {warnings:?}");
    }
}

fn missing(program: &str) -> bool {
    Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output()
        .is_ok_and(|found| !found.status.success())
}
