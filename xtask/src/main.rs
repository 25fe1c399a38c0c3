//! All tasks of the project. CI and the Makefile only call this program; `cargo xtask --help` lists
//! the tasks.
#![forbid(unsafe_code)]

mod advisories;
mod agreement;
mod architecture;
mod arm64;
mod book;
mod ci;
mod cni_walk;
mod deb;
mod deb_test;
mod demo;
mod deps;
mod dist;
mod exact;
mod figures;
mod fuzz;
mod kernels;
mod libvirt_test;
mod lint;
mod lxd_test;
mod ovn_fleet;
mod ovn_scale;
mod ovn_system_tests;
mod ovs_traffic_tests;
mod ovsdb_idl;
mod packages;
mod prose;
mod results;
mod run;
mod sbom;
mod soak;
mod soundness;
mod test;
mod trust;
mod upgrade_test;
mod upstream_tests;
mod walk;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::architecture::Architecture;

/// The project's tasks.
#[derive(Parser)]
#[command(name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// All that CI does: every check, every test (none may be skipped), the packages, the gate and
    /// a short demo
    Ci,
    /// Run all tests, the ones that need root and real peers included; list skipped tests and peers
    /// at the end
    Test(test::Options),
    /// Build weft and show it: every tunnel beside the bridge and kernel VXLAN, as one table
    Demo(demo::Options),
    /// Try weft under hostile guests, reloads and kills
    Trust(trust::Options),
    /// Replace one program weft by another under traffic of many flows, and interrupt it in other
    /// ways; needs root
    UpgradeTest(upgrade_test::Options),
    /// Change a network over and over under traffic, and look for what leaks; needs root
    Soak(soak::Options),
    /// Build the release: stripped programs with their debug information, in target/dist
    Dist,
    /// Build the release and assemble Debian packages from it, in target/deb; lintian checks them
    Deb(deb::Options),
    /// Test the crates without I/O on arm64, emulated, and compare the BPF objects with those of
    /// amd64
    Arm64,
    /// Write the bill of materials of the programs (CycloneDX) and check its licences
    Sbom,
    /// Check the crates in Cargo.lock against RustSec's database of vulnerabilities
    Advisories(advisories::Options),
    /// Install, kill, upgrade and remove the Debian packages under traffic, in a booted Debian;
    /// needs root
    DebTest(deb_test::Options),
    /// Run virtual machines of libvirt on weft, and move one to another host; needs root
    LibvirtTest(libvirt_test::Options),
    /// Run weft-cni under cnitool of the CNI project, which Go builds; needs root
    CniWalk,
    /// Run LXD with OVN networks on the stock chassis and on weft; needs root
    LxdTest(lxd_test::Options),
    /// Measure one host of a large OVN deployment, with the stock chassis and with weft; needs root
    OvnScale(ovn_scale::Options),
    /// Measure 200 chassis at a southbound cluster, and kill its leader; needs root
    OvnFleet(ovn_fleet::Options),
    /// Count instructions of weft in an emulated machine; fail if a count exceeds the baseline
    ExactGate(exact::Options),
    /// Run every study and count every contender, and keep both in docs/results
    Results(results::Options),
    /// Format the code, the fuzz targets included
    Fmt {
        /// Change nothing; fail if something is not formatted
        #[arg(long)]
        check: bool,
    },
    /// Run clippy on everything, warnings denied
    Clippy,
    /// Build the documentation, warnings denied
    Doc,
    /// Render the documents of docs/ as a book, in target/book; a warning is an error
    Book,
    /// Check line width of sources, length of sentences, links, and that the glossary has our terms
    Prose,
    /// Write the command reference, the tables of metrics and the man pages from their definitions
    DocsGenerate,
    /// Check the direction of dependencies, and that `unsafe` stays where ARCHITECTURE.md allows it
    DepsCheck,
    /// Fuzz one target, or all of them in turn
    Fuzz(fuzz::Options),
    /// Fuzz every target for a moment, 40 s in all
    FuzzSmoke,
    /// Write the seed corpora of the fuzz targets anew from valid frames
    FuzzSeeds,
    /// Run OVN's own system tests on weft; needs root
    OvnSystemTests(ovn_system_tests::Options),
    /// Run Open vSwitch's own tests of connection tracking on weft; needs root
    OvsTrafficTests(ovs_traffic_tests::Options),
    /// Run the cases of Open vSwitch's ovsdb-idl.at that concern a replica, with the `ovsdb` crate
    OvsdbIdl(ovsdb_idl::Options),
    /// Look for masks that are too wide, on ten million random packets
    Soundness(soundness::Options),
    /// Look for frames and tunnel packets that the kernel's programs read otherwise than userspace
    /// does, among ten million of each; needs root
    BpfAgreement(agreement::Options),
    /// Compare the decapsulator of each tunnel type with a naive one, on ten million random packets
    Decapsulation(soundness::DecapsulationOptions),
    /// Write and read a million random headers of each codec; needs root
    RoundTrips(soundness::RoundTripOptions),
    /// Run the programs on other kernels of Debian, in a virtual machine
    Kernels(kernels::Options),
    /// Install the Debian packages that all other tasks need
    Packages,
}

fn main() -> ExitCode {
    // All paths in the tasks are relative to the root of the repository.
    if let Err(error) = std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")) {
        eprintln!("xtask: the repository is not where it was built: {error}");
        return ExitCode::FAILURE;
    }
    let result = match Cli::parse().task {
        Task::Ci => ci::ci(),
        Task::Test(options) => test::test(&options),
        Task::Demo(options) => demo::demo(&options),
        Task::Trust(options) => trust::trust(&options),
        Task::UpgradeTest(options) => upgrade_test::test(&options),
        Task::Soak(options) => soak::soak(&options),
        Task::Dist => dist::dist(Architecture::Amd64).map(drop),
        Task::Deb(options) => deb::make(&options),
        Task::Arm64 => arm64::test(),
        Task::Advisories(options) => advisories::check(&options),
        Task::Sbom => sbom::write(Architecture::Amd64).map(drop),
        Task::DebTest(options) => deb_test::test(&options),
        Task::LibvirtTest(options) => libvirt_test::test(&options),
        Task::CniWalk => cni_walk::walk(),
        Task::LxdTest(options) => lxd_test::test(&options),
        Task::OvnScale(options) => ovn_scale::measure(&options),
        Task::OvnFleet(options) => ovn_fleet::measure(&options),
        Task::ExactGate(options) => exact::gate(&options),
        Task::Results(options) => results::results(&options),
        Task::Fmt { check } => lint::fmt(check),
        Task::Clippy => lint::clippy(),
        Task::Doc => lint::doc(),
        Task::Book => book::book(),
        Task::Prose => prose::check(),
        Task::DocsGenerate => lint::docs_generate(),
        Task::DepsCheck => deps::check(),
        Task::Fuzz(options) => fuzz::fuzz(&options),
        Task::FuzzSmoke => fuzz::smoke(),
        Task::FuzzSeeds => fuzz::seeds(),
        Task::OvnSystemTests(options) => ovn_system_tests::test(&options),
        Task::OvsTrafficTests(options) => ovs_traffic_tests::test(&options),
        Task::OvsdbIdl(options) => ovsdb_idl::check(&options),
        Task::Soundness(options) => soundness::soundness(&options),
        Task::BpfAgreement(options) => agreement::compare(&options),
        Task::Decapsulation(options) => soundness::decapsulation(&options),
        Task::RoundTrips(options) => soundness::round_trips(&options),
        Task::Kernels(options) => kernels::check(&options),
        Task::Packages => packages::ensure(&packages::all()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            run::exit_code(&error)
        }
    }
}
