//! [`HeldMegaflow`]: a megaflow read back from the maps.

use super::{ActionListNo, FlowNo, FlowTables, Generation};
use crate::abi::weft_flow;
use crate::key::{KernelKey, KernelMask, KernelMatch};
use crate::layout::WORDS;
use crate::map_error::MapError;
use crate::previous::words;
use crate::struct_bytes::{u16_at, u32_at, u64_at};
use libbpf_rs::{MapCore, MapFlags};
use std::mem::offset_of;

/// The contents of a megaflow's map entry.
#[derive(Debug)]
pub struct HeldMegaflow {
    /// Key and mask; `None` if they contradict each other.
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
