//! `cargo xtask sbom`: writes the bill of materials of the packaged programs, in the CycloneDX
//! format, and checks the licences in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::architecture::Architecture;
use crate::run::{cargo, show, succeeded, target_dir};

/// The crates of the packaged programs.
const PROGRAMS: [&str; 3] = ["weft", "bench", "cni"];
/// The licences (SPDX) of crates that the project can ship. If a crate offers alternatives, one of
/// them is enough.
const PERMITTED: [&str; 10] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// Writes `target/sbom/weft.cdx.json`. Returns its path.
///
/// # Errors
/// A crate has a licence that is not permitted, or none. The error lists all such crates.
pub fn write(architecture: Architecture) -> Result<PathBuf> {
    let metadata = metadata(architecture.triple())?;
    let packages = linked(&metadata)?;
    let lock = fs::read_to_string("Cargo.lock").context("Cargo.lock")?;
    let hashes = checksums(&lock);
    let mut refused = Vec::new();
    let mut components = Vec::new();
    for package in &packages {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        let (name, version, license) = (text("name"), text("version"), text("license"));
        if !is_permitted(license) {
            refused.push(format!("{name} {version}: {license:?}"));
        }
        components.push(component(name, version, license, &hashes));
    }
    if !refused.is_empty() {
        bail!("licences that are not permitted:\n  {}", refused.join("\n  "));
    }
    let bom = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": { "type": "application", "name": "weft" } },
        "components": components,
    });
    let path = target_dir().join("sbom/weft.cdx.json");
    fs::create_dir_all(path.parent().context("a directory")?)?;
    let text = serde_json::to_string_pretty(&bom)? + "\n";
    fs::write(&path, text).with_context(|| path.display().to_string())?;
    println!("{}: {} crates, all with permitted licences", path.display(), packages.len());
    Ok(path)
}

/// The metadata of all crates from cargo.
fn metadata(platform: &str) -> Result<Value> {
    let mut command =
        cargo(&["metadata", "--format-version=1", "--locked", "--filter-platform", platform]);
    show(&command);
    let output = command.output().context("cannot start cargo")?;
    succeeded(&command, output.status)?;
    serde_json::from_slice(&output.stdout).context("the output of cargo metadata")
}

/// The packages that are linked into the programs, sorted by name and version. Packages that only
/// tests or builds use are left out.
fn linked(metadata: &Value) -> Result<Vec<&Value>> {
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let packages = metadata["packages"].as_array().context("packages")?;
    let edges: BTreeMap<String, Vec<String>> = list(&metadata["resolve"]["nodes"])
        .iter()
        .map(|node| {
            let is_normal =
                |edge: &&Value| list(&edge["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            let edges = list(&node["deps"]);
            let to = edges.iter().filter(is_normal);
            let to = to.filter_map(|edge| edge["pkg"].as_str().map(str::to_owned)).collect();
            (node["id"].as_str().unwrap_or_default().to_owned(), to)
        })
        .collect();
    let is_program = |package: &&Value| {
        package["source"].is_null() && PROGRAMS.iter().any(|name| package["name"] == *name)
    };
    let mut next: Vec<String> = packages
        .iter()
        .filter(is_program)
        .filter_map(|package| package["id"].as_str().map(str::to_owned))
        .collect();
    let mut found = BTreeSet::new();
    while let Some(id) = next.pop() {
        if found.insert(id.clone()) {
            next.extend(edges.get(&id).into_iter().flatten().cloned());
        }
    }
    let mut packages: Vec<&Value> = packages
        .iter()
        .filter(|package| package["id"].as_str().is_some_and(|id| found.contains(id)))
        .collect();
    packages.sort_by_key(|package| {
        (package["name"].as_str().unwrap_or_default(), package["version"].as_str())
    });
    Ok(packages)
}

fn component(
    name: &str,
    version: &str,
    license: &str,
    hashes: &BTreeMap<(String, String), String>,
) -> Value {
    let mut component = json!({
        "type": "library",
        "name": name,
        "version": version,
        // Older crates separate alternatives with a slash, which is not a valid SPDX expression.
        "licenses": [{ "expression": license.replace('/', " OR ") }],
    });
    // Crates of this project are not in a registry, so they have no checksum.
    if let Some(hash) = hashes.get(&(name.to_owned(), version.to_owned())) {
        component["purl"] = json!(format!("pkg:cargo/{name}@{version}"));
        component["hashes"] = json!([{ "alg": "SHA-256", "content": hash }]);
    }
    component
}

/// The checksums in Cargo.lock, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let entry = |entry: &str| {
        let value = |key: &str| {
            let line = entry.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.strip_prefix(" = ")?.trim_matches('"').to_owned())
        };
        Some(((value("name")?, value("version")?), value("checksum")?))
    };
    lock.split("[[package]]").filter_map(entry).collect()
}

/// True if permitted licences meet an SPDX expression of `AND` and `OR`. Parentheses are only
/// supported around alternatives; other expressions are rejected.
fn is_permitted(expression: &str) -> bool {
    // Older crates separate alternatives with a slash.
    let expression = expression.replace('/', " OR ");
    let is_known = |license: &str| PERMITTED.contains(&license.trim());
    let any = |alternatives: &str| alternatives.split(" OR ").any(is_known);
    if expression.contains('(') {
        return expression.split(" AND ").all(|part| any(part.trim_matches(['(', ')', ' '])));
    }
    expression.split(" OR ").any(|all| all.split(" AND ").all(is_known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_permitted_when_all_of_one_alternative_are() {
        for good in [
            "MIT",
            "MIT OR Apache-2.0",
            "GPL-3.0 OR MIT",
            "Unlicense/MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
        ] {
            assert!(is_permitted(good), "{good}");
        }
        for bad in
            ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND GPL-3.0", "(MIT AND GPL-3.0)"]
        {
            assert!(!is_permitted(bad), "{bad}");
        }
    }

    #[test]
    fn checksums_are_those_of_cargo_lock() {
        let lock = "version = 4\n[[package]]\nname = \"a\"\nversion = \"1\"\n\n[[package]]\n\
                    name = \"b\"\nversion = \"2\"\nchecksum = \"abc\"\n";
        let expected = (("b".to_owned(), "2".to_owned()), "abc".to_owned());
        assert_eq!(checksums(lock), BTreeMap::from([expected]));
    }
}
