//! Checks the direction of dependencies, the use of `unsafe`, and that examples are tested.
//!
//! The table of crates in ARCHITECTURE.md, in packet order, defines the first two rules. A crate
//! may use only crates that precede it in the table. A crate whose rules say `dev-dependency only`
//! may be used only by tests, but by those of any crate. A crate whose rules do not mention
//! `unsafe` forbids it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::run::{cargo, show, succeeded};

/// The attribute that makes the compiler reject `unsafe` in a crate.
const FORBID: &str = "#![forbid(unsafe_code)]";
/// The crate of tasks. It uses no crate of the product, and no crate uses it.
const TASKS: &str = "xtask";
/// The crate of fuzz targets. It may use every crate, and no crate uses it.
const FUZZ: &str = "weft-fuzz";

/// A row of the table of crates.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    name: String,
    may_be_unsafe: bool,
    dev_only: bool,
}

/// A member of the workspace, with data from cargo.
#[derive(Debug)]
struct Member {
    name: String,
    /// The names of the members that it uses, and whether only its tests use them.
    uses: Vec<(String, bool)>,
    /// The root files of its library and its programs.
    roots: Vec<String>,
    /// The root file of its library if the examples in its documentation are not tested. Testing
    /// them takes four seconds for each library, even without examples.
    without_doctests: Option<String>,
}

/// Checks the workspace. The error lists every violation.
pub fn check() -> Result<()> {
    let text = fs::read_to_string("ARCHITECTURE.md").context("ARCHITECTURE.md")?;
    let rules = parse_table(&text)?;
    let mut members = members()?;
    members.retain(|member| member.name != FUZZ);
    let mut breaches: Vec<_> =
        members.iter().flat_map(|member| direction(member, &rules)).collect();
    for member in &members {
        breaches.extend(unsafe_allowed(member, &rules)?);
        breaches.extend(untested_examples(member)?);
    }
    if !breaches.is_empty() {
        bail!("breaches of the rules in ARCHITECTURE.md:\n  {}", breaches.join("\n  "));
    }
    println!(
        "{} crates: dependencies run in packet order, `unsafe` is where it may be",
        members.len()
    );
    Ok(())
}

/// Parses the table between the marks `<!-- crates -->` and `<!-- /crates -->`.
fn parse_table(text: &str) -> Result<Vec<Rule>> {
    let table = text
        .split_once("<!-- crates -->")
        .and_then(|(_, rest)| rest.split_once("<!-- /crates -->"))
        .map(|(table, _)| table)
        .context(
            "ARCHITECTURE.md has no table of crates between <!-- crates --> and <!-- /crates -->",
        )?;
    let rules: Vec<_> = table.lines().filter_map(parse_row).collect();
    if rules.is_empty() {
        bail!("the table of crates in ARCHITECTURE.md is empty");
    }
    Ok(rules)
}

/// Parses a row "| `name` | what it is | rules |".
fn parse_row(line: &str) -> Option<Rule> {
    let mut cells = line.trim().trim_matches('|').split('|').map(str::trim);
    let name = cells.next()?.strip_prefix('`')?.strip_suffix('`')?.to_owned();
    let rules = cells.next_back()?;
    Some(Rule {
        name,
        may_be_unsafe: rules.contains("`unsafe`"),
        dev_only: rules.contains("dev-dependency only"),
    })
}

/// Gets the members of the workspace from cargo.
fn members() -> Result<Vec<Member>> {
    let mut command = cargo(&["metadata", "--format-version=1", "--no-deps"]);
    show(&command);
    let output = command.output().context("cannot start cargo")?;
    succeeded(&command, output.status)?;
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    Ok(list(&metadata["packages"]).map(member).collect())
}

fn member(package: &Value) -> Member {
    let uses = list(&package["dependencies"])
        .filter(|dependency| dependency["path"].is_string())
        .map(|dependency| (string(&dependency["name"]), dependency["kind"] == "dev"))
        .collect();
    let roots = list(&package["targets"])
        .filter(|target| list(&target["kind"]).any(|kind| kind == "lib" || kind == "bin"))
        .map(|target| string(&target["src_path"]))
        .collect();
    let without_doctests = list(&package["targets"])
        .find(|target| {
            list(&target["kind"]).any(|kind| kind == "lib") && target["doctest"] == false
        })
        .map(|target| string(&target["src_path"]));
    Member { name: string(&package["name"]), uses, roots, without_doctests }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn string(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Lists each file of `member` with an example that no test runs.
fn untested_examples(member: &Member) -> Result<Vec<String>> {
    let Some(root) = &member.without_doctests else { return Ok(Vec::new()) };
    let sources = Path::new(root).parent().context("a library has a directory")?;
    let with_examples = rust_files(sources)?.into_iter().filter_map(|path| {
        let text = fs::read_to_string(&path);
        text.map(|text| has_example(&text).then_some(path)).transpose()
    });
    let breach = |path: PathBuf| {
        format!("{} has an example that is not tested: remove `doctest = false`", path.display())
    };
    Ok(with_examples.collect::<std::io::Result<Vec<_>>>()?.into_iter().map(breach).collect())
}

/// Whether the documentation in a Rust file has a block of code that rustdoc would test.
fn has_example(text: &str) -> bool {
    let comments = text.lines().filter_map(|line| {
        let line = line.trim_start();
        line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
    });
    let fences = comments.filter_map(|line| line.trim_start().strip_prefix("```"));
    // Every second fence ends a block.
    fences.step_by(2).any(|language| language != "text")
}

/// The Rust files below a directory.
fn rust_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).with_context(|| directory.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    Ok(found)
}

/// Lists every dependency of `member` that the table does not allow.
fn direction(member: &Member, rules: &[Rule]) -> Vec<String> {
    let place = |name: &str| rules.iter().position(|rule| rule.name == name);
    let Some(own) = place(&member.name) else {
        if member.name != TASKS {
            return vec![format!("{} is not in the table", member.name)];
        }
        return member.uses.iter().map(|(used, _)| format!("{TASKS} uses {used}")).collect();
    };
    let breach = |used: &str, for_tests: bool| {
        let name = &member.name;
        match place(used) {
            None => Some(format!("{name} uses {used}, which is not in the table")),
            Some(other) if rules[other].dev_only && for_tests => None,
            Some(other) if rules[other].dev_only => {
                Some(format!("{name} uses {used} outside its tests"))
            }
            Some(other) if other >= own => {
                Some(format!("{name} uses {used}, which comes after it in packet order"))
            }
            Some(_) => None,
        }
    };
    member.uses.iter().filter_map(|(used, for_tests)| breach(used, *for_tests)).collect()
}

/// Lists every root file of `member` that should forbid `unsafe` and does not.
fn unsafe_allowed(member: &Member, rules: &[Rule]) -> Result<Vec<String>> {
    if rules.iter().any(|rule| rule.name == member.name && rule.may_be_unsafe) {
        return Ok(Vec::new());
    }
    let mut breaches = Vec::new();
    for root in &member.roots {
        let text = fs::read_to_string(root).with_context(|| root.clone())?;
        if !text.lines().any(|line| line == FORBID) {
            let here = std::env::current_dir()?;
            let file = Path::new(root).strip_prefix(here).unwrap_or(Path::new(root));
            breaches.push(format!("{} lacks {FORBID}", file.display()));
        }
    }
    Ok(breaches)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "<!-- crates -->\n| crate | what | rules |\n|---|---|---|\n\
        | `wire` | headers | no I/O |\n| `netdev` | devices | OS `unsafe` lives here |\n\
        | `testkit` | for tests | dev-dependency only |\n| `weft` | program | |\n<!-- /crates -->";

    fn breaches_of(name: &str, used: &str, for_tests: bool) -> Vec<String> {
        let uses = vec![(used.to_owned(), for_tests)];
        let (name, roots) = (name.to_owned(), Vec::new());
        let member = Member { name, uses, roots, without_doctests: None };
        direction(&member, &parse_table(TABLE).unwrap())
    }

    #[test]
    fn table_is_read_when_between_its_marks() {
        let rules = parse_table(TABLE).unwrap();
        let names: Vec<_> = rules.iter().map(|rule| rule.name.as_str()).collect();
        assert_eq!(names, ["wire", "netdev", "testkit", "weft"]);
        assert!(rules[1].may_be_unsafe && !rules[0].may_be_unsafe && rules[2].dev_only);
        assert!(parse_table("no marks").is_err());
    }

    #[test]
    fn dependency_is_refused_when_against_packet_order() {
        assert_eq!(breaches_of("netdev", "wire", false), [""; 0]);
        assert_eq!(breaches_of("wire", "netdev", false).len(), 1);
        assert_eq!(breaches_of("wire", "netdev", true).len(), 1, "tests keep the order, too");
        assert_eq!(breaches_of("wire", "wire", false).len(), 1);
        assert_eq!(breaches_of("wire", "unknown", false).len(), 1);
        assert_eq!(breaches_of("unknown", "wire", false).len(), 1);
        assert_eq!(breaches_of("xtask", "wire", false).len(), 1);
    }

    #[test]
    fn example_is_found_when_it_is_not_plain_text() {
        assert!(has_example("/// Text.\n///\n/// ```\n/// f();\n/// ```\nfn f() {}"));
        assert!(has_example("//! ```text\n//! a\n//! ```\n//! ```no_run\n//! f();\n//! ```"));
        assert!(!has_example("    /// ```text\n    /// a\n    /// ```\n// ```\nfn f() {}"));
    }

    #[test]
    fn dev_only_crate_is_refused_when_used_outside_tests() {
        assert_eq!(breaches_of("wire", "testkit", true), [""; 0]);
        assert_eq!(breaches_of("weft", "testkit", false).len(), 1);
    }
}
