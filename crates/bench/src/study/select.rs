//! Picks series of runs out of results, and takes ratios of them within blocks.

use std::collections::BTreeMap;

use super::catalogue::Study;
use super::markdown::noise;
use super::results::{Figures, Results, Sample};
use super::summary::{Table, tables};
use crate::lab::{Contender, Profile, Shape};
use crate::measure::ratio;
use crate::stats::Estimate;

/// What verdicts are made of.
pub(super) struct Evidence<'a> {
    pub(super) results: &'a Results,
    pub(super) tables: Vec<Table>,
}

impl<'a> Evidence<'a> {
    pub(super) fn of(results: &'a Results) -> Self {
        Self { results, tables: tables(results) }
    }

    /// The tables of `study`.
    pub(super) fn of_study(&self, study: Study) -> impl Iterator<Item = &Table> {
        self.tables.iter().filter(move |table| table.study == study.name())
    }

    /// The contenders with this tunnel, or all of weft when it is none in particular.
    pub(super) fn subjects(&self, tunnel: &str) -> Vec<Contender> {
        let measured = |c: &Contender| self.results.samples.iter().any(|s| s.contender == *c);
        let is = |c: &Contender| match tunnel {
            "" => c.is_weft(),
            tunnel => c.id().ends_with(&format!("-{tunnel}")),
        };
        Contender::all().into_iter().filter(|c| is(c) && measured(c)).collect()
    }
}

/// The runs of one contender in one scenario of a study, on one underlay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pick<'a> {
    study: Study,
    contender: Contender,
    scenario: &'a str,
    profile: Option<Profile>,
    guest_mtu: Option<u16>,
    checksum: Option<bool>,
}

/// A ratio of two series.
pub(super) struct Ratio {
    pub(super) estimate: Estimate,
    /// Why it says nothing, where the machine did not hold still for both.
    pub(super) unsteady: Option<String>,
}

impl<'p> Pick<'p> {
    pub(super) const fn new(study: Study, contender: Contender, scenario: &'p str) -> Self {
        let (profile, guest_mtu, checksum) = (None, None, None);
        Self { study, contender, scenario, profile, guest_mtu, checksum }
    }

    pub(super) const fn profile(self, profile: Profile) -> Self {
        Self { profile: Some(profile), ..self }
    }

    pub(super) const fn guest_mtu(self, bytes: u16) -> Self {
        Self { guest_mtu: Some(bytes), ..self }
    }

    pub(super) const fn checksum(self, sent: bool) -> Self {
        Self { checksum: Some(sent), ..self }
    }

    pub(super) const fn scenario(self, name: &'p str) -> Self {
        Self { scenario: name, ..self }
    }

    fn takes(&self, shape: &Shape) -> bool {
        self.profile.is_none_or(|profile| shape.profile == profile)
            && self.guest_mtu.is_none_or(|mtu| shape.guest_mtu == Some(mtu))
            && self.checksum.is_none_or(|checksum| shape.outer_checksum == Some(checksum))
    }

    /// `of` by block, and the table that these runs are in.
    fn series<'e>(
        &self,
        evidence: &'e Evidence<'_>,
        of: impl Fn(&Figures) -> Option<f64>,
    ) -> Option<(BTreeMap<usize, f64>, &'e Table)> {
        let mut tables = evidence.of_study(self.study);
        let table = tables.find(|t| t.scenario == self.scenario && self.takes(&t.shape))?;
        let mine = |s: &&Sample| s.contender == self.contender && !s.again && table.has(s);
        let value = |s: &Sample| Some((s.block, of(s.figures.as_ref()?)?));
        Some((evidence.results.samples.iter().filter(mine).filter_map(value).collect(), table))
    }

    /// The ratios of these to those, of the same block.
    pub(super) fn over(
        &self,
        base: &Pick<'_>,
        evidence: &Evidence<'_>,
        of: impl Fn(&Figures) -> Option<f64>,
    ) -> Option<Ratio> {
        let (mine, here) = self.series(evidence, &of)?;
        let (theirs, there) = base.series(evidence, &of)?;
        let ratios: Vec<f64> =
            mine.iter().filter_map(|(block, value)| ratio(*value, *theirs.get(block)?)).collect();
        let unsteady = [here, there].into_iter().find(|table| !table.converged()).map(noise);
        Some(Ratio { estimate: Estimate::of(&ratios)?, unsteady })
    }
}

/// What the study `entropy` has seen, a line for each contender.
pub(super) fn spread(results: &Results) -> Vec<String> {
    let entropy = |sample: &&Sample| sample.study == Study::Entropy.name() && !sample.again;
    let mut lines: Vec<String> = results
        .samples
        .iter()
        .filter(entropy)
        .filter_map(|sample| {
            let more = &sample.figures.as_ref()?.more;
            let (paths, busiest) = (more.get("outer_flows")?, more.get("busiest_queue_share")?);
            Some(format!(
                "{}: {} flows are {paths} on the wire; of 8 queues the busiest has {:.0} %",
                sample.contender,
                more.get("inner_flows")?,
                busiest * 100.0
            ))
        })
        .collect();
    lines.sort();
    lines.dedup();
    lines
}
