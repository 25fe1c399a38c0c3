//! Records the results of a run, and determines the order of its measurements.

use crate::lab::Contender;
use crate::progress::Progress;
use crate::random::shuffle;
use crate::study::model::{Results, Sample, Study};
use crate::study::scenarios::{Cell, Scenario};
use crate::study::verdict::{tables, verdicts};
use crate::{Error, Result};

/// A moment at which results are saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SavePoint {
    /// A sample was added.
    Sample,
    /// A block has ended.
    Block,
}

/// The number of runs that the published rule of agreement compares.
pub(super) const RUNS_THAT_AGREE: usize = 3;

/// Whether the last three runs of every scenario and contender in a study agree. Failed
/// measurements are ignored.
fn agree(results: &Results, study: Study) -> bool {
    let of_study = |sample: &&Sample| sample.study == study.name();
    let blocks = results.samples.iter().filter(of_study).map(|sample| sample.block + 1).max();
    let mut last = results.clone();
    last.samples.retain(|sample| {
        of_study(&sample) && blocks.is_some_and(|blocks| sample.block + RUNS_THAT_AGREE >= blocks)
    });
    tables(&last).iter().flat_map(|table| &table.rows).all(|row| {
        let runs = row.value.map_or(0, |value| value.runs);
        row.failure.is_some() || (runs >= RUNS_THAT_AGREE && row.agrees())
    })
}

/// All visits of a block in random order, with a second visit of each cell's base (A/A check).
fn visits(study: Study, cells: &[Cell], block: usize) -> Vec<BlockVisit<'_>> {
    let mut visits = Vec::new();
    for cell in cells {
        let again = cell.repeated_contender().map(|contender| (contender, true));
        let once = cell.contenders.iter().map(|&contender| (contender, false));
        visits.extend(once.chain(again).map(|(contender, again)| BlockVisit {
            study,
            cell,
            contender,
            block,
            again,
        }));
    }
    shuffle(&mut visits);
    visits
}

/// A visit: one contender in one block of a cell.
#[derive(Clone, Copy)]
pub(super) struct BlockVisit<'a> {
    pub(super) study: Study,
    pub(super) cell: &'a Cell,
    pub(super) contender: Contender,
    pub(super) block: usize,
    again: bool,
}

impl<'a> BlockVisit<'a> {
    pub(super) fn scenarios(&self) -> &'a [Scenario] {
        self.cell.scenarios(self.again)
    }

    pub(super) fn sample(&self, scenario: &Scenario) -> Sample {
        Sample {
            study: self.study.name().to_owned(),
            scenario: scenario.name(),
            shape: self.cell.shape,
            contender: self.contender,
            block: self.block,
            again: self.again,
            figures: None,
            failure: None,
        }
    }
}

/// Measures all scenarios of a visit, and adds a sample for each.
pub(super) type Measure<'m> =
    dyn FnMut(BlockVisit<'_>, &mut ResultsRecorder<'_>) -> Result<()> + 'm;

/// The results so far, which grow with each measurement.
pub(super) struct ResultsRecorder<'a> {
    pub(super) results: Results,
    pub(super) keep: &'a mut dyn FnMut(&Results, SavePoint) -> Result<()>,
    pub(super) progress: &'a Progress,
    /// The largest number of blocks of a study in addition to the planned ones.
    pub(super) repeats: usize,
    /// The error of `keep`. It must not be recorded as a failure of the current contender.
    pub(super) failed: Option<Error>,
}

impl ResultsRecorder<'_> {
    /// Makes all visits of `plan`. Marks the results as complete, unless interrupted.
    pub(super) fn run_all(
        &mut self,
        plan: &[(Study, Vec<Cell>)],
        measure: &mut Measure<'_>,
    ) -> Result<()> {
        for (study, cells) in plan {
            for block in 0..self.results.blocks + self.repeats {
                let visits = visits(*study, cells, block);
                if block >= self.results.blocks {
                    if agree(&self.results, *study) {
                        break;
                    }
                    let scenarios = visits.iter().map(|visit| visit.scenarios().len());
                    self.progress.more(scenarios.sum());
                }
                for visit in visits {
                    match self.visit(visit, measure) {
                        Err(Error::Interrupted) => return Ok(()),
                        other => other?,
                    }
                }
                self.results.verdicts = verdicts(&self.results);
                (self.keep)(&self.results, SavePoint::Block)?;
            }
        }
        self.results.complete = true;
        Ok(())
    }

    /// Makes a visit. When a failure prevents several scenarios, each of them becomes a failed
    /// sample.
    fn visit(&mut self, visit: BlockVisit<'_>, measure: &mut Measure<'_>) -> Result<()> {
        let before = self.results.samples.len();
        let failure = match measure(visit, self) {
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            other => other.err().map(|error| error.to_string()),
        };
        let done = self.results.samples.len() - before;
        let left = visit.scenarios().get(done..).unwrap_or_default();
        if let (Some(failure), []) = (&failure, left) {
            tracing::warn!(contender = %visit.contender, failure, "after its last scenario");
        }
        let failure = failure.unwrap_or_else(|| "it was not measured".to_owned());
        for scenario in left {
            self.add(Sample { failure: Some(failure.clone()), ..visit.sample(scenario) });
        }
        self.failed.take().map_or(Ok(()), Err)
    }

    pub(super) fn add(&mut self, sample: Sample) {
        self.results.samples.push(sample);
        self.results.verdicts.clear();
        self.progress.done();
        if let Err(error) = (self.keep)(&self.results, SavePoint::Sample) {
            self.failed.get_or_insert(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::StudyOptions;
    use super::*;
    use crate::lab::Profile;
    use crate::study::model::{BASE, Figures, empty};
    use crate::traffic::load::{Load, Pattern};

    fn cell() -> Cell {
        let scenario = |size| Scenario::one_pair(Load::new(Pattern::TcpRr, size, 1).unwrap());
        Cell {
            shape: crate::lab::Shape::default(),
            contenders: vec![BASE, Contender::KERNEL_VXLAN],
            scenarios: vec![scenario(1), scenario(2)],
        }
    }

    /// Runs `plan` with two blocks. Returns the save points, the end and the results of the run.
    fn run_with(
        plan: &[(Study, Vec<Cell>)],
        measure: &mut Measure<'_>,
    ) -> (Vec<(usize, SavePoint)>, Result<()>, Results) {
        repeat_with(0, plan, measure)
    }

    /// Like [`run_with`], with at most `repeats` additional blocks.
    fn repeat_with(
        repeats: usize,
        plan: &[(Study, Vec<Cell>)],
        measure: &mut Measure<'_>,
    ) -> (Vec<(usize, SavePoint)>, Result<()>, Results) {
        let mut kept = Vec::new();
        let mut keep = |results: &Results, milestone| {
            kept.push((results.samples.len(), milestone));
            Ok(())
        };
        let progress = Progress::start(0, true);
        let mut record = ResultsRecorder {
            results: empty(2),
            keep: &mut keep,
            progress: &progress,
            repeats,
            failed: None,
        };
        let ended = record.run_all(plan, measure);
        let results = record.results;
        (kept, ended, results)
    }

    #[test]
    fn others_are_measured_when_the_lab_of_one_fails() {
        let plan = [(Study::Qinq, vec![cell()])];
        let (kept, ended, results) = run_with(&plan, &mut |visit, record| {
            if visit.contender != BASE {
                return Err(Error::Other("no such device".into()));
            }
            let scenarios = visit.cell.scenarios.iter();
            scenarios.for_each(|scenario| record.add(visit.sample(scenario)));
            Ok(())
        });
        ended.unwrap();
        assert!(results.complete);
        // Each of the two blocks has the base twice and the other contender once, with two
        // scenarios each.
        let (bad, good): (Vec<_>, Vec<_>) =
            results.samples.iter().partition(|sample| sample.failure.is_some());
        assert_eq!((bad.len(), good.len()), (4, 8));
        assert!(bad.iter().all(|s| s.failure.as_deref() == Some("no such device")));
        assert_eq!(kept.iter().filter(|(_, at)| *at == SavePoint::Block).count(), 2);
        let after_each: Vec<usize> =
            kept.iter().filter(|(_, at)| *at == SavePoint::Sample).map(|(len, _)| *len).collect();
        assert_eq!(after_each, (1..=12).collect::<Vec<_>>());
    }

    #[test]
    fn cells_of_a_study_are_interleaved_when_their_blocks_are_visited() {
        let mut other = cell();
        other.shape.profile = Profile::None;
        let plan = [(Study::Qinq, vec![cell(), other])];
        let mut starts = std::collections::HashSet::new();
        for _ in 0..40 {
            let (_, _, results) = run_with(&plan, &mut |visit, record| {
                let scenarios = visit.cell.scenarios.iter();
                scenarios.for_each(|scenario| record.add(visit.sample(scenario)));
                Ok(())
            });
            // Each block has both cells. In each cell the bridge is measured twice and the other
            // contender once, with two scenarios each.
            let blocks: Vec<usize> = results.samples.iter().map(|sample| sample.block).collect();
            assert_eq!(blocks, [vec![0; 12], vec![1; 12]].concat());
            for profile in [Profile::Full, Profile::None] {
                for again in [false, true] {
                    let is = |s: &&Sample| {
                        (s.shape.profile, s.block, s.contender, s.again)
                            == (profile, 1, BASE, again)
                    };
                    assert_eq!(results.samples.iter().filter(is).count(), 2);
                }
            }
            starts.extend(results.samples.first().map(|s| s.shape.profile));
        }
        assert_eq!(starts.len(), 2, "the order is random");
    }

    #[test]
    fn samples_stay_when_the_run_is_interrupted() {
        let mut visits = 0;
        let (_, ended, results) = run_with(&[(Study::Qinq, vec![cell()])], &mut |visit, record| {
            visits += 1;
            if visits == 2 {
                return Err(Error::Interrupted);
            }
            record.add(visit.sample(&visit.cell.scenarios[0]));
            Err(Error::Other("the second scenario has broken it".into()))
        });
        ended.unwrap();
        assert!(!results.complete);
        let failures: Vec<bool> = results.samples.iter().map(|s| s.failure.is_some()).collect();
        assert_eq!(failures, [false, true]);
    }

    #[test]
    fn study_is_repeated_until_three_runs_agree_and_no_longer_than_allowed() {
        let blocks = |repeats, rate: fn(usize) -> f64| {
            let plan = [(Study::Qinq, vec![cell()])];
            let (_, ended, results) = repeat_with(repeats, &plan, &mut |visit, record| {
                for scenario in &visit.cell.scenarios {
                    let figures = Figures {
                        transactions_per_second: Some(rate(visit.block)),
                        ..Figures::default()
                    };
                    record.add(Sample { figures: Some(figures), ..visit.sample(scenario) });
                }
                Ok(())
            });
            ended.unwrap();
            assert!(results.complete);
            results.samples.last().unwrap().block + 1
        };
        // Two runs were planned, and the rule needs three.
        assert_eq!((blocks(0, |_| 100.0), blocks(9, |_| 100.0)), (2, 3));
        let alternating = |block| 100.0 * (1 + block % 2) as f64;
        assert_eq!((blocks(0, alternating), blocks(4, alternating)), (2, 6));
        let steady_from_third_block = |block: usize| if block < 2 { 50.0 } else { 100.0 };
        assert_eq!(blocks(9, steady_from_third_block), 5);
        assert!(
            StudyOptions { quick: true, ..StudyOptions::new("weft".into(), vec![]) }.repeats() == 0
        );
    }

    #[test]
    fn run_ends_when_results_cannot_be_kept() {
        let mut keep = |_: &Results, _| Err(Error::Other("the disk is full".into()));
        let progress = Progress::start(0, true);
        let mut record = ResultsRecorder {
            results: empty(2),
            keep: &mut keep,
            progress: &progress,
            repeats: 0,
            failed: None,
        };
        let ended = record.run_all(&[(Study::Qinq, vec![cell()])], &mut |visit, record| {
            record.add(visit.sample(&visit.cell.scenarios[0]));
            Ok(())
        });
        assert_eq!(ended.unwrap_err().to_string(), "the disk is full");
    }
}
