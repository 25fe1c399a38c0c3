//! Counts the instructions of contenders in parallel machines, and saves the counts of each machine
//! as soon as it ends.

use std::sync::{Mutex, mpsc};

use super::gate::{Baseline, ContenderCounts, Failed};
use super::{Kernel, Programs, Row, Wire, Workload};
use crate::lab::Contender;
use crate::progress::Progress;
use crate::{Error, Result, Stop};

/// The largest number of emulated machines that run in parallel. Each may need 1 GiB of memory.
const MACHINES: usize = 4;

/// What to count.
#[derive(Clone, Debug)]
pub struct CountOptions {
    /// The programs that the emulated machine runs.
    pub programs: Programs,
    /// The contenders, in the order of the rows.
    pub contenders: Vec<Contender>,
    /// How much traffic is exchanged for each count.
    pub workload: Workload,
    /// How the wire delivers packets.
    pub wire: Wire,
    /// The seed of the machines' random numbers.
    pub seed: u32,
    /// No progress on standard error.
    pub quiet: bool,
}

/// Counts all contenders in the machines of [`groups`]. The clocks of the machines are independent,
/// so they can run in parallel. When a machine ends, `keep` is called for each of its rows, with
/// all counts so far. An interrupted count is returned as incomplete.
///
/// # Errors
/// The kernel's version is unknown, or `keep` fails. A contender that cannot be counted is not an
/// error but a row.
pub fn count(
    options: &CountOptions,
    kernel: &Kernel,
    stop: &Stop,
    keep: &mut dyn FnMut(&Baseline, &ContenderCounts) -> Result<()>,
) -> Result<Baseline> {
    let CountOptions { programs, contenders, workload, wire, seed, quiet } = options;
    let begun = Baseline::begin(kernel.version()?, *workload, *wire);
    let machines = std::thread::available_parallelism().map_or(1, usize::from).min(MACHINES);
    let progress = Progress::start(contenders.len(), *quiet).at_once(machines);
    let measure = |group: &[Contender]| {
        let names: Vec<_> = group.iter().map(ToString::to_string).collect();
        let what = format!("counting {}", names.join(", "));
        progress.trial(&what);
        progress.step(&what);
        super::measure(group, kernel, programs, *workload, *wire, *seed, stop)
    };
    let mut keep = |now: &Baseline, entry: &ContenderCounts| {
        progress.done();
        progress.suspended(|| keep(now, entry))
    };
    count_all(begun, contenders, (machines, stop), &measure, &mut keep)
}

/// The contenders that share a machine: all of weft with the same datapath. Every other contender
/// is alone in its machine.
fn groups(contenders: &[Contender]) -> Vec<Vec<Contender>> {
    let machine = Contender::weft_datapath;
    let mut groups: Vec<Vec<Contender>> = Vec::new();
    for &contender in contenders {
        let shares = |group: &&mut Vec<Contender>| {
            machine(contender).is_some()
                && group.first().map(|&of| machine(of)) == Some(machine(contender))
        };
        match groups.iter_mut().find(shares) {
            Some(group) => group.push(contender),
            None => groups.push(vec![contender]),
        }
    }
    groups
}

/// Measures a group of contenders in one machine. Returns the rows that were counted, in the order
/// of the group, and the error if it ended before all were counted.
type Measure<'a> = dyn Fn(&[Contender]) -> (Vec<Row>, Result<()>) + Sync + 'a;

/// Runs `measure` for a group. After a contender that failed, runs it again for the contenders that
/// follow. Returns `false` when `send` returns it, or when interrupted.
fn count_group(
    mut group: &[Contender],
    measure: &Measure<'_>,
    send: &dyn Fn(ContenderCounts) -> bool,
) -> bool {
    while !group.is_empty() {
        let (rows, ended) = measure(group);
        let rest = group.get(rows.len()..).unwrap_or_default();
        if !rows.into_iter().map(ContenderCounts::Counted).all(send) {
            return false;
        }
        group = match (ended, rest) {
            (Err(Error::Interrupted), _) => return false,
            (Err(error), &[contender, ref later @ ..]) => {
                let failure = error.to_string();
                if !send(ContenderCounts::Failed(Failed { contender, failure })) {
                    return false;
                }
                later
            }
            (_, rest) => rest,
        };
    }
    true
}

/// Runs `measure` for the groups of `contenders` on `machines` threads, and adds the rows in the
/// order of their arrival.
fn count_all(
    mut counts: Baseline,
    contenders: &[Contender],
    (machines, stop): (usize, &Stop),
    measure: &Measure<'_>,
    keep: &mut dyn FnMut(&Baseline, &ContenderCounts) -> Result<()>,
) -> Result<Baseline> {
    let waiting = Mutex::new(groups(contenders).into_iter());
    let next = || waiting.lock().ok().and_then(|mut waiting| waiting.next());
    let (done, rows) = mpsc::channel();
    let kept = std::thread::scope(|scope| {
        for _ in 0..machines {
            let done = done.clone();
            scope.spawn(move || {
                // The receiver is dropped when a row could not be saved.
                let send = |entry| done.send(entry).is_ok();
                while let Some(group) = next() {
                    if stop.is_raised() || !count_group(&group, measure, &send) {
                        return;
                    }
                }
            });
        }
        drop(done);
        for entry in rows {
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::Counts;
    use super::*;

    const ALL: [Contender; 3] =
        [Contender::LinuxBridge, Contender::KERNEL_VXLAN, Contender::OVS_VXLAN];

    fn row(contender: Contender) -> Row {
        let veth_pair = Counts { tcp: 10.0, udp: 10.0, stream: 10.0, connection: None };
        Row { contender, total: Counts { tcp: 30.0, ..veth_pair }, veth_pair }
    }

    /// Runs `measure` for each contender of a group until it fails.
    fn measure_each(
        group: &[Contender],
        measure: &dyn Fn(Contender) -> Result<Row>,
    ) -> (Vec<Row>, Result<()>) {
        let mut rows = Vec::new();
        let ended = group.iter().try_for_each(|&contender| {
            rows.push(measure(contender)?);
            Ok(())
        });
        (rows, ended)
    }

    /// Counts [`ALL`] in up to `machines` parallel machines. Returns the counts at each save, and
    /// the final counts.
    fn count_with(
        machines: usize,
        stop: &Stop,
        measure: &(dyn Fn(Contender) -> Result<Row> + Sync),
    ) -> (Vec<Baseline>, Baseline) {
        let measure = |group: &[Contender]| measure_each(group, measure);
        let mut kept = Vec::new();
        let mut keep = |now: &Baseline, _: &ContenderCounts| {
            kept.push(now.clone());
            Ok(())
        };
        let begun = Baseline::begin("k".into(), Workload::SHORT, Wire::Shared);
        let counts = count_all(begun, &ALL, (machines, stop), &measure, &mut keep).unwrap();
        (kept, counts)
    }

    #[test]
    fn counts_are_kept_after_each_contender_and_those_that_fail_say_why() {
        let measure = |contender| match contender {
            Contender::LinuxBridge => Err(Error::Other("no such module".into())),
            other => Ok(row(other)),
        };
        for machines in [1, 2, 4] {
            let (kept, counts) = count_with(machines, &Stop::new(), &measure);
            let lengths: Vec<_> = kept.iter().map(|now| (now.rows.len(), now.complete)).collect();
            assert_eq!(lengths, [(1, false), (2, false), (3, true)]);
            let contenders: Vec<_> = counts.rows.iter().map(ContenderCounts::contender).collect();
            assert_eq!(contenders, ALL, "the rows have the requested order");
            let failed: Vec<_> = counts.failed().collect();
            let failure = "no such module".to_owned();
            assert_eq!(failed, [&Failed { contender: Contender::LinuxBridge, failure }]);
            assert_eq!(counts.counted().count(), 2);
        }
    }

    #[test]
    fn contenders_share_a_machine_when_they_are_weft_with_the_same_datapath() {
        let names = ["weft-user-gre", "bridge", "weft-kernel-gre", "weft-user-stt", "direct"];
        let all = names.map(|name| name.parse().unwrap());
        let [user_gre, bridge, kernel_gre, user_stt, direct] = all;
        let expected = [vec![user_gre, user_stt], vec![bridge], vec![kernel_gre], vec![direct]];
        assert_eq!(groups(&all), expected);
    }

    #[test]
    fn others_of_a_group_are_counted_when_one_fails() {
        let group: [Contender; 3] =
            ["weft-user-gre", "weft-user-stt", "weft-user-vlan"].map(|name| name.parse().unwrap());
        let machines = AtomicUsize::new(0);
        let measure = |group: &[Contender]| {
            machines.fetch_add(1, Ordering::Relaxed);
            measure_each(group, &|contender| match contender.id() {
                id if id.contains("stt") => Err(Error::Other("no answer".into())),
                _ => Ok(row(contender)),
            })
        };
        let begun = Baseline::begin("k".into(), Workload::SHORT, Wire::Shared);
        let stop = Stop::new();
        let counts = count_all(begun, &group, (2, &stop), &measure, &mut |_, _| Ok(())).unwrap();
        assert!(counts.complete);
        let failed: Vec<_> = counts.failed().map(|failed| failed.contender).collect();
        assert_eq!((failed, counts.counted().count()), (vec![group[1]], 2));
        assert_eq!(machines.into_inner(), 2, "the last one runs in a separate machine");
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
            |_: &Baseline, _: &ContenderCounts| Err(Error::Other("the disk is full".into()));
        let begun = Baseline::begin("k".into(), Workload::SHORT, Wire::Shared);
        let stop = Stop::new();
        let measure = |group: &[Contender]| measure_each(group, &|contender| Ok(row(contender)));
        let ended = count_all(begun, &ALL, (1, &stop), &measure, &mut keep);
        assert_eq!(ended.unwrap_err().to_string(), "the disk is full");
    }
}
