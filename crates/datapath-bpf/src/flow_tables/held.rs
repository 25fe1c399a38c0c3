//! [`HeldMegaflow`]: a megaflow read back from the maps.

use super::{ActionListNo, FlowNo, FlowTables, Generation};
use crate::abi::{self, weft_flow};
use crate::key::{KernelKey, KernelMask, KernelMatch};
use crate::layout::{L3, ND, TUN_ADDR, TUN_ID, WORDS};
use crate::map_error::MapError;
use crate::previous::words;
use crate::struct_bytes::{u16_at, u32_at, u64_at};
use libbpf_rs::{MapCore, MapFlags};
use std::mem::offset_of;
use std::ops::Range;

/// The contents of a megaflow's map entry.
#[derive(Debug)]
pub struct HeldMegaflow {
    /// Key and mask; `None` if they contradict each other, or the sections of the entry its key.
    pub matched: Option<KernelMatch>,
    /// 0 for a deleted megaflow.
    pub generation: Generation,
    /// Its action list.
    pub list: ActionListNo,
}

impl FlowTables {
    /// Reads the map entry of a megaflow.
    ///
    /// # Errors
    /// [`MapError::NoSuchFlow`], or the kernel's error if it rejects the read.
    pub fn held(&self, flow: FlowNo) -> Result<HeldMegaflow, MapError> {
        let entry = self.entries.lookup(&flow.0.to_ne_bytes(), MapFlags::ANY)?;
        let entry = entry.ok_or(MapError::NoSuchFlow(flow))?;
        let mask = u32::from(u16_at(&entry, offset_of!(weft_flow, mask)));
        let mask = self.masks.lookup(&mask.to_ne_bytes(), MapFlags::ANY)?;
        let key = words(&entry);
        // Programs compare the other sections only with those of frames that have them.
        let has_sections = u16_at(&entry, offset_of!(weft_flow, sections)) == sections(&key);
        let mask = mask.filter(|_| has_sections);
        let matched = mask.map(|mask| words(&mask)).filter(|mask: &[u64; WORDS]| {
            // A key with bits outside the mask matches no packet.
            key.iter().zip(mask).all(|(key, mask)| key & !mask == 0)
        });
        Ok(HeldMegaflow {
            matched: matched.map(|mask| {
                KernelMatch::from_parts(KernelKey::from_words(key), KernelMask::from_words(mask))
            }),
            generation: Generation(u64_at(&entry, offset_of!(weft_flow, generation))),
            list: ActionListNo(u32_at(&entry, offset_of!(weft_flow, list))),
        })
    }
}

/// The optional sections of a key that are not 0, as `bpf/control.bpf.c` stores them.
fn sections(key: &[u64; WORDS]) -> u16 {
    let flag = |words: Range<usize>, flag: u32| {
        let has_section = key[words].iter().any(|word| *word != 0);
        if has_section { flag as u16 } else { 0 }
    };
    flag(L3 + 1..ND, abi::WEFT_L3_LONG)
        | flag(ND..TUN_ID, abi::WEFT_ND)
        | flag(TUN_ID..TUN_ADDR + 1, abi::WEFT_TUNNEL)
        | flag(TUN_ADDR + 1..WORDS, abi::WEFT_TUNNEL6)
}
