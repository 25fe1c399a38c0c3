//! Runs the studies. A block visits every contender of every cell of its study once, in random
//! order, and the base of each cell twice. So all measurements that a claim compares belong to one
//! block.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::options::{StudyOptions, remove_unavailable};
use super::plan::RunPlan;
use super::record::{BlockVisit, RUNS_THAT_AGREE, ResultsRecorder, SavePoint};
use crate::environment::Environment;
use crate::lab::{Attachment, Lab, Session};
use crate::progress::{Progress, duration};
use crate::study::model::{Results, SCHEMA, Sample, Study};
use crate::study::scenarios::{Cell, Scenario};
use crate::study::verdict::{AGREEMENT, verdicts};
use crate::traffic::ping::first_ping;
use crate::{Error, Result, Stop};

/// How long to wait for another session on this machine.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs the studies. Interrupted results are returned as incomplete. `keep` is called with the
/// results after every sample and every block, so that a crash loses one sample at most.
///
/// # Errors
/// [`Error::Missing`] when a privilege is missing or another session is running, the error of
/// [`StudyOptions::check`], or that of `keep`. A failed scenario or lab is not an error but a
/// sample with a failure.
pub fn run(
    options: &StudyOptions,
    stop: &Stop,
    keep: &mut dyn FnMut(&Results, SavePoint) -> Result<()>,
) -> Result<Results> {
    options.check()?;
    let session = Session::open(PATIENCE, stop)?;
    let mut plan: Vec<(Study, Vec<Cell>)> = Vec::new();
    for &study in &options.studies {
        plan.push((study, options.cells(study)?));
    }
    let left_out = remove_unavailable(&mut plan, options);
    let outline = RunPlan::of(&plan, options.blocks(), options.timing());
    if !options.quiet {
        eprintln!("{outline}");
        if options.repeats() > 0 {
            eprintln!(
                "a study is repeated up to {} times while the last {RUNS_THAT_AGREE} runs of a \
                 measurement have a standard deviation above {:.0} % of their mean: up to {} in \
                 total",
                options.repeats(),
                AGREEMENT * 100.0,
                duration(outline.with_repeats(options.repeats()))
            );
        }
    }
    let results = Results {
        schema: SCHEMA,
        environment: Environment::read(options.commit.clone()),
        quick: options.quick,
        seconds: options.timing().measured.as_secs_f64(),
        blocks: options.blocks(),
        studies: options.studies.iter().map(|study| study.name().to_owned()).collect(),
        complete: false,
        offloads: BTreeMap::new(),
        left_out,
        verdicts: Vec::new(),
        samples: Vec::new(),
    };
    let progress = Progress::start(outline.measurements(), options.quiet);
    let begin = Instant::now();
    let runner = Runner { session: &session, options, progress: &progress };
    let repeats = options.repeats();
    let mut record = ResultsRecorder { results, keep, progress: &progress, repeats, failed: None };
    record.run_all(&plan, &mut |visit, record| runner.visit(visit, record))?;
    if !options.quiet {
        eprintln!("measured in {}", duration(begin.elapsed()));
    }
    let mut results = record.results;
    results.verdicts = verdicts(&results);
    Ok(results)
}

struct Runner<'a> {
    session: &'a Session,
    options: &'a StudyOptions,
    progress: &'a Progress,
}

impl Runner<'_> {
    /// Measures all scenarios of a cell with one contender.
    fn visit(&self, visit: BlockVisit<'_>, record: &mut ResultsRecorder<'_>) -> Result<()> {
        let BlockVisit { study, cell, contender, block, .. } = visit;
        let (profile, blocks) = (cell.shape.profile, record.results.blocks);
        // Studies whose runs do not agree get additional blocks.
        let block = match (block + 1).checked_sub(blocks).filter(|more| *more > 0) {
            None => format!("block {} of {blocks}", block + 1),
            Some(more) => format!("more block {more}, after {blocks}"),
        };
        let what = format!("{study} · {profile} · {block} · {contender}");
        self.progress.trial(&what);
        self.progress.step(&what);
        if visit.scenarios().iter().any(Scenario::joins_guests) {
            return self.alone(visit, record);
        }
        let begin = Instant::now();
        let lab = self.lab(visit, record)?;
        let mut attachment = contender.attach(&lab, &self.options.weft)?;
        self.wait_until_joined(&lab, &mut attachment)?;
        tracing::debug!(took = ?begin.elapsed(), "guests joined");
        for scenario in visit.scenarios() {
            let begin = Instant::now();
            let sample = visit.sample(scenario);
            match scenario.run(&lab, &mut attachment, self.options.timing()) {
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(error) => {
                    // If a process has ended, this fails all remaining scenarios of the visit.
                    attachment.check_running()?;
                    record.add(Sample { failure: Some(error.to_string()), ..sample });
                }
                Ok(figures) => record.add(Sample { figures: Some(figures), ..sample }),
            }
            tracing::debug!(took = ?begin.elapsed(), scenario = scenario.name(), "measured");
        }
        attachment.stop()
    }

    /// Measures scenarios that each need a separate lab.
    fn alone(&self, visit: BlockVisit<'_>, record: &mut ResultsRecorder<'_>) -> Result<()> {
        for scenario in visit.scenarios() {
            let measured = self.lab(visit, record).and_then(|lab| {
                scenario.run_alone(
                    &lab,
                    (visit.contender, &self.options.weft),
                    self.options.timing(),
                )
            });
            let sample = visit.sample(scenario);
            match measured {
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(error) => record.add(Sample { failure: Some(error.to_string()), ..sample }),
                Ok(figures) => record.add(Sample { figures: Some(figures), ..sample }),
            }
        }
        Ok(())
    }

    fn lab(&self, visit: BlockVisit<'_>, record: &mut ResultsRecorder<'_>) -> Result<Lab<'_>> {
        let shape = visit.cell.shape;
        let lab = Lab::build_as(self.session, shape)?;
        record.results.offloads.insert(shape.profile.to_string(), lab.offloads().clone());
        Ok(lab)
    }

    fn wait_until_joined(&self, lab: &Lab<'_>, attachment: &mut Attachment) -> Result<()> {
        for number in 0..lab.shape().guests_per_host {
            let (from, to) = (lab.guest(0, number), lab.guest(1, number));
            first_ping(from, to, attachment, lab.stop())?;
        }
        Ok(())
    }
}
