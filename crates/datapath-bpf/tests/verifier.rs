//! Tests that all programs load on Debian's kernel and on this one, and that the verifier's work is
//! as recorded in docs/results/bpf-verifier.md, so that growth towards the limit of a million
//! instructions is noticed early.

use crate::common::agree::Extractor;
use crate::common::debian;
use crate::common::lookup::Lookup;
use crate::common::switch::Switch;
use datapath_bpf::FlowTableSizes;
use libbpf_rs::query::ProgInfoIter;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

const RECORDED: &str = include_str!("../../../docs/results/bpf-verifier.md");
/// A count may differ from the recorded one by this fraction: one tenth.
const MARGIN: u32 = 10;
const PROGRAMS: [&str; 15] = [
    "flow_delete",
    "flow_put",
    "mask_append",
    "mask_list_swap",
    "mask_promote",
    "test_empty",
    "test_extract",
    "test_lookup",
    "test_parse",
    "test_put_on",
    "test_search",
    "test_take_off",
    "test_tunnel",
    "weft_uplink",
    "weft_vif",
];

/// Loads every program. Returns a line `VERIFIED name count` for each, with the number of
/// instructions that the verifier processed.
fn verify() -> String {
    let mut object = std::mem::MaybeUninit::uninit();
    let extractor = Extractor::load(&mut object);
    let lookup = Lookup::load(FlowTableSizes { flows: 1000, cached: 1024 });
    let switch = Switch::load();
    // By id: other tests may have loaded programs of the same names.
    let ids: HashSet<u32> = [extractor.program_ids(), lookup.program_ids(), switch.program_ids()]
        .concat()
        .into_iter()
        .collect();
    let counts: BTreeMap<_, _> = ProgInfoIter::default()
        .filter(|program| ids.contains(&program.id))
        .filter_map(|program| {
            let name = program.name.into_string().ok()?;
            PROGRAMS.contains(&name.as_str()).then_some((name, program.verified_insns))
        })
        .collect();
    counts.iter().fold(String::new(), |mut lines, (name, count)| {
        let _ = writeln!(lines, "VERIFIED {name} {count}");
        lines
    })
}

/// The table's counts for a kernel, by program; `None` if the table does not have the kernel.
fn recorded(kernel: &str) -> Option<BTreeMap<String, u32>> {
    let (_, table) = RECORDED.split_once("<!-- counts -->").expect("the table's beginning");
    let (table, _) = table.split_once("<!-- /counts -->").expect("the table's end");
    let row = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let mut rows = table.lines().filter(|line| line.starts_with('|')).map(row);
    let column = rows.next()?.iter().position(|cell| cell == &format!("Linux {kernel}"))?;
    let count = |row: Vec<String>| {
        Some((row.first()?.clone(), row.get(column)?.replace(',', "").parse().ok()?))
    };
    Some(rows.filter_map(count).collect())
}

/// Compares counts with the recorded ones.
fn compare(release: &str, printed: &str) {
    let kernel = release.split('.').take(2).collect::<Vec<_>>().join(".");
    let counts: BTreeMap<_, u32> = printed
        .lines()
        .filter_map(|line| line.split_once("VERIFIED ")?.1.split_once(' '))
        .filter_map(|(name, count)| Some((name, count.trim().parse().ok()?)))
        .collect();
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), PROGRAMS, "{printed}");
    println!("Linux {kernel}:\n{printed}");
    let recorded = recorded(&kernel);
    for (name, &count) in &counts {
        let Some(recorded) = &recorded else {
            // Nothing is recorded for this kernel: only its own limit of a million matters.
            assert!(count < 500_000, "{name}: {count} on Linux {kernel}");
            continue;
        };
        let recorded = *recorded.get(*name).unwrap_or_else(|| panic!("{name} is not recorded"));
        assert!(
            count.abs_diff(recorded) <= recorded / MARGIN + 5,
            "{name} is {count} and not {recorded} on Linux {kernel}: docs/results/bpf-verifier.md"
        );
    }
}

#[test]
fn verifier_of_this_kernel_goes_through_what_is_recorded() {
    testkit::require_root!();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("Linux says it");
    compare(&release, &verify());
}

/// Not a test: `verifier_of_debians_kernel_goes_through_what_is_recorded` runs it in the virtual
/// machine.
#[test]
#[ignore = "prints counts, for the machine with Debian's kernel"]
fn print_counts() {
    print!("{}", verify());
}

#[test]
fn verifier_of_debians_kernel_goes_through_what_is_recorded() {
    testkit::require_vm!();
    let mut vm = debian();
    let printed = vm.run("/bin/program --ignored --exact verifier::print_counts --nocapture");
    compare(&vm.run("uname -r"), &printed);
}
