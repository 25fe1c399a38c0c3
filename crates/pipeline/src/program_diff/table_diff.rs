//! Compares the flows of two programs in one table.

use super::Map;
use crate::flow::Flow;
use crate::program::{Program, TableId};
use ::flow::{DatapathKey, Match};
use classifier::{Classifier, Rank};
use std::sync::Arc;

/// The rows of flows, by address of the flow.
pub(super) type Rows = Map<usize, Vec<Match>>;

/// A compact form of a row: index, mask and value of each word whose mask is not 0.
type PackedRow = Box<[(u8, u64, u64)]>;

/// The most rows of flows that were added to a table. With more, the table counts as changed.
const MAX_ADDED: usize = 1024;

/// The most pairs of rows that are compared for one lookup: it bounds the time for a flow with many
/// rows.
const MAX_EXCLUSIONS: usize = 1 << 16;

/// How a table of a datapath differs between two programs.
#[derive(Debug)]
pub(super) enum TableDiff {
    /// Both programs have the same flows.
    Same,
    /// The flows differ, and could be compared.
    Changed(Box<ChangedTable>),
    /// Too much has changed, or too much would have to be compared.
    Incomparable,
}

/// The flows of a table that both programs have, and those that only the new one has.
#[derive(Debug, Default)]
pub(super) struct ChangedTable {
    /// For each flow of the old program, by its address: the flow of the new program that has all
    /// its rows and does the same.
    successors: Map<usize, Arc<Flow>>,
    added: Vec<(u16, Match)>,
    /// The rows of all flows of the old program. Empty if the new program has no added flows.
    rows: Rows,
}

impl ChangedTable {
    /// The flow of the new program that has all rows of `flow`.
    pub fn successor(&self, flow: &Arc<Flow>) -> Option<&Arc<Flow>> {
        self.successors.get(&Arc::as_ptr(flow).addr())
    }

    /// The rows of added flows that may match packets for which the old program has found `flow`.
    pub fn conflicts(&self, flow: Option<&Arc<Flow>>) -> impl Iterator<Item = &Match> {
        let rows = flow.and_then(|flow| self.rows.get(&Arc::as_ptr(flow).addr()));
        // Above this limit, all added rows count as possible.
        let rows = rows.filter(|rows| rows.len() * self.added.len() <= MAX_EXCLUSIONS);
        let least = flow.map_or(0, |flow| flow.priority);
        let better = self.added.iter().filter(move |(priority, _)| *priority >= least);
        let is_possible =
            move |added: &Match| rows.is_none_or(|rows| !rows.iter().all(|it| it.excludes(added)));
        better.map(|(_, row)| row).filter(move |row| is_possible(row))
    }
}

/// A rule of a table, for comparison.
struct Rule<'p> {
    rank: Rank,
    row: PackedRow,
    flow: &'p Arc<Flow>,
}

impl TableDiff {
    /// Compares a table, if at most `left` rules have to be read for that.
    pub fn between(
        old: &Program,
        new: &Program,
        at: (DatapathKey, TableId),
        left: &mut usize,
    ) -> Self {
        let (was, is) = (classifiers(old, at), classifiers(new, at));
        let is_shared = |(was, is): (&&Classifier<_>, &&Classifier<_>)| was.is_shared_with(is);
        if was.len() == is.len() && was.iter().zip(&is).all(is_shared) {
            return Self::Same;
        }
        let (Some(was), Some(is)) = (sorted(&was, left), sorted(&is, left)) else {
            return Self::Incomparable;
        };
        compare(&was, &is).map_or(Self::Incomparable, |table| Self::Changed(Box::new(table)))
    }
}

fn classifiers(program: &Program, at: (DatapathKey, TableId)) -> Vec<&Classifier<Arc<Flow>>> {
    let groups = program.datapath(at.0).map_or(&[][..], |datapath| &datapath.groups);
    groups.iter().filter_map(|group| program.table(*group, at.1)).collect()
}

/// The rules, best first. `None` if there are too many.
fn sorted<'p>(tables: &[&'p Classifier<Arc<Flow>>], left: &mut usize) -> Option<Vec<Rule<'p>>> {
    *left = left.checked_sub(tables.iter().map(|table| table.len()).sum())?;
    let rules = tables.iter().flat_map(|table| table.iter());
    let rules = rules.map(|(row, rank, flow)| Rule { rank, row: packed(&row), flow });
    let mut rules: Vec<_> = rules.collect();
    rules.sort_unstable_by(|a, b| (b.rank, &a.row).cmp(&(a.rank, &b.row)));
    Some(rules)
}

fn packed(row: &Match) -> PackedRow {
    let words = (0..).zip(row.mask().words()).zip(row.key().words());
    words.filter(|((_, mask), _)| **mask != 0).map(|((at, mask), key)| (at, *mask, *key)).collect()
}

fn unpacked(row: &PackedRow) -> Match {
    let (mut key, mut mask) = (::flow::FlowKey::default(), ::flow::FlowMask::default());
    for &(at, bits, value) in row {
        key.words_mut()[usize::from(at)] = value;
        mask.words_mut()[usize::from(at)] = bits;
    }
    Match::new(&key, mask)
}

/// True if both flows do the same with a packet that matches a row of both.
fn has_same_behaviour(a: &Flow, b: &Flow) -> bool {
    a.priority == b.priority
        && a.drop_reason == b.drop_reason
        && a.residual == b.residual
        && (Arc::ptr_eq(&a.ops, &b.ops) || a.ops == b.ops)
        && a.text.meter == b.text.meter
}

/// Finds the flows that both tables have. `None` if the order of flows of one priority has changed,
/// or if more than [`MAX_ADDED`] rows were added.
fn compare(was: &[Rule<'_>], is: &[Rule<'_>]) -> Option<ChangedTable> {
    let mut unmatched: Map<(u32, &PackedRow), Vec<&Rule<'_>>> = Map::default();
    for rule in was.iter().rev() {
        // The rule with the highest rank is last.
        unmatched.entry((rule.rank.priority, &rule.row)).or_default().push(rule);
    }
    let mut table = ChangedTable::default();
    let mut kept: Vec<(Rank, Rank)> = Vec::with_capacity(was.len());
    // Flows of the old program whose rows belong to several flows of the new one.
    let mut split = Vec::new();
    for rule in is {
        let candidates = unmatched.get_mut(&(rule.rank.priority, &rule.row));
        let counterpart = candidates
            .and_then(|candidates| candidates.pop_if(|it| has_same_behaviour(it.flow, rule.flow)));
        match counterpart {
            Some(counterpart) => {
                kept.push((counterpart.rank, rule.rank));
                let address = Arc::as_ptr(counterpart.flow).addr();
                let successor =
                    table.successors.entry(address).or_insert_with(|| Arc::clone(rule.flow));
                if !Arc::ptr_eq(successor, rule.flow) {
                    split.push(address);
                }
            }
            None if table.added.len() == MAX_ADDED => return None,
            None => table.added.push((rule.flow.priority, unpacked(&rule.row))),
        }
    }
    // A flow that has lost a row has no successor. A split flow has none either: a later change of
    // one part would be compared with the rows of the other.
    let lost = unmatched.values().flatten().map(|gone| Arc::as_ptr(gone.flow).addr());
    for address in lost.chain(split) {
        table.successors.remove(&address);
    }
    kept.sort_unstable();
    if !kept.is_sorted_by_key(|(_, new)| *new) {
        return None;
    }
    if !table.added.is_empty() {
        for rule in was {
            let rows = table.rows.entry(Arc::as_ptr(rule.flow).addr()).or_default();
            rows.push(unpacked(&rule.row));
        }
    }
    Some(table)
}

/// The rows of all flows of a table; none if there are too many.
pub(super) fn rows_of(program: &Program, at: (DatapathKey, TableId), left: &mut usize) -> Rows {
    let tables = classifiers(program, at);
    let mut rows = Rows::default();
    let Some(rest) = left.checked_sub(tables.iter().map(|table| table.len()).sum()) else {
        return rows;
    };
    *left = rest;
    for (row, _, flow) in tables.iter().flat_map(|table| table.iter()) {
        rows.entry(Arc::as_ptr(flow).addr()).or_default().push(row);
    }
    rows
}
