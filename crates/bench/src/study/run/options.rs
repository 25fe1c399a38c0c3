//! The options of a run, and the cells (contenders and scenarios on one underlay) that they select.

use std::path::PathBuf;
use std::time::Duration;

use crate::lab::{Contender, IpVersion, Profile};
use crate::study::model::{BASE, Study, UnavailableContender};
use crate::study::scenarios::{Cell, Timing};
use crate::{Error, Result};

/// The options of a run.
#[derive(Clone, Debug)]
pub struct StudyOptions {
    /// The program `weft`.
    pub weft: PathBuf,
    /// The studies, in order.
    pub studies: Vec<Study>,
    /// Two short runs in place of five long ones.
    pub quick: bool,
    /// The number of repetitions; `None` is the default number.
    pub blocks: Option<usize>,
    /// The largest number of additional repetitions of a study while its last three runs do not
    /// agree ([`AGREEMENT`](crate::study::AGREEMENT)); `None` is the default number.
    pub repeats: Option<usize>,
    /// Seconds of each measurement; `None` is the default.
    pub seconds: Option<f64>,
    /// If set, only these contenders and the base are measured.
    pub contenders: Option<Vec<Contender>>,
    /// If set, only scenarios with this text in their name.
    pub scenario: Option<String>,
    /// If set, only cells with this profile.
    pub profile: Option<Profile>,
    /// If set, only cells with this underlay MTU, in bytes. If no cell has it, all cells use it.
    pub mtu: Option<u16>,
    /// The address family of the underlay.
    pub family: IpVersion,
    /// No progress on standard error.
    pub quiet: bool,
    /// The commit that this program was built from.
    pub commit: Option<String>,
}

impl StudyOptions {
    /// The default run of `studies`.
    pub fn new(weft: PathBuf, studies: Vec<Study>) -> Self {
        Self {
            weft,
            studies,
            quick: false,
            blocks: None,
            repeats: None,
            seconds: None,
            contenders: None,
            scenario: None,
            profile: None,
            mtu: None,
            family: IpVersion::V4,
            quiet: false,
            commit: None,
        }
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks.unwrap_or(if self.quick { 2 } else { 5 }).max(1)
    }

    /// The largest number of additional repetitions. By default, runs with explicit `blocks` and
    /// quick runs have none.
    pub(super) fn repeats(&self) -> usize {
        self.repeats.unwrap_or(if self.quick || self.blocks.is_some() { 0 } else { 2 })
    }

    pub(super) fn timing(&self) -> Timing {
        let (warm_up, measured) = if self.quick { (0.1, 0.2) } else { (0.5, 2.0) };
        let measured = self.seconds.unwrap_or(measured);
        Timing {
            warm_up: Duration::from_secs_f64(warm_up),
            measured: Duration::from_secs_f64(measured),
        }
    }

    /// Checks that the options select at least one scenario.
    ///
    /// # Errors
    /// They select no scenario, or no scenario with one of the requested contenders.
    pub fn check(&self) -> Result<()> {
        let chosen: Result<Vec<_>> =
            self.studies.iter().map(|study| self.all_cells(*study)).collect();
        let chosen = chosen?.concat();
        if chosen.is_empty() {
            return Err(Error::Other("no scenario is selected: no study has such a scenario, profile or MTU; see `weft bench list`".into()));
        }
        let takes_part = |who: &Contender| chosen.iter().any(|cell| cell.contenders.contains(who));
        let lost: Vec<_> =
            self.contenders.iter().flatten().filter(|who| !takes_part(who)).collect();
        if lost.is_empty() {
            return Ok(());
        }
        let ids = |of: &mut dyn Iterator<Item = Contender>| {
            of.map(|who| who.id()).collect::<Vec<_>>().join(", ")
        };
        let all = Contender::all();
        Err(Error::Other(format!(
            "no selected scenario has the contender {}; the selected ones have {}",
            ids(&mut lost.into_iter().copied()),
            ids(&mut all.into_iter().filter(takes_part))
        )))
    }

    /// The selected cells of `study`, with the selected contenders.
    pub(super) fn cells(&self, study: Study) -> Result<Vec<Cell>> {
        let mut cells = self.all_cells(study)?;
        for cell in &mut cells {
            cell.contenders.retain(|contender| self.includes(*contender));
        }
        Ok(cells)
    }

    /// The selected cells of `study`, with all contenders.
    fn all_cells(&self, study: Study) -> Result<Vec<Cell>> {
        let mut cells = study.cells(self.quick)?;
        if let Some(mtu) = self.mtu
            && !cells.iter().any(|cell| cell.shape.uplink_mtu == mtu)
        {
            for cell in &mut cells {
                (cell.shape.uplink_mtu, cell.shape.guest_mtu) = (mtu, None);
            }
        }
        for cell in &mut cells {
            cell.shape.family = self.family;
            cell.scenarios.retain(|scenario| {
                self.scenario.as_ref().is_none_or(|part| scenario.name().contains(part))
            });
        }
        cells.retain(|cell| {
            self.profile.is_none_or(|profile| profile == cell.shape.profile)
                && self.mtu.is_none_or(|mtu| mtu == cell.shape.uplink_mtu)
                && !cell.scenarios.is_empty()
        });
        Ok(cells)
    }

    fn includes(&self, contender: Contender) -> bool {
        let is_selected = self.contenders.as_ref().is_none_or(|all| all.contains(&contender));
        is_selected || contender == BASE
    }
}

/// Removes unavailable contenders from `plan`.
pub(super) fn remove_unavailable(
    plan: &mut [(Study, Vec<Cell>)],
    options: &StudyOptions,
) -> Vec<UnavailableContender> {
    let mut known: Vec<(Contender, Option<String>)> = Vec::new();
    for cell in plan.iter_mut().flat_map(|(_, cells)| cells) {
        cell.contenders.retain(|&contender| {
            if let Some((_, why)) = known.iter().find(|(other, _)| *other == contender) {
                return why.is_none();
            }
            let why = contender.unavailable(&options.weft);
            known.push((contender, why.clone()));
            why.is_none()
        });
    }
    let left_out = |(contender, why): (Contender, Option<String>)| {
        why.map(|why| UnavailableContender { contender, why })
    };
    known.into_iter().filter_map(left_out).collect()
}

#[cfg(test)]
mod tests {
    use super::super::plan::RunPlan;
    use super::*;
    use crate::lab::{Datapath, KernelTunnel};
    use network::TunnelType;

    /// Assumes a machine whose only contenders besides weft and the bridge are Open vSwitch in
    /// userspace and kernel VXLAN.
    #[test]
    fn quick_run_of_everything_is_planned_for_less_than_ten_minutes() {
        let takes_part = |contender: &Contender| match contender {
            Contender::Kernel(tunnel) => *tunnel == KernelTunnel::Vxlan,
            Contender::Ovs(datapath, _) => *datapath == Datapath::User,
            Contender::Weft(datapath, tunnel) => {
                (*datapath, *tunnel) != (Datapath::Kernel, TunnelType::Stt)
            }
            Contender::Direct | Contender::LinuxBridge | Contender::WeftBridge(_) => true,
            Contender::WeftVeth(_) | Contender::Stateful(..) => false,
        };
        let options =
            StudyOptions { quick: true, ..StudyOptions::new("weft".into(), Study::ALL.to_vec()) };
        let of =
            |plan: &[(Study, Vec<Cell>)]| RunPlan::of(plan, options.blocks(), options.timing());
        let (mut plan, mut each) = (Vec::new(), String::new());
        for &study in &options.studies {
            let mut cells = options.cells(study).unwrap();
            cells.iter_mut().for_each(|cell| cell.contenders.retain(takes_part));
            each += &format!("{study}: {}\n", of(&[(study, cells.clone())]));
            plan.push((study, cells));
        }
        let outline = of(&plan);
        assert!(outline.estimate() < Duration::from_secs(570), "{each}{outline}");
    }

    #[test]
    fn contender_is_refused_when_no_selected_scenario_has_it() {
        let check = |studies: &[Study], names: &[&str]| {
            let contenders = names.iter().map(|name| name.parse().unwrap()).collect();
            let options = StudyOptions::new("weft".into(), studies.to_vec());
            StudyOptions { contenders: Some(contenders), ..options }.check()
        };
        check(&[Study::Entropy], &["kernel-vxlan", "bridge"]).unwrap();
        check(&[Study::Entropy, Study::Qinq], &["weft-user-qinq"]).unwrap();
        let names = ["kernel-vxlan", "weft-user-qinq"];
        let error = check(&[Study::Entropy], &names).unwrap_err().to_string();
        let (lost, there) = error.split_once("; the selected ones have ").unwrap();
        assert_eq!(lost, "no selected scenario has the contender weft-user-qinq");
        let there: Vec<_> = there.split(", ").collect();
        assert!(there.contains(&"kernel-vxlan") && !there.contains(&"weft-user-qinq"), "{error}");
    }
}
