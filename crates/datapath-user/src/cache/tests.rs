use super::*;
use flow::{DropReason, Field, PortNo};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn actions(port: u32) -> Arc<[Action]> {
    Arc::new([Action::Output(PortNo(port))])
}

fn cache() -> Cache {
    Cache::new(CacheLimits::default())
}

fn key(fields: &[(Field, u128)]) -> FlowKey {
    let mut key = FlowKey::default();
    fields.iter().for_each(|&(field, value)| key.set(field, value));
    key
}

/// A megaflow that matches these fields with their values in `key`.
fn megaflow(key: &FlowKey, fields: &[Field], port: u32) -> Megaflow {
    let mut mask = FlowMask::default();
    fields.iter().for_each(|&field| mask.add(field));
    Megaflow::new(Match::new(key, mask), actions(port))
}

/// A key with an IPv4 destination, and a megaflow that matches it.
fn to(address: u128, port: u32) -> (FlowKey, Megaflow) {
    let key = key(&[(Field::EthType, 0x800), (Field::Ip4Dst, address)]);
    let megaflow = megaflow(&key, &[Field::EthType, Field::Ip4Dst], port);
    (key, megaflow)
}

/// A complete dump in pages of at most `most` megaflows.
fn walk<T>(most: usize, step: impl Fn(Cursor, usize, &mut Vec<T>) -> Option<Cursor>) -> Vec<T> {
    let (mut all, mut next) = (Vec::new(), Some(Cursor::default()));
    while let Some(from) = next {
        let before = all.len();
        next = step(from, most, &mut all);
        assert!(all.len() <= before + most.max(1));
    }
    all
}

#[test]
fn packet_is_counted_on_exact_hits_and_on_mask_hits() {
    let mut cache = cache();
    let (key, megaflow) = to(1, 7);
    assert!(cache.look_up(&key, 60, 1).is_none());
    cache.put(&megaflow).unwrap();
    for (bytes, now_ms) in [(60, 2), (100, 3), (1_000, 5)] {
        let hit = cache.look_up(&key, bytes, now_ms).unwrap();
        assert_eq!((hit.id, &**hit.actions), (megaflow.id, &*megaflow.actions));
    }
    let usage = Usage { packets: 3, bytes: 1_160, used_ms: 5 };
    assert_eq!(cache.get(megaflow.id), Some((megaflow.clone(), usage)));
    let stats = CacheStats { lookups: 4, exact_hits: 2, search_hits: 1, mask_probes: 1 };
    assert_eq!(cache.stats(), stats);
    assert_eq!(cache.delete(megaflow.id), Some(usage));
    assert_eq!((cache.delete(megaflow.id), cache.get(megaflow.id), cache.len()), (None, None, 0));
}

#[test]
fn counters_are_kept_when_actions_are_replaced() {
    let mut cache = cache();
    let (key, old) = to(1, 7);
    cache.put(&old).unwrap();
    cache.look_up(&key, 60, 1).unwrap();
    let new = Megaflow::new(old.condition.clone(), actions(8));
    assert_eq!(new.id, old.id);
    cache.put(&new).unwrap();
    assert_eq!(&**cache.look_up(&key, 40, 2).unwrap().actions, &*new.actions);
    let usage = Usage { packets: 2, bytes: 100, used_ms: 2 };
    assert_eq!(cache.get(new.id), Some((new.clone(), usage)));
    assert_eq!((cache.len(), cache.action_lists()), (1, 1));
}

#[test]
fn put_is_refused_when_full_or_when_two_matches_have_one_number() {
    let mut cache = Cache::new(CacheLimits { megaflows: 2 });
    let [(_, first), (key, second), (_, third)] = [to(1, 1), to(2, 2), to(3, 3)];
    cache.put(&first).unwrap();
    let colliding = Megaflow { id: first.id, ..second.clone() };
    assert_eq!(cache.put(&colliding), Err(PutRefused::Collision));
    assert!(cache.look_up(&key, 1, 1).is_none());
    cache.put(&second).unwrap();
    assert_eq!(cache.put(&third), Err(PutRefused::Full));
    assert_eq!(cache.put(&first), Ok(()));
    cache.delete(first.id).unwrap();
    assert_eq!((cache.put(&third), cache.len()), (Ok(()), 2));
}

#[test]
fn stale_exact_entry_is_no_hit_when_its_slot_is_free_or_reused() {
    let mut cache = cache();
    let ((key, first), (other_key, second)) = (to(1, 1), to(2, 2));
    cache.put(&first).unwrap();
    // A second megaflow of the mask, so that subtable and chunk remain.
    cache.put(&to(3, 3).1).unwrap();
    assert!(cache.look_up(&key, 1, 1).is_some() && cache.look_up(&key, 1, 1).is_some());
    assert_eq!(cache.stats().exact_hits, 1);
    let slot = cache.slot_of(first.id);
    cache.delete(first.id).unwrap();
    assert!(cache.look_up(&key, 1, 1).is_none());
    cache.put(&second).unwrap();
    assert_eq!(cache.slot_of(second.id), slot);
    assert!(cache.look_up(&key, 1, 1).is_none());
    assert_eq!(cache.get(second.id).unwrap().1, Usage::default());
    assert_eq!(cache.look_up(&other_key, 1, 1).unwrap().id, second.id);
}

#[test]
fn stale_exact_entry_is_no_hit_when_its_chunk_has_another_mask() {
    let mut cache = cache();
    let (key, first) = to(1, 1);
    cache.put(&first).unwrap();
    cache.look_up(&key, 1, 1).unwrap();
    let slot = cache.slot_of(first.id);
    cache.delete(first.id).unwrap();
    assert_eq!(cache.mask_count(), 0);
    let second = megaflow(&super::tests::key(&[(Field::TpDst, 80)]), &[Field::TpDst], 2);
    cache.put(&second).unwrap();
    assert_eq!(cache.slot_of(second.id), slot);
    assert!(cache.look_up(&key, 1, 1).is_none());
    cache.delete(second.id).unwrap();
    // An empty mask: the megaflow in the slot matches every packet.
    let all = Megaflow::new(Match::any(), actions(3));
    cache.put(&all).unwrap();
    assert_eq!(cache.slot_of(all.id), slot);
    assert_eq!(cache.look_up(&key, 1, 1).unwrap().id, all.id);
}

#[test]
fn freed_slot_is_reused_when_its_chunk_was_full() {
    let mut cache = cache();
    for address in 0..64 {
        cache.put(&to(address, 1).1).unwrap();
    }
    let leaving = to(5, 1).1.id;
    let slot = cache.slot_of(leaving);
    cache.delete(leaving).unwrap();
    cache.put(&to(64, 1).1).unwrap();
    assert_eq!(cache.slot_of(to(64, 1).1.id), slot);
}

#[test]
fn emptied_chunk_is_not_reused_when_another_mask_has_it() {
    let mut cache = cache();
    for address in 0..128 {
        cache.put(&to(address, 1).1).unwrap();
    }
    let slot = cache.slot_of(to(127, 1).1.id).unwrap();
    for address in 64..128 {
        cache.delete(to(address, 1).1.id).unwrap();
    }
    let other_key = key(&[(Field::TpDst, 80)]);
    let other = megaflow(&other_key, &[Field::TpDst], 2);
    cache.put(&other).unwrap();
    assert_eq!(cache.slot_of(other.id).map(Slot::chunk), Some(slot.chunk()));
    for address in 128..192 {
        let (key, megaflow) = to(address, 1);
        cache.put(&megaflow).unwrap();
        assert_eq!(cache.look_up(&key, 1, 1).map(|hit| hit.id), Some(megaflow.id));
    }
    assert_eq!(cache.look_up(&other_key, 1, 1).map(|hit| hit.id), Some(other.id));
    assert_eq!(cache.get(other.id).unwrap().0, other);
}

#[test]
fn memory_stays_flat_when_megaflows_of_one_mask_come_and_go() {
    let mut cache = cache();
    cache.put(&to(0, 1).1).unwrap();
    let mut churn = |from: u128| {
        for address in from..from + 1_000 {
            cache.put(&to(address, address as u32).1).unwrap();
        }
        for address in from..from + 1_000 {
            cache.delete(to(address, 1).1.id).unwrap();
        }
        cache.memory_bytes()
    };
    let bytes = churn(1);
    assert!((1..30).all(|round| churn(1 + 1_000 * round) <= bytes));
}

#[test]
fn empty_chunks_are_reused_by_other_masks() {
    let mut cache = cache();
    let of_round = |round: usize| -> Vec<Megaflow> {
        let numbers = 1_000 * round..1_000 * (round + 1);
        let field = [Field::Ip4Dst, Field::TunId, Field::Ip6Src][round % 3];
        let new = |number| megaflow(&key(&[(field, number as u128)]), &[field], 1);
        numbers.map(new).collect()
    };
    let mut memory_bytes = Vec::new();
    for round in 2..20 {
        // A few megaflows of each round, in the first and last chunk, stay until the next round is
        // cached.
        let stays = |at: usize| at % 1_000 < 10 || at % 1_000 > 990;
        for megaflow in of_round(round) {
            assert_eq!(cache.put(&megaflow), Ok(()));
        }
        let of_before = of_round(round - 1);
        for (at, megaflow) in of_before.iter().enumerate().filter(|&(at, _)| stays(at)) {
            assert_eq!(cache.delete(megaflow.id).is_some(), round > 2, "{at}");
        }
        let all = of_round(round);
        assert!(all.iter().all(|m| cache.get(m.id).is_some_and(|(found, _)| found == *m)));
        for (_, megaflow) in all.iter().enumerate().filter(|&(at, _)| !stays(at)) {
            cache.delete(megaflow.id).unwrap();
        }
        memory_bytes.push(cache.memory_bytes());
    }
    assert_eq!(cache.len(), 19);
    let (first, last) = (memory_bytes[3], memory_bytes[17]);
    assert!(last <= first + 1_000, "{memory_bytes:?}");
}

#[test]
fn repeated_flow_stays_in_the_exact_cache_when_others_occur_once() {
    let mut cache = cache();
    cache.put(&Megaflow::new(Match::any(), actions(1))).unwrap();
    let (established, _) = to(0, 0);
    for _ in 0..2 {
        cache.look_up(&established, 1, 1).unwrap();
    }
    for address in 1..100_000 {
        cache.look_up(&to(address, 0).0, 1, 1).unwrap();
    }
    let before = cache.stats().exact_hits;
    cache.look_up(&established, 1, 1).unwrap();
    assert_eq!(cache.stats().exact_hits, before + 1);
}

#[test]
fn masks_with_most_recent_hits_are_tried_first_after_maintenance() {
    let mut cache = cache();
    let keys = [(Field::InPort, 9), (Field::TpDst, 80)].map(|field| key(&[field]));
    let [rare, frequent] = [(&keys[0], Field::InPort), (&keys[1], Field::TpDst)]
        .map(|(key, field)| megaflow(key, &[field], 1));
    cache.put(&rare).unwrap();
    cache.put(&frequent).unwrap();
    // Each packet has another source, so that the exact-match cache does not have it.
    let mut source = 0;
    let mut probes = |cache: &mut Cache, key: &FlowKey| {
        source += 1;
        let mut key = key.clone();
        key.set(Field::TpSrc, source);
        let before = cache.stats().mask_probes;
        cache.look_up(&key, 1, 1).unwrap();
        cache.stats().mask_probes - before
    };
    assert!((0..1_000).all(|_| probes(&mut cache, &keys[1]) == 2));
    cache.maintain();
    assert_eq!([probes(&mut cache, &keys[1]), probes(&mut cache, &keys[0])], [1, 2]);
    let masks: Vec<_> = cache.masks().collect();
    let expected = [&frequent, &rare]
        .map(|megaflow| MaskUse { mask: megaflow.condition.mask().clone(), megaflows: 1 });
    assert_eq!(masks, expected);
    (0..20).for_each(|_| cache.maintain());
    assert_eq!(probes(&mut cache, &keys[0]), 2);
    cache.maintain();
    assert_eq!(probes(&mut cache, &keys[0]), 1);
}

#[test]
fn dump_returns_every_megaflow_once_when_others_change_between_pages() {
    let mut cache = cache();
    let megaflows: Vec<_> = (0..1_000).map(|address| to(address, 1).1).collect();
    megaflows.iter().for_each(|megaflow| cache.put(megaflow).unwrap());
    let (mut seen, mut next, mut fresh) = (Vec::new(), Some(Cursor::default()), 1_000..);
    let mut leaving = megaflows.iter().step_by(3);
    while let Some(from) = next {
        next = cache.usage(from, 7, &mut seen);
        for megaflow in leaving.by_ref().take(3) {
            cache.delete(megaflow.id).unwrap();
        }
        for address in fresh.by_ref().take(5) {
            cache.put(&to(address, 1).1).unwrap();
        }
    }
    let stayed = megaflows.iter().enumerate().filter(|(at, _)| at % 3 != 0);
    for (_, megaflow) in stayed {
        assert_eq!(seen.iter().filter(|(id, _)| *id == megaflow.id).count(), 1);
    }
}

#[test]
fn equal_action_lists_are_stored_once_and_freed_when_unused() {
    let mut cache = cache();
    for address in 0..100 {
        cache.put(&to(address, address as u32 % 2).1).unwrap();
    }
    assert_eq!(cache.action_lists(), 2);
    let lists = [0, 2].map(|address| cache.get(to(address, 0).1.id).unwrap().0.actions);
    assert!(Arc::ptr_eq(&lists[0], &lists[1]));
    for address in 0..100 {
        cache.delete(to(address, 0).1.id).unwrap();
    }
    // References outside the cache do not keep a list in the cache.
    assert_eq!((cache.action_lists(), lists[0].len()), (0, 1));
}

/// A megaflow like those of a logical switch with ACLs, for a frame from a tunnel.
fn tunnelled(at: u64) -> Megaflow {
    let key = key(&[
        (Field::InPort, (at % 100).into()),
        (Field::TunId, (at % 1_000).into()),
        (Field::TunSrc, (at / 1_000).into()),
        (Field::TunMetadata0, at.into()),
        (Field::EthDst, at.into()),
        (Field::EthType, 0x800),
        (Field::Ip4Src, at.into()),
        (Field::IpProto, 6),
        (Field::TpDst, 80),
    ]);
    let mut fields = vec![
        Field::InPort,
        Field::TunId,
        Field::TunSrc,
        Field::TunDst,
        Field::TunFlags,
        Field::TunMetadata0,
        Field::EthDst,
        Field::EthType,
        Field::EthSrc,
        Field::VlanTci,
        Field::Ip4Src,
        Field::Ip4Dst,
        Field::IpProto,
        Field::IpFrag,
        Field::TpDst,
    ];
    // Eight masks with the same number of words.
    for (bit, field) in [Field::TpSrc, Field::IpTtl, Field::IpDscp].into_iter().enumerate() {
        if at >> bit & 1 == 1 {
            fields.push(field);
        }
    }
    megaflow(&key, &fields, (at % 50) as u32)
}

#[test]
fn megaflow_takes_less_than_200_bytes_when_there_are_100_000() {
    let mut cache = cache();
    let empty_bytes = cache.memory_bytes();
    for at in 0..100_000 {
        cache.put(&tunnelled(at)).unwrap();
    }
    assert_eq!((cache.len(), cache.mask_count(), cache.action_lists()), (100_000, 8, 50));
    let bytes = cache.memory_bytes();
    assert!(bytes < 200 * 100_000, "{bytes}");
    // The mask has at least ten words of 8 bytes.
    assert!(bytes > 100 * 100_000, "{bytes}");
    for at in 0..100_000 {
        cache.delete(tunnelled(at).id).unwrap();
    }
    assert!(cache.memory_bytes() < empty_bytes + 400_000, "{}", cache.memory_bytes());
}

#[test]
fn cache_is_empty_after_clear() {
    let mut cache = cache();
    let (key, megaflow) = to(1, 1);
    cache.put(&megaflow).unwrap();
    cache.look_up(&key, 1, 1).unwrap();
    cache.clear();
    assert!(cache.is_empty() && cache.mask_count() == 0 && cache.action_lists() == 0);
    assert!(cache.look_up(&key, 1, 1).is_none());
    assert_eq!(cache.stats().lookups, 2);
    cache.put(&megaflow).unwrap();
    assert_eq!(cache.get(megaflow.id), Some((megaflow, Usage::default())));
}

/// A step of the random test. There are few masks and values, so that matches often collide.
#[derive(Clone, Debug)]
enum Step {
    Put { mask: usize, values: u8, port: u32 },
    Delete { mask: usize, values: u8 },
    LookUp { values: u8, bytes: u16 },
    DumpPage { most: usize },
    Maintain,
    Clear,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (mask, values) = (0..MASKS.len(), any::<u8>());
    let step = prop_oneof![
        20 => (mask.clone(), values, 0..4_u32)
            .prop_map(|(mask, values, port)| Step::Put { mask, values, port }),
        12 => (mask, values).prop_map(|(mask, values)| Step::Delete { mask, values }),
        40 => (values, any::<u16>()).prop_map(|(values, bytes)| Step::LookUp { values, bytes }),
        8 => (0..20_usize).prop_map(|most| Step::DumpPage { most }),
        2 => Just(Step::Maintain),
        1 => Just(Step::Clear),
    ];
    prop::collection::vec(step, 1..600)
}

/// The masks of the random test: the bits of each of [`FIELDS`].
const MASKS: [[u128; 4]; 7] = [
    [0, 0, 0, 0],
    [0xffff, 0, 0, 0],
    [0xffff, 0x3, 0, 0],
    [0, 0x2, 0xff, 0],
    [0xffff, 0x3, 0xff, 0],
    [0xffff, 0, 0, 3 << 126],
    [0x1, 0x1, 0x1, 1 << 127],
];

const FIELDS: [Field; 4] = [Field::EthType, Field::Ip4Dst, Field::IpProto, Field::Ip6Src];

/// A key with 2 bits of `values` in each of [`FIELDS`].
fn small_key(values: u8) -> FlowKey {
    let value = |at: usize| u128::from(values >> (2 * at) & 3) << if at == 3 { 126 } else { 0 };
    let mut key = FlowKey::default();
    FIELDS.iter().enumerate().for_each(|(at, &field)| key.set(field, value(at)));
    key
}

fn small_megaflow(mask: usize, values: u8, port: u32) -> Megaflow {
    let mut bits = FlowMask::default();
    FIELDS.iter().zip(MASKS[mask]).for_each(|(&field, mask)| bits.add_bits(field, mask));
    let list: Arc<[Action]> = match port {
        0 => Arc::new([Action::Drop(DropReason::Malformed)]),
        _ => actions(port),
    };
    Megaflow::new(Match::new(&small_key(values), bits), list)
}

/// A naive implementation of the cache.
#[derive(Default)]
struct Model {
    megaflows: BTreeMap<MegaflowId, (Megaflow, Usage)>,
    /// The megaflows that have been cached since the dump began, and those that it has returned.
    present_throughout: Vec<MegaflowId>,
    named: Vec<MegaflowId>,
    cursor: Option<Cursor>,
}

impl Model {
    fn put(&mut self, cache: &mut Cache, megaflow: Megaflow, limit: usize) {
        let is_new = !self.megaflows.contains_key(&megaflow.id);
        if is_new && self.megaflows.len() == limit {
            assert_eq!(cache.put(&megaflow), Err(PutRefused::Full));
            return;
        }
        assert_eq!(cache.put(&megaflow), Ok(()));
        let usage = self.megaflows.get(&megaflow.id).map_or_else(Usage::default, |old| old.1);
        self.megaflows.insert(megaflow.id, (megaflow, usage));
    }

    fn delete(&mut self, cache: &mut Cache, id: MegaflowId) {
        let known = self.megaflows.remove(&id);
        self.present_throughout.retain(|&other| other != id);
        assert_eq!(cache.delete(id), known.map(|(_, usage)| usage));
    }

    fn look_up(&mut self, cache: &mut Cache, key: &FlowKey, bytes: usize, now_ms: u64) {
        let Some(hit) = cache.look_up(key, bytes, now_ms) else {
            assert!(!self.megaflows.values().any(|(megaflow, _)| megaflow.condition.matches(key)));
            return;
        };
        let (megaflow, usage) = self.megaflows.get_mut(&hit.id).unwrap();
        assert!(megaflow.condition.matches(key));
        assert_eq!(hit.actions, &megaflow.actions);
        usage.packets += 1;
        usage.bytes += bytes as u64;
        usage.used_ms = now_ms;
    }

    fn dump_page(&mut self, cache: &Cache, most: usize) {
        let from = self.cursor.take().unwrap_or_else(|| {
            self.present_throughout = self.megaflows.keys().copied().collect();
            self.named.clear();
            Cursor::default()
        });
        let mut out = Vec::new();
        self.cursor = cache.dump(from, most, &mut out);
        assert!(out.len() <= most.max(1));
        for megaflow in out {
            self.named.push(megaflow.0.id);
            assert_eq!(self.megaflows.get(&megaflow.0.id), Some(&megaflow));
        }
        if self.cursor.is_none() {
            for id in &self.present_throughout {
                assert_eq!(self.named.iter().filter(|named| *named == id).count(), 1);
            }
        }
    }

    fn check(&self, cache: &Cache) {
        let by_id = |all: Vec<(Megaflow, Usage)>| -> BTreeMap<_, _> {
            all.into_iter().map(|megaflow| (megaflow.0.id, megaflow)).collect()
        };
        assert_eq!(cache.len(), self.megaflows.len());
        assert_eq!(by_id(walk(3, |from, most, out| cache.dump(from, most, out))), self.megaflows);
        let usage: BTreeMap<_, _> =
            walk(0, |from, most, out| cache.usage(from, most, out)).into_iter().collect();
        let known = self.megaflows.iter().map(|(&id, (_, usage))| (id, *usage));
        assert_eq!(usage, known.collect());
        let mut known = HashMap::<_, usize>::new();
        for (megaflow, _) in self.megaflows.values() {
            *known.entry(megaflow.condition.mask().clone()).or_default() += 1;
        }
        assert_eq!(cache.mask_count(), known.len());
        assert_eq!(
            cache.masks().map(|used| (used.mask, used.megaflows)).collect::<HashMap<_, _>>(),
            known
        );
        let lists = self.megaflows.values().map(|(megaflow, _)| format!("{:?}", megaflow.actions));
        assert_eq!(cache.action_lists(), lists.collect::<std::collections::BTreeSet<_>>().len());
    }
}

proptest! {
    #[test]
    fn cache_agrees_with_a_list_after_any_steps(steps in steps(), limit in 1..150_usize) {
        let mut cache = Cache::new(CacheLimits { megaflows: limit });
        let mut model = Model::default();
        for (step, now_ms) in steps.into_iter().zip(1..) {
            match step {
                Step::Put { mask, values, port } => {
                    model.put(&mut cache, small_megaflow(mask, values, port), limit);
                }
                Step::Delete { mask, values } => {
                    model.delete(&mut cache, small_megaflow(mask, values, 0).id);
                }
                Step::LookUp { values, bytes } => {
                    model.look_up(&mut cache, &small_key(values), bytes.into(), now_ms);
                }
                Step::DumpPage { most } => model.dump_page(&cache, most),
                Step::Maintain => cache.maintain(),
                Step::Clear => {
                    cache.clear();
                    model = Model::default();
                }
            }
        }
        model.check(&cache);
    }
}
