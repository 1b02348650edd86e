//! Lists what the packages contain: `inventory DIR` writes a bill of materials for the command and
//! one for the C library (CycloneDX 1.5, JSON), and the licence texts of all parts.
//!
//! `cargo tree` decides which crates are linked: it leaves out what runs only at build time, and
//! resolves features for one package. `cargo metadata` and `Cargo.lock` add their attributes. A
//! part without a licence text is an error.
#![forbid(unsafe_code)]

mod bom;
mod crates;
mod licences;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

/// What is delivered: package, name of its bill of materials, and whether it contains the C
/// library.
const PRODUCTS: [(&str, &str, bool); 2] =
    [("towpath-cli", "towpath", true), ("towpath-capi", "libtowpath", false)];

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("inventory DIR: DIR is the folder to write to");
        return ExitCode::from(2);
    };
    match write(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("inventory: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &Path) -> Result<(), String> {
    let known = crates::Known::load()?;
    let platform = licences::Platform::load()?;
    let mut texts = licences::Texts::default();
    for (package, name, is_static) in PRODUCTS {
        let tree = crates::linked(package)?;
        let bom = bom::bill(package, &tree, &known, &platform, is_static)?;
        store(&folder.join(format!("{name}.cdx.json")), &bom)?;
        for id in tree.keys() {
            let found = known.find(id)?;
            if found.is_from_registry {
                texts.add_crate(id, found)?;
            }
        }
    }
    texts.add_platform(&platform);
    store(&folder.join("THIRD-PARTY-LICENSES"), &texts.to_string())
}

fn store(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Runs a program and returns its standard output.
fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    let made = Command::new(program).args(arguments).output();
    let made = made.map_err(|error| format!("cannot run {program}: {error}"))?;
    if !made.status.success() {
        let reason = String::from_utf8_lossy(&made.stderr);
        return Err(format!("{program} {}: {}\n{reason}", arguments.join(" "), made.status));
    }
    String::from_utf8(made.stdout).map_err(|error| format!("{program}: {error}"))
}
