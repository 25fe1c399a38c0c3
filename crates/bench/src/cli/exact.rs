//! `weft-bench exact`, and the part of it that runs inside the emulated machine.

use std::path::{Path, PathBuf};

use super::Failure;
use crate::Stop;
use crate::exact::{
    self, Baseline, ContenderCounts, CountOptions, Counts, Excess, Failed, Kernel, Programs, Wire,
    Workload,
};
use crate::lab::Contender;

/// Count instructions in an emulated machine: for a message one way, a KiB of a stream, and a
/// TCP connection.
///
/// The contenders run in emulated machines with Debian's kernel, whose clock counts instructions:
/// the same input gives the same digits on every host. Contenders that are weft with the same
/// datapath share a machine; every other one has its own. Switching is the total minus the total of
/// one veth pair between two guests of the same machine.
#[derive(clap::Args)]
pub struct Args {
    /// A contender [default: every available one]; may be repeated
    #[arg(long, value_name = "NAME")]
    contender: Vec<Contender>,
    /// The contenders of the regression gate, which are all weft
    #[arg(long, conflicts_with = "contender")]
    ours: bool,
    /// The directory of the kernel, as scripts/fetch-guest-kernel.sh makes it
    #[arg(long, value_name = "DIR", default_value = "target/guest-kernel")]
    kernel: PathBuf,
    /// How the wire delivers packets: shared with the sender's socket, as a veth pair does, or as
    /// copies, as network cards do
    #[arg(long, value_name = "KIND", default_value_t)]
    wire: Wire,
    /// Count fewer messages: the counts differ from those of a full run, and repeat as exactly
    #[arg(long)]
    short: bool,
    /// Keep the counts in this file after each contender, for --baseline
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fail when a weft contender's switching costs more than in this file: a message 2 % more
    /// (user datapath: 1.5 %), or a stream 12 % more (user datapath: 20 %). Such a contender is
    /// counted again with other random numbers, up to three times, and the lowest counts
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// No progress on standard error
    #[arg(long)]
    quiet: bool,
}

/// The source of the machines' random numbers.
const FIRST_SEED: u32 = 1;
/// The emulated machines in which a count must exceed the baseline, each with another seed. In some
/// machines every TCP message costs 200 to 280 instructions more, and UDP messages do not. Costlier
/// code exceeds the baseline in all machines.
const SEEDS: u32 = 4;

#[derive(clap::Args)]
pub struct Inside {
    warm_up: u32,
    measured: u32,
    stream_kib: u32,
    wire: Wire,
    contenders: Vec<Contender>,
}

/// Measures in the machine that this process runs in. Prints one line of JSON for the veth pair and
/// one for each contender.
pub fn inside(args: &Inside, weft: &Path) -> Result<(), Failure> {
    let Inside { warm_up, measured, stream_kib, wire, ref contenders } = *args;
    let workload = Workload { warm_up, measured, stream_kib };
    for contender in [Contender::Direct].into_iter().chain(contenders.iter().copied()) {
        let counts = exact::measure_inside(contender, weft, workload, wire)?;
        println!("{}", serde_json::to_string(&counts).map_err(Failure::work)?);
    }
    Ok(())
}

pub fn exact(args: &Args, weft: PathBuf) -> Result<(), Failure> {
    let kernel = Kernel::open(&args.kernel)?;
    let baseline =
        args.baseline.as_deref().map(Baseline::read).transpose().map_err(Failure::input)?;
    args.json.as_deref().map(Baseline::check_path).transpose().map_err(Failure::input)?;
    let wire = args.wire;
    let contenders = match &args.contender[..] {
        [] => {
            let mut all = available(wire, &weft);
            all.retain(|contender| !args.ours || contender.is_gated());
            all
        }
        chosen => chosen.to_vec(),
    };
    let own = std::env::current_exe()
        .map_err(|error| Failure::work(format!("cannot find this program's own file: {error}")))?;
    let options = CountOptions {
        programs: Programs { weft, weft_bench: own },
        contenders,
        workload: if args.short { Workload::SHORT } else { Workload::FULL },
        wire,
        seed: FIRST_SEED,
        quiet: args.quiet,
    };
    let stop = Stop::on_signals()?;
    println!("{}, instructions; switching in brackets", kernel.version()?);
    println!(
        "{:20} {:>18} {:>18} {:>20} {:>20}",
        "", "TCP message", "UDP message", "KiB of a stream", "TCP connection"
    );
    let mut keep = |now: &Baseline, entry: &ContenderCounts| {
        println!("{}", line(entry));
        args.json.as_deref().map_or(Ok(()), |path| now.write(path))
    };
    let mut now = exact::count(&options, &kernel, &stop, &mut keep)?;
    if !now.complete {
        return Err(interrupted(&now, options.contenders.len(), args.json.as_deref()));
    }
    if let Some(baseline) = baseline {
        if baseline.kernel != now.kernel {
            println!("the baseline was counted with {}", baseline.kernel);
        }
        let excesses = confirmed(&baseline, &mut now, options, &kernel, &stop)?;
        excesses.iter().for_each(|excess| println!("over the baseline: {excess}"));
        if !excesses.is_empty() {
            return Err(Failure::work(format!("{} counts exceed the baseline", excesses.len())));
        }
    }
    match now.failed().count() {
        0 => Ok(()),
        failed => Err(Failure::work(format!("{failed} contenders could not be measured"))),
    }
}

/// The counts that exceed the baseline in all of [`SEEDS`] machines. Contenders of `now` that
/// exceed it are counted again, and `now` keeps the lowest counts.
fn confirmed(
    baseline: &Baseline,
    now: &mut Baseline,
    mut options: CountOptions,
    kernel: &Kernel,
    stop: &Stop,
) -> Result<Vec<Excess>, Failure> {
    for seed in FIRST_SEED + 1..FIRST_SEED + SEEDS {
        options.contenders = baseline.excesses(now)?.iter().map(|it| it.contender).collect();
        options.contenders.dedup();
        if options.contenders.is_empty() {
            break;
        }
        println!("over the baseline, counted again with other random numbers:");
        options.seed = seed;
        let again = exact::count(&options, kernel, stop, &mut |_, entry| {
            println!("{}", line(entry));
            Ok(())
        })?;
        if !again.complete {
            return Err(interrupted(&again, options.contenders.len(), None));
        }
        now.lower_to(&again);
    }
    Ok(baseline.excesses(now)?)
}

/// The error message of a count that was interrupted.
fn interrupted(now: &Baseline, requested: usize, json: Option<&Path>) -> Failure {
    let kept = match (now.rows.len(), json) {
        (0, _) => "nothing was counted".to_owned(),
        (done, Some(path)) => {
            format!("{} has {done} of {requested} contenders", path.display())
        }
        (done, None) => {
            format!("{done} of {requested} contenders were counted; --json FILE keeps them")
        }
    };
    Failure::work(format!("interrupted: {kept}"))
}

/// All contenders that may run in an emulated machine. This host can only tell for weft, because
/// the machine has another kernel.
fn available(wire: Wire, weft: &Path) -> Vec<Contender> {
    let can = |contender: &Contender| match contender {
        Contender::Direct => false,
        _ => !contender.is_weft() || contender.unavailable(weft).is_none(),
    };
    let counted = |contender: &Contender| wire.refuses(*contender).is_none();
    Contender::all().into_iter().filter(counted).filter(can).collect()
}

fn line(entry: &ContenderCounts) -> String {
    let row = match entry {
        ContenderCounts::Counted(row) => row,
        ContenderCounts::Failed(Failed { contender, failure }) => {
            return format!("{:20} FAILED: {failure}", contender.to_string());
        }
    };
    let cell =
        |of: fn(&Counts) -> f64| format!("{:.0} [{:.0}]", of(&row.total), of(&row.switching()));
    let connection = |counts: Counts| counts.connection.unwrap_or_default();
    format!(
        "{:20} {:>18} {:>18} {:>20} {:>20}",
        row.contender.to_string(),
        cell(|counts| counts.tcp),
        cell(|counts| counts.udp),
        cell(|counts| counts.stream),
        format!("{:.0} [{:.0}]", connection(row.total), connection(row.switching()))
    )
}
