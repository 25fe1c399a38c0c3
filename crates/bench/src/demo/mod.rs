//! The demo: compares every tunnel of weft to the Linux bridge and other switches, in one table.
//!
//! Every block measures the bridge first and last, and all ratios are computed within a block. From
//! the second block on, the other contenders run in random order, so that none always meets the
//! machine in the same state.
//!
//! The compared traffic stays in one switch, which every contender has. weft also has ACLs, which
//! allow that traffic, and a logical router to a second switch. A separate step tests both.

mod policy;
mod report;
mod summary;
mod table;
mod trial;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use network::TunnelType;

use crate::environment::Environment;
use crate::lab::{Contender, DEFAULT_UPLINK_MTU, Datapath, OffloadFlags, Profile, Session};
use crate::progress::Progress;
use crate::random::shuffle;
use crate::{Error, Result, Stop};

pub use policy::{AclEntry, PolicyReport, Refusals, RoutedPings};
pub use report::{DemoReport, Noise, ProfileReport, Row, StreamReport, Trial};

use report::BASE;
use trial::Plan;

/// How long to wait for another lab session on this machine to end.
const SESSION_PATIENCE: Duration = Duration::from_secs(2);

/// What to measure, and how long.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// The program `weft`.
    pub weft: PathBuf,
    /// Seconds of each TCP measurement. A contender has two: with one and with eight connections.
    pub seconds: f64,
    /// Where to write the report as JSON.
    pub json: Option<PathBuf>,
    /// Underlay profiles, one table each.
    pub profiles: Vec<Profile>,
    /// Repetitions, at least 1. With one, only the two measurements of the bridge show the noise.
    pub blocks: usize,
    /// The MTU of the underlay, in bytes.
    pub uplink_mtu: u16,
    /// The contenders to measure in addition to the bridge.
    pub contenders: Vec<Contender>,
    /// No progress on standard error.
    pub quiet: bool,
    /// The commit that this program was built from, for the report.
    pub commit: Option<String>,
}

impl DemoOptions {
    /// The default demo: 2 s for each measurement, profile `full`, one block, every tunnel with
    /// both datapaths, kernel VXLAN and Open vSwitch.
    pub fn new(weft: impl Into<PathBuf>) -> Self {
        let both = |tunnel| [Datapath::Kernel, Datapath::User].map(|d| Contender::Weft(d, tunnel));
        let mut contenders: Vec<_> = TunnelType::ALL.into_iter().flat_map(both).collect();
        contenders.extend([Contender::KERNEL_VXLAN, Contender::OVS_VXLAN]);
        Self {
            weft: weft.into(),
            seconds: 2.0,
            json: None,
            profiles: vec![Profile::Full],
            blocks: 1,
            uplink_mtu: DEFAULT_UPLINK_MTU,
            contenders,
            quiet: false,
            commit: None,
        }
    }
}

/// Runs the demo. `stop` ends it early. Everything that it created is removed in any case.
///
/// # Errors
/// [`Error::Missing`] when a privilege is missing or another session is running,
/// [`Error::Interrupted`], or the lab cannot be built. The failure of a contender is not an error
/// but a row of the report.
pub fn run(options: &DemoOptions, stop: &Stop) -> Result<DemoReport> {
    let seconds = check_seconds(options.seconds)?;
    let session = Session::open(SESSION_PATIENCE, stop)?;
    let environment = Environment::read(options.commit.clone());
    let (present, left_out) = split_by_availability(&options.contenders, &options.weft);
    let blocks = options.blocks.max(1);
    let trials = schedule(&present, blocks);
    let progress = Progress::start(trials.len() * options.profiles.len(), options.quiet);
    let mut profiles = Vec::with_capacity(options.profiles.len());
    for &profile in &options.profiles {
        let plan = Plan {
            session: &session,
            profile,
            uplink_mtu: options.uplink_mtu,
            weft: &options.weft,
            seconds,
            progress: &progress,
        };
        let (trials, offloads) = run_all(&plan, trials.clone())?;
        let mtu = options.uplink_mtu;
        profiles.push(ProfileReport::new(profile, mtu, offloads, trials, &left_out));
    }
    drop(progress);
    let report = DemoReport { environment, seconds: options.seconds, blocks, profiles };
    if let Some(path) = &options.json {
        write_json(&report, path)?;
    }
    Ok(report)
}

/// Measures all `trials` in order. Returns them with the underlay's offload flags.
fn run_all(plan: &Plan<'_>, mut trials: Vec<Trial>) -> Result<(Vec<Trial>, OffloadFlags)> {
    let mut offloads = OffloadFlags::new();
    let total = trials.len();
    for (index, trial) in trials.iter_mut().enumerate() {
        let again = if trial.again { " (again)" } else { "" };
        let (profile, number, contender) = (plan.profile, index + 1, trial.contender);
        plan.progress.trial(&format!("{profile}, {number} of {total}: {contender}{again}"));
        offloads = plan.run(trial)?;
        plan.progress.done();
    }
    Ok((trials, offloads))
}

/// # Errors
/// `seconds` is not in the range from 0.1 to 600.
fn check_seconds(seconds: f64) -> Result<Duration> {
    if (0.1..=600.0).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err(Error::Other(format!("a run cannot last {seconds} s; choose from 0.1 to 600")))
}

/// The available contenders, without duplicates and without the base, and the unavailable ones with
/// reasons.
fn split_by_availability(
    contenders: &[Contender],
    weft: &Path,
) -> (Vec<Contender>, Vec<(Contender, String)>) {
    let (mut present, mut left_out) = (Vec::new(), Vec::new());
    for &contender in contenders {
        if contender == BASE || present.contains(&contender) {
            continue;
        }
        match contender.unavailable(weft) {
            None => present.push(contender),
            Some(why) => left_out.push((contender, why)),
        }
    }
    (present, left_out)
}

/// All trials in order: in each block the base, the others, and the base again. The first block
/// keeps the given order of the others, which is also the order of the report. Later blocks shuffle
/// them.
fn schedule(contenders: &[Contender], blocks: usize) -> Vec<Trial> {
    let mut others = contenders.to_vec();
    let mut trials = Vec::with_capacity(blocks * (contenders.len() + 2));
    for block in 0..blocks {
        trials.push(Trial::new(BASE, block, false));
        if block > 0 {
            shuffle(&mut others);
        }
        trials.extend(others.iter().map(|&contender| Trial::new(contender, block, false)));
        trials.push(Trial::new(BASE, block, true));
    }
    trials
}

fn write_json(report: &DemoReport, path: &std::path::Path) -> Result<()> {
    let what = || format!("write {}", path.display());
    let mut text = serde_json::to_string_pretty(report).map_err(|e| Error::io(what())(e))?;
    text.push('\n');
    fs::write(path, text).map_err(Error::io(what()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_is_first_and_last_in_every_block_and_all_others_are_between() {
        let others = DemoOptions::new("weft").contenders;
        let trials = schedule(&others, 3);
        for (block, trials) in trials.chunks(others.len() + 2).enumerate() {
            assert!(trials.iter().all(|trial| trial.block == block));
            let [first, between @ .., last] = trials else { panic!("a block of {}", trials.len()) };
            assert_eq!((first.contender, first.again), (BASE, false));
            assert_eq!((last.contender, last.again), (BASE, true));
            let order: Vec<_> = between.iter().map(|trial| trial.contender).collect();
            assert!(
                others.iter().all(|other| order.contains(other)) && order.len() == others.len()
            );
            assert!(block > 0 || order == others, "the first block is the order of the report");
        }
        assert_eq!(schedule(&[], 1).len(), 2);
    }

    #[test]
    fn contenders_take_part_once_when_named_twice() {
        let (present, _) =
            split_by_availability(&[BASE, Contender::Direct, Contender::Direct], Path::new("weft"));
        assert_eq!(present, [Contender::Direct]);
    }

    #[test]
    fn seconds_are_refused_when_out_of_range() {
        assert_eq!(check_seconds(0.5).unwrap(), Duration::from_millis(500));
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
            assert!(check_seconds(seconds).is_err(), "{seconds}");
        }
    }
}
