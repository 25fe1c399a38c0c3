//! Coverage-guided fuzzing on stable Rust.
//!
//! libFuzzer needs the counters of LLVM's SanitizerCoverage, which stable rustc can insert by a
//! pass named on its command line. There is no address sanitizer on stable, and no need of one:
//! what is fuzzed is safe Rust, where a fault is a panic. Debug assertions and overflow checks are
//! on (profile `fuzz`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::packages;
use crate::run::{self, COMPILER_FLAGS, cargo, run, target_dir};
use crate::test::host_triple;

/// The directory of the seeds, which has one directory for each target.
const CORPUS: &str = "fuzz/corpus";
/// The processor time of a smoke over all targets, which run on two processors.
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

/// What to fuzz, and for how long. Without a limit: until a crash or Ctrl-C.
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

/// Fuzzes one target or all. A crash is an error that names the file with the input.
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

/// Gives every target an equal share of [`SMOKE_SECONDS`], two targets at a time.
pub fn smoke() -> Result<()> {
    let all = targets()?;
    let share = SMOKE_SECONDS / all.len() as u64;
    // libFuzzer stops a second late.
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

/// Where the targets are built, and where the inputs that they find are kept.
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

/// Builds the program with coverage; returns its path.
fn build() -> Result<PathBuf> {
    packages::ensure(&[&packages::BUILD[..], &packages::FUZZ].concat())?;
    let triple = host_triple()?;
    // Naming the target keeps the coverage flags away from build scripts.
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
    // The first corpus takes what is found; the committed seeds are only read.
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

/// Runs a target that will end by itself: its progress is of no interest unless it fails.
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
