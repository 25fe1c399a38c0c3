//! Joins the results of several runs. A noisy machine needs more repetitions than fit into one run,
//! and studies can be run separately.

use super::model::{INTERLEAVED, Results, Sample, blocks_by_study};
use super::verdict::judged;
use crate::environment::Environment;
use crate::{Error, Result};

/// Joins `runs`. The blocks of a later run are numbered after those of the same study in the
/// earlier ones.
///
/// # Errors
/// There are fewer than two runs, two are the same run, or two differ in the machine or in the
/// duration of a measurement.
pub fn join(runs: Vec<Results>) -> Result<Results> {
    let mut runs = runs.into_iter();
    let (Some(mut joined), Some(second)) = (runs.next(), runs.next()) else {
        return Err(Error::Other("at least two runs are needed to join them".into()));
    };
    for run in std::iter::once(second).chain(runs) {
        if let Some(why) = differs(&joined, &run) {
            let date = &run.environment.date;
            return Err(Error::Other(format!("the run of {date} cannot be joined: {why}")));
        }
        if let Some(date) = parts(&run).find(|date| parts(&joined).any(|other| other == *date)) {
            return Err(Error::Other(format!("the run of {date} is given twice")));
        }
        append(&mut joined, run);
    }
    let blocks = blocks_by_study(&joined.samples);
    joined.blocks = blocks.values().copied().max().unwrap_or(joined.blocks);
    Ok(judged(joined))
}

/// The separator of the dates of joined runs, and of their commits.
const AND: &str = " and ";

/// The dates of the runs that were joined to `run`.
fn parts(run: &Results) -> impl Iterator<Item = &str> {
    run.environment.date.split(AND)
}

/// Why two runs cannot be joined, or `None` if they can.
fn differs(one: &Results, other: &Results) -> Option<String> {
    let old = [one, other].iter().any(|run| run.schema < INTERLEAVED);
    if old {
        return Some("a file of schema 1 has blocks of another kind".into());
    }
    let (a, b) = (&one.environment, &other.environment);
    let is_quick = |run: &Results| if run.quick { "quick" } else { "usual" }.to_owned();
    let version = |of: &Option<String>| of.clone().unwrap_or_else(|| "none".into());
    let facts = [
        ("kernel", a.kernel.clone(), b.kernel.clone()),
        ("processor", a.cpu_model.clone(), b.cpu_model.clone()),
        ("number of processors", a.cores.to_string(), b.cores.to_string()),
        ("mitigations", a.mitigations.join("; "), b.mitigations.join("; ")),
        ("congestion control", a.congestion_control.clone(), b.congestion_control.clone()),
        ("version of Open vSwitch", version(&a.open_vswitch), version(&b.open_vswitch)),
        ("seconds of a measurement", one.seconds.to_string(), other.seconds.to_string()),
        ("kind of run", is_quick(one), is_quick(other)),
    ];
    let differing = facts.into_iter().find(|(_, a, b)| a != b);
    if let Some((what, a, b)) = differing {
        return Some(format!("the {what} was {a} and is {b} now"));
    }
    let profile = one.offloads.iter().find(|(profile, flags)| {
        other.offloads.get(*profile).is_some_and(|others| others != *flags)
    });
    profile.map(|(profile, _)| format!("the offload flags of profile {profile} differ"))
}

fn append(joined: &mut Results, run: Results) {
    let begun = blocks_by_study(&joined.samples);
    joined.samples.extend(run.samples.into_iter().map(|sample| {
        let behind = begun.get(&sample.study).copied().unwrap_or_default();
        Sample { block: sample.block + behind, ..sample }
    }));
    for study in run.studies {
        if !joined.studies.contains(&study) {
            joined.studies.push(study);
        }
    }
    joined.offloads.extend(run.offloads);
    for one in run.left_out {
        if !joined.left_out.iter().any(|other| other.contender == one.contender) {
            joined.left_out.push(one);
        }
    }
    let samples = &joined.samples;
    joined.left_out.retain(|one| !samples.iter().any(|sample| sample.contender == one.contender));
    joined.complete &= run.complete;
    let Environment { date, commit, .. } = &mut joined.environment;
    date.push_str(AND);
    date.push_str(&run.environment.date);
    let name = |commit: Option<String>| commit.unwrap_or_else(|| "unknown".into());
    let mut all = name(commit.take());
    for now in name(run.environment.commit).split(AND) {
        if !all.split(AND).any(|before| before == now) {
            all = format!("{all}{AND}{now}");
        }
    }
    *commit = Some(all);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::Shape;
    use crate::study::model::{BASE, empty};

    fn run(date: &str, studies: &[(&str, usize)]) -> Results {
        let mut run = Results { complete: true, ..empty(2) };
        run.environment.date = date.into();
        run.environment.commit = Some(format!("c{date}"));
        for (study, blocks) in studies {
            run.studies.push((*study).to_owned());
            run.samples.extend((0..*blocks).map(|block| Sample {
                study: (*study).to_owned(),
                scenario: "s".into(),
                shape: Shape::default(),
                contender: BASE,
                block,
                again: false,
                figures: None,
                failure: None,
            }));
        }
        run
    }

    #[test]
    fn blocks_are_numbered_on_within_a_study() {
        let joined = join(vec![
            run("1", &[("qinq", 2)]),
            run("2", &[("qinq", 3), ("flows", 1)]),
            run("3", &[("flows", 2)]),
        ])
        .unwrap();
        let of = |study: &str| -> Vec<usize> {
            joined.samples.iter().filter(|s| s.study == study).map(|s| s.block).collect()
        };
        assert_eq!(of("qinq"), [0, 1, 2, 3, 4]);
        assert_eq!(of("flows"), [0, 1, 2]);
        assert_eq!((joined.blocks, joined.complete), (5, true));
        assert_eq!(joined.studies, ["qinq", "flows"]);
        assert_eq!(joined.environment.date, "1 and 2 and 3");
        assert_eq!(joined.environment.commit.as_deref(), Some("c1 and c2 and c3"));
    }

    #[test]
    fn interrupted_run_leaves_the_joined_one_incomplete() {
        let cut = Results { complete: false, ..run("2", &[("qinq", 1)]) };
        assert!(!join(vec![run("1", &[("qinq", 2)]), cut]).unwrap().complete);
    }

    #[test]
    fn runs_are_refused_when_they_differ_or_are_the_same() {
        let first = || run("1", &[("qinq", 2)]);
        let other = |change: fn(&mut Results)| {
            let mut other = run("2", &[("qinq", 2)]);
            change(&mut other);
            join(vec![first(), other]).unwrap_err().to_string()
        };
        for (change, why) in [
            ((|run| run.environment.kernel = "1.0".into()) as fn(&mut Results), "kernel was"),
            (|run| run.environment.cores += 1, "number of processors was"),
            (|run| run.seconds = 9.5, "seconds of a measurement was 1 and is 9.5 now"),
            (|run| run.quick = false, "kind of run was quick"),
            (|run| run.schema = 1, "blocks of another kind"),
            (|run| run.environment.date = "1".into(), "given twice"),
        ] {
            let error = other(change);
            assert!(error.contains(why), "{error}");
        }
        let joined = join(vec![first(), run("2", &[])]).unwrap();
        for again in [first(), run("2", &[])] {
            let error = join(vec![joined.clone(), again]).unwrap_err().to_string();
            assert!(error.contains("given twice"), "{error}");
        }
        assert!(join(vec![first()]).unwrap_err().to_string().contains("at least two"));
    }
}
