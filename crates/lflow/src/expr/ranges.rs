//! Combines conditions: flattens them, removes duplicates, and merges tests on the same bits.

use flow::{Field, Subfield, low_bits};
use pipeline::Predicate;

/// The number of conditions up to which duplicates are removed by comparing all pairs.
const MAX_COMPARED: usize = 16;

/// The condition that always holds.
pub(super) fn always() -> Predicate {
    Predicate::All(Box::default())
}

/// The condition that never holds.
pub(super) fn never() -> Predicate {
    Predicate::Any(Box::default())
}

pub(super) fn is_always(predicate: &Predicate) -> bool {
    matches!(predicate, Predicate::All(parts) if parts.is_empty())
}

pub(super) fn is_never(predicate: &Predicate) -> bool {
    matches!(predicate, Predicate::Any(parts) if parts.is_empty())
}

/// The negated condition.
pub(super) fn negate(predicate: Predicate) -> Predicate {
    match predicate {
        Predicate::All(parts) => any(parts.into_iter().map(negate).collect()),
        Predicate::Any(parts) => all(parts.into_iter().map(negate).collect()),
        Predicate::Masked { field, value, mask } if mask.is_power_of_two() => {
            Predicate::Masked { field, value: !value & mask, mask }
        }
        Predicate::InRanges { bits, ranges } => from_ranges(bits, complement(bits, &ranges)),
        Predicate::Not(inner) => *inner,
        other => Predicate::Not(Box::new(other)),
    }
}

/// The conjunction of the conditions.
pub(super) fn all(parts: Vec<Predicate>) -> Predicate {
    let mut flat = Vec::with_capacity(parts.len());
    for part in parts {
        match part {
            Predicate::All(inner) => inner.into_iter().for_each(|part| push_new(&mut flat, part)),
            part if is_never(&part) => return never(),
            part => push_new(&mut flat, part),
        }
    }
    if flat.iter().filter(|part| is_ranged(part)).count() > 1 {
        let (ranged, mut rest): (Vec<_>, _) = flat.into_iter().partition(is_ranged);
        rest.extend(grouped(ranged, RangeTest::intersection));
        flat = rest;
    }
    if flat.iter().filter(|part| is_excluding(part)).count() > 1 {
        let (excluding, mut rest): (Vec<_>, _) = flat.into_iter().partition(is_excluding);
        let excluded = excluding.into_iter().map(negate).collect();
        rest.extend(grouped(excluded, RangeTest::union).map(negate));
        flat = rest;
    }
    if flat.iter().any(is_never) {
        return never();
    }
    flat.retain(|part| !is_always(part));
    match flat.len() {
        1 => flat.swap_remove(0),
        _ => Predicate::All(flat.into()),
    }
}

/// The disjunction of the conditions.
pub(super) fn any(parts: Vec<Predicate>) -> Predicate {
    let mut flat = Vec::with_capacity(parts.len());
    for part in parts {
        match part {
            Predicate::Any(inner) => inner.into_iter().for_each(|part| push_new(&mut flat, part)),
            part if is_always(&part) => return always(),
            part => push_new(&mut flat, part),
        }
    }
    let speaks_of_values = |part: &Predicate| merge_key(part).is_some();
    if flat.iter().filter(|part| speaks_of_values(part)).count() > 1 {
        let (values, mut rest): (Vec<_>, _) = flat.into_iter().partition(speaks_of_values);
        rest.extend(grouped(values, RangeTest::union));
        flat = rest;
    }
    if flat.iter().any(is_always) {
        return always();
    }
    match flat.len() {
        1 => flat.swap_remove(0),
        _ => Predicate::Any(flat.into()),
    }
}

fn push_new(parts: &mut Vec<Predicate>, part: Predicate) {
    if parts.len() > MAX_COMPARED || !parts.contains(&part) {
        parts.push(part);
    }
}

const fn is_ranged(part: &Predicate) -> bool {
    matches!(part, Predicate::OneOf { .. } | Predicate::InRanges { .. })
}

fn is_excluding(part: &Predicate) -> bool {
    matches!(part, Predicate::Not(inner) if merge_key(inner).is_some())
}

/// A test of bits, as the ranges of allowed values.
struct RangeTest {
    bits: Subfield,
    /// First and last value of each range, ascending; ranges neither overlap nor touch.
    ranges: Vec<(u128, u128)>,
}

/// Tests with the same key can be merged. The key is the field, and the end of the tested bits in
/// it.
type Key = (Field, u8);

const fn key_of(bits: Subfield) -> Key {
    (bits.field(), bits.first() + bits.width())
}

/// The bits that are 1 in `mask`, if they are contiguous.
fn contiguous(field: Field, mask: u128) -> Option<Subfield> {
    let (first, width) = (mask.trailing_zeros() as u8, mask.count_ones() as u8);
    Subfield::new(field, first % 128, width).filter(|bits| bits.field_mask() == mask)
}

fn merge_key(part: &Predicate) -> Option<Key> {
    match part {
        Predicate::Masked { field, mask, .. } => contiguous(*field, *mask).map(key_of),
        Predicate::OneOf { bits, .. } | Predicate::InRanges { bits, .. } => Some(key_of(*bits)),
        _ => None,
    }
}

/// Merges the parts that have the same [`merge_key`].
fn grouped(
    mut parts: Vec<Predicate>,
    join: fn(Vec<RangeTest>) -> Predicate,
) -> impl Iterator<Item = Predicate> {
    parts.sort_by_key(merge_key);
    let mut parts = parts.into_iter().peekable();
    std::iter::from_fn(move || {
        let first = parts.next()?;
        let key = merge_key(&first);
        if parts.peek().is_none_or(|next| merge_key(next) != key) {
            return Some(first);
        }
        let mut group: Vec<_> = RangeTest::of(first).into_iter().collect();
        while let Some(next) = parts.next_if(|next| merge_key(next) == key) {
            group.extend(RangeTest::of(next));
        }
        Some(join(group))
    })
}

impl RangeTest {
    fn of(part: Predicate) -> Option<Self> {
        match part {
            Predicate::Masked { field, value, mask } => {
                let bits = contiguous(field, mask)?;
                let value = value >> bits.first();
                Some(Self { bits, ranges: vec![(value, value)] })
            }
            Predicate::OneOf { bits, values } => {
                Some(Self { bits, ranges: values.iter().map(|&value| (value, value)).collect() })
            }
            Predicate::InRanges { bits, ranges } => Some(Self { bits, ranges: ranges.into() }),
            _ => None,
        }
    }

    /// The same test on more bits, down to bit `first` of the field.
    fn down_to(self, first: u8) -> Self {
        let more = self.bits.first().saturating_sub(first);
        let wider = Subfield::new(self.bits.field(), first, self.bits.width() + more);
        match wider {
            Some(bits) if more > 0 => {
                let ones = low_bits(more);
                let ranges = self.ranges.into_iter().map(|(a, b)| (a << more, b << more | ones));
                Self { bits, ranges: ranges.collect() }
            }
            _ => self,
        }
    }

    /// The tests, extended to the same bits.
    fn aligned(tests: Vec<Self>) -> impl Iterator<Item = Self> {
        let first = tests.iter().map(|test| test.bits.first()).min().unwrap_or(0);
        tests.into_iter().map(move |test| test.down_to(first))
    }

    /// The values that any of the tests allows. If all tests allow only single values of the same
    /// bits, they stay single values, because one mask serves all of them.
    fn union(tests: Vec<Self>) -> Predicate {
        let Some(bits) = tests.first().map(|test| test.bits) else { return never() };
        let same_bits = tests.iter().all(|test| test.bits == bits);
        let only_values = tests.iter().all(|test| test.ranges.iter().all(|(a, b)| a == b));
        let mut tests = Self::aligned(tests);
        let Some(mut all) = tests.next() else { return never() };
        all.ranges.extend(tests.flat_map(|test| test.ranges));
        all.ranges.sort_unstable();
        if same_bits && only_values {
            all.ranges.dedup();
        } else {
            all.ranges.dedup_by(|next, last| {
                let joined = next.0 <= last.1.saturating_add(1);
                if joined {
                    last.1 = last.1.max(next.1);
                }
                joined
            });
        }
        from_ranges(all.bits, all.ranges)
    }

    /// The values that all of the tests allow.
    fn intersection(tests: Vec<Self>) -> Predicate {
        let joined = Self::aligned(tests)
            .reduce(|a, b| Self { bits: a.bits, ranges: common(&a.ranges, &b.ranges) });
        joined.map_or_else(always, |all| from_ranges(all.bits, all.ranges))
    }
}

fn common(a: &[(u128, u128)], b: &[(u128, u128)]) -> Vec<(u128, u128)> {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    let mut both = Vec::new();
    while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
        let (first, last) = (x.0.max(y.0), x.1.min(y.1));
        if first <= last {
            both.push((first, last));
        }
        if x.1 < y.1 {
            a.next();
        } else {
            b.next();
        }
    }
    both
}

/// The complement of ranges that are ascending and do not touch.
fn complement(bits: Subfield, ranges: &[(u128, u128)]) -> Vec<(u128, u128)> {
    let last = low_bits(bits.width());
    let mut outside = Vec::with_capacity(ranges.len() + 1);
    let mut next = Some(0);
    for &(a, b) in ranges {
        if let Some(from) = next.filter(|&from| from < a) {
            outside.push((from, a - 1));
        }
        next = b.checked_add(1);
    }
    if let Some(from) = next.filter(|&from| from <= last) {
        outside.push((from, last));
    }
    outside
}

/// The simplest condition for a value to be in one of the ranges, which are ascending and do not
/// touch.
pub(super) fn from_ranges(bits: Subfield, ranges: Vec<(u128, u128)>) -> Predicate {
    match ranges[..] {
        [] => return never(),
        [(a, b)] => {
            let free = a ^ b;
            let width = 128 - free.leading_zeros() as u8;
            let aligned = a & low_bits(width) == 0 && b & low_bits(width) == low_bits(width);
            if aligned && width >= bits.width() {
                return always();
            }
            if aligned {
                let mask = bits.field_mask() & !(low_bits(width) << bits.first());
                return Predicate::Masked { field: bits.field(), value: a << bits.first(), mask };
            }
        }
        _ => {}
    }
    if ranges.iter().all(|(a, b)| a == b) {
        return Predicate::OneOf { bits, values: ranges.into_iter().map(|(a, _)| a).collect() };
    }
    Predicate::InRanges { bits, ranges: ranges.into() }
}

/// The prefixes that make up a range: the value, and the number of free low bits.
pub(super) fn prefixes((first, last): (u128, u128)) -> impl Iterator<Item = (u128, u8)> {
    let mut next = Some(first);
    std::iter::from_fn(move || {
        let from = next.filter(|&from| from <= last)?;
        let mut free = from.trailing_zeros() as u8;
        while from | low_bits(free) > last {
            free -= 1;
        }
        next = (from | low_bits(free)).checked_add(1);
        Some((from, free))
    })
}
