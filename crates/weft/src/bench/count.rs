//! `weft bench exact`, and what it runs in the emulated machine.

use super::{Exact, Inside, this_program};
use crate::Failure;
use ::bench::exact::{self, Baseline, Counts, Kernel, Rounds, Row, Wire};
use ::bench::lab::Contender;
use ::bench::{Error, Stop};
use std::panic::resume_unwind;
use std::thread::ScopedJoinHandle;

/// Emulated machines at the same time, at most: each may take a GiB.
const MACHINES: usize = 4;

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
    let weft = this_program()?;
    let baseline =
        args.baseline.as_deref().map(Baseline::read).transpose().map_err(Failure::input)?;
    let stop = Stop::on_signals()?;
    let rounds = if args.short { Rounds::SHORT } else { Rounds::FULL };
    let wire = args.wire;
    let mut now = Baseline { kernel: kernel.version()?, rounds, wire, rows: Vec::new() };
    let chosen = if args.contender.is_empty() { everybody(wire) } else { args.contender.clone() };
    println!("{}, instructions; switching in brackets", now.kernel);
    println!("{:20} {:>18} {:>18} {:>20}", "", "TCP message", "UDP message", "KiB of a stream");
    let mut failed = 0;
    let machines = std::thread::available_parallelism().map_or(1, usize::from).min(MACHINES);
    for some in chosen.chunks(machines) {
        // Each in a machine of its own, which knows nothing of the others' time.
        let measured: Vec<_> = std::thread::scope(|scope| {
            let measure = |&contender: &Contender| {
                let (kernel, weft, stop) = (&kernel, &weft, &stop);
                scope.spawn(move || exact::measure(contender, kernel, weft, rounds, wire, stop))
            };
            let threads: Vec<_> = some.iter().map(measure).collect();
            let end = |thread: ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| resume_unwind(panic))
            };
            threads.into_iter().map(end).collect()
        });
        for (contender, row) in some.iter().zip(measured) {
            match row {
                Ok(row) => {
                    println!("{}", line(&row));
                    now.rows.push(row);
                }
                Err(Error::Interrupted) => return Err(Error::Interrupted.into()),
                Err(error) => {
                    failed += 1;
                    println!("{:20} FAILED: {error}", contender.to_string());
                }
            }
        }
    }
    if let Some(path) = &args.json {
        now.write(path)?;
    }
    if let Some(baseline) = baseline {
        let excesses = baseline.excesses(&now)?;
        excesses.iter().for_each(|excess| println!("too dear: {excess}"));
        if !excesses.is_empty() {
            return Err(anyhow::anyhow!("{} counts are above the baseline", excesses.len()).into());
        }
    }
    if failed > 0 {
        return Err(anyhow::anyhow!("{failed} contenders could not be measured").into());
    }
    Ok(())
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

fn line(row: &Row) -> String {
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
