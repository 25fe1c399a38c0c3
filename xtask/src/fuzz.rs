//! Coverage-guided fuzzing on stable Rust.
//!
//! libFuzzer needs the counters of LLVM's SanitizerCoverage. Stable rustc can insert them with a
//! pass that is named on its command line. Stable rustc has no address sanitizer, and the targets
//! do not need one: they test safe Rust, in which a fault is a panic. Debug assertions and overflow
//! checks are enabled (profile `fuzz`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::packages;
use crate::run::{self, COMPILER_FLAGS, cargo, run, target_dir};
use crate::test::host_triple;

/// The directory of the seeds, with a subdirectory for each target.
const CORPUS: &str = "fuzz/corpus";
/// The sum of all targets' run times in a short run, in seconds. Two targets run at a time.
const SMOKE_SECONDS: u64 = 40;
const COVERAGE_FLAGS: [&str; 7] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
];

/// The options of `cargo xtask fuzz`. Without a limit, a target runs until a crash or Ctrl-C.
#[derive(Args, Default)]
pub struct Options {
    /// The target; all of them in turn when not given
    target: Option<String>,
    /// Seconds for each target
    #[arg(long)]
    seconds: Option<u64>,
    /// Inputs for each target
    #[arg(long)]
    runs: Option<u64>,
}

impl Options {
    fn is_limited(&self) -> bool {
        self.seconds.is_some() || self.runs.is_some()
    }
}

/// Fuzzes one target or all targets. A crash is an error that names the file with the input.
pub fn fuzz(options: &Options) -> Result<()> {
    let all = targets()?;
    let chosen: Vec<_> = match &options.target {
        None if !options.is_limited() => {
            bail!("name a target, or limit all by --seconds or --runs: {}", all.join(", "))
        }
        None => all,
        Some(name) if all.contains(name) => vec![name.clone()],
        Some(name) => bail!("no target {name}: there are {}", all.join(", ")),
    };
    let program = build()?;
    chosen.iter().try_for_each(|target| fuzz_target(&program, target, options))
}

/// Runs every target for an equal share of [`SMOKE_SECONDS`], two targets at a time.
pub fn smoke() -> Result<()> {
    let all = targets()?;
    let share = SMOKE_SECONDS / all.len() as u64;
    // libFuzzer stops one second late.
    let options = Options { seconds: Some(share.saturating_sub(1).max(1)), ..Options::default() };
    let program = build()?;
    let lane = |targets: &[String]| {
        targets.iter().try_for_each(|target| fuzz_target(&program, target, &options))
    };
    let (first, second) = all.split_at(all.len() / 2);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| lane(second));
        let result = lane(first);
        let other = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        result.and(other)
    })
}

/// Writes the seed corpora; see `fuzz/examples/seeds.rs`.
pub fn seeds() -> Result<()> {
    run(&mut cargo(&["run", "--package=weft-fuzz", "--example=seeds"]))
}

/// The directory in which the targets are built and the inputs that they find are kept.
fn fuzz_target_dir() -> PathBuf {
    target_dir().join("fuzz")
}

/// The names of the targets. A test checks that each target has seeds.
fn targets() -> Result<Vec<String>> {
    let entries = fs::read_dir(CORPUS).context(CORPUS)?;
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names = entries.map(|entry| entry.map(name)).collect::<Result<Vec<_>, _>>()?;
    names.sort();
    Ok(names)
}

/// Builds the program with coverage counters; returns its path.
fn build() -> Result<PathBuf> {
    packages::ensure(&[&packages::BUILD[..], &packages::FUZZ].concat())?;
    let triple = host_triple()?;
    // With an explicit target triple, cargo does not apply the coverage flags to build scripts.
    let mut command = cargo(&["build", "--profile=fuzz", "--package=weft-fuzz", "--bins"]);
    command.args(["--features=libfuzzer", "--target", &triple]);
    for variable in COMPILER_FLAGS {
        command.env_remove(variable);
    }
    let directory = fuzz_target_dir();
    command.arg("--target-dir").arg(&directory).env("RUSTFLAGS", COVERAGE_FLAGS.join(" "));
    run(&mut command)?;
    Ok(directory.join(triple).join("fuzz/weft-fuzz"))
}

fn fuzz_target(program: &Path, target: &str, options: &Options) -> Result<()> {
    let found = fuzz_target_dir().join("corpus").join(target);
    let artifacts = Path::new("fuzz/artifacts").join(target);
    fs::create_dir_all(&found)?;
    fs::create_dir_all(&artifacts)?;
    let mut command = Command::new(program);
    command.env("WEFT_FUZZ_TARGET", target);
    // libFuzzer writes new inputs to the first directory, and only reads the committed seeds in the
    // second one.
    command.arg(found).arg(Path::new(CORPUS).join(target));
    command.arg(format!("-artifact_prefix={}/", artifacts.display()));
    command.args(["-timeout=10", "-rss_limit_mb=1024", "-print_final_stats=1"]);
    if let Some(seconds) = options.seconds {
        command.arg(format!("-max_total_time={seconds}"));
    }
    if let Some(runs) = options.runs {
        command.arg(format!("-runs={runs}"));
    }
    let result =
        if options.is_limited() { run_quietly(target, &mut command) } else { run(&mut command) };
    result.with_context(|| {
        format!(
            "{target}: the input is in {}; make it a named regression test (CONTRIBUTING.md)",
            artifacts.display()
        )
    })
}

/// Runs a target that ends by itself. Its output is printed only if it fails.
fn run_quietly(target: &str, command: &mut Command) -> Result<()> {
    run::show(command);
    let output = command.arg("-verbosity=0").output().context("cannot start the target")?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        eprint!("{text}");
    }
    let inputs = text.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    println!("{target}: {} inputs", inputs.unwrap_or(" unknown number of").trim());
    run::succeeded(command, output.status)
}
