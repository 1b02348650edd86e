//! Bills of materials in the form of CycloneDX 1.5.

use serde_json::{Value, json};

use crate::crates::{Found, Id, Known, Tree};
use crate::licences::{Part, Platform};

/// Returns the bill of materials of a package. `is_static`: it contains the C library.
pub(crate) fn bill(
    package: &str,
    tree: &Tree,
    known: &Known,
    platform: &Platform,
    is_static: bool,
) -> Result<String, String> {
    let parts = platform.parts(is_static);
    let mut components = Vec::new();
    let mut dependencies = Vec::new();
    let mut subject = Value::Null;
    for (id, needs) in tree {
        let found = known.find(id)?;
        let is_subject = id.name == package;
        let kind = if is_subject && is_static { "application" } else { "library" };
        let component = component(id, found, kind);
        if is_subject {
            subject = component;
        } else {
            components.push(component);
        }
        let mut needed: Vec<String> = needs.iter().map(reference).collect();
        if is_subject {
            needed.extend(parts.iter().map(|part| part.reference()));
        }
        dependencies.push(json!({ "ref": reference(id), "dependsOn": needed }));
    }
    if subject.is_null() {
        return Err(format!("cargo tree does not list {package}"));
    }
    components.extend(parts.iter().map(|part| part_component(part)));
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": subject },
        "components": components,
        "dependencies": dependencies,
    });
    let text = serde_json::to_string_pretty(&bill).map_err(|error| error.to_string())?;
    Ok(text + "\n")
}

/// Returns the package URL of a crate, which also is its reference within the document.
fn reference(id: &Id) -> String {
    // A plus sign separates build metadata from a version.
    format!("pkg:cargo/{}@{}", id.name, id.version.replace('+', "%2B"))
}

fn component(id: &Id, found: &Found, kind: &str) -> Value {
    let mut component = json!({
        "type": kind,
        "bom-ref": reference(id),
        "name": id.name,
        "version": id.version,
        "purl": reference(id),
        "scope": "required",
    });
    if !found.licence.is_empty() {
        // Old crates separate alternatives with a slash.
        let expression = found.licence.replace('/', " OR ");
        component["licenses"] = json!([{ "expression": expression }]);
    }
    if let Some(description) = &found.description {
        component["description"] = json!(description.trim());
    }
    if let Some(checksum) = &found.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    if let Some(repository) = &found.repository {
        component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
    }
    component
}

fn part_component(part: &Part) -> Value {
    json!({
        "type": "library",
        "bom-ref": part.reference(),
        "name": part.name,
        "version": part.version,
        "licenses": [{ "expression": part.licence }],
        "scope": "required",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_states_only_what_is_known() {
        let id = Id { name: "a".into(), version: "1.0.0+b".into() };
        let mut found = Found { licence: "MIT/Apache-2.0".into(), ..Found::default() };
        let value = component(&id, &found, "library");
        assert_eq!(value["purl"], "pkg:cargo/a@1.0.0%2Bb");
        assert_eq!(value["licenses"][0]["expression"], "MIT OR Apache-2.0");
        for key in ["hashes", "description", "externalReferences"] {
            assert!(value.get(key).is_none(), "{key}");
        }
        found.checksum = Some("00".into());
        found.licence.clear();
        let value = component(&id, &found, "library");
        assert_eq!(value["hashes"][0]["content"], "00");
        assert!(value.get("licenses").is_none());
    }
}
