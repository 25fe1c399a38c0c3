//! `cargo xtask bpf-agreement`: the eBPF programs read frames and tunnel packets as userspace does.
//!
//! The long run is kept in a file with a hash of `bpf/`. CI compares that hash with today's
//! `bpf/`, so nobody can change the programs and forget the long run.
//!
//! The run uses the build of the tests, which checks for overflows.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::demo::commit;
use crate::run::{cargo, run, show, succeeded};
use crate::{packages, test};

/// The directory of the programs.
const PROGRAMS: &str = "bpf";
/// The result of the last long run.
const KEPT: &str = "docs/results/bpf-agreement.md";
/// What precedes the hash in that file.
const LABEL: &str = "    bpf/ without comments: ";
/// The number of cases that the issue demands of a kept run.
const LONG: u64 = 10_000_000;
/// The tests that compare. They print their counts as rows of a table.
const TESTS: &str = "kernel_and_userspace_agree_on";

/// How many frames and tunnel packets the kernel and userspace are to agree on.
#[derive(Args)]
pub struct Options {
    /// Frames, and as many tunnel packets. A run of ten million or more is kept
    #[arg(long, default_value_t = LONG)]
    cases: u64,
    /// The first seed; a failure prints the one that repeats it
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Gives random, crafted and damaged frames and tunnel packets to the programs of the kernel
/// datapath and to userspace, until they differ or the end. Needs root. Keeps a long run.
pub fn compare(options: &Options) -> Result<()> {
    packages::ensure(&packages::BUILD)?;
    ensure!(test::root() == test::Root::Already, "run this as root: it loads eBPF programs");
    // The programs of this moment are compared, whatever is edited during the run.
    let before = programs(Path::new(PROGRAMS))?;
    // `--workspace` uses what other tasks have built.
    let arguments = ["test", "--workspace", "--test=main"];
    run(cargo(&arguments).arg("--no-run"))?;
    let start = Instant::now();
    let mut command = cargo(&arguments);
    command.args(["--", "--nocapture", TESTS]);
    command.env("WEFT_CASES", options.cases.to_string());
    command.env("WEFT_SEED", options.seed.to_string());
    let rows = run_for_rows(&mut command)?;
    let elapsed_s = start.elapsed().as_secs();
    ensure!(programs(Path::new(PROGRAMS))? == before, "{PROGRAMS}/ has changed during the run");
    if options.cases < LONG {
        return Ok(());
    }
    let text = page(options, &before, elapsed_s, &rows)?;
    fs::write(KEPT, text).with_context(|| format!("cannot write {KEPT}"))?;
    println!("kept in {KEPT}: commit it");
    Ok(())
}

/// Checks that the kept run is of the programs in `bpf/`.
///
/// # Errors
/// It is of others.
pub fn is_kept() -> Result<()> {
    let kept = fs::read_to_string(KEPT).context(KEPT)?;
    let kept = kept.lines().find_map(|line| line.strip_prefix(LABEL));
    let programs = programs(Path::new(PROGRAMS))?;
    ensure!(
        kept == Some(programs.as_str()),
        "{KEPT} is of {}, and {PROGRAMS}/ is {programs}: run cargo xtask bpf-agreement as root, \
         and commit the file",
        kept.unwrap_or("no programs")
    );
    Ok(())
}

/// Runs the tests, shows what they print, and returns the rows of tables in it.
fn run_for_rows(command: &mut Command) -> Result<Vec<String>> {
    show(command);
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let mut rows = Vec::new();
    for line in BufReader::new(child.stdout.take().context("a pipe")?).lines() {
        let line = line?;
        println!("{line}");
        rows.extend(line.starts_with("| ").then_some(line));
    }
    succeeded(command, child.wait()?)?;
    if rows.is_empty() {
        bail!("the tests printed no rows: were they skipped?");
    }
    rows.sort();
    Ok(rows)
}

/// The text of the kept file.
fn page(options: &Options, programs: &str, elapsed_s: u64, rows: &[String]) -> Result<String> {
    let Options { cases, seed } = options;
    let cases = grouped(&cases.to_string());
    let mut text = format!(
        "# The programs agree with userspace on {cases} frames and as many tunnel packets\n\n\
         `cargo xtask bpf-agreement` writes this file after a run without a difference. CI \
         compares the next line with `bpf/`.\n\n{LABEL}{programs}\n\n\
         {}, {}, Linux {}, commit {}, seed {seed}, {elapsed_s} s for both at once.\n\
         \n| cases | outcome | number |\n|---|---|---:|\n",
        now()?,
        machine(),
        fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        commit().unwrap_or_else(|| "unknown".to_owned()),
    );
    for row in rows {
        let cells: Vec<_> = row.trim_matches(['|', ' ']).split(" | ").collect();
        let [of, outcome, number] = cells[..] else { bail!("no row of three cells: {row}") };
        writeln!(text, "| {of} | {outcome} | {} |", grouped(number))?;
    }
    Ok(text)
}

fn now() -> Result<String> {
    let output = Command::new("date").args(["--utc", "+%F %H:%M UTC"]).output();
    Ok(String::from_utf8(output.context("cannot run date")?.stdout)?.trim().to_owned())
}

/// The processors, such as `2 x Intel(R) Xeon(R) Processor`.
fn machine() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let names = || text.lines().filter_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let name = names().next().map_or("unknown processor", |(_, name)| name.trim());
    format!("{} x {name}", names().count())
}

/// A number with commas between groups of three digits.
fn grouped(digits: &str) -> String {
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Identifies the C sources in a directory, whatever their comments, indentation and empty lines
/// are: FNV-1a of their names and lines.
fn programs(directory: &Path) -> Result<String> {
    let mut sources = BTreeMap::new();
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "c" || extension == "h") {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            sources.insert(path.file_name().unwrap_or_default().to_os_string(), text);
        }
    }
    ensure!(!sources.is_empty(), "no C sources in {}", directory.display());
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut add = |text: &str| {
        for byte in text.bytes().chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for (name, text) in &sources {
        add(&name.to_string_lossy());
        code_lines(text).iter().for_each(|line| add(line));
    }
    Ok(format!("{hash:016x}"))
}

/// The lines of C code without comments, indentation and empty lines.
fn code_lines(text: &str) -> Vec<String> {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let taken = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(comment) = rest.strip_prefix("/*") {
            comment.find("*/").map_or(rest.len(), |end| end + 4)
        } else if matches!(first, '"' | '\'') {
            quoted_len(rest, first)
        } else {
            first.len_utf8()
        };
        let (part, after) = rest.split_at(taken);
        // As for a compiler, a comment is a space.
        code.push_str(if part.starts_with("//") || part.starts_with("/*") { " " } else { part });
        rest = after;
    }
    let lines = code.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

/// The length of a literal with both quotes.
fn quoted_len(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        if character == quote && !is_escaped {
            return at + 1;
        }
        is_escaped = character == '\\' && !is_escaped;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_indentation_are_no_code() {
        let text = "/* a\n * b */\n#define A \"// \\\" no /* comment\" // yes\n\n\tint a;/**/\n";
        assert_eq!(code_lines(text), ["#define A \"// \\\" no /* comment\"", "int a;"]);
        assert_eq!(code_lines("a('/', '\\'', /* ' */ b)"), ["a('/', '\\'',   b)"]);
        assert_eq!(code_lines("int a/* open"), ["int a"]);
    }

    #[test]
    fn programs_differ_when_their_code_does() {
        let folder = std::env::temp_dir().join(format!("weft-programs-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let of = |text: &str| {
            fs::write(folder.join("a.h"), text).unwrap();
            programs(&folder).unwrap()
        };
        let hash = of("int a;\nint b;\n");
        assert_eq!(of("/* why */\n\tint a; // c\nint b;"), hash);
        for other in ["int a;\nint c;\n", "int b;\nint a;\n", "int a; int b;\n"] {
            assert_ne!(of(other), hash, "{other}");
        }
        fs::rename(folder.join("a.h"), folder.join("b.h")).unwrap();
        assert_ne!(programs(&folder).unwrap(), hash);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn digits_are_grouped_by_three() {
        assert_eq!(["7", "700", "10000000"].map(grouped), ["7", "700", "10,000,000"]);
    }
}
