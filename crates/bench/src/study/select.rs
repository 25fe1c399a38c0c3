//! Picks samples out of results, and takes ratios of them within blocks.

use std::collections::BTreeMap;

use super::catalogue::Study;
use super::results::{Figures, Results, Sample};
use crate::lab::{Contender, Profile};
use crate::measure::ratio;
use crate::stats::Estimate;

/// Samples of one contender in one study, and of those only some.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pick {
    study: Study,
    contender: Contender,
    profile: Option<Profile>,
    guest_mtu: Option<u16>,
    checksum: Option<bool>,
    scenario: Option<&'static str>,
}

impl Pick {
    pub(super) const fn new(study: Study, contender: Contender) -> Self {
        let (profile, guest_mtu, checksum, scenario) = (None, None, None, None);
        Self { study, contender, profile, guest_mtu, checksum, scenario }
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

    pub(super) const fn scenario(self, name: &'static str) -> Self {
        Self { scenario: Some(name), ..self }
    }

    fn takes(&self, sample: &Sample) -> bool {
        let shape = &sample.shape;
        sample.study == self.study.name()
            && sample.contender == self.contender
            && !sample.again
            && self.profile.is_none_or(|profile| shape.profile == profile)
            && self.guest_mtu.is_none_or(|mtu| shape.guest_mtu == Some(mtu))
            && self.checksum.is_none_or(|checksum| shape.outer_checksum == Some(checksum))
            && self.scenario.is_none_or(|name| sample.scenario == name)
    }

    /// `of` by block and scenario, and the profile where that is not given.
    fn values<'a>(
        &self,
        results: &'a Results,
        of: impl Fn(&Figures) -> Option<f64>,
    ) -> BTreeMap<(usize, &'a str, String), f64> {
        let value = |sample: &'a Sample| {
            let profile = match self.profile {
                Some(_) => String::new(),
                None => sample.shape.profile.to_string(),
            };
            // One that was picked by its name is compared with one of another name.
            let scenario = if self.scenario.is_some() { "" } else { sample.scenario.as_str() };
            Some(((sample.block, scenario, profile), of(sample.figures.as_ref()?)?))
        };
        results.samples.iter().filter(|sample| self.takes(sample)).filter_map(value).collect()
    }

    /// The ratios of these to those, of the same block and scenario.
    pub(super) fn over(
        &self,
        base: &Self,
        results: &Results,
        of: impl Fn(&Figures) -> Option<f64>,
    ) -> Option<Estimate> {
        let base = base.values(results, &of);
        let mine = self.values(results, &of);
        let ratios: Vec<f64> =
            mine.iter().filter_map(|(key, value)| ratio(*value, *base.get(key)?)).collect();
        Estimate::of(&ratios)
    }
}

/// The contenders of `results` with this tunnel, or all of weft when it is none in particular.
pub(super) fn subjects(results: &Results, tunnel: &str) -> Vec<Contender> {
    let measured = |c: &Contender| results.samples.iter().any(|sample| sample.contender == *c);
    let is = |c: &Contender| match tunnel {
        "" => c.is_weft(),
        tunnel => c.id().ends_with(&format!("-{tunnel}")),
    };
    Contender::all().into_iter().filter(|c| is(c) && measured(c)).collect()
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
