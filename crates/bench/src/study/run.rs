//! Runs studies. A block visits every contender of every cell of its study once, in random order, and the base of each cell
//! twice: so whatever a claim compares, on one underlay or on two, was measured in the same block.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::catalogue::Study;
use super::claims::verdicts;
use super::outline::Outline;
use super::results::{LeftOut, Results, SCHEMA, Sample};
use super::scenario::{Cell, Scenario, Timing};
use super::summary::{AGREEMENT, BASE, tables};
use crate::demo::{first_ping, shuffle};
use crate::environment::Environment;
use crate::lab::{Attachment, Contender, Family, Lab, Profile, Session};
use crate::progress::{Progress, duration};
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
    /// How many more of a study, at most, while its last three do not agree ([`AGREEMENT`]), where not the usual number.
    pub repeats: Option<usize>,
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
            repeats: None,
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

    /// Whoever says how many, or is in a hurry, gets so many.
    fn repeats(&self) -> usize {
        self.repeats.unwrap_or(if self.quick || self.blocks.is_some() { 0 } else { 2 })
    }

    fn timing(&self) -> Timing {
        let (warm_up, measured) = if self.quick { (0.1, 0.2) } else { (0.5, 2.0) };
        let measured = self.seconds.unwrap_or(measured);
        Timing {
            warm_up: Duration::from_secs_f64(warm_up),
            measured: Duration::from_secs_f64(measured),
        }
    }

    /// What the options leave of the studies.
    ///
    /// # Errors
    /// Nothing is left, or nothing with one of the contenders: a run of them would measure something else, and not say so.
    pub fn check(&self) -> Result<()> {
        let chosen: Result<Vec<_>> =
            self.studies.iter().map(|study| self.all_cells(*study)).collect();
        let chosen = chosen?.concat();
        if chosen.is_empty() {
            return Err(Error::Traffic("no study has such a scenario, profile or MTU".into()));
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
        Err(Error::Traffic(format!(
            "no chosen scenario has {}; those that the chosen ones have are {}",
            ids(&mut lost.into_iter().copied()),
            ids(&mut all.into_iter().filter(takes_part))
        )))
    }

    /// The cells of `study` that are asked for, with the contenders that are.
    fn cells(&self, study: Study) -> Result<Vec<Cell>> {
        let mut cells = self.all_cells(study)?;
        for cell in &mut cells {
            cell.contenders.retain(|contender| self.wants(*contender));
        }
        Ok(cells)
    }

    /// The cells of `study` that are asked for, with all contenders.
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

    fn wants(&self, contender: Contender) -> bool {
        let wanted = self.contenders.as_ref().is_none_or(|wanted| wanted.contains(&contender));
        wanted || contender == BASE
    }
}

/// When results are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Milestone {
    /// There is one sample more.
    Sample,
    /// A block has ended.
    Block,
}

/// Runs the studies. What was measured before Ctrl-C is returned as incomplete results; `keep` is given all results at every
/// milestone, so that a crash loses one sample at most.
///
/// # Errors
/// [`Error::Missing`] when a privilege is missing or another study is running; [`Options::check`]; `keep` fails.
/// That a scenario fails, or the lab for it, is no error: it is a row of the results.
pub fn run(
    options: &Options,
    stop: &Stop,
    keep: &mut dyn FnMut(&Results, Milestone) -> Result<()>,
) -> Result<Results> {
    options.check()?;
    let session = Session::open(PATIENCE, stop)?;
    let mut plan: Vec<(Study, Vec<Cell>)> = Vec::new();
    for &study in &options.studies {
        plan.push((study, options.cells(study)?));
    }
    let left_out = leave_out(&mut plan, options);
    let outline = Outline::of(&plan, options.blocks(), options.timing());
    if !options.quiet {
        eprintln!("{outline}");
        if options.repeats() > 0 {
            eprintln!(
                "a study is run again, {} times at most, while the last {RUNS_THAT_AGREE} runs of anything in it have a standard deviation \
                 above {:.0} % of their mean: up to {} in all",
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
    let mut record = Record { results, keep, progress: &progress, repeats, failed: None };
    record.run_all(&plan, &mut |visit, record| runner.visit(visit, record))?;
    if !options.quiet {
        eprintln!("measured in {}", duration(begin.elapsed()));
    }
    let mut results = record.results;
    results.verdicts = verdicts(&results);
    Ok(results)
}

/// Takes out of `plan` who cannot take part.
fn leave_out(plan: &mut [(Study, Vec<Cell>)], options: &Options) -> Vec<LeftOut> {
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
    let left_out =
        |(contender, why): (Contender, Option<String>)| why.map(|why| LeftOut { contender, why });
    known.into_iter().filter_map(left_out).collect()
}

/// The published rule is for so many.
const RUNS_THAT_AGREE: usize = 3;

/// Whether the last three runs of everything in a study agree. What failed is not waited for.
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

/// All visits of a block, in random order. Who is the base of a cell comes twice: the A/A check.
fn visits(study: Study, cells: &[Cell], block: usize) -> Vec<Visit<'_>> {
    let mut visits = Vec::new();
    for cell in cells {
        let again = cell.twice().map(|contender| (contender, true));
        let once = cell.contenders.iter().map(|&contender| (contender, false));
        visits.extend(once.chain(again).map(|(contender, again)| Visit {
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

/// One contender in one block of a cell.
#[derive(Clone, Copy)]
struct Visit<'a> {
    study: Study,
    cell: &'a Cell,
    contender: Contender,
    block: usize,
    again: bool,
}

impl<'a> Visit<'a> {
    fn scenarios(&self) -> &'a [Scenario] {
        self.cell.scenarios(self.again)
    }

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

/// Measures all scenarios of a visit, and adds a sample for each that it comes to.
type Measure<'m> = dyn FnMut(Visit<'_>, &mut Record<'_>) -> Result<()> + 'm;

/// The results as they grow.
struct Record<'a> {
    results: Results,
    keep: &'a mut dyn FnMut(&Results, Milestone) -> Result<()>,
    progress: &'a Progress,
    /// How many blocks of a study there may be more than planned.
    repeats: usize,
    /// Why they could not be kept: that is no fault of who is being measured.
    failed: Option<Error>,
}

impl Record<'_> {
    /// Visits all of `plan`, and marks the results as complete unless it is interrupted.
    fn run_all(&mut self, plan: &[(Study, Vec<Cell>)], measure: &mut Measure<'_>) -> Result<()> {
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
                (self.keep)(&self.results, Milestone::Block)?;
            }
        }
        self.results.complete = true;
        Ok(())
    }

    /// What a visit does not come to, because something fails that all of its scenarios need, becomes rows that say so.
    fn visit(&mut self, visit: Visit<'_>, measure: &mut Measure<'_>) -> Result<()> {
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

    fn add(&mut self, sample: Sample) {
        self.results.samples.push(sample);
        self.results.verdicts.clear();
        self.progress.done();
        if let Err(error) = (self.keep)(&self.results, Milestone::Sample) {
            self.failed.get_or_insert(error);
        }
    }
}

struct Runner<'a> {
    session: &'a Session,
    options: &'a Options,
    progress: &'a Progress,
}

impl Runner<'_> {
    /// All scenarios of the cell with one contender.
    fn visit(&self, visit: Visit<'_>, record: &mut Record<'_>) -> Result<()> {
        let Visit { study, cell, contender, block, .. } = visit;
        let (profile, blocks) = (cell.shape.profile, record.results.blocks);
        // A study that was not steady is given more than were planned.
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
                    // A process that has ended fails all scenarios that are left.
                    attachment.check()?;
                    record.add(Sample { failure: Some(error.to_string()), ..sample });
                }
                Ok(figures) => record.add(Sample { figures: Some(figures), ..sample }),
            }
            tracing::debug!(took = ?begin.elapsed(), scenario = scenario.name(), "measured");
        }
        attachment.stop()
    }

    /// Scenarios that need a lab each.
    fn alone(&self, visit: Visit<'_>, record: &mut Record<'_>) -> Result<()> {
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

    fn lab(&self, visit: Visit<'_>, record: &mut Record<'_>) -> Result<Lab<'_>> {
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

/// Results of nothing so far.
#[cfg(test)]
pub(super) fn empty(blocks: usize) -> Results {
    Results {
        schema: SCHEMA,
        environment: Environment::read(None),
        quick: true,
        seconds: 1.0,
        blocks,
        studies: Vec::new(),
        complete: false,
        offloads: BTreeMap::new(),
        left_out: Vec::new(),
        verdicts: Vec::new(),
        samples: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::Figures;
    use super::*;
    use crate::lab::{Datapath, KernelTunnel};
    use crate::traffic::load::{Load, Pattern};
    use network::TunnelType;

    /// On a machine with Open vSwitch in userspace and, of the kernel's tunnels, VXLAN.
    #[test]
    fn quick_run_of_everything_is_planned_for_less_than_ten_minutes() {
        let takes_part = |contender: &Contender| match contender {
            Contender::Kernel(tunnel) => *tunnel == KernelTunnel::Vxlan,
            Contender::Ovs(datapath, _) => *datapath == Datapath::User,
            Contender::Weft(datapath, tunnel) => {
                (*datapath, *tunnel) != (Datapath::Kernel, TunnelType::Stt)
            }
            Contender::Direct | Contender::LinuxBridge => true,
        };
        let options = Options { quick: true, ..Options::new("weft".into(), Study::ALL.to_vec()) };
        let of =
            |plan: &[(Study, Vec<Cell>)]| Outline::of(plan, options.blocks(), options.timing());
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
    fn contender_that_no_chosen_scenario_has_is_refused_with_those_that_they_have() {
        let check = |studies: &[Study], names: &[&str]| {
            let contenders = names.iter().map(|name| name.parse().unwrap()).collect();
            let options = Options::new("weft".into(), studies.to_vec());
            Options { contenders: Some(contenders), ..options }.check()
        };
        check(&[Study::Entropy], &["kernel-vxlan", "bridge"]).unwrap();
        check(&[Study::Entropy, Study::Qinq], &["weft-user-qinq"]).unwrap();
        let names = ["kernel-vxlan", "weft-user-qinq"];
        let error = check(&[Study::Entropy], &names).unwrap_err().to_string();
        let (lost, there) = error.split_once("; those that the chosen ones have are ").unwrap();
        assert_eq!(lost, "no chosen scenario has weft-user-qinq");
        let there: Vec<_> = there.split(", ").collect();
        assert!(there.contains(&"kernel-vxlan") && !there.contains(&"weft-user-qinq"), "{error}");
    }

    fn cell() -> Cell {
        let scenario = |size| Scenario::one_pair(Load::new(Pattern::TcpRr, size, 1).unwrap());
        Cell {
            shape: crate::lab::Shape::default(),
            contenders: vec![BASE, Contender::KERNEL_VXLAN],
            scenarios: vec![scenario(1), scenario(2)],
        }
    }

    /// What is kept of a run of `plan` in two blocks, at each milestone, and how it ends.
    fn run_with(
        plan: &[(Study, Vec<Cell>)],
        measure: &mut Measure<'_>,
    ) -> (Vec<(usize, Milestone)>, Result<()>, Results) {
        repeat_with(0, plan, measure)
    }

    /// The same with so many blocks more, at most.
    fn repeat_with(
        repeats: usize,
        plan: &[(Study, Vec<Cell>)],
        measure: &mut Measure<'_>,
    ) -> (Vec<(usize, Milestone)>, Result<()>, Results) {
        let mut kept = Vec::new();
        let mut keep = |results: &Results, milestone| {
            kept.push((results.samples.len(), milestone));
            Ok(())
        };
        let progress = Progress::start(0, true);
        let mut record = Record {
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
                return Err(Error::Traffic("no such device".into()));
            }
            let scenarios = visit.cell.scenarios.iter();
            scenarios.for_each(|scenario| record.add(visit.sample(scenario)));
            Ok(())
        });
        ended.unwrap();
        assert!(results.complete);
        // In each of two blocks the base twice and the other once, two scenarios each.
        let (bad, good): (Vec<_>, Vec<_>) =
            results.samples.iter().partition(|sample| sample.failure.is_some());
        assert_eq!((bad.len(), good.len()), (4, 8));
        assert!(bad.iter().all(|s| s.failure.as_deref() == Some("no such device")));
        assert_eq!(kept.iter().filter(|(_, at)| *at == Milestone::Block).count(), 2);
        let after_each: Vec<usize> =
            kept.iter().filter(|(_, at)| *at == Milestone::Sample).map(|(len, _)| *len).collect();
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
            // Block by block, and all of both cells in each: the bridge twice, the other once, two scenarios each.
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
    fn what_was_measured_stays_when_the_run_is_interrupted() {
        let mut visits = 0;
        let (_, ended, results) = run_with(&[(Study::Qinq, vec![cell()])], &mut |visit, record| {
            visits += 1;
            if visits == 2 {
                return Err(Error::Interrupted);
            }
            record.add(visit.sample(&visit.cell.scenarios[0]));
            Err(Error::Traffic("the second scenario has broken it".into()))
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
        // Two were planned, of which the rule says nothing.
        assert_eq!((blocks(0, |_| 100.0), blocks(9, |_| 100.0)), (2, 3));
        let wild = |block| 100.0 * (1 + block % 2) as f64;
        assert_eq!((blocks(0, wild), blocks(4, wild)), (2, 6));
        let calm_from_the_third_on = |block: usize| if block < 2 { 50.0 } else { 100.0 };
        assert_eq!(blocks(9, calm_from_the_third_on), 5);
        assert!(Options { quick: true, ..Options::new("weft".into(), vec![]) }.repeats() == 0);
    }

    #[test]
    fn run_ends_when_results_cannot_be_kept() {
        let mut keep = |_: &Results, _| Err(Error::Traffic("the disk is full".into()));
        let progress = Progress::start(0, true);
        let mut record = Record {
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
