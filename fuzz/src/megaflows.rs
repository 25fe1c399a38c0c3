//! Target: compares the megaflow cache of the user datapath with a plain list of megaflows.

use std::sync::Arc;

use datapath::Cursor;
use datapath::megaflow::{Megaflow, Usage};
use datapath_user::cache::{Cache, CacheLimits, PutRefused};
use flow::{Action, Field, FlowKey, FlowMask, Match, PortNo};

/// The fields that megaflows match. They are from different headers, and one has 128 bits.
const FIELDS: [Field; 8] = [
    Field::InPort,
    Field::TunId,
    Field::EthDst,
    Field::VlanTci,
    Field::Ip4Dst,
    Field::Ip6Src,
    Field::IpProto,
    Field::TpDst,
];
/// The length of a step: operation, fields, partially masked fields, and two bits for the value of
/// each field.
const STEP_LEN: usize = 5;
/// The limit of megaflows. It is small, so that the cache fills quickly.
const LIMIT: usize = 24;
const PACKET_LEN: usize = 100;

/// Encodes a step for an input. `kind` 0 inserts, 1 deletes, 2 looks up, 3 maintains the tables, 4
/// clears.
pub fn step(kind: u8, fields: u8, partial: u8, values: u16) -> [u8; STEP_LEN] {
    let [high, low] = values.to_be_bytes();
    [kind, fields, partial, high, low]
}

/// Executes steps. The cache must agree with the list. Returns the number of cache hits.
pub fn steps(bytes: &[u8]) -> usize {
    let mut cache = Cache::new(CacheLimits { megaflows: LIMIT });
    let mut list: Vec<(Megaflow, Usage)> = Vec::new();
    let mut hits = 0;
    for (now_ms, step) in (1..).zip(bytes.as_chunks::<STEP_LEN>().0) {
        match step[0] % 8 {
            0 | 5 => put(&mut cache, &mut list, step),
            1 => delete(&mut cache, &mut list, condition(step)),
            3 => cache.maintain(),
            4 => {
                cache.clear();
                list.clear();
            }
            _ => hits += usize::from(look_up(&mut cache, &mut list, &key(step), now_ms)),
        }
        assert_eq!((cache.len(), cache.is_empty()), (list.len(), list.is_empty()));
    }
    check_all(&cache, &list);
    hits
}

fn put(cache: &mut Cache, list: &mut Vec<(Megaflow, Usage)>, step: &[u8; STEP_LEN]) {
    let actions: Arc<[Action]> = [Action::Output(PortNo(step[0].into()))].into();
    let megaflow = Megaflow::new(condition(step), actions);
    let is_full = list.len() == LIMIT;
    let had = list.iter_mut().find(|(had, _)| had.condition == megaflow.condition);
    let expected = if had.is_none() && is_full { Err(PutRefused::Full) } else { Ok(()) };
    assert_eq!(cache.put(&megaflow), expected);
    match had {
        Some((had, _)) => *had = megaflow,
        None if expected.is_ok() => list.push((megaflow, Usage::default())),
        None => {}
    }
}

fn delete(cache: &mut Cache, list: &mut Vec<(Megaflow, Usage)>, condition: Match) {
    let id = Megaflow::new(condition, [].into()).id;
    let at = list.iter().position(|(megaflow, _)| megaflow.id == id);
    let usage = at.map(|at| list.swap_remove(at).1);
    assert_eq!(cache.delete(id), usage);
    assert_eq!(cache.get(id), None);
}

/// Looks up a key in both. If several megaflows match, the cache may find any of them.
fn look_up(cache: &mut Cache, list: &mut [(Megaflow, Usage)], key: &FlowKey, now_ms: u64) -> bool {
    let hit = cache.look_up(key, PACKET_LEN, now_ms).map(|hit| (hit.id, Arc::clone(hit.actions)));
    let Some((id, actions)) = hit else {
        assert!(!list.iter().any(|(megaflow, _)| megaflow.condition.matches(key)), "not found");
        return false;
    };
    let found = list.iter_mut().find(|(megaflow, _)| megaflow.id == id);
    let (megaflow, usage) = found.expect("a megaflow that was put, and not deleted");
    assert!(megaflow.condition.matches(key), "{:?} is not for {key:?}", megaflow.condition);
    assert_eq!(megaflow.actions, actions);
    usage.packets += 1;
    usage.bytes += PACKET_LEN as u64;
    usage.used_ms = now_ms;
    true
}

/// Checks that a dump in batches returns each megaflow once.
fn check_all(cache: &Cache, list: &[(Megaflow, Usage)]) {
    let (mut dumped, mut at) = (Vec::new(), Some(Cursor::default()));
    while let Some(from) = at {
        at = cache.dump(from, 3, &mut dumped);
    }
    let by_id = |rows: &[(Megaflow, Usage)]| {
        let mut rows = rows.to_vec();
        rows.sort_by_key(|(megaflow, _)| megaflow.id);
        rows
    };
    assert_eq!(by_id(&dumped), by_id(list));
    let masks: usize = cache.masks().map(|mask| mask.megaflows).sum();
    assert_eq!(masks, list.len());
}

/// The key of a step. Every field has one of four values, which differ in the lowest and the
/// highest bit.
fn key(step: &[u8; STEP_LEN]) -> FlowKey {
    let values = u16::from_be_bytes([step[3], step[4]]);
    let mut key = FlowKey::default();
    for (at, field) in FIELDS.into_iter().enumerate() {
        let bits = values >> (2 * at) & 3;
        let top = u128::from(bits >> 1) << (field.width() - 1);
        key.set(field, top | u128::from(bits & 1));
    }
    key
}

fn condition(step: &[u8; STEP_LEN]) -> Match {
    let mut mask = FlowMask::default();
    for (at, field) in FIELDS.into_iter().enumerate() {
        match (step[1] >> at & 1, step[2] >> at & 1) {
            (0, _) => {}
            (_, 0) => mask.add(field),
            _ => mask.add_bits(field, field.all_ones() << (field.width() / 2)),
        }
    }
    Match::new(&key(step), mask)
}
