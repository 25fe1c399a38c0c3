//! Tests lookups in the programs' maps: the cache and the search find the same megaflows as
//! userspace, and no deleted ones.

use crate::common::abi::{WEFT_TUN_FLAG_KEY_SHIFT, WEFT_TUNNEL, WEFT_TUNNEL6};
use crate::common::frames::tcp4;
use crate::common::lookup::{EXECUTED, Lookup};
use datapath_bpf::{
    FlowNo, FlowStats, FlowTableSizes, KernelKey, KernelMatch, LookupStats, MapError,
};
use flow::{Field, FlowKey, FlowMask};
use packet::PacketBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use testkit::frames::{self, FrameKinds};
use testkit::random::{Random, environment};

const SIZES: FlowTableSizes = FlowTableSizes { flows: 3000, cached: 256 };
const KINDS: FrameKinds =
    FrameKinds { supers: false, snap: false, malformed: false, max_payload: 200 };

fn mask_of(fields: &[Field]) -> FlowMask {
    let mut mask = FlowMask::default();
    fields.iter().for_each(|&field| mask.add(field));
    mask
}

/// A frame that a program can be run on, and its key.
fn frame(random: &mut Random) -> (Vec<u8>, FlowKey) {
    loop {
        let packet = frames::frame(random, KINDS);
        let frame = packet.to_vec();
        if frame.len() < 64 {
            continue;
        }
        if let Ok(key) = flow::extract(&PacketBuf::from_bytes(&frame), Lookup::PORT, None) {
            return (frame, key);
        }
    }
}

/// Looks up random frames, and for each a copy with one bit changed. Adds megaflows for some
/// misses, deletes some, and compares with a plain list. Returns the number of hits.
fn compare_with_a_list(kernel: &mut Lookup, random: &mut Random, frames: usize) -> usize {
    let masks: Vec<_> = (0..40)
        .map(|_| mask_of(&(0..3).map(|_| random.pick(Field::ALL)).collect::<Vec<_>>()))
        .filter(|mask| KernelMatch::new(&FlowKey::default(), mask).is_ok())
        .collect();
    let mut installed: Vec<(FlowNo, KernelMatch)> = Vec::new();
    let mut found = 0;
    for _ in 0..frames {
        let (bytes, key) = frame(random);
        for (bytes, key) in [Some((bytes.clone(), key)), nearly(random, bytes)].iter().flatten() {
            let kernel_key = KernelKey::from(key);
            let serves = |(_, megaflow): &&(FlowNo, KernelMatch)| megaflow.matches(&kernel_key);
            let mut serving = installed.iter().filter(serves);
            let flow = kernel.find(bytes);
            let right = match flow {
                Some(flow) => serving.any(|(number, _)| *number == flow),
                None => serving.next().is_none(),
            };
            assert!(right, "{flow:?} for {key:?}");
            // The cache answers a second lookup.
            assert_eq!(kernel.find(bytes), flow);
            found += usize::from(flow.is_some());
            if flow.is_none() && random.once_in(2) {
                let megaflow = KernelMatch::new(key, &masks[random.below(masks.len())]);
                let megaflow = megaflow.expect("bits that the key holds");
                match kernel.tables.put(&megaflow, EXECUTED) {
                    Ok(number) => installed.push((number, megaflow)),
                    Err(MapError::ChainFull | MapError::FlowsFull) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
        if random.once_in(3) && !installed.is_empty() {
            let (number, _) = installed.swap_remove(random.below(installed.len()));
            kernel.tables.delete(number).expect("it is there");
        }
    }
    found
}

/// A copy of the frame with one bit changed, and its key if it has one.
fn nearly(random: &mut Random, mut frame: Vec<u8>) -> Option<(Vec<u8>, FlowKey)> {
    let at = random.below(frame.len().min(80));
    frame[at] ^= 1 << random.below(8);
    let key = flow::extract(&PacketBuf::from_bytes(&frame), Lookup::PORT, None).ok()?;
    Some((frame, key))
}

#[test]
fn frames_find_the_megaflow_that_matches_them() {
    testkit::require_root!();
    let mut random = Random::new(environment("WEFT_SEED", 1));
    let frames = environment("WEFT_CASES", 20_000) as usize / 10;
    let found = compare_with_a_list(&mut Lookup::load(SIZES), &mut random, frames);
    assert!(found > frames / 2, "{found}");
}

/// Collisions are rare, so here all megaflows share one chain, and all keys one cache entry.
#[test]
fn frames_find_the_megaflow_that_matches_them_when_hashes_collide() {
    testkit::require_root!();
    let mut random = Random::new(environment("WEFT_SEED", 1));
    let frames = environment("WEFT_CASES", 20_000) as usize / 2;
    let mut kernel = Lookup::load_in_one_chain(SIZES);
    let found = compare_with_a_list(&mut kernel, &mut random, frames);
    assert!(found > frames / 10, "{found}");
}

#[test]
fn frame_without_a_section_does_not_find_a_megaflow_that_has_it() {
    testkit::require_root!();
    for field in [Field::NdTarget, Field::TunId, Field::TunMetadata0] {
        let mut kernel = Lookup::load_in_one_chain(SIZES);
        let mut key = FlowKey::default();
        key.set(field, 5);
        let megaflow = KernelMatch::new(&key, &mask_of(&[field])).expect("it is held");
        kernel.tables.put(&megaflow, EXECUTED).expect("there is room");
        assert_eq!(kernel.find(&tcp4()), None, "{field}");
        let without = KernelMatch::new(&FlowKey::default(), &mask_of(&[field])).expect("is held");
        let without = kernel.tables.put(&without, EXECUTED).expect("there is room");
        assert_eq!(kernel.find(&tcp4()), Some(without), "{field}");
    }
}

/// The cache compares the tunnel's part of a key, too.
#[test]
fn tunnelled_keys_in_one_cache_entry_are_distinguished() {
    testkit::require_root!();
    let (ip4, ip6) = (WEFT_TUNNEL.into(), (WEFT_TUNNEL | WEFT_TUNNEL6).into());
    let (v4, v6) = ([Field::TunSrc, Field::TunDst], [Field::TunIpv6Src, Field::TunIpv6Dst]);
    // Shape, tunnel key, flags, metadata, addresses.
    let by_ip4 = ([ip4, 5, 1 << WEFT_TUN_FLAG_KEY_SHIFT, 7, 1 << 32 | 2, 0, 0, 0], v4, [1, 2]);
    let by_ip6 =
        ([ip6, 5, 1 << WEFT_TUN_FLAG_KEY_SHIFT, 7, 1, 2, 3, 4], v6, [1 << 64 | 2, 3 << 64 | 4]);
    for (tunnel, addresses, values) in [by_ip4, by_ip6] {
        let mut kernel = Lookup::load_in_one_chain(SIZES);
        let mut key = FlowKey::default();
        key.set(Field::TunId, 5);
        key.set(Field::TunFlags, 8);
        key.set(Field::TunMetadata0, 7);
        addresses.iter().zip(values).for_each(|(&field, value)| key.set(field, value));
        let fields = [Field::TunId, Field::TunFlags, Field::TunMetadata0];
        let mask = mask_of(&[&fields[..], &addresses].concat());
        let megaflow = KernelMatch::new(&key, &mask).expect("it is held");
        let flow = kernel.tables.put(&megaflow, EXECUTED).expect("there is room");
        let words = if tunnel[0] == ip6 { 1..8 } else { 1..5 };
        for word in words {
            // Found by the search, then by the cache, and again after another key has replaced the
            // cache entry.
            for _ in 0..2 {
                assert_eq!(kernel.find_tunnelled(tunnel, &tcp4()), Some(flow));
            }
            let mut other = tunnel;
            other[word] ^= if word == 2 { 1 << 48 } else { 1 };
            assert_eq!(kernel.find_tunnelled(other, &tcp4()), None, "word {word} of {tunnel:?}");
            assert_eq!(kernel.find_tunnelled(tunnel, &tcp4()), Some(flow));
            assert_eq!(kernel.find(&tcp4()), None, "without a tunnel");
        }
    }
}

#[test]
fn deleted_megaflow_is_not_hit_in_the_cache_when_its_entry_is_used_again() {
    testkit::require_root!();
    let mut kernel = Lookup::load(SIZES);
    let mut random = Random::new(7);
    let (bytes, key) = frame(&mut random);
    let exact = KernelMatch::new(&key, &FlowMask::exact().of_packet()).err();
    assert!(exact.is_some(), "the kernel's key does not hold all");
    let mask = mask_of(&[Field::InPort, Field::EthSrc, Field::EthDst, Field::EthType]);
    let megaflow = KernelMatch::new(&key, &mask).expect("bits that the key holds");
    let first = kernel.tables.put(&megaflow, EXECUTED).expect("there is room");
    assert_eq!((kernel.find(&bytes), kernel.find(&bytes)), (Some(first), Some(first)));
    let served = FlowStats { packets: 2, bytes: 2 * bytes.len() as u64 };
    assert_eq!(kernel.tables.stats(first).expect("it is there"), served);

    kernel.tables.delete(first).expect("it is there");
    assert_eq!(kernel.find(&bytes), None);
    kernel.tables.reclaim().expect("a grace period ends");
    let mut other = key.clone();
    other.set(Field::EthSrc, 0x02_ff);
    let other = KernelMatch::new(&other, &mask).expect("bits that the key holds");
    assert_eq!(kernel.tables.put(&other, EXECUTED).expect("there is room"), first, "used again");
    assert_eq!(kernel.find(&bytes), None, "the cache has the key with the entry's number");
    assert!(matches!(kernel.tables.delete(FlowNo(2)), Err(MapError::NoSuchFlow(FlowNo(2)))));
}

/// Two megaflows swap entries again and again. A concurrent lookup finds the megaflow in its entry,
/// or nothing while it is deleted.
#[test]
fn lookups_go_on_while_megaflows_come_and_go() {
    const MOVING: usize = usize::MAX;
    testkit::require_root!();
    let mut kernel = Lookup::load(SIZES);
    let mut random = Random::new(3);
    let (bytes, key) = frame(&mut random);
    let mut other = key.clone();
    other.set(Field::EthSrc, 0x02_ff);
    let mask = mask_of(&[Field::InPort, Field::EthSrc]);
    let [sought, other] = [key, other].map(|key| KernelMatch::new(&key, &mask).expect("is held"));
    let find = kernel.finder();
    let at = AtomicUsize::new(MOVING);
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut looks = [0; 2];
            while !ended.load(Ordering::SeqCst) {
                let before = at.load(Ordering::SeqCst);
                let flow = find(&bytes).map(|flow| flow.0 as usize);
                if before != MOVING && before == at.load(Ordering::SeqCst) {
                    assert_eq!(flow, Some(before), "it stays where it is meanwhile");
                    looks[before % 2] += 1;
                }
            }
            looks
        });
        for round in 0..100 {
            // The entry that was freed last is used first, so the two swap entries.
            let flows = [&sought, &other]
                .map(|flow| kernel.tables.put(flow, EXECUTED).expect("there is room"));
            at.store(flows[0].0 as usize, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(5));
            at.store(MOVING, Ordering::SeqCst);
            flows.iter().for_each(|&flow| kernel.tables.delete(flow).expect("it is there"));
            assert_eq!(kernel.find(&bytes), None, "deleted in round {round}");
            kernel.tables.reclaim().expect("a grace period ends");
        }
        ended.store(true, Ordering::SeqCst);
        let looks = looks.join().expect("nothing else was found");
        assert!(looks.iter().all(|&looks| looks > 100), "{looks:?} at each of two places");
    });
}

#[test]
fn tables_refuse_more_than_they_hold() {
    testkit::require_root!();
    let mut kernel = Lookup::load(SIZES);
    let mut key = FlowKey::default();
    let mask = mask_of(&[Field::TunId]);
    let mut put = |kernel: &mut Lookup, id: u32| {
        key.set(Field::TunId, id.into());
        let megaflow = KernelMatch::new(&key, &mask).expect("bits that the key holds");
        kernel.tables.put(&megaflow, EXECUTED)
    };
    let flows: Vec<_> = (1..=SIZES.flows).map(|id| put(&mut kernel, id).expect("room")).collect();
    assert!(matches!(put(&mut kernel, SIZES.flows + 1), Err(MapError::FlowsFull)));
    kernel.tables.delete(flows[5]).expect("it is there");
    assert!(matches!(put(&mut kernel, SIZES.flows + 1), Err(MapError::FlowsFull)), "in use");
    kernel.tables.reclaim().expect("a grace period ends");
    assert_eq!(put(&mut kernel, SIZES.flows + 1).expect("there is room again"), flows[5]);
}

/// Chains are short, so a hash must spread megaflows well even if they differ only in a port, or in
/// the lowest or highest bits of an address.
#[test]
fn megaflows_are_spread_over_chains_whatever_they_differ_in() {
    testkit::require_root!();
    for &field in Field::ALL.iter().filter(|field| !field.is_register()) {
        let mask = mask_of(&[field]);
        if KernelMatch::new(&FlowKey::default(), &mask).is_err() || field.width() < 8 {
            continue;
        }
        let mut kernel = Lookup::load(SIZES);
        let count = 1_u128 << field.width().min(10);
        for shift in [0, field.width() - field.width().min(10)] {
            for number in 0..count {
                let mut key = FlowKey::default();
                key.set(field, number << shift);
                let megaflow = KernelMatch::new(&shaped(key, field), &mask).expect("it is held");
                let put = kernel.tables.put(&megaflow, EXECUTED);
                put.unwrap_or_else(|e| panic!("{field} = {number} << {shift}: {e}"));
            }
        }
    }
}

/// Sets the fields that a frame with `field` has, such as the EtherType.
fn shaped(mut key: FlowKey, field: Field) -> FlowKey {
    let ethertype = match field {
        Field::Ip4Src | Field::Ip4Dst => 0x0800,
        Field::ArpSpa | Field::ArpTpa | Field::ArpSha | Field::ArpOp | Field::ArpTha => 0x0806,
        Field::EthType => return key,
        _ => 0x86dd,
    };
    if matches!(field, Field::NdTarget | Field::NdSll | Field::NdTll) {
        key.set(Field::IpProto, 58);
        key.set(Field::IcmpType, if field == Field::NdTll { 136 } else { 135 });
    }
    key.set(Field::EthType, ethertype);
    key
}

#[test]
fn masks_without_megaflows_make_room_for_others() {
    testkit::require_root!();
    let mut kernel = Lookup::load(SIZES);
    let mut put = |number: usize| {
        let mut mask = FlowMask::default();
        mask.add_bits(Field::TunId, number as u128);
        let megaflow = KernelMatch::new(&FlowKey::default(), &mask).expect("it is held");
        let put = kernel.tables.put(&megaflow, EXECUTED);
        if number > FlowTableSizes::MASKS && put.is_err() {
            assert!(matches!(put, Err(MapError::MasksFull)));
            kernel.tables.delete(FlowNo(17)).expect("it is there");
            kernel.tables.reclaim().expect("a grace period ends");
            return kernel.tables.put(&megaflow, EXECUTED);
        }
        put
    };
    for number in 1..=FlowTableSizes::MASKS + 1 {
        put(number).expect("deletion makes room");
    }
}

#[test]
fn masks_are_tried_in_order_of_their_hits_and_forgotten_when_unused() {
    testkit::require_root!();
    let mut kernel = Lookup::load(SIZES);
    let mut random = Random::new(9);
    let other = tcp4();
    let differ =
        |(bytes, _): &(Vec<u8>, FlowKey)| bytes[..6] != other[..6] && bytes[6..12] != other[6..12];
    let frames = std::iter::repeat_with(|| frame(&mut random));
    let (bytes, key) = frames.take(100).find(differ).expect("most have other addresses");
    let put = |kernel: &mut Lookup, field| {
        let megaflow = KernelMatch::new(&key, &mask_of(&[field])).expect("it is held");
        kernel.tables.put(&megaflow, EXECUTED).expect("there is room")
    };
    let [src, dst, port] =
        [Field::EthSrc, Field::EthDst, Field::InPort].map(|field| put(&mut kernel, field));
    let order = kernel.tables.masks().to_vec();
    assert_eq!(kernel.search(&bytes), Some(src), "the first that was put");
    let mut lookups = LookupStats { hits: 1, misses: 0, masks: 1 };
    assert_eq!(kernel.tables.lookups().expect("they are counted"), lookups);
    assert_eq!(kernel.search(&other), Some(port));
    lookups = LookupStats { hits: 2, misses: 0, masks: 4 };
    assert_eq!(kernel.tables.lookups().expect("they are counted"), lookups);
    kernel.tables.reclaim_and_sort(|mask| u64::from(mask == order[2])).expect("sorted");
    assert_eq!(kernel.tables.masks(), [order[2], order[0], order[1]]);
    assert_eq!(kernel.search(&bytes), Some(port));
    kernel.tables.delete(port).expect("it is there");
    assert_eq!(kernel.search(&bytes), Some(src));
    kernel.tables.delete(src).expect("it is there");
    kernel.tables.reclaim().expect("a grace period ends");
    assert_eq!(kernel.tables.masks(), [order[1]]);
    assert_eq!(kernel.search(&bytes), Some(dst));
    assert_eq!(put(&mut kernel, Field::EthSrc), src, "entry and mask are free again");
}
