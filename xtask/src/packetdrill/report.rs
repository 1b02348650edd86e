//! Reports the outcomes of the scripts: a line for each script, and a table by folder.

use super::{Case, Version};
use crate::count::Count;
use std::collections::BTreeMap;

/// How a script ended.
pub(super) enum Outcome {
    Passed,
    /// With its output.
    Failed(String),
    /// With its output so far; the runner ended it.
    TimedOut(String),
}

/// All outcomes.
pub(super) struct Report {
    total: usize,
    done: usize,
    passed: usize,
    /// Numbers of passed and of all scripts, by folder and version.
    folders: BTreeMap<(String, Version), (usize, usize)>,
}

impl Report {
    pub(super) fn new(total: usize) -> Self {
        Self { total, done: 0, passed: 0, folders: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, case: &Case, outcome: Outcome, verbose: bool) {
        self.done += 1;
        let (word, text) = match outcome {
            Outcome::Passed => ("ok  ", String::new()),
            Outcome::Failed(text) => ("FAIL", text),
            Outcome::TimedOut(text) => ("TIME", text),
        };
        let folder = case.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let counts = self.folders.entry((folder.into(), case.version)).or_default();
        counts.1 += 1;
        if word == "ok  " {
            self.passed += 1;
            counts.0 += 1;
        }
        let (done, total, path) = (self.done, self.total, &case.path);
        println!("{done:>4}/{total} {word} {path} ({})", case.version.name());
        if verbose {
            text.lines().for_each(|line| println!("          {line}"));
        }
    }

    /// Prints the table, and returns the counts.
    pub(super) fn finish(self) -> Count {
        let mut versions: Vec<Version> = self.folders.keys().map(|(_, version)| *version).collect();
        versions.sort();
        versions.dedup();
        let mut folders: Vec<&String> = self.folders.keys().map(|(folder, _)| folder).collect();
        folders.dedup();
        print!("\n{:<40}", "folder");
        versions.iter().for_each(|version| print!("{:>14}", version.name()));
        println!();
        let cell = |counts: Option<(usize, usize)>| match counts {
            Some((passed, all)) => format!("{passed}/{all}"),
            None => "-".into(),
        };
        for folder in folders {
            print!("{folder:<40}");
            for &version in &versions {
                let counts = self.folders.get(&(folder.clone(), version)).copied();
                print!("{:>14}", cell(counts));
            }
            println!();
        }
        print!("{:<40}", "all");
        for &version in &versions {
            let of = self.folders.iter().filter(|((_, other), _)| *other == version);
            let sum = of.fold((0, 0), |sum, (_, counts)| (sum.0 + counts.0, sum.1 + counts.1));
            print!("{:>14}", cell(Some(sum)));
        }
        println!();
        let (passed, all) = (self.passed as u64, self.total as u64);
        Count { passed, failed: all - passed, skipped: 0 }
    }
}
