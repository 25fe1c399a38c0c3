//! The direction of dependencies, and where `unsafe` may be.
//!
//! Both rules have one source: the table of crates in ARCHITECTURE.md, in packet order. A crate may
//! use only crates above it; one whose rules say `dev-dependency only` may be used by the tests of
//! any crate and by nothing else; one whose rules do not mention `unsafe` forbids it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::run::{cargo, show, succeeded};

/// The attribute by which the compiler holds a crate to having no `unsafe`.
const FORBID: &str = "#![forbid(unsafe_code)]";
/// A crate of tasks: it uses no crate of the product, and none uses it.
const TASKS: &str = "xtask";
/// The fuzz targets: they may use every crate, and none uses them.
const FUZZ: &str = "weft-fuzz";

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    name: String,
    may_be_unsafe: bool,
    dev_only: bool,
}

/// A member of the workspace, as cargo sees it.
#[derive(Debug)]
struct Member {
    name: String,
    /// Names of the members it uses, and whether only its tests do.
    uses: Vec<(String, bool)>,
    /// The root files of its library and its programs.
    roots: Vec<String>,
}

/// Checks the workspace; every breach is named in the error.
pub fn check() -> Result<()> {
    let text = fs::read_to_string("ARCHITECTURE.md").context("ARCHITECTURE.md")?;
    let rules = parse_table(&text)?;
    let mut members = members()?;
    members.retain(|member| member.name != FUZZ);
    let mut breaches: Vec<_> =
        members.iter().flat_map(|member| direction(member, &rules)).collect();
    for member in &members {
        breaches.extend(unsafe_allowed(member, &rules)?);
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

/// Reads the table between the marks `<!-- crates -->` and `<!-- /crates -->`.
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

/// Reads "| `name` | what it is | rules |".
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

/// Asks cargo for the members of the workspace.
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
    Member { name: string(&package["name"]), uses, roots }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn string(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Names every dependency of `member` that the table does not allow.
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

/// Names every root file of `member` that should forbid `unsafe` and does not.
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
        let member = Member { name: name.to_owned(), uses, roots: Vec::new() };
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
    fn dev_only_crate_is_refused_when_used_outside_tests() {
        assert_eq!(breaches_of("wire", "testkit", true), [""; 0]);
        assert_eq!(breaches_of("weft", "testkit", false).len(), 1);
    }
}
