//! `weft bench exact`, and what it runs in the emulated machine.

use super::{Exact, Inside, this_program};
use crate::Failure;
use ::bench::Stop;
use ::bench::exact::{self, Baseline, Counts, Entry, Failed, Kernel, Options, Rounds, Wire};
use ::bench::lab::Contender;
use std::path::Path;

/// Measures in the machine that this runs in; a line of JSON for the wire, and one for the contender.
pub fn inside(args: &Inside) -> Result<(), Failure> {
    let Inside { contender, warm_up, measured, stream_kib, wire } = *args;
    let weft = this_program()?;
    let rounds = Rounds { warm_up, measured, stream_kib };
    for contender in [Contender::Direct, contender] {
        let counts = exact::measure_inside(contender, &weft, rounds, wire)?;
        println!("{}", serde_json::to_string(&counts).map_err(anyhow::Error::from)?);
    }
    Ok(())
}

pub fn exact(args: &Exact) -> Result<(), Failure> {
    let kernel = Kernel::open(&args.kernel).map_err(Failure::input)?;
    let baseline =
        args.baseline.as_deref().map(Baseline::read).transpose().map_err(Failure::input)?;
    args.json.as_deref().map(Baseline::check_path).transpose().map_err(Failure::input)?;
    let wire = args.wire;
    let options = Options {
        weft: this_program()?,
        contenders: if args.contender.is_empty() {
            everybody(wire)
        } else {
            args.contender.clone()
        },
        rounds: if args.short { Rounds::SHORT } else { Rounds::FULL },
        wire,
        quiet: args.quiet,
    };
    let stop = Stop::on_signals()?;
    println!("{}, instructions; switching in brackets", kernel.version()?);
    println!("{:20} {:>18} {:>18} {:>20}", "", "TCP message", "UDP message", "KiB of a stream");
    let mut keep = |now: &Baseline, entry: &Entry| {
        println!("{}", line(entry));
        args.json.as_deref().map_or(Ok(()), |path| now.write(path))
    };
    let now = exact::count(&options, &kernel, &stop, &mut keep)?;
    if !now.complete {
        return Err(interrupted(&now, options.contenders.len(), args.json.as_deref()).into());
    }
    if let Some(baseline) = baseline {
        let excesses = baseline.excesses(&now)?;
        excesses.iter().for_each(|excess| println!("too dear: {excess}"));
        if !excesses.is_empty() {
            return Err(anyhow::anyhow!("{} counts are above the baseline", excesses.len()).into());
        }
    }
    match now.failed().count() {
        0 => Ok(()),
        failed => Err(anyhow::anyhow!("{failed} contenders could not be measured").into()),
    }
}

/// What is left of a count that was ended.
fn interrupted(now: &Baseline, asked: usize, json: Option<&Path>) -> anyhow::Error {
    let kept = match (now.rows.len(), json) {
        (0, _) => "nothing was counted yet".to_owned(),
        (done, Some(path)) => {
            format!("what was counted is kept, {done} of {asked} contenders in {}", path.display())
        }
        (done, None) => {
            format!("{done} of {asked} contenders were counted; --json would have kept them")
        }
    };
    anyhow::anyhow!("interrupted: {kept}")
}

/// All that can take part in an emulated machine, where it is not this host's kernel that counts.
fn everybody(wire: Wire) -> Vec<Contender> {
    let weft = std::env::current_exe().unwrap_or_default();
    let can = |contender: &Contender| match contender {
        Contender::Direct => false,
        Contender::Weft(..) => contender.unavailable(&weft).is_none(),
        _ => true,
    };
    let counted = |contender: &Contender| wire.refuses(*contender).is_none();
    Contender::all().into_iter().filter(counted).filter(can).collect()
}

fn line(entry: &Entry) -> String {
    let row = match entry {
        Entry::Counted(row) => row,
        Entry::Failed(Failed { contender, failure }) => {
            return format!("{:20} FAILED: {failure}", contender.to_string());
        }
    };
    let cell =
        |of: fn(&Counts) -> f64| format!("{:.0} [{:.0}]", of(&row.total), of(&row.switching()));
    format!(
        "{:20} {:>18} {:>18} {:>20}",
        row.contender.to_string(),
        cell(|counts| counts.tcp),
        cell(|counts| counts.udp),
        cell(|counts| counts.stream)
    )
}
