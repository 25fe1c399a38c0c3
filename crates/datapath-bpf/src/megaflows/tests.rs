use super::*;
use crate::abi::{weft_action_list, weft_flow};
use crate::load::{MapSizes, load};
use flow::{EntropySeed, SteadyPass, TrackResult};
use libbpf_rs::{MapCore, MapFlags};
use std::mem::offset_of;

const UPLINK: PortNo = PortNo(0);

fn loaded(megaflows: usize) -> LoadedObject {
    load(MapSizes::new(megaflows, 1), &EntropySeed::random()).expect("the programs can be loaded")
}

/// A megaflow from one port to another.
fn from_to(from: u32, to: u32) -> Megaflow {
    let mut condition = Match::any();
    assert!(condition.require(Field::InPort, from.into(), Field::InPort.all_ones()));
    Megaflow::new(condition, [Action::Output(PortNo(to))].into())
}

/// The number of the port's megaflows that are in the maps, of 200 with different masks.
fn in_maps_of_200_masks(flows: &mut Megaflows, port: u32) -> usize {
    let megaflow = |bit: usize| {
        let mut condition = from_to(port, 9).condition;
        let field = [Field::Ip6Src, Field::Ip6Dst][bit / 100];
        assert!(condition.require(Field::EthType, 0x86dd, Field::EthType.all_ones()));
        assert!(condition.require(field, 0, 1 << (bit % 100)));
        Megaflow::new(condition, [Action::Output(PortNo(9))].into())
    };
    let all: Vec<_> = (0..200).map(megaflow).collect();
    for megaflow in &all {
        flows.put(megaflow, None).unwrap();
    }
    flows.get(all.iter().map(|megaflow| megaflow.id)).len()
}

#[test]
fn port_leaves_masks_for_other_ports_and_gets_them_back() {
    testkit::require_root!();
    let loaded = loaded(1000);
    let mut flows = Megaflows::new(&loaded, UPLINK).unwrap();
    assert_eq!(in_maps_of_200_masks(&mut flows, 1), 64);
    // Port 2 shares these masks, and may not add others: it uses as many masks as are free.
    assert_eq!(in_maps_of_200_masks(&mut flows, 2), 64);
    let other = from_to(3, 9);
    flows.put(&other, None).unwrap();
    assert_eq!(flows.get([other.id]), [other]);
    let ids: Vec<_> = flows.numbers.keys().copied().collect();
    flows.delete(&ids).1.unwrap();
    flows.tables.reclaim().unwrap();
    assert_eq!(in_maps_of_200_masks(&mut flows, 1), 64);
}

/// A fused megaflow from one port to another, whose packets have `mark` in their first pass.
fn fused(from: u32, to: u32, mark: u32) -> Megaflow {
    let result = TrackResult { mark, ..TrackResult::default() };
    let (zone, nat, commit, fresh, recirculates) = (1, None, None, false, true);
    let pass = SteadyPass { zone, nat, commit, fresh, recirculates, result };
    let fusion = Fusion { passes: [pass].into(), connections: Box::default() };
    let Megaflow { condition, actions, .. } = from_to(from, to);
    Megaflow::fused(condition, actions, Arc::new(fusion))
}

#[test]
fn suspended_megaflow_punts_until_it_depends_on_something_else() {
    testkit::require_root!();
    let loaded = loaded(100);
    let mut flows = Megaflows::new(&loaded, UPLINK).unwrap();
    let (first, next) = (fused(1, 2, 0), fused(1, 2, 7));
    assert_eq!(first.id, next.id);
    let list = |flows: &Megaflows| flows.entry(flows.numbers[&first.id]).unwrap().list;
    flows.put(&first, None).unwrap();
    let executed = list(&flows);
    assert_ne!(executed, ActionListNo::PUNT);
    flows.suspend(&[first.id, next.id]);
    assert_eq!(list(&flows), ActionListNo::PUNT);
    flows.confirm(&[first.id]).unwrap();
    flows.put(&first, None).unwrap();
    assert_eq!(list(&flows), ActionListNo::PUNT, "the revalidator may confirm it");
    assert_eq!(flows.damaged(&[first.id]).unwrap(), []);
    flows.put(&next, None).unwrap();
    assert_ne!(list(&flows), ActionListNo::PUNT);
    assert_eq!(flows.get([first.id]), [next]);
}

#[test]
fn programs_try_masks_of_fused_megaflows_first() {
    testkit::require_root!();
    let loaded = loaded(100);
    let mut flows = Megaflows::new(&loaded, UPLINK).unwrap();
    for port in [1, 2] {
        let mut condition = from_to(port, 9).condition;
        assert!(condition.require(Field::EthDst, 0, 1 << port));
        flows.put(&Megaflow::new(condition, [Action::Output(PortNo(9))].into()), None).unwrap();
    }
    let before = flows.tables.masks().to_vec();
    let megaflow = fused(3, 2, 0);
    flows.put(&megaflow, None).unwrap();
    let mask = flows.tables.mask_of(flows.numbers[&megaflow.id]).unwrap();
    assert_eq!(flows.tables.masks(), [&[mask][..], &before].concat());
    let list = loaded.map("weft_mask_lists").unwrap();
    let list = list.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    let words: Vec<u32> =
        list.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).take(4).collect();
    assert_eq!(words, [3, mask.0, before[0].0, before[1].0]);
}

#[test]
fn megaflow_is_absent_when_its_new_actions_do_not_fit() {
    testkit::require_root!();
    let loaded = loaded(100);
    let mut flows = Megaflows::new(&loaded, UPLINK).unwrap();
    for from in [1, 2] {
        flows.put(&from_to(from, 2), None).unwrap();
    }
    loaded.map("weft_actions").unwrap().freeze().unwrap();
    let (known, new) = (from_to(3, 2), from_to(1, 9));
    assert!(flows.put(&new, None).is_err(), "there is no list for it");
    assert!(flows.get([new.id]).is_empty(), "it would be executed with its old actions");
    assert_eq!(flows.tables.mask_of(FlowNo(1)), None, "it is out of the tables");
    flows.put(&known, None).expect("its list is there");
    assert_eq!(flows.get([known.id]), [known]);
}

#[test]
fn megaflow_is_damaged_when_a_byte_of_its_maps_is_flipped() {
    testkit::require_root!();
    let loaded = loaded(100);
    let mut flows = Megaflows::new(&loaded, UPLINK).unwrap();
    let (a, b) = (from_to(1, 9), from_to(2, 8));
    for megaflow in [&a, &b] {
        flows.put(megaflow, None).unwrap();
    }
    let ids = [a.id, b.id];
    assert_eq!(flows.damaged(&ids).unwrap(), []);
    let entry = flows.numbers[&b.id].0;
    let list = flows.entry(FlowNo(entry)).unwrap().list.0;
    // The upper half of the key's first word, and of the mask's, has the ingress port.
    for (map, at, byte, damaged) in [
        ("weft_flows", entry, 4, vec![b.id]),
        ("weft_flows", entry, offset_of!(weft_flow, generation), vec![b.id]),
        ("weft_flows", entry, offset_of!(weft_flow, list), vec![b.id]),
        ("weft_flows", entry, offset_of!(weft_flow, sections), vec![b.id]),
        ("weft_masks", flows.tables.mask_of(FlowNo(entry)).unwrap().0, 4, vec![a.id, b.id]),
        ("weft_actions", list, offset_of!(weft_action_list, actions) + 4, vec![b.id]),
    ] {
        let map = loaded.map(map).unwrap();
        let right = map.lookup(&at.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
        let mut wrong = right.clone();
        wrong[byte] ^= 1;
        map.update(&at.to_ne_bytes(), &wrong, MapFlags::ANY).unwrap();
        assert_eq!(flows.damaged(&ids).unwrap(), damaged, "{map:?}, byte {byte}");
        map.update(&at.to_ne_bytes(), &right, MapFlags::ANY).unwrap();
    }
    assert_eq!(flows.damaged(&ids).unwrap(), []);
}

/// The sections of their keys are those that the programs store.
#[test]
fn megaflow_is_intact_whatever_sections_its_key_has() {
    testkit::require_root!();
    let loaded = loaded(100);
    let mut flows = Megaflows::new(&loaded, UPLINK).unwrap();
    let ip6 = [(Field::EthType, 0x86dd), (Field::Ip6Dst, 1)];
    let nd = [ip6[0], (Field::IpProto, 58), (Field::IcmpType, 135), (Field::IcmpCode, 0)];
    let tunnel = [(Field::TunId, 7), (Field::TunDst, 1)];
    let tunnel6 = [(Field::TunId, 7), (Field::TunIpv6Dst, 1)];
    let all: [&[(Field, u128)]; 5] =
        [&[], &ip6, &[&nd[..], &[(Field::NdTarget, 1)]].concat(), &tunnel, &tunnel6];
    for (port, fields) in (1..).zip(all) {
        let mut condition = from_to(port, 9).condition;
        for &(field, value) in fields {
            assert!(condition.require(field, value, field.all_ones()), "{field:?}");
        }
        let megaflow = Megaflow::new(condition, [Action::Output(PortNo(9))].into());
        flows.put(&megaflow, None).unwrap();
        assert_eq!(flows.get([megaflow.id]), std::slice::from_ref(&megaflow), "it is in the maps");
        assert_eq!(flows.damaged(&[megaflow.id]).unwrap(), [], "{megaflow:?}");
    }
}

#[test]
fn other_megaflows_are_deleted_when_one_cannot_be() {
    testkit::require_root!();
    let loaded = loaded(100);
    let mut flows = Megaflows::new(&loaded, UPLINK).unwrap();
    let [a, b, c] = [1, 2, 3].map(|from| from_to(from, 9));
    for megaflow in [&a, &b, &c] {
        flows.put(megaflow, None).unwrap();
    }
    // Makes the next deletion of `b` fail.
    let number = flows.numbers[&b.id];
    flows.tables.delete(number).unwrap();
    let (deleted, result) = flows.delete(&[a.id, b.id, c.id]);
    assert!(matches!(result, Err(MapError::NoSuchFlow(_))), "{result:?}");
    let gone: Vec<_> = deleted.entries.iter().map(|(_, entry)| entry.id).collect();
    assert_eq!(gone, [a.id, c.id]);
    assert_eq!(flows.get([a.id, b.id, c.id]), [b], "an undeleted megaflow stays visible");
}
