//! Counts contenders in parallel machines, and keeps each count at once.

use std::sync::{Mutex, mpsc};

use super::gate::{Baseline, ContenderCounts, Failed};
use super::{Kernel, Programs, Rounds, Row, Wire};
use crate::lab::Contender;
use crate::progress::Progress;
use crate::{Error, Result, Stop};

/// The most emulated machines at the same time. Each may need 1 GiB of memory.
const MACHINES: usize = 4;

/// What to count.
#[derive(Clone, Debug)]
pub struct CountOptions {
    /// The programs that the emulated machine runs.
    pub programs: Programs,
    /// The contenders, in the order of the rows.
    pub contenders: Vec<Contender>,
    /// The number of messages.
    pub rounds: Rounds,
    /// How the wire delivers packets.
    pub wire: Wire,
    /// Where the machines' random numbers come from.
    pub seed: u32,
    /// No progress on standard error.
    pub quiet: bool,
}

/// Counts all contenders, each in a machine of its own. The clocks of the machines are independent,
/// so they can run in parallel. `keep` gets each row as it is counted, with all counts so far. An
/// interrupted count is returned as incomplete.
///
/// # Errors
/// The kernel's version is unknown, or `keep` fails. A contender that cannot be counted is a row.
pub fn count(
    options: &CountOptions,
    kernel: &Kernel,
    stop: &Stop,
    keep: &mut dyn FnMut(&Baseline, &ContenderCounts) -> Result<()>,
) -> Result<Baseline> {
    let CountOptions { programs, contenders, rounds, wire, seed, quiet } = options;
    let begun = Baseline::begin(kernel.version()?, *rounds, *wire);
    let machines = std::thread::available_parallelism().map_or(1, usize::from).min(MACHINES);
    let progress = Progress::start(contenders.len(), *quiet).at_once(machines);
    let measure = |contender| {
        let what = format!("counting {contender}");
        progress.trial(&what);
        progress.step(&what);
        let measured = super::measure(contender, kernel, programs, *rounds, *wire, *seed, stop);
        progress.done();
        measured
    };
    let mut keep =
        |now: &Baseline, entry: &ContenderCounts| progress.suspended(|| keep(now, entry));
    count_all(begun, contenders, (machines, stop), &measure, &mut keep)
}

/// Runs `measure` for the `contenders` on so many threads, and adds the rows as they come.
fn count_all(
    mut counts: Baseline,
    contenders: &[Contender],
    (machines, stop): (usize, &Stop),
    measure: &(dyn Fn(Contender) -> Result<Row> + Sync),
    keep: &mut dyn FnMut(&Baseline, &ContenderCounts) -> Result<()>,
) -> Result<Baseline> {
    let waiting = Mutex::new(contenders.iter().copied());
    let next = || waiting.lock().ok().and_then(|mut waiting| waiting.next());
    let (done, rows) = mpsc::channel();
    let kept = std::thread::scope(|scope| {
        for _ in 0..machines {
            let done = done.clone();
            scope.spawn(move || {
                while let Some(contender) = next() {
                    // The receiver is gone when rows cannot be kept.
                    if stop.is_raised() || done.send((contender, measure(contender))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        for (contender, measured) in rows {
            let entry = match measured {
                Ok(row) => ContenderCounts::Counted(row),
                Err(Error::Interrupted) => continue,
                Err(error) => {
                    ContenderCounts::Failed(Failed { contender, failure: error.to_string() })
                }
            };
            counts.rows.push(entry.clone());
            let place =
                |entry: &ContenderCounts| contenders.iter().position(|&c| c == entry.contender());
            counts.rows.sort_by_key(place);
            counts.complete = counts.rows.len() == contenders.len();
            keep(&counts, &entry)?;
        }
        Ok(())
    });
    kept.map(|()| counts)
}

#[cfg(test)]
mod tests {
    use super::super::Counts;
    use super::*;

    const ALL: [Contender; 3] =
        [Contender::LinuxBridge, Contender::KERNEL_VXLAN, Contender::OVS_VXLAN];

    fn row(contender: Contender) -> Row {
        let wire = Counts { tcp: 10.0, udp: 10.0, stream: 10.0 };
        Row { contender, total: Counts { tcp: 30.0, ..wire }, wire }
    }

    /// The rows that are kept when [`ALL`] run in so many machines, and the returned counts.
    fn count_with(
        machines: usize,
        stop: &Stop,
        measure: &(dyn Fn(Contender) -> Result<Row> + Sync),
    ) -> (Vec<Baseline>, Baseline) {
        let mut kept = Vec::new();
        let mut keep = |now: &Baseline, _: &ContenderCounts| {
            kept.push(now.clone());
            Ok(())
        };
        let begun = Baseline::begin("k".into(), Rounds::SHORT, Wire::Shared);
        let counts = count_all(begun, &ALL, (machines, stop), measure, &mut keep).unwrap();
        (kept, counts)
    }

    #[test]
    fn counts_are_kept_after_each_contender_and_those_that_fail_say_why() {
        let measure = |contender| match contender {
            Contender::LinuxBridge => Err(Error::Traffic("no such module".into())),
            other => Ok(row(other)),
        };
        for machines in [1, 2, 4] {
            let (kept, counts) = count_with(machines, &Stop::new(), &measure);
            let lengths: Vec<_> = kept.iter().map(|now| (now.rows.len(), now.complete)).collect();
            assert_eq!(lengths, [(1, false), (2, false), (3, true)]);
            let contenders: Vec<_> = counts.rows.iter().map(ContenderCounts::contender).collect();
            assert_eq!(contenders, ALL, "in the order that was asked for");
            let failed: Vec<_> = counts.failed().collect();
            let failure = "no such module".to_owned();
            assert_eq!(failed, [&Failed { contender: Contender::LinuxBridge, failure }]);
            assert_eq!(counts.counted().count(), 2);
        }
    }

    #[test]
    fn counts_stay_when_the_rest_is_interrupted() {
        let stop = Stop::new();
        let (kept, counts) = count_with(1, &stop, &|contender| match contender {
            Contender::LinuxBridge => Ok(row(contender)),
            _ => {
                stop.raise();
                Err(Error::Interrupted)
            }
        });
        assert_eq!(kept.len(), 1);
        assert_eq!(kept.last(), Some(&counts));
        assert!(!counts.complete && counts.failed().count() == 0);
    }

    #[test]
    fn counting_ends_when_counts_cannot_be_kept() {
        let mut keep =
            |_: &Baseline, _: &ContenderCounts| Err(Error::Traffic("the disk is full".into()));
        let begun = Baseline::begin("k".into(), Rounds::SHORT, Wire::Shared);
        let stop = Stop::new();
        let measure = |contender| Ok(row(contender));
        let ended = count_all(begun, &ALL, (1, &stop), &measure, &mut keep);
        assert_eq!(ended.unwrap_err().to_string(), "the disk is full");
    }
}
