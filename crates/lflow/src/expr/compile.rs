//! From an expression to rows for a classifier.
//!
//! A row is a conjunction of masked values. A condition is *covered* by rows when it implies that one of them matches, and
//! covered *exactly* when the reverse holds too. What is covered inexactly is said again in the residual. Of several
//! alternatives that must hold together, the rows are multiplied as long as they are few; when they would be many, the
//! most selective alternative becomes rows and the others residual.

use super::ranges::{always, is_never, prefixes};
use super::{Expr, LowerError};
use crate::scope::Scope;
use flow::{FlowMask, Match, Subfield, low_bits};
use pipeline::Predicate;

/// How many rows may come of multiplying alternatives.
const MAX_PRODUCT: usize = 256;

/// How many rows may come of one set.
const MAX_ROWS: usize = 16_384;

/// How many rows with different masks are better than a residual. Every mask costs every lookup.
const MAX_MASKS: usize = 16;

/// Up to how many rows an alternative is looked at again when more is known about the others.
const MAX_NARROWED: usize = 64;

/// How often that happens. It terminates by itself, after as many passes as there are alternatives.
const MAX_PASSES: usize = 4;

/// A compiled condition: it holds for a key that one of the rows matches and for which the residual holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compiled {
    /// None: it never holds.
    pub rows: Vec<Match>,
    /// What must hold beside the row; `None` for nothing.
    pub residual: Option<Predicate>,
    /// Why it never holds, when that is for want of a name.
    pub refused: Option<LowerError>,
}

/// Compiles an expression for a scope.
///
/// A set of thousands becomes as many rows, or a residual when two such sets must hold together; time and memory are
/// linear in the expression and its sets.
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

/// Rows that cover a condition.
struct Cover {
    rows: Vec<Match>,
    exact: bool,
}

impl Cover {
    /// By saying nothing.
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

/// Rows for a condition on keys that `base` matches.
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
            // One of the bits differs.
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

/// About which share of all keys meets a condition.
fn share(predicate: &Predicate) -> f64 {
    let one_of = |width: u8| f64::exp2(-f64::from(width));
    match predicate {
        Predicate::All(parts) => parts.iter().map(share).product(),
        Predicate::Any(parts) => parts.iter().map(share).sum::<f64>().min(1.0),
        Predicate::Masked { mask, .. } => f64::exp2(-f64::from(mask.count_ones())),
        Predicate::OneOf { bits, values } => values.len() as f64 * one_of(bits.width()),
        Predicate::InRanges { bits, ranges } => {
            let size = |&(first, last): &(u128, u128)| (last - first) as f64 + 1.0;
            ranges.iter().map(size).sum::<f64>() * one_of(bits.width())
        }
        Predicate::Not(inner) => 1.0 - share(inner),
    }
}

/// An alternative among parts that must all hold: where it stands among them, and its rows.
struct Clause {
    at: usize,
    /// `None` for a large set, of which rows are made only when nothing more selective has any.
    cover: Option<Cover>,
}

impl Clause {
    fn new(at: usize, part: &Predicate, base: &Match) -> Self {
        let large = matches!(part, Predicate::OneOf { values, .. } if values.len() > MAX_NARROWED);
        Self { at, cover: (!large).then(|| cover(part, base)) }
    }
}

/// Rows that cover all of the parts together, on keys that `base` matches, and which of the parts they do not cover exactly.
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
        // Numbers that are not negative have the order of their bits.
        clauses.sort_by_cached_key(|clause| share(&parts[clause.at]).to_bits());
    }
    let mut rows = vec![base];
    for clause in clauses {
        let cover = match (clause.cover, &rows[..]) {
            (Some(cover), _) => cover,
            (None, [base]) => cover(&parts[clause.at], base),
            (None, _) => Cover::anything(),
        };
        let fits = rows.len() == 1 || rows.len() * cover.rows.len() <= MAX_PRODUCT;
        if fits {
            rows = product(&rows, cover.rows);
        }
        if !(fits && cover.exact) {
            inexact.push(clause.at);
        }
    }
    inexact.sort_unstable();
    (rows, inexact)
}

/// Whether a part holds for all keys that `base` matches, or for none of them.
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

/// Takes out of the small clauses the rows that contradict the base, and out of the list the clauses that say nothing more
/// or have a single row, which becomes part of the base. `false` when a clause has no row left.
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
                inexact.push(clause.at);
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

/// Every row of `a` together with every row of `b`, each once.
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

/// The bits that the rows speak of.
pub(super) fn mask_of(rows: &[Match]) -> FlowMask {
    let mut mask = FlowMask::default();
    rows.iter().for_each(|row| mask.union(row.mask()));
    mask
}
