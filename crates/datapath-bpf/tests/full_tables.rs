//! Tests full maps: frames with a megaflow are still forwarded, others are punted and counted, and
//! the memory of the maps and of the process does not grow.

use crate::common::frames::{tcp4, udp4};
use crate::common::switch::{REDIRECTED, Switch};
use datapath_bpf::{ActionListNo, FlowNo, KernelMatch, MapError};
use flow::{Action, Field, FlowKey, FlowMask, extract};
use packet::PacketBuf;
use std::fs;
use std::process::Command;

/// Rounds of filling all maps and emptying them again.
const ROUNDS: u32 = 30;
/// The number of rounds after which the process has made all its allocations.
const WARM: usize = 5;
/// Memory in kB that the allocator may keep in addition. A leak of 4 bytes per megaflow takes more.
const TOLERANCE_KB: u64 = 100;
/// UDP's source port in a frame of [`udp4`].
const SOURCE_PORT: usize = 14 + 20;

/// A frame whose UDP ports encode `number`, so that each number is another flow.
fn frame(number: u32) -> Vec<u8> {
    let mut frame = udp4(&[0; 40]);
    frame[SOURCE_PORT..SOURCE_PORT + 4].copy_from_slice(&number.to_be_bytes());
    frame
}

fn key(frame: &[u8]) -> FlowKey {
    extract(&PacketBuf::from_bytes(frame), Switch::VIF, None).expect("it is whole")
}

struct FullTables {
    switch: Switch,
    /// A megaflow that was there before, and its frame.
    victim: (FlowNo, Vec<u8>),
    /// Frames of the victim.
    forwarded: u64,
    next: u32,
}

impl FullTables {
    fn new() -> Self {
        let mut switch = Switch::load();
        let frame = tcp4();
        let flow = switch.put(&key(&frame), &[Action::Output(Switch::DEVICE)], 0);
        Self { switch, victim: (flow, frame), forwarded: 0, next: 0 }
    }

    /// The action list of the victim's megaflow, which all megaflows of this test share.
    const LIST: ActionListNo = ActionListNo(1);

    /// Adds megaflows until the maps are full. Returns them and their numbers of frames.
    fn fill_with_flows(&mut self) -> Vec<(FlowNo, u32)> {
        let mut flows = Vec::new();
        loop {
            self.next += 1;
            let mut mask = FlowMask::default();
            let usual = [Field::InPort, Field::EthType, Field::IpProto, Field::TpSrc, Field::TpDst];
            usual.into_iter().for_each(|field| mask.add(field));
            let megaflow = KernelMatch::new(&key(&frame(self.next)), &mask).expect("is held");
            match self.switch.tables.put(&megaflow, Self::LIST) {
                Ok(flow) => flows.push((flow, self.next)),
                Err(MapError::ChainFull) => {}
                Err(MapError::FlowsFull) => return flows,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Adds megaflows with different masks, which match none of the frames of this test, until
    /// there is no room for another mask.
    fn fill_with_masks(&mut self) -> Vec<FlowNo> {
        let mut flows = Vec::new();
        for bits in 1..1000_u128 {
            let (mut mask, mut key) = (FlowMask::default(), FlowKey::default());
            mask.add(Field::EthSrc);
            key.set(Field::EthSrc, 0xfe);
            mask.add_bits(Field::EthDst, bits);
            let megaflow = KernelMatch::new(&key, &mask).expect("it is held");
            match self.switch.tables.put(&megaflow, Self::LIST) {
                Ok(flow) => flows.push(flow),
                Err(MapError::MasksFull) => return flows,
                Err(error) => panic!("{error}"),
            }
        }
        panic!("there is room for {} masks", flows.len());
    }

    /// Checks that the victim's frame is forwarded and counted.
    fn check_victim(&mut self) {
        let (flow, frame) = &self.victim;
        assert_eq!(self.switch.vif(frame).verdict, REDIRECTED);
        assert_eq!(self.switch.vif(frame).punted(), None);
        self.forwarded += 2;
        let counted = self.switch.tables.stats(*flow).expect("it is there").packets;
        assert_eq!(counted, self.forwarded);
    }

    /// Checks that a frame without a megaflow is punted unchanged and counted as a miss.
    fn check_stranger(&mut self) {
        self.next += 1;
        let frame = frame(self.next);
        let misses = |switch: &Switch| switch.tables.lookups().expect("they are counted").misses;
        let before = misses(&self.switch);
        assert_eq!(self.switch.vif(&frame).punted(), Some((Switch::VIF, &frame[..])));
        assert_eq!(misses(&self.switch), before + 1);
    }

    fn delete(&mut self, flows: impl IntoIterator<Item = FlowNo>) {
        let tables = &mut self.switch.tables;
        flows.into_iter().for_each(|flow| tables.delete(flow).expect("it is there"));
        tables.reclaim().expect("a grace period ends");
        // The other list of masks is free after a second grace period.
        tables.reclaim().expect("a grace period ends");
    }
}

#[test]
fn megaflows_continue_and_other_frames_are_punted_when_the_maps_are_full() {
    testkit::require_root!();
    let mut full = FullTables::new();
    let flows = full.fill_with_flows();
    assert!(flows.len() > 900, "{}", flows.len());
    for &(flow, number) in &flows {
        let ran = full.switch.vif(&frame(number));
        assert!(ran.verdict == REDIRECTED && ran.punted().is_none(), "{flow:?}: {ran:?}");
        assert_eq!(full.switch.tables.stats(flow).expect("it is there").packets, 1);
        full.check_stranger();
    }
    full.check_victim();
    full.delete(flows.into_iter().map(|(flow, _)| flow));
    let masks = full.fill_with_masks();
    assert!(masks.len() > 100, "{}", masks.len());
    full.check_victim();
    full.check_stranger();
    full.delete(masks);
    assert!(full.fill_with_flows().len() > 900, "there is room again");
    full.check_victim();
}

/// Not a test: `memory_stays_flat_when_the_maps_are_filled_again_and_again` runs it in a separate
/// process.
#[test]
#[ignore = "prints the memory of its process"]
fn print_memory() {
    let mut full = FullTables::new();
    for _ in 0..ROUNDS {
        let flows = full.fill_with_flows();
        full.check_victim();
        full.check_stranger();
        println!("MEMORY {} {}", full.switch.map_memory_bytes(), resident_kb());
        full.delete(flows.into_iter().map(|(flow, _)| flow));
        let masks = full.fill_with_masks();
        full.delete(masks);
    }
}

fn resident_kb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("it is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a field");
    line.trim().trim_end_matches(" kB").parse().expect("a number of kB")
}

#[test]
fn memory_stays_flat_when_the_maps_are_filled_again_and_again() {
    testkit::require_root!();
    let program = std::env::current_exe().expect("this program has a path");
    let run = Command::new(program)
        .args(["--ignored", "--exact", "full_tables::print_memory", "--nocapture"])
        .output()
        .expect("it can be started");
    let printed = String::from_utf8_lossy(&run.stdout);
    let lines = printed.lines().filter_map(|line| line.split_once("MEMORY ")?.1.split_once(' '));
    let memory: Vec<(u64, u64)> =
        lines.filter_map(|(maps, kb)| Some((maps.parse().ok()?, kb.parse().ok()?))).collect();
    assert_eq!(memory.len(), ROUNDS as usize, "{printed}{}", String::from_utf8_lossy(&run.stderr));
    println!("{memory:?}");
    let (maps, warm_kb) = memory[WARM];
    assert!(maps > 1_000_000 && memory.iter().all(|&(bytes, _)| bytes == maps), "{memory:?}");
    let most_kb = memory.iter().map(|&(_, kb)| kb).max();
    assert!(most_kb <= Some(warm_kb + TOLERANCE_KB), "{memory:?}");
}
