//! The crates that a package links, and what cargo knows of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::output;

/// The platform of the packages.
pub(crate) const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// Name and version of a crate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Id {
    pub(crate) name: String,
    pub(crate) version: String,
}

/// The linked crates, each with those that it depends on.
pub(crate) type Tree = BTreeMap<Id, BTreeSet<Id>>;

/// Returns the crates that `package` links, itself included.
pub(crate) fn linked(package: &str) -> Result<Tree, String> {
    let text = output(
        "cargo",
        &[
            "tree",
            "--locked",
            "--package",
            package,
            "--target",
            PLATFORM,
            "--edges=normal,no-proc-macro",
            "--prefix=depth",
            "--format= {p}",
        ],
    )?;
    parse_tree(&text)
}

/// Parses lines such as `2 libc v0.2.1 (*)`: depth, name and version.
fn parse_tree(text: &str) -> Result<Tree, String> {
    let mut tree = Tree::new();
    let mut path: Vec<Id> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let parsed = parse_line(line);
        let (depth, id) =
            parsed.ok_or_else(|| format!("cannot parse cargo tree's line: {line}"))?;
        path.truncate(depth);
        if let Some(parent) = path.last() {
            tree.entry(parent.clone()).or_default().insert(id.clone());
        }
        tree.entry(id.clone()).or_default();
        path.push(id);
    }
    Ok(tree)
}

fn parse_line(line: &str) -> Option<(usize, Id)> {
    let mut words = line.split(' ');
    let depth = words.next()?.parse().ok()?;
    let name = words.next()?.to_owned();
    let version = words.next()?.strip_prefix('v')?.to_owned();
    Some((depth, Id { name, version }))
}

/// All crates of the workspace's dependencies.
pub(crate) struct Known {
    packages: BTreeMap<Id, Found>,
}

/// What cargo knows of a crate.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// SPDX expression; empty if the crate states none.
    pub(crate) licence: String,
    pub(crate) authors: Vec<String>,
    pub(crate) repository: Option<String>,
    pub(crate) description: Option<String>,
    /// The folder of its sources.
    pub(crate) folder: PathBuf,
    /// File that the manifest names as its licence.
    pub(crate) licence_file: Option<PathBuf>,
    /// SHA-256 of the archive in the registry, in hexadecimal.
    pub(crate) checksum: Option<String>,
    /// False for the packages of this repository.
    pub(crate) is_from_registry: bool,
}

impl Known {
    pub(crate) fn load() -> Result<Self, String> {
        let filter = format!("--filter-platform={PLATFORM}");
        let text = output("cargo", &["metadata", "--locked", "--format-version=1", &filter])?;
        let data: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let lock =
            fs::read_to_string("Cargo.lock").map_err(|error| format!("Cargo.lock: {error}"))?;
        let mut checksums = checksums(&lock);
        let mut packages = BTreeMap::new();
        for package in data["packages"].as_array().ok_or("cargo metadata lists no packages")? {
            let (id, mut found) = parse_package(package)
                .ok_or_else(|| format!("cannot use cargo metadata's package {}", package["id"]))?;
            found.checksum = checksums.remove(&id);
            packages.insert(id, found);
        }
        Ok(Self { packages })
    }

    pub(crate) fn find(&self, id: &Id) -> Result<&Found, String> {
        let found = self.packages.get(id);
        found.ok_or_else(|| format!("cargo metadata has no {} {}", id.name, id.version))
    }
}

fn parse_package(package: &Value) -> Option<(Id, Found)> {
    let text = |key: &str| package[key].as_str().map(str::to_owned);
    let manifest = PathBuf::from(text("manifest_path")?);
    let folder = manifest.parent()?.to_owned();
    let authors = package["authors"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = Found {
        licence: text("license").unwrap_or_default(),
        authors: authors.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect(),
        repository: text("repository"),
        description: text("description"),
        licence_file: text("license_file").map(|file| folder.join(file)),
        folder,
        checksum: None,
        is_from_registry: text("source").is_some(),
    };
    Some((Id { name: text("name")?, version: text("version")? }, found))
}

/// Returns the checksums in `Cargo.lock`, whose form cargo fixes: a key on each line.
fn checksums(lock: &str) -> BTreeMap<Id, String> {
    let mut all = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let value = |key: &str| {
            let rest = package.lines().find_map(|line| line.strip_prefix(key))?;
            Some(rest.trim_start_matches(" = ").trim_matches('"').to_owned())
        };
        if let (Some(name), Some(version), Some(sum)) =
            (value("name"), value("version"), value("checksum"))
        {
            all.insert(Id { name, version }, sum);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str, version: &str) -> Id {
        Id { name: name.into(), version: version.into() }
    }

    #[test]
    fn a_tree_has_each_crate_with_its_dependencies() {
        let text =
            "0 a v1.0.0 (/a)\n1 b v2.0.0\n2 c v3.0.0-rc.1\n1 c v3.0.0-rc.1 (*)\n1 d v4.0.0\n";
        let tree = parse_tree(text).expect("a tree");
        let [a, b, c, d] =
            [id("a", "1.0.0"), id("b", "2.0.0"), id("c", "3.0.0-rc.1"), id("d", "4.0.0")];
        assert_eq!(tree[&a], BTreeSet::from([b.clone(), c.clone(), d.clone()]));
        assert_eq!(tree[&b], BTreeSet::from([c.clone()]));
        assert!(tree[&c].is_empty() && tree[&d].is_empty());
    }

    #[test]
    fn lines_that_are_not_a_tree_are_errors() {
        for text in ["x a v1", "0", "0 a", "0 a 1.0.0"] {
            assert!(parse_tree(text).is_err(), "{text}");
        }
        assert!(parse_tree("").expect("an empty tree").is_empty());
    }

    #[test]
    fn checksums_belong_to_their_package() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\n[[package]]\n\
            name = \"b\"\nversion = \"2.0.0\"\nchecksum = \"00ff\"\n";
        assert_eq!(checksums(lock), BTreeMap::from([(id("b", "2.0.0"), "00ff".to_owned())]));
    }
}
