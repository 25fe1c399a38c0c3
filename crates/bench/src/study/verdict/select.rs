//! Series of samples, and ratios of two series within blocks.

use std::collections::BTreeMap;

use super::evidence::{Evidence, means, ratios};
use super::noise::{self, Figure, Statistic};
use super::tables::Table;
use crate::lab::{Contender, Profile, Shape};
use crate::stats::{Estimate, ratio, relative_deviation};
use crate::study::model::{Figures, INTERLEAVED, Sample, Study};

/// A selection of samples: one contender in one scenario of a study on one underlay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleSelector<'a> {
    study: Study,
    contender: Contender,
    scenario: &'a str,
    profile: Option<Profile>,
    guest_mtu: Option<u16>,
    checksum: Option<bool>,
    steering: Option<bool>,
    one_source_port: bool,
}

/// A ratio of two series.
pub(crate) struct Ratio {
    pub(crate) estimate: Estimate,
    /// The factor, 1 or more, by which noise may have changed the ratio, or why it is unknown.
    pub(crate) noise: Result<f64, String>,
}

impl Ratio {
    /// The interval including the noise, and the noise factor; or why the noise is unknown.
    pub(crate) fn widened(&self) -> Result<(f64, f64, f64), &str> {
        let Self { estimate: Estimate { low, high, .. }, noise } = self;
        let widened = |factor: &f64| (low / factor, high * factor, *factor);
        noise.as_ref().map(widened).map_err(String::as_str)
    }
}

impl<'p> SampleSelector<'p> {
    pub(crate) const fn new(study: Study, contender: Contender, scenario: &'p str) -> Self {
        let (profile, guest_mtu, checksum, steering) = (None, None, None, None);
        let one_source_port = false;
        Self { study, contender, scenario, profile, guest_mtu, checksum, steering, one_source_port }
    }

    pub(crate) const fn profile(self, profile: Profile) -> Self {
        Self { profile: Some(profile), ..self }
    }

    pub(crate) const fn guest_mtu(self, bytes: u16) -> Self {
        Self { guest_mtu: Some(bytes), ..self }
    }

    pub(crate) const fn checksum(self, sent: bool) -> Self {
        Self { checksum: Some(sent), ..self }
    }

    pub(crate) const fn steering(self, on: bool) -> Self {
        Self { steering: Some(on), ..self }
    }

    pub(crate) const fn one_source_port(self) -> Self {
        Self { one_source_port: true, ..self }
    }

    pub(crate) const fn scenario(self, name: &'p str) -> Self {
        Self { scenario: name, ..self }
    }

    fn takes(&self, shape: &Shape) -> bool {
        self.profile.is_none_or(|profile| shape.profile == profile)
            && self.guest_mtu.is_none_or(|mtu| shape.guest_mtu == Some(mtu))
            && self.checksum.is_none_or(|checksum| shape.outer_checksum == Some(checksum))
            && self.steering.is_none_or(|steering| shape.steering == steering)
            && shape.one_source_port == self.one_source_port
    }

    /// One figure of each block, extracted by `of`, and the table of these samples.
    fn series<'e>(
        &self,
        evidence: &'e Evidence<'_>,
        of: Figure<'_>,
    ) -> Option<(BTreeMap<usize, f64>, &'e Table)> {
        let table = self.table(evidence)?;
        let value = |s: &Sample| Some((s.block, of(s.figures.as_ref()?)?));
        let samples = evidence.results.samples.iter().filter(|s| self.is_of(s, table));
        Some((samples.filter_map(value).collect(), table))
    }

    fn table<'e>(&self, evidence: &'e Evidence<'_>) -> Option<&'e Table> {
        let mut tables = evidence.of_study(self.study);
        tables.find(|t| t.scenario == self.scenario && self.takes(&t.shape))
    }

    fn is_of(&self, sample: &Sample, table: &Table) -> bool {
        sample.contender == self.contender && !sample.again && table.has(sample)
    }

    /// The smallest figure of all runs, extracted by `of`.
    pub(crate) fn least(
        &self,
        evidence: &Evidence<'_>,
        of: impl Fn(&Figures) -> Option<f64>,
    ) -> Option<f64> {
        let (runs, _) = self.series(evidence, &of)?;
        runs.into_values().reduce(f64::min)
    }

    /// The number of failed runs.
    pub(crate) fn failed(&self, evidence: &Evidence<'_>) -> usize {
        let Some(table) = self.table(evidence) else { return 0 };
        let samples = evidence.results.samples.iter();
        samples.filter(|s| self.is_of(s, table) && s.figures.is_none()).count()
    }

    /// The ratio of this series to `base`, within blocks.
    pub(crate) fn over(
        &self,
        base: &SampleSelector<'_>,
        evidence: &Evidence<'_>,
        of: impl Fn(&Figures) -> Option<f64>,
    ) -> Option<Ratio> {
        self.compare(base, evidence, &of, ratios)
    }

    /// The relative standard deviation of this series, divided by that of `base`. Needs three
    /// blocks.
    pub(crate) fn scatter_over(
        &self,
        base: &SampleSelector<'_>,
        evidence: &Evidence<'_>,
        of: impl Fn(&Figures) -> Option<f64>,
    ) -> Option<Ratio> {
        self.compare(base, evidence, &of, scatters)
    }

    /// Compares two series within blocks, and the A/A runs of the same tables, which show the
    /// noise.
    fn compare(
        &self,
        base: &SampleSelector<'_>,
        evidence: &Evidence<'_>,
        of: Figure<'_>,
        what: Statistic,
    ) -> Option<Ratio> {
        let (mine, here) = self.series(evidence, of)?;
        let (theirs, there) = base.series(evidence, of)?;
        let both = |(block, value): (&usize, &f64)| Some((*value, *theirs.get(block)?));
        let estimate = what(&mine.iter().filter_map(both).collect::<Vec<_>>())?;
        let noise = if here.shape != there.shape && evidence.results.schema < INTERLEAVED {
            Err("the two were not measured in the same blocks".to_owned())
        } else {
            noise::twice(evidence, self.study, &[here, there], estimate.runs, of, what)
                .map(|twice| noise::factor(&twice))
        };
        Some(Ratio { estimate, noise })
    }
}

/// The geometric mean of several comparisons within each block, like the averages of the published
/// study. The noise is that of the same mean, if there are enough runs.
pub(crate) fn mean_over(
    comparisons: &[(SampleSelector<'_>, SampleSelector<'_>)],
    evidence: &Evidence<'_>,
    of: impl Fn(&Figures) -> Option<f64>,
) -> Option<Ratio> {
    let (mut mine, mut tables) = (Vec::new(), Vec::new());
    for (these, those) in comparisons {
        let ((these, here), (those, there)) =
            (these.series(evidence, &of)?, those.series(evidence, &of)?);
        if here.shape != there.shape {
            return None;
        }
        let over =
            |(block, value): (&usize, &f64)| Some((*block, ratio(*value, *those.get(block)?)?));
        mine.push(these.iter().filter_map(over).collect());
        tables.push(here);
    }
    let study = comparisons.first()?.0.study;
    let estimate = Estimate::of(&means(&mine))?;
    let noise = noise::of_means(evidence, study, &tables, estimate.runs, &of);
    Some(Ratio { estimate, noise })
}

/// The relative standard deviation of the first elements, divided by that of the second elements.
fn scatters(pairs: &[(f64, f64)]) -> Option<Estimate> {
    if pairs.len() < 3 {
        return None;
    }
    let (mine, theirs): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    Estimate::bootstrap(pairs.len(), |drawn| {
        let of = |values: &[f64]| {
            let drawn = drawn.iter().filter_map(|&run| values.get(run).copied());
            relative_deviation(&drawn.collect::<Vec<_>>())
        };
        ratio(of(&mine)?, of(&theirs)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::model::{Results, empty};

    /// Three blocks: a tunnel without offload, and a steady bridge with offload.
    fn results(schema: u32) -> Results {
        let mut results = empty(3);
        results.schema = schema;
        for block in 0..3 {
            for (contender, profile, again, gbps) in [
                (Contender::LinuxBridge, Profile::Full, false, 10.0),
                (Contender::LinuxBridge, Profile::Full, true, 10.1),
                (Contender::LinuxBridge, Profile::None, false, 8.0),
                (Contender::LinuxBridge, Profile::None, true, 8.0),
                (Contender::KERNEL_VXLAN, Profile::None, false, 4.0),
            ] {
                // The machine gets slower. Ratios within a block are not affected.
                let gbps = Some(gbps / f64::from(1_u32 << block));
                results.samples.push(Sample {
                    study: Study::JumboFrames.name().to_owned(),
                    scenario: "s".to_owned(),
                    shape: Shape { profile, ..Shape::default() },
                    contender,
                    block,
                    again,
                    figures: Some(Figures { gbps, ..Figures::default() }),
                    failure: None,
                });
            }
        }
        results
    }

    fn across(results: &Results) -> Ratio {
        let pick = |contender, profile| {
            SampleSelector::new(Study::JumboFrames, contender, "s").profile(profile)
        };
        let tunnel = pick(Contender::KERNEL_VXLAN, Profile::None);
        let bridge = pick(Contender::LinuxBridge, Profile::Full);
        tunnel.over(&bridge, &Evidence::of(results), |f| f.gbps).unwrap()
    }

    #[test]
    fn ratio_of_two_underlays_is_that_of_the_same_block() {
        let Ratio { estimate, noise } = across(&results(2));
        assert_eq!((estimate.low, estimate.high, estimate.runs), (0.4, 0.4, 3));
        assert!((noise.unwrap() - 1.01).abs() < 1e-9);
    }

    #[test]
    fn ratio_of_two_underlays_says_nothing_when_they_were_measured_one_after_the_other() {
        let why = across(&results(1)).noise.unwrap_err();
        assert!(why.contains("not measured in the same blocks"), "{why}");
    }

    /// `results` with the second runs of the base at `profile` multiplied by `times`.
    fn with_scaled_repeats(mut results: Results, profile: Profile, times: f64) -> Results {
        let again = |s: &&mut Sample| s.again && s.shape.profile == profile;
        for sample in results.samples.iter_mut().filter(again) {
            let gbps = &mut sample.figures.as_mut().unwrap().gbps;
            *gbps = gbps.map(|value| value * times);
        }
        results
    }

    #[test]
    fn interval_is_widened_both_ways_by_what_either_base_differs_from_itself() {
        for profile in [Profile::Full, Profile::None] {
            for times in [2.0, 0.5] {
                let (low, high, _) =
                    across(&with_scaled_repeats(results(2), profile, times)).widened().unwrap();
                let near = |value: f64, goal: f64| (value / goal - 1.0).abs() < 0.02;
                assert!(near(low, 0.2) && near(high, 0.8), "{profile}, {times}: {low} to {high}");
            }
        }
    }

    #[test]
    fn outermost_run_counts_when_those_of_the_base_cancel_out() {
        let mut results = results(2);
        for (block, times) in [(0, 0.8), (2, 1.25)] {
            let mine = |s: &&mut Sample| s.again && s.block == block;
            for sample in results.samples.iter_mut().filter(mine) {
                let figures = sample.figures.as_mut().unwrap();
                figures.gbps = figures.gbps.map(|value| value * times);
            }
        }
        assert!((across(&results).noise.unwrap() - 1.2625).abs() < 1e-9);
    }

    #[test]
    fn noise_of_other_scenarios_counts_when_runs_are_few() {
        let with_another = |blocks: usize| {
            let mut results = empty(blocks);
            for block in 0..blocks {
                for (scenario, contender, again, gbps) in [
                    ("s", Contender::LinuxBridge, false, 1.0),
                    ("s", Contender::LinuxBridge, true, 1.0),
                    ("s", Contender::KERNEL_VXLAN, false, 0.5),
                    ("other", Contender::LinuxBridge, false, 1.0),
                    ("other", Contender::LinuxBridge, true, 1.5),
                ] {
                    results.samples.push(Sample {
                        study: Study::JumboFrames.name().to_owned(),
                        scenario: scenario.to_owned(),
                        shape: Shape::default(),
                        contender,
                        block,
                        again,
                        figures: Some(Figures { gbps: Some(gbps), ..Figures::default() }),
                        failure: None,
                    });
                }
            }
            let pick = |contender| SampleSelector::new(Study::JumboFrames, contender, "s");
            let (tunnel, bridge) = (pick(Contender::KERNEL_VXLAN), pick(Contender::LinuxBridge));
            tunnel.over(&bridge, &Evidence::of(&results), |f| f.gbps).unwrap().noise
        };
        assert_eq!(with_another(1), Err("one run is not conclusive".to_owned()));
        assert_eq!(with_another(2), Ok(1.5));
        assert_eq!(with_another(4), Ok(1.5));
        assert_eq!(with_another(5), Ok(1.0));
    }

    #[test]
    fn noise_is_unknown_without_a_second_run() {
        let mut results = results(2);
        results.samples.retain(|sample| !sample.again);
        let why = across(&results).noise.unwrap_err();
        assert!(why.contains("without A/A runs"), "{why}");
    }
}
