//! Every program loads on Debian's kernel and on this one, and costs their verifiers what docs/results/bpf-verifier.md says: one that
//! grows towards the limit of a million instructions is noticed while it still loads.

mod common;

use common::agree::Extractor;
use common::lookup::Lookup;
use common::switch::Switch;
use datapath_bpf::FlowTableSizes;
use libbpf_rs::query::ProgInfoIter;
use std::collections::BTreeMap;
use std::fmt::Write;
use testkit::host::TestHost;
use testkit::vm::Vm;

const RECORDED: &str = include_str!("../../../docs/results/bpf-verifier.md");
/// A count may differ from the recorded one by one part in so many.
const MARGIN: u32 = 10;
const PROGRAMS: [&str; 14] = [
    "flow_delete",
    "flow_put",
    "mask_append",
    "mask_list_swap",
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

/// Loads every program; returns what the verifier went through for each, as lines `VERIFIED name count`.
fn verify() -> String {
    let mut object = std::mem::MaybeUninit::uninit();
    let extractor = Extractor::load(&mut object);
    let lookup = Lookup::load(FlowTableSizes { flows: 1000, cached: 1024 });
    let switch = Switch::load();
    let counts: BTreeMap<_, _> = ProgInfoIter::default()
        .filter_map(|program| {
            let name = program.name.into_string().ok()?;
            PROGRAMS.contains(&name.as_str()).then_some((name, program.verified_insns))
        })
        .collect();
    drop((extractor, lookup, switch));
    counts.iter().fold(String::new(), |mut lines, (name, count)| {
        let _ = writeln!(lines, "VERIFIED {name} {count}");
        lines
    })
}

/// The recorded count of a program under a kernel, if that kernel is in the table.
fn recorded(kernel: &str, program: &str) -> Option<u32> {
    let (_, table) = RECORDED.split_once("<!-- counts -->")?;
    let (table, _) = table.split_once("<!-- /counts -->")?;
    let row = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let mut rows = table.lines().filter(|line| line.starts_with('|')).map(row);
    let column = rows.next()?.iter().position(|cell| cell == &format!("Linux {kernel}"))?;
    let row = rows.find(|row| row.first().is_some_and(|name| name == program))?;
    row.get(column)?.replace(',', "").parse().ok()
}

/// Compares `printed` with the table.
fn compare(release: &str, printed: &str) {
    let kernel = release.split('.').take(2).collect::<Vec<_>>().join(".");
    let counts: BTreeMap<_, u32> = printed
        .lines()
        .filter_map(|line| line.split_once("VERIFIED ")?.1.split_once(' '))
        .filter_map(|(name, count)| Some((name, count.trim().parse().ok()?)))
        .collect();
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), PROGRAMS, "{printed}");
    println!("Linux {kernel}:\n{printed}");
    for (name, &count) in &counts {
        let Some(recorded) = recorded(&kernel, name) else {
            // Another kernel than those that are recorded: then only the limit counts.
            assert!(count < 500_000, "{name}: {count} on Linux {kernel}");
            continue;
        };
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

/// Not a test of its own: `verifier_of_debians_kernel_goes_through_what_is_recorded` runs it in the machine.
#[test]
#[ignore = "prints counts, for the machine with Debian's kernel"]
fn print_counts() {
    print!("{}", verify());
}

#[test]
fn verifier_of_debians_kernel_goes_through_what_is_recorded() {
    testkit::require_vm!();
    let host = TestHost::new("bpf");
    let program = std::env::current_exe().expect("this program has a path");
    let mut vm = Vm::counting(&host, &program);
    let printed = vm.run("/bin/program --ignored --exact print_counts --nocapture");
    compare(&vm.run("uname -r"), &printed);
}
