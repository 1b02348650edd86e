//! Checks that modules of a package do not use each other in a cycle, not even indirectly.
//!
//! Compares the modules of the same folder; each includes its inner modules. A module and its own
//! inner modules may use each other.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::Source;

pub(super) fn check(files: &[Source]) -> Vec<String> {
    let mut packages: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_rust() && !file.is_test()) {
        if let Some((package, _)) = file.path.split_once("/src/") {
            packages.entry(package).or_default().push(file);
        }
    }
    let mut problems = Vec::new();
    for (package, files) in packages {
        let tree = Tree::of(files.iter().filter_map(|file| {
            let inner = file.path.strip_prefix(package)?.strip_prefix("/src/")?;
            Some((module(inner), file.code().map(|(_, code)| code).collect::<Vec<_>>().join("\n")))
        }));
        for (folder, names) in tree.cycles() {
            let folder = [&[package, "src"][..], &folder].concat().join("/");
            problems.push(format!("{folder}: these use each other: {}", names.join(", ")));
        }
    }
    problems
}

/// The names that lead to a module.
type Path<'a> = Vec<&'a str>;

/// The path of the module that a file contains.
fn module(file: &str) -> Path<'_> {
    let mut path: Path<'_> = file.trim_end_matches(".rs").split('/').collect();
    if matches!(path.last(), Some(&("mod" | "lib" | "main"))) {
        path.pop();
    }
    path
}

/// The modules of a package, and the other modules that each one uses.
struct Tree<'a> {
    uses: BTreeMap<Path<'a>, BTreeSet<Path<'a>>>,
}

impl<'a> Tree<'a> {
    fn of(files: impl Iterator<Item = (Path<'a>, String)>) -> Self {
        let mut code: BTreeMap<Path<'a>, String> = BTreeMap::new();
        for (path, text) in files {
            code.entry(path).or_default().push_str(&text);
        }
        let known: BTreeSet<Path<'a>> = code.keys().cloned().collect();
        let uses = code.iter().map(|(own, text)| {
            let used = paths(text).iter().filter_map(|path| resolve(&known, own, path)).collect();
            (own.clone(), used)
        });
        Self { uses: uses.collect() }
    }

    /// Modules that use each other, grouped by their folder.
    fn cycles(&self) -> Vec<(Path<'a>, Vec<&'a str>)> {
        let folders: BTreeSet<&[&'a str]> =
            self.uses.keys().filter_map(|path| Some(path.split_last()?.1)).collect();
        let mut cycles = Vec::new();
        for folder in folders {
            let beside = self.beside(folder);
            let mut seen = BTreeSet::new();
            for &name in beside.keys() {
                let ring: BTreeSet<&str> = reached(&beside, name)
                    .into_iter()
                    .filter(|other| reached(&beside, other).contains(name))
                    .collect();
                if ring.len() > 1 && ring.is_disjoint(&seen) {
                    cycles.push((folder.to_vec(), ring.iter().copied().collect()));
                    seen.extend(ring);
                }
            }
        }
        cycles
    }

    /// Which modules of a folder use which others of it, including their inner modules.
    fn beside(&self, folder: &[&'a str]) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
        let place = |path: &Path<'a>| path.strip_prefix(folder)?.first().copied();
        let mut beside: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (own, used) in &self.uses {
            let Some(name) = place(own) else { continue };
            let others = used.iter().filter_map(place).filter(|other| *other != name);
            beside.entry(name).or_default().extend(others);
        }
        beside
    }
}

/// All modules that `name` uses, directly or indirectly.
fn reached<'a>(uses: &BTreeMap<&'a str, BTreeSet<&'a str>>, name: &str) -> BTreeSet<&'a str> {
    let (mut found, mut open) = (BTreeSet::new(), vec![name]);
    while let Some(next) = open.pop() {
        for other in uses.get(next).into_iter().flatten() {
            if found.insert(*other) {
                open.push(other);
            }
        }
    }
    found
}

/// The module that a path in the module `own` refers to or into.
fn resolve<'a>(known: &BTreeSet<Path<'a>>, own: &Path<'a>, path: &[String]) -> Option<Path<'a>> {
    let mut at = own.clone();
    let mut rest = path.iter().map(String::as_str).peekable();
    match *rest.peek()? {
        "crate" => {
            rest.next();
            at.clear();
        }
        "self" => drop(rest.next()),
        "super" => {
            while rest.next_if_eq(&"super").is_some() {
                at.pop();
            }
        }
        _ => {}
    }
    for name in rest {
        let is_inner = |path: &&Path<'a>| {
            path.split_last().is_some_and(|(last, folder)| *last == name && *folder == at[..])
        };
        let Some(inner) = known.iter().find(is_inner) else { break };
        at.clone_from(inner);
    }
    (at != *own).then_some(at)
}

/// Paths that code uses: all paths of `use`, and other paths that start with `crate`, `self` or
/// `super`.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let (mut rest, mut other) = (code, String::new());
    while let Some(at) = find_use(rest) {
        other.push_str(&rest[..at]);
        let (tree, after) = rest[at + USE.len()..].split_once(';').unwrap_or_default();
        expand(&[], tree, &mut found);
        rest = after;
    }
    other.push_str(rest);
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    for word in other.split(|c: char| !is_part(c)) {
        let path: Vec<String> = word.split("::").map(String::from).collect();
        if path.len() > 1 && ["crate", "self", "super"].contains(&&path[0][..]) {
            found.push(path);
        }
    }
    found
}

const USE: &str = "use ";

/// Position of the next `use`.
fn find_use(code: &str) -> Option<usize> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    code.match_indices(USE)
        .map(|(at, _)| at)
        .find(|at| !code[..*at].chars().next_back().is_some_and(is_word))
}

/// Adds the paths of a `use` tree after the prefix `before`.
fn expand(before: &[String], tree: &str, found: &mut Vec<Vec<String>>) {
    let Some((head, body)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        let names = path.split("::").map(|name| name.trim().to_string());
        found.push(before.iter().cloned().chain(names).collect());
        return;
    };
    let names = head.split("::").map(str::trim).filter(|name| !name.is_empty());
    let before: Vec<String> = before.iter().cloned().chain(names.map(String::from)).collect();
    let body = body.rsplit_once('}').map_or(body, |(body, _)| body);
    let (mut depth, mut start) = (0, 0);
    for (at, c) in body.char_indices().chain([(body.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !body[start..at].trim().is_empty() {
                    expand(&before, &body[start..at], found);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(files: &[(&str, &str)]) -> Vec<String> {
        let source =
            |(path, text): &(&str, &str)| Source::new(format!("crates/a/src/{path}"), *text);
        check(&files.iter().map(source).collect::<Vec<_>>())
    }

    #[test]
    fn two_that_use_each_other_are_found() {
        for (one, other) in [
            ("use crate::b::B;", "use crate::a::A;"),
            ("use super::b::B;", "fn f() {\n    super::a::g()\n}"),
            ("use crate::{c, b::{B, C}};", "pub(crate) use super::{\n    a::A,\n};"),
        ] {
            assert_eq!(
                problems(&[("a.rs", one), ("b.rs", other)]),
                ["crates/a/src: these use each other: a, b"]
            );
        }
    }

    #[test]
    fn a_ring_of_three_is_reported_once() {
        let files = [
            ("h/a.rs", "use super::b;"),
            ("h/b.rs", "use super::c::C;"),
            ("h/c.rs", "use super::a;"),
        ];
        assert_eq!(problems(&files), ["crates/a/src/h: these use each other: a, b, c"]);
    }

    #[test]
    fn what_is_in_a_module_counts_for_it() {
        let files = [
            ("a/mod.rs", "mod x;"),
            ("a/x.rs", "use crate::b::B;"),
            ("b/mod.rs", "use crate::a::x::X;"),
        ];
        assert_eq!(problems(&files).len(), 1);
    }

    #[test]
    fn lines_are_no_cycles() {
        assert!(problems(&[("a.rs", "use crate::b::B;"), ("b.rs", "use std::a::A;")]).is_empty());
        assert!(problems(&[("a.rs", "use x::X;\nmod x;"), ("a/x.rs", "use super::A;")]).is_empty());
        assert!(problems(&[("a.rs", "use crate::b::B;"), ("b.rs", "/// [`crate::a`]")]).is_empty());
        let tests = "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n";
        assert!(problems(&[("a.rs", "use crate::b::B;"), ("b.rs", tests)]).is_empty());
    }
}
