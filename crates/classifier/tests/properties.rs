//! Property tests: the classifier and a linear list agree on rules that overlap a lot, and the mask
//! is sound.

mod common;

use classifier::{Classifier, Rank};
use common::{Numbers, Oracle, prefix};
use flow::{Field, FlowKey, FlowMask, Match};
use proptest::prelude::*;

/// A few fields of every stage, several in one word, with prefixes and without.
const FIELDS: [Field; 12] = [
    Field::InPort,
    Field::Metadata,
    Field::Reg0,
    Field::EthDst,
    Field::EthType,
    Field::VlanTci,
    Field::Ip4Src,
    Field::Ip4Dst,
    Field::Ip6Dst,
    Field::IpProto,
    Field::TpSrc,
    Field::TpDst,
];

/// The value of a rule: a number, and the residual predicate that a lookup evaluates.
#[derive(Clone, PartialEq, Debug)]
struct Value {
    number: u32,
    /// The rule is accepted only when the key has this value of this bit.
    only_if: Option<(Field, u8, bool)>,
}

fn accept(key: &FlowKey, value: &Value, read: &mut FlowMask) -> bool {
    value.only_if.is_none_or(|(field, bit, wanted)| {
        read.add_bits(field, 1 << bit);
        (key.get(field) >> bit & 1 == 1) == wanted
    })
}

/// Few values, with most bits 0, that differ in the first bits, in the last, or in between.
fn value(field: Field, choice: u32) -> u128 {
    let (width, choice) = (u32::from(field.width()), choice & choice >> 8);
    let places = [width - 1, width - 2, width - 3, width / 2 + 1, width / 2, width / 3, 1, 0];
    let bits = (0..).zip(places).map(|(at, place)| u128::from(choice >> at & 1) << place);
    bits.fold(0, |value, bit| value | bit)
}

fn mask(field: Field, choice: u8) -> u128 {
    let width = field.width();
    match choice % 8 {
        0 => field.all_ones(),
        1 => prefix(field, width / 2 + 1),
        2 => prefix(field, width - 1),
        3 => prefix(field, width / 4),
        4 => field.all_ones(),
        5 => prefix(field, 1 + choice / 8 % width),
        6 => 1 << (width / 2),
        _ => field.all_ones() >> (width / 2),
    }
}

fn random_condition(numbers: &mut Numbers, (first, count): Fields, masks: u64) -> Match {
    let mut condition = Match::any();
    for _ in 0..numbers.below(4) {
        let field = FIELDS[first + numbers.below(count as u64) as usize];
        let choice = numbers.below(masks) + 8 * numbers.below(if masks == 8 { 32 } else { 1 });
        let mask = mask(field, choice as u8);
        // A repeated field may contradict; then the first occurrence holds.
        let _contradiction = !condition.require(field, value(field, numbers.next() as u32), mask);
    }
    condition
}

fn random_key(numbers: &mut Numbers, (first, count): Fields) -> FlowKey {
    let mut key = FlowKey::default();
    FIELDS[first..first + count].iter().for_each(|&f| key.set(f, value(f, numbers.next() as u32)));
    key
}

fn random_value(numbers: &mut Numbers, residuals: bool) -> Value {
    let number = numbers.next() as u32;
    let field = FIELDS[numbers.below(FIELDS.len() as u64) as usize];
    let bit = numbers.below(field.width().into()) as u8;
    let only_if = (residuals && number & 2 == 0).then_some((field, bit, number & 4 == 0));
    Value { number, only_if }
}

/// The index of the first of [`FIELDS`] to use, and their number.
type Fields = (usize, usize);

/// The kind of rules that a test uses; everything else comes from one seed.
#[derive(Clone, Copy, Debug)]
struct Kind {
    seed: u64,
    rules: usize,
    /// Only these of [`FIELDS`].
    fields: Fields,
    /// The number of masks of a field: with few masks, each has many conditions.
    masks: u64,
    priorities: u64,
    residuals: bool,
}

fn kinds() -> impl Strategy<Value = Kind> {
    let rules = prop_oneof![0..20usize, 10..300usize];
    let few = (0..FIELDS.len() - 2, 1..=3usize);
    let fields = prop_oneof![Just((0, FIELDS.len())), few];
    (any::<u64>(), rules, fields, 1..=8u64, 1..50u64, any::<bool>()).prop_map(
        |(seed, rules, fields, masks, priorities, residuals)| Kind {
            seed,
            rules,
            fields,
            masks,
            priorities,
            residuals,
        },
    )
}

fn build(kind: Kind) -> (Numbers, Classifier<Value>, Oracle<Value>) {
    let mut numbers = Numbers(kind.seed);
    let (mut classifier, mut oracle) = (Classifier::default(), Oracle::default());
    for _ in 0..kind.rules {
        let condition = random_condition(&mut numbers, kind.fields, kind.masks);
        let priority = numbers.below(kind.priorities) as u32;
        let rank = Rank { priority, id: numbers.next() };
        let value = random_value(&mut numbers, kind.residuals);
        assert_eq!(
            classifier.insert(&condition, rank, value.clone()),
            oracle.insert(&condition, rank, value)
        );
    }
    (numbers, classifier, oracle)
}

type Result = Option<(Rank, Value)>;

fn look_up(
    classifier: &Classifier<Value>,
    key: &FlowKey,
    better_than: Option<Rank>,
    read: &mut FlowMask,
) -> Result {
    let found = classifier.lookup(key, better_than, read, |value, read| accept(key, value, read));
    found.map(|(rank, value)| (rank, value.clone()))
}

fn look_up_naively(oracle: &Oracle<Value>, key: &FlowKey, better_than: Option<Rank>) -> Result {
    let mut read = FlowMask::default();
    let found = oracle.lookup(key, better_than, &mut read, |value, read| accept(key, value, read));
    found.map(|(rank, value)| (rank, value.clone()))
}

/// A key that agrees with `key` on `read`. Other bits are flipped at random, or taken from `other`.
fn disagree(key: &FlowKey, read: &FlowMask, other: &FlowKey, numbers: &mut Numbers) -> FlowKey {
    let mut changed = key.clone();
    let how = numbers.below(3);
    let one = numbers.below(flow::WORDS as u64) as usize;
    for (at, word) in changed.words_mut().iter_mut().enumerate() {
        let flip = match how {
            0 => *word ^ other.words()[at],
            1 => numbers.next(),
            _ if at == one => 1 << numbers.below(64),
            _ => 0,
        };
        *word ^= flip & !read.words()[at];
    }
    changed
}

/// Looks up one key. The result is the oracle's, `accept` is called no more often, and every key
/// that agrees on the mask has the same result, even when the mask had bits before. The lookup of
/// such a key needs no further bits.
fn check_key(
    numbers: &mut Numbers,
    classifier: &Classifier<Value>,
    oracle: &Oracle<Value>,
    fields: Fields,
) {
    let key = random_key(numbers, fields);
    let some_rank = oracle.rules().get(numbers.below(50) as usize).map(|rule| rule.1);
    let better_than = some_rank.filter(|_| numbers.below(4) == 0);
    let expected = look_up_naively(oracle, &key, better_than);

    let mut read = FlowMask::default();
    if numbers.below(3) == 0 {
        // Bits that are known before the lookup may be used at no cost.
        let field = FIELDS[numbers.below(FIELDS.len() as u64) as usize];
        read.add_bits(field, u128::from(numbers.next()) << numbers.below(64));
    }
    assert_eq!(look_up(classifier, &key, better_than, &mut read), expected, "{key:?}");

    for _ in 0..8 {
        let other = random_key(numbers, (0, FIELDS.len()));
        let changed = disagree(&key, &read, &other, numbers);
        assert!(read.agree(&key, &changed));
        let naive = look_up_naively(oracle, &changed, better_than);
        assert_eq!(naive, expected, "{key:?} and {changed:?} share {read:?}");
        let mut again = read.clone();
        look_up(classifier, &changed, better_than, &mut again);
        assert_eq!(again, read, "{key:?} and {changed:?}");
    }
}

proptest! {
    #[test]
    fn lookup_agrees_with_the_oracle_and_its_mask_is_sound(kind in kinds()) {
        let (mut numbers, classifier, oracle) = build(kind);
        for _ in 0..40 {
            check_key(&mut numbers, &classifier, &oracle, kind.fields);
        }
    }

    #[test]
    fn lookup_agrees_with_the_oracle_when_rules_come_and_go(kind in kinds()) {
        let (mut numbers, mut classifier, mut oracle) = build(kind);
        let mut old: Vec<(Classifier<Value>, Oracle<Value>)> = Vec::new();
        for step in 0..kind.rules.max(40) * 2 {
            let known = numbers.below(kind.rules as u64 + 1) as usize;
            let rank = Rank { priority: numbers.below(kind.priorities) as u32, id: numbers.next() };
            // Existing, removed and new rules; the set grows first and then shrinks to nothing.
            let (condition, rank) = match oracle.rules().get(known) {
                Some(rule) if numbers.below(4) > 0 => (rule.0.clone(), rule.1),
                _ => (random_condition(&mut numbers, kind.fields, kind.masks), rank),
            };
            if numbers.below(kind.rules.max(40) as u64 * 2) > step as u64 {
                let value = random_value(&mut numbers, kind.residuals);
                let replaced = classifier.insert(&condition, rank, value.clone());
                prop_assert_eq!(replaced, oracle.insert(&condition, rank, value));
            } else {
                prop_assert_eq!(
                    classifier.remove(&condition, rank),
                    oracle.remove(&condition, rank)
                );
                prop_assert_eq!(classifier.remove(&condition, rank), None);
            }
            prop_assert_eq!(classifier.len(), oracle.rules().len());
            check_key(&mut numbers, &classifier, &oracle, kind.fields);
            if step % 50 == 0 {
                old.push((classifier.clone(), oracle.clone()));
            }
        }
        old.push((classifier, oracle));
        // A state that was shared with states that changed later is unchanged.
        for (classifier, oracle) in &old {
            check_contents(classifier, oracle);
            check_key(&mut numbers, classifier, oracle, kind.fields);
        }
    }

    #[test]
    fn accept_is_called_in_rank_order_and_not_after_it_agrees(
        kind in kinds(),
        refusals in 0..20u32,
    ) {
        let (mut numbers, classifier, oracle) = build(kind);
        for _ in 0..10 {
            let key = random_key(&mut numbers, kind.fields);
            let (mut left, mut visited) = (refusals, Vec::new());
            let found = classifier.lookup(&key, None, &mut FlowMask::default(), |value, _| {
                visited.push(value.number);
                left = left.saturating_sub(1);
                left == 0
            });
            let matching = oracle.rules().iter().filter(|rule| rule.0.matches(&key));
            let mut expected: Vec<_> = matching.map(|rule| rule.2.number).collect();
            prop_assert_eq!(found.is_some(), refusals.max(1) as usize <= expected.len());
            expected.truncate(refusals.max(1) as usize);
            prop_assert_eq!(visited, expected);
        }
    }
}

fn check_contents(classifier: &Classifier<Value>, oracle: &Oracle<Value>) {
    let sort = |mut rules: Vec<(String, Rank, Value)>| {
        rules.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        rules
    };
    let text = |condition: &Match| format!("{condition:?}");
    assert_eq!(
        sort(classifier.iter().map(|(c, rank, v)| (text(&c), rank, v.clone())).collect()),
        sort(oracle.rules().iter().map(|(c, rank, v)| (text(c), *rank, v.clone())).collect())
    );
    for (condition, rank, value) in oracle.rules() {
        assert_eq!(classifier.get(condition, *rank), Some(value));
        let other = Rank { priority: rank.priority, id: rank.id ^ 1 };
        assert_eq!(classifier.get(condition, other), None);
    }
}

/// Two rules with different conditions may have the same rank. The result depends on the rules, not
/// on their history.
#[test]
fn result_is_the_same_in_any_order_of_insertion_when_ranks_tie() {
    let mut numbers = Numbers(7);
    for rules in [5, 12, 40, 200] {
        let rank = Rank { priority: 1, id: 1 };
        let mut conditions: Vec<_> =
            (0..rules).map(|_| random_condition(&mut numbers, (0, 8), 8)).collect();
        let build = |conditions: &[Match]| {
            let mut classifier = Classifier::default();
            for condition in conditions {
                classifier.insert(condition, rank, condition.clone());
            }
            classifier
        };
        let one = build(&conditions);
        conditions.reverse();
        let two = build(&conditions);
        for _ in 0..200 {
            let key = random_key(&mut numbers, (0, 8));
            let look_up = |classifier: &Classifier<Match>| {
                let found = classifier.lookup(&key, None, &mut FlowMask::default(), |_, _| true);
                found.map(|(_, condition)| condition.clone())
            };
            assert_eq!(look_up(&one), look_up(&two), "{key:?}");
        }
    }
}

#[test]
fn rules_with_one_condition_are_told_apart_by_rank() {
    for others in [0, 100] {
        let mut classifier = Classifier::default();
        for n in 0..others {
            let condition = common::condition(&[(Field::EthDst, 1000 + n, u128::MAX)]);
            classifier.insert(&condition, Rank { priority: 9, id: 0 }, 1000);
        }
        let condition = common::condition(&[(Field::EthDst, 1, u128::MAX)]);
        let key = common::key(&[(Field::EthDst, 1)]);
        let rank = |priority, id| Rank { priority, id };
        for (priority, id, value) in [(5, 2, 52), (5, 1, 51), (7, 9, 79), (5, 3, 53), (1, 1, 11)] {
            assert_eq!(classifier.insert(&condition, rank(priority, id), value), None);
        }
        let visited = |classifier: &Classifier<u32>, better_than| {
            let mut visited = Vec::new();
            let mut read = FlowMask::default();
            let found = classifier.lookup(&key, better_than, &mut read, |value, _| {
                visited.push(*value);
                false
            });
            assert_eq!(found, None);
            visited
        };
        assert_eq!(visited(&classifier, None), [79, 51, 52, 53, 11]);
        assert_eq!(visited(&classifier, Some(rank(5, 2))), [79, 51]);
        assert_eq!(classifier.insert(&condition, rank(5, 2), 520), Some(52));
        assert_eq!(classifier.remove(&condition, rank(7, 9)), Some(79));
        assert_eq!(classifier.remove(&condition, rank(7, 9)), None);
        assert_eq!(visited(&classifier, None), [51, 520, 53, 11]);
    }
}
