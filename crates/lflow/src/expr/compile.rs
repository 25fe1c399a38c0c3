//! Compiles an expression to classifier rows.
//!
//! A row is a conjunction of masked values. Rows *cover* a condition when the condition implies
//! that one of them matches. They cover it *exactly* when the reverse holds too. A part that is not
//! covered exactly is repeated in the residual predicate.
//!
//! If several sets of alternatives must hold together, their rows are multiplied as long as the
//! product is small. Otherwise the most selective set becomes rows, and the others become residual
//! predicates.

use super::ranges::{always, is_never, prefixes};
use super::{Expr, LowerError};
use crate::scope::Scope;
use flow::{FlowMask, Match, Subfield, low_bits};
use pipeline::Predicate;

/// The limit on rows from multiplying alternatives.
const MAX_PRODUCT: usize = 256;

/// The limit on rows from one set.
const MAX_ROWS: usize = 16_384;

/// The number of rows with different masks up to which rows are better than a residual predicate:
/// each mask slows down every lookup.
const MAX_MASKS: usize = 16;

/// Alternatives with at most this many rows are narrowed again when more is known about the others.
const MAX_NARROWED: usize = 64;

/// The limit on narrowing passes. Narrowing also ends by itself after as many passes as there are
/// alternatives.
const MAX_PASSES: usize = 4;

/// A compiled condition. It holds for a key if one of the rows matches and the residual holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compiled {
    /// The rows; without any, the condition never holds.
    pub rows: Vec<Match>,
    /// The condition that must hold in addition to a row; `None` if there is none.
    pub residual: Option<Predicate>,
    /// The error, if the condition never holds because a name is unknown.
    pub refused: Option<LowerError>,
}

/// Compiles an expression for a scope.
///
/// A set of thousands of members becomes as many rows, or a residual predicate if two such sets
/// must hold together. Time and memory are linear in the size of the expression and its sets.
pub fn compile(expr: &Expr, scope: &impl Scope) -> Compiled {
    match expr.lower(scope) {
        Ok(predicate) => rows_of(predicate),
        Err(refused) => Compiled { rows: Vec::new(), residual: None, refused: Some(refused) },
    }
}

pub(super) fn rows_of(predicate: Predicate) -> Compiled {
    let parts: Box<[Predicate]> = match predicate {
        Predicate::All(parts) => parts,
        one => [one].into(),
    };
    let (rows, inexact) = conjunction(&parts, Match::any());
    let mut parts = parts.into_vec();
    let mut residual: Vec<Predicate> = inexact
        .into_iter()
        .filter_map(|at| parts.get_mut(at).map(|part| std::mem::replace(part, always())))
        .collect();
    let residual = match residual.len() {
        _ if rows.is_empty() => None,
        0 => None,
        1 => residual.pop(),
        _ => Some(Predicate::All(residual.into())),
    };
    Compiled { rows, residual, refused: None }
}

/// The rows that cover a condition.
struct Cover {
    rows: Vec<Match>,
    exact: bool,
}

impl Cover {
    /// The empty row, which matches everything.
    fn anything() -> Self {
        Self { rows: vec![Match::any()], exact: false }
    }

    fn exact(rows: impl IntoIterator<Item = Option<Match>>) -> Self {
        Self { rows: rows.into_iter().flatten().collect(), exact: true }
    }
}

fn masked(bits: Subfield, value: u128, free: u8) -> Option<Match> {
    let mask = bits.field_mask() & !(low_bits(free) << bits.first());
    let mut row = Match::any();
    row.require(bits.field(), value << bits.first(), mask).then_some(row)
}

/// The rows that cover a condition on keys that `base` matches.
fn cover(predicate: &Predicate, base: &Match) -> Cover {
    match predicate {
        Predicate::Masked { field, value, mask } => {
            let mut row = Match::any();
            Cover::exact([row.require(*field, *value, *mask).then_some(row)])
        }
        Predicate::OneOf { bits, values } if values.len() <= MAX_ROWS => {
            Cover::exact(values.iter().map(|&value| masked(*bits, value, 0)))
        }
        Predicate::InRanges { bits, ranges } if ranges.len() <= MAX_ROWS => {
            let all = || ranges.iter().copied().flat_map(prefixes);
            let limit = (ranges.len() * 4).clamp(MAX_MASKS, MAX_ROWS);
            if all().take(limit + 1).count() > limit {
                return Cover::anything();
            }
            Cover::exact(all().map(|(value, free)| masked(*bits, value, free)))
        }
        Predicate::Not(inner) => match **inner {
            // At least one of the bits differs.
            Predicate::Masked { field, value, mask } if mask.count_ones() as usize <= MAX_MASKS => {
                let bits = (0..128).map(|at| 1 << at).filter(|bit| mask & bit != 0);
                Cover::exact(bits.map(|bit| {
                    let mut row = Match::any();
                    row.require(field, !value & bit, bit).then_some(row)
                }))
            }
            _ => Cover::anything(),
        },
        Predicate::Any(parts) => {
            let mut union = Cover { rows: Vec::new(), exact: true };
            for part in parts.iter().filter(|part| decided(part, base) != Some(false)) {
                let mut more = cover(part, base);
                union.exact &= more.exact;
                if union.rows.len() + more.rows.len() > MAX_ROWS {
                    return Cover::anything();
                }
                union.rows.append(&mut more.rows);
            }
            union
        }
        Predicate::All(parts) => {
            let (rows, inexact) = conjunction(parts, base.clone());
            Cover { rows, exact: inexact.is_empty() }
        }
        Predicate::OneOf { .. } | Predicate::InRanges { .. } => Cover::anything(),
    }
}

/// An estimate of the fraction of all keys that satisfy a condition.
fn selectivity(predicate: &Predicate) -> f64 {
    let one_of = |width: u8| f64::exp2(-f64::from(width));
    match predicate {
        Predicate::All(parts) => parts.iter().map(selectivity).product(),
        Predicate::Any(parts) => parts.iter().map(selectivity).sum::<f64>().min(1.0),
        Predicate::Masked { mask, .. } => f64::exp2(-f64::from(mask.count_ones())),
        Predicate::OneOf { bits, values } => values.len() as f64 * one_of(bits.width()),
        Predicate::InRanges { bits, ranges } => {
            let size = |&(first, last): &(u128, u128)| (last - first) as f64 + 1.0;
            ranges.iter().map(size).sum::<f64>() * one_of(bits.width())
        }
        Predicate::Not(inner) => 1.0 - selectivity(inner),
    }
}

/// A set of alternatives among the parts of a conjunction: its index, and its rows.
struct Clause {
    index: usize,
    /// `None` for a large set. Its rows are computed only if no other set has any.
    cover: Option<Cover>,
}

impl Clause {
    fn new(index: usize, part: &Predicate, base: &Match) -> Self {
        let large = matches!(part, Predicate::OneOf { values, .. } if values.len() > MAX_NARROWED);
        Self { index, cover: (!large).then(|| cover(part, base)) }
    }
}

/// The rows that cover the conjunction of all parts on keys that `base` matches, and the parts that
/// they do not cover exactly.
fn conjunction(parts: &[Predicate], mut base: Match) -> (Vec<Match>, Vec<usize>) {
    let nothing = || (Vec::new(), Vec::new());
    for part in parts {
        match part {
            Predicate::Masked { field, value, mask } if !base.require(*field, *value, *mask) => {
                return nothing();
            }
            part if is_never(part) => return nothing(),
            _ => {}
        }
    }
    let mut clauses = Vec::new();
    let mut inexact = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        match decided(part, &base) {
            Some(true) => {}
            Some(false) => return nothing(),
            None => clauses.push(Clause::new(at, part, &base)),
        }
    }
    if !narrow(&mut base, &mut clauses, &mut inexact) {
        return nothing();
    }
    if clauses.len() > 1 {
        // Floats that are not negative sort like their bit patterns.
        clauses.sort_by_cached_key(|clause| selectivity(&parts[clause.index]).to_bits());
    }
    let mut rows = vec![base];
    for clause in clauses {
        let cover = match (clause.cover, &rows[..]) {
            (Some(cover), _) => cover,
            (None, [base]) => cover(&parts[clause.index], base),
            (None, _) => Cover::anything(),
        };
        let fits = rows.len() == 1 || rows.len() * cover.rows.len() <= MAX_PRODUCT;
        if fits {
            rows = product(&rows, cover.rows);
        }
        if !(fits && cover.exact) {
            inexact.push(clause.index);
        }
    }
    inexact.sort_unstable();
    (rows, inexact)
}

/// Whether a part holds for all keys that `base` matches, or for none; `None` if that differs
/// between keys.
fn decided(part: &Predicate, base: &Match) -> Option<bool> {
    let fixed = |bits: &Subfield| {
        let known = base.mask().get_bits(*bits) == low_bits(bits.width());
        known.then(|| base.key().get_bits(*bits))
    };
    match part {
        Predicate::Masked { field, value, mask } => {
            let known = base.mask().get(*field) & mask;
            let differs = (base.key().get(*field) ^ value) & known != 0;
            if differs { Some(false) } else { (known == *mask).then_some(true) }
        }
        Predicate::OneOf { bits, values } => Some(values.binary_search(&fixed(bits)?).is_ok()),
        Predicate::InRanges { bits, ranges } => {
            let value = fixed(bits)?;
            Some(ranges.iter().any(|&(first, last)| first <= value && value <= last))
        }
        Predicate::Not(inner) => decided(inner, base).map(|holds| !holds),
        Predicate::All(parts) => {
            let mut all = parts.iter().map(|part| decided(part, base));
            all.try_fold(Some(true), |so_far, part| match part {
                Some(false) => Err(()),
                part => Ok(so_far.and(part)),
            })
            .unwrap_or(Some(false))
        }
        Predicate::Any(parts) => {
            let mut all = parts.iter().map(|part| decided(part, base));
            all.try_fold(Some(false), |so_far, part| match part {
                Some(true) => Err(()),
                part => Ok(so_far.and(part)),
            })
            .unwrap_or(Some(true))
        }
    }
}

/// Removes rows that contradict the base from the small clauses. Removes clauses that add no
/// condition, or that have a single row, which is merged into the base. False when a clause has no
/// row left.
fn narrow(base: &mut Match, clauses: &mut Vec<Clause>, inexact: &mut Vec<usize>) -> bool {
    for _ in 0..MAX_PASSES {
        let before = clauses.len();
        let mut possible = true;
        clauses.retain_mut(|clause| {
            let Some(cover) = &mut clause.cover else { return true };
            let rows = &mut cover.rows;
            if rows.len() > MAX_NARROWED {
                return true;
            }
            rows.retain_mut(|row| row.and(base));
            possible &= !rows.is_empty();
            if rows.len() == 1 {
                base.clone_from(&rows[0]);
            } else if !rows.contains(base) {
                return true;
            }
            if !cover.exact {
                inexact.push(clause.index);
            }
            false
        });
        if !possible {
            return false;
        }
        if clauses.len() == before {
            break;
        }
    }
    true
}

/// The conjunctions of every row of `a` with every row of `b`, without duplicates.
fn product(a: &[Match], mut b: Vec<Match>) -> Vec<Match> {
    if let [one] = a {
        b.retain_mut(|row| row.and(one));
        return b;
    }
    let mut rows: Vec<Match> = Vec::with_capacity(a.len() * b.len());
    for more in &b {
        for row in a {
            let mut both = more.clone();
            if both.and(row) && !rows.contains(&both) {
                rows.push(both);
            }
        }
    }
    rows
}

/// The bits that the rows test.
pub(super) fn mask_of(rows: &[Match]) -> FlowMask {
    let mut mask = FlowMask::default();
    rows.iter().for_each(|row| mask.union(row.mask()));
    mask
}
