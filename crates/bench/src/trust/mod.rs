//! Trust scenarios: weft under hostile guests, reloads and kills, each with criteria.

mod attack;
mod hostile;
mod interruption;
mod kill;
mod peak;
mod reload;
pub mod report;
mod soak;
mod test_bed;
mod victim;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub use attack::Attack;
use network::TunnelType;
use report::{CriterionResult, TrustReport};
pub use soak::SoakChapter;
use test_bed::TestBed;
pub use test_bed::TrustDatapath;

use crate::lab::{DEFAULT_UPLINK_MTU, Lab, Profile, Session, network_toml};
use crate::traffic::blast::Pace;
use crate::traffic::connections::connection_lists;
use crate::{Result, Stop};

/// The megaflows that are allowed in addition to those of the flows of [`TrustScenario::Kill`].
const SPARE_MEGAFLOWS: usize = 10_000;
/// How long to wait for another lab session on this machine to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A trust scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TrustScenario {
    /// A guest attacks, and another guest is measured.
    Attack(Attack),
    /// The network file is reloaded many times.
    Reload,
    /// The daemon is killed many times.
    Kill,
    /// The daemon is killed, stopped, reloaded, and replaced by another version.
    Interruption,
    /// One type of change is repeated for a long time, and no resource may leak.
    Soak,
}

impl TrustScenario {
    /// All of them.
    pub fn all() -> Vec<Self> {
        let mut all = Attack::ALL.map(Self::Attack).to_vec();
        all.extend([Self::Reload, Self::Kill, Self::Interruption, Self::Soak]);
        all
    }

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Attack(attack) => attack.name(),
            Self::Reload => "reload",
            Self::Kill => "kill",
            Self::Interruption => "interruption",
            Self::Soak => "soak",
        }
    }

    /// The scenario with this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|scenario| scenario.name() == name)
    }

    /// Runs the scenario on two hosts with weft.
    ///
    /// # Errors
    /// [`Error::Interrupted`](crate::Error::Interrupted), or
    /// [`Error::Missing`](crate::Error::Missing) when a precondition is missing. Other failures are
    /// part of the report.
    pub fn run(self, options: &TrustOptions, stop: &Stop) -> Result<TrustReport> {
        let session = Session::open(PATIENCE, stop)?;
        let lab = Lab::build(&session, Profile::Full, DEFAULT_UPLINK_MTU)?;
        match self.run_in_lab(&lab, options) {
            Err(error) if !error.is_interrupted() && !error.is_missing() => {
                let mut report = TrustReport::default();
                report.judge(CriterionResult::Fail, "the scenario itself", error.to_string());
                Ok(report)
            }
            other => other,
        }
    }

    fn run_in_lab(self, lab: &Lab<'_>, options: &TrustOptions) -> Result<TrustReport> {
        let TrustOptions {
            weft,
            old,
            chapter,
            datapath,
            seconds,
            attack_pace,
            warm_up,
            reloads,
            kills,
            flows,
            only_reloads,
        } = options;
        let start = |text: &str| TestBed::start(lab, (weft, *datapath), text, None);
        match self {
            Self::Attack(attack) => {
                let mut bed = start(&attack.network(lab))?;
                let report = hostile::run(attack, &mut bed, *attack_pace, [*warm_up, *seconds])?;
                bed.stop().map(|()| report)
            }
            Self::Reload => {
                let mut bed = start(&reload::network(lab, false))?;
                let report = reload::run(&mut bed, *reloads)?;
                bed.stop().map(|()| report)
            }
            Self::Kill => {
                let text = network_toml(lab, TunnelType::Geneve) + &connection_lists();
                // One port may have only half of all megaflows.
                let megaflows = Some(flows * 2 + SPARE_MEGAFLOWS);
                let mut bed = TestBed::start(lab, (weft, *datapath), &text, megaflows)?;
                let report = kill::run(&mut bed, *kills, *flows)?;
                bed.stop().map(|()| report)
            }
            Self::Interruption => {
                let text = interruption::network(lab);
                let megaflows = Some(flows * 2 + SPARE_MEGAFLOWS);
                let mut bed = TestBed::start(lab, (weft, *datapath), &text, megaflows)?;
                let programs = interruption::Programs { new: weft, old: old.as_deref() };
                let report = interruption::run(&mut bed, programs, *flows, *only_reloads)?;
                bed.stop().map(|()| report)
            }
            Self::Soak => {
                let mut all = TrustReport::default();
                for part in SoakChapter::ALL.into_iter().filter(|it| chapter.unwrap_or(*it) == *it)
                {
                    let text = part.network(lab, 0);
                    let mut bed = TestBed::start(lab, (weft, *datapath), &text, None)?;
                    all.append(part.name(), soak::run(&mut bed, part, *seconds)?);
                    bed.stop()?;
                }
                Ok(all)
            }
        }
    }
}

impl fmt::Display for TrustScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The duration and the intensity of the scenarios.
#[derive(Clone, PartialEq, Debug)]
pub struct TrustOptions {
    /// The program `weft`.
    pub weft: PathBuf,
    /// An older program `weft`, for [`TrustScenario::Interruption`].
    pub old: Option<PathBuf>,
    /// The chapter of [`TrustScenario::Soak`]; `None` for all.
    pub chapter: Option<SoakChapter>,
    /// The datapath of both hosts.
    pub datapath: TrustDatapath,
    /// The duration of each measurement.
    pub seconds: Duration,
    /// How fast the hostile guest sends.
    pub attack_pace: Pace,
    /// How long the hostile guest sends before the other guest is measured.
    pub warm_up: Duration,
    /// The number of reloads.
    pub reloads: usize,
    /// The number of kills.
    pub kills: usize,
    /// The number of UDP flows during the kills.
    pub flows: usize,
    /// Limits [`TrustScenario::Interruption`] to reloads.
    pub only_reloads: bool,
}
