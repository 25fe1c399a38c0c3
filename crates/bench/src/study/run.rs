//! Runs studies: blocks in random order, each contender built up once for all scenarios of a cell.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::catalogue::Study;
use super::outline::{Outline, minutes};
use super::results::{LeftOut, Results, SCHEMA, Sample};
use super::scenario::{Cell, Scenario, Timing};
use super::summary::BASE;
use crate::demo::{first_ping, shuffle};
use crate::environment::Environment;
use crate::lab::{Attachment, Contender, Family, Lab, Profile, Session};
use crate::progress::Progress;
use crate::{Error, Result, Stop};

/// How long another study on the machine is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// What to run, and how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program that is run as `weft run`.
    pub weft: PathBuf,
    /// The studies, in order.
    pub studies: Vec<Study>,
    /// Two short runs of each in place of five long ones.
    pub quick: bool,
    /// Repetitions, where not the usual number.
    pub blocks: Option<usize>,
    /// Seconds of each measurement, where not the usual number.
    pub seconds: Option<f64>,
    /// Only these contenders, and the base.
    pub contenders: Option<Vec<Contender>>,
    /// Only scenarios of which the name has this in it.
    pub scenario: Option<String>,
    /// Only cells with this profile.
    pub profile: Option<Profile>,
    /// Only cells with this underlay MTU, in bytes; where there is none, all with this one.
    pub mtu: Option<u16>,
    /// The protocol of the underlay.
    pub family: Family,
    /// No progress on standard error.
    pub quiet: bool,
    /// The commit that this program was built from.
    pub commit: Option<String>,
}

impl Options {
    /// The usual run of `studies`.
    pub fn new(weft: PathBuf, studies: Vec<Study>) -> Self {
        Self {
            weft,
            studies,
            quick: false,
            blocks: None,
            seconds: None,
            contenders: None,
            scenario: None,
            profile: None,
            mtu: None,
            family: Family::V4,
            quiet: false,
            commit: None,
        }
    }

    fn blocks(&self) -> usize {
        self.blocks.unwrap_or(if self.quick { 2 } else { 5 }).max(1)
    }

    fn timing(&self) -> Timing {
        let (warm_up, measured) = if self.quick { (0.12, 0.25) } else { (0.5, 2.0) };
        let measured = self.seconds.unwrap_or(measured);
        Timing {
            warm_up: Duration::from_secs_f64(warm_up),
            measured: Duration::from_secs_f64(measured),
        }
    }

    /// The cells of `study` that are asked for.
    fn cells(&self, study: Study) -> Result<Vec<Cell>> {
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
            cell.contenders.retain(|contender| self.wants(*contender));
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

    fn wants(&self, contender: Contender) -> bool {
        let wanted = self.contenders.as_ref().is_none_or(|wanted| wanted.contains(&contender));
        wanted || contender == BASE
    }
}

/// Runs the studies. What was measured before Ctrl-C is returned as incomplete results.
///
/// # Errors
/// [`Error::Missing`] when a privilege is missing or another study is running; no scenario is left by the options; the lab
/// cannot be built. That a scenario fails is no error: it is a row of the results.
pub fn run(options: &Options, stop: &Stop) -> Result<Results> {
    let session = Session::open(PATIENCE, stop)?;
    let mut plan = Vec::new();
    for &study in &options.studies {
        plan.extend(options.cells(study)?.into_iter().map(|cell| (study, cell)));
    }
    if plan.is_empty() {
        return Err(Error::Traffic("no study has such a scenario, profile or MTU".into()));
    }
    let left_out = leave_out(&mut plan, options);
    let outline = Outline::of(&plan, options.blocks(), options.timing());
    if !options.quiet {
        eprintln!("{outline}");
    }
    let mut results = Results {
        schema: SCHEMA,
        environment: Environment::read(options.commit.clone()),
        quick: options.quick,
        seconds: options.timing().measured.as_secs_f64(),
        blocks: options.blocks(),
        studies: options.studies.iter().map(|study| study.name().to_owned()).collect(),
        complete: false,
        offloads: BTreeMap::new(),
        left_out,
        samples: Vec::new(),
    };
    let progress = Progress::start(outline.measurements(), options.quiet);
    let begin = Instant::now();
    let runner = Runner { session: &session, options, progress: &progress };
    match runner.run_all(&plan, &mut results) {
        Ok(()) => results.complete = true,
        Err(Error::Interrupted) => {}
        Err(error) => return Err(error),
    }
    drop(progress);
    if !options.quiet {
        eprintln!("measured in {}", minutes(begin.elapsed()));
    }
    Ok(results)
}

/// Takes out of `plan` who cannot take part.
fn leave_out(plan: &mut [(Study, Cell)], options: &Options) -> Vec<LeftOut> {
    let mut known: Vec<(Contender, Option<String>)> = Vec::new();
    for (_, cell) in plan {
        cell.contenders.retain(|&contender| {
            if let Some((_, why)) = known.iter().find(|(other, _)| *other == contender) {
                return why.is_none();
            }
            let why = contender.unavailable(&options.weft);
            known.push((contender, why.clone()));
            why.is_none()
        });
    }
    let left_out =
        |(contender, why): (Contender, Option<String>)| why.map(|why| LeftOut { contender, why });
    known.into_iter().filter_map(left_out).collect()
}

struct Runner<'a> {
    session: &'a Session,
    options: &'a Options,
    progress: &'a Progress,
}

/// One contender in one block of a cell.
#[derive(Clone, Copy)]
struct Visit<'a> {
    study: Study,
    cell: &'a Cell,
    contender: Contender,
    block: usize,
    again: bool,
}

impl Runner<'_> {
    fn run_all(&self, plan: &[(Study, Cell)], results: &mut Results) -> Result<()> {
        for (study, cell) in plan {
            for block in 0..results.blocks {
                let mut order: Vec<_> = cell.contenders.iter().map(|&c| (c, false)).collect();
                if cell.contenders.contains(&BASE) {
                    order.push((BASE, true));
                }
                shuffle(&mut order);
                for (contender, again) in order {
                    let study = *study;
                    self.visit(Visit { study, cell, contender, block, again }, results)?;
                }
            }
        }
        Ok(())
    }

    /// All scenarios of the cell with one contender. What fails becomes rows that say so.
    fn visit(&self, visit: Visit<'_>, results: &mut Results) -> Result<()> {
        let Visit { study, cell, contender, block, .. } = visit;
        let (profile, blocks) = (cell.shape.profile, results.blocks);
        let what = format!("{study} · {profile} · block {} of {blocks} · {contender}", block + 1);
        self.progress.trial(&what);
        self.progress.step(&what);
        if cell.scenarios.iter().any(Scenario::joins_guests) {
            return self.alone(visit, results);
        }
        let begin = Instant::now();
        let lab = Lab::build_as(self.session, cell.shape)?;
        note_offloads(&lab, results);
        tracing::debug!(took = ?begin.elapsed(), "lab built");
        let mut done = 0;
        let attempt = self.attempt(&lab, visit, &mut done, results);
        let begin = Instant::now();
        drop(lab);
        tracing::debug!(took = ?begin.elapsed(), "lab removed");
        let failure = match attempt {
            Ok(()) => return Ok(()),
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(error) => error.to_string(),
        };
        for scenario in cell.scenarios.get(done..).unwrap_or_default() {
            let failure = Some(failure.clone());
            results.samples.push(Sample { failure, ..visit.sample(scenario) });
            self.progress.done();
        }
        Ok(())
    }

    /// Scenarios that need a lab each.
    fn alone(&self, visit: Visit<'_>, results: &mut Results) -> Result<()> {
        for scenario in &visit.cell.scenarios {
            let lab = Lab::build_as(self.session, visit.cell.shape)?;
            note_offloads(&lab, results);
            let mut sample = visit.sample(scenario);
            match scenario.run_alone(&lab, &self.options.weft, self.options.timing()) {
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(error) => sample.failure = Some(error.to_string()),
                Ok(figures) => sample.figures = Some(figures),
            }
            results.samples.push(sample);
            self.progress.done();
        }
        Ok(())
    }

    fn attempt(
        &self,
        lab: &Lab<'_>,
        visit: Visit<'_>,
        done: &mut usize,
        results: &mut Results,
    ) -> Result<()> {
        let begin = Instant::now();
        let mut attachment = visit.contender.attach(lab, &self.options.weft)?;
        self.wait_until_joined(lab, &mut attachment)?;
        tracing::debug!(took = ?begin.elapsed(), "guests joined");
        for scenario in &visit.cell.scenarios {
            let begin = Instant::now();
            let run = scenario.run(lab, &mut attachment, self.options.timing());
            let mut sample = visit.sample(scenario);
            match run {
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(error) => {
                    // A process that has ended fails all scenarios that are left.
                    attachment.check()?;
                    sample.failure = Some(error.to_string());
                }
                Ok(figures) => sample.figures = Some(figures),
            }
            results.samples.push(sample);
            *done += 1;
            self.progress.done();
            tracing::debug!(took = ?begin.elapsed(), scenario = scenario.name(), "measured");
        }
        let begin = Instant::now();
        let stopped = attachment.stop();
        tracing::debug!(took = ?begin.elapsed(), "contender ended");
        stopped
    }

    fn wait_until_joined(&self, lab: &Lab<'_>, attachment: &mut Attachment) -> Result<()> {
        for number in 0..lab.shape().guests_per_host {
            let (from, to) = (lab.guest(0, number), lab.guest(1, number));
            first_ping(from, to, attachment, lab.stop())?;
        }
        Ok(())
    }
}

/// What the kernel says of the underlay.
fn note_offloads(lab: &Lab<'_>, results: &mut Results) {
    let profile = lab.shape().profile.to_string();
    results.offloads.entry(profile).or_insert_with(|| lab.offloads().clone());
}

impl Visit<'_> {
    fn sample(&self, scenario: &Scenario) -> Sample {
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
