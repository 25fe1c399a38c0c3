//! The input of verdicts: samples, tables, and statistics over blocks.

use std::collections::BTreeMap;

use super::tables::{Table, tables};
use crate::lab::Contender;
use crate::stats::{Estimate, ratio};
use crate::study::model::{Results, Sample, Study};

/// The samples of a run, and their tables.
pub(crate) struct Evidence<'a> {
    pub(crate) results: &'a Results,
    pub(crate) tables: Vec<Table>,
}

impl<'a> Evidence<'a> {
    pub(crate) fn of(results: &'a Results) -> Self {
        Self { results, tables: tables(results) }
    }

    /// The tables of `study`.
    pub(crate) fn of_study(&self, study: Study) -> impl Iterator<Item = &Table> {
        self.tables.iter().filter(move |table| table.study == study.name())
    }

    /// The measured contenders with this tunnel; all weft contenders for an empty name.
    pub(crate) fn subjects(&self, tunnel: &str) -> Vec<Contender> {
        let measured = |c: &Contender| self.results.samples.iter().any(|s| s.contender == *c);
        let is = |c: &Contender| match tunnel {
            "" => c.is_weft(),
            tunnel => c.id().ends_with(&format!("-{tunnel}")),
        };
        Contender::all().into_iter().filter(|c| is(c) && measured(c)).collect()
    }
}

/// The geometric mean of each block's ratios, for the blocks that occur in all series.
pub(crate) fn means(ratios: &[BTreeMap<usize, f64>]) -> Vec<f64> {
    let Some(first) = ratios.first() else { return Vec::new() };
    let mean = |block: &usize| {
        let logs = ratios.iter().map(|ratios| ratios.get(block).map(|ratio| ratio.ln()));
        Some((logs.sum::<Option<f64>>()? / ratios.len() as f64).exp())
    };
    first.keys().filter_map(mean).collect()
}

/// The median ratio of `pairs`, with its interval.
pub(crate) fn ratios(pairs: &[(f64, f64)]) -> Option<Estimate> {
    Estimate::of(&pairs.iter().filter_map(|(a, b)| ratio(*a, *b)).collect::<Vec<_>>())
}

/// The results of the study `entropy`, one line for each contender.
pub(crate) fn spread(results: &Results) -> Vec<String> {
    let entropy = |sample: &&Sample| sample.study == Study::Entropy.name() && !sample.again;
    let mut lines: Vec<String> = results
        .samples
        .iter()
        .filter(entropy)
        .filter_map(|sample| {
            let more = &sample.figures.as_ref()?.more;
            let (paths, busiest) = (more.get("outer_flows")?, more.get("busiest_queue_share")?);
            let one = if sample.shape.one_source_port { ", one outer source port" } else { "" };
            Some(format!(
                "{}{one}: {} flows are {paths} on the wire; of 8 queues the busiest has {:.0} %",
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
