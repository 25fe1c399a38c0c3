//! Scenarios in which a switch has to be trusted: guests that mean ill, reloads, and kills, each with numbers and a verdict.

mod attack;
mod hostile;
mod kill;
mod reload;
pub mod report;
mod stage;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use attack::Attack;
use network::TunnelType;
use report::{Outcome, Verdict};
use stage::Stage;

use crate::lab::{DEFAULT_UPLINK_MTU, Lab, Profile, Session, network_toml};
use crate::traffic::blast::Pace;
use crate::{Result, Stop};

/// How long another session may hold the machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Something that may happen to a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scenario {
    /// A guest sends nothing but new connections.
    UpcallFlood,
    /// A guest scans a /16.
    PortScan,
    /// A guest makes every packet need another mask.
    TupleSpace,
    /// The network file changes all the time.
    Reload,
    /// The daemon is killed again and again.
    Kill,
}

impl Scenario {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::UpcallFlood, Self::PortScan, Self::TupleSpace, Self::Reload, Self::Kill];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::UpcallFlood => "upcall-flood",
            Self::PortScan => "port-scan",
            Self::TupleSpace => "tuple-space",
            Self::Reload => "reload",
            Self::Kill => "kill",
        }
    }

    /// The scenario of that name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scenario| scenario.name() == name)
    }

    /// Two hosts, weft on both, and the scenario; everything is removed afterwards.
    ///
    /// # Errors
    /// [`Error::Interrupted`](crate::Error::Interrupted), or [`Error::Missing`](crate::Error::Missing) when nothing could be tried. Whatever else happens is in the outcome.
    pub fn run(self, options: &Options, stop: &Stop) -> Result<Outcome> {
        let session = Session::open(PATIENCE, stop)?;
        let lab = Lab::build(&session, Profile::Full, DEFAULT_UPLINK_MTU)?;
        match self.act(&lab, options) {
            Err(error) if !error.is_interrupted() && !error.is_missing() => {
                let mut outcome = Outcome::default();
                outcome.judge(Verdict::Fail, "the scenario itself", error.to_string());
                Ok(outcome)
            }
            other => other,
        }
    }

    fn act(self, lab: &Lab<'_>, options: &Options) -> Result<Outcome> {
        let Options { weft, seconds, attack_pace, reloads, kills } = options;
        let start = |text: &str| Stage::start(lab, weft, text);
        let hostile = |attack: Attack| {
            let mut stage = start(&attack.network(lab))?;
            let outcome = hostile::run(attack, &mut stage, *attack_pace, *seconds)?;
            stage.stop().map(|()| outcome)
        };
        match self {
            Self::UpcallFlood => hostile(Attack::UpcallFlood),
            Self::PortScan => hostile(Attack::PortScan),
            Self::TupleSpace => hostile(Attack::TupleSpace),
            Self::Reload => {
                let mut stage = start(&reload::network(lab, false))?;
                let outcome = reload::run(&mut stage, *reloads)?;
                stage.stop().map(|()| outcome)
            }
            Self::Kill => {
                let mut stage = start(&network_toml(lab, TunnelType::Geneve))?;
                let outcome = kill::run(&mut stage, *kills)?;
                stage.stop().map(|()| outcome)
            }
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How long and how hard.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// The program of the daemon.
    pub weft: PathBuf,
    /// Of each measurement.
    pub seconds: Duration,
    /// How fast a guest attacks.
    pub attack_pace: Pace,
    /// Reloads.
    pub reloads: usize,
    /// Kills.
    pub kills: usize,
}
