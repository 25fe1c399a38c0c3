//! [`PortMasks`]: the masks that each port's megaflows use in the programs' tables.
//!
//! The programs' tables have room for few masks, because a lookup tries all of them. A guest can
//! send packets that each need another mask. If it used up all masks, the packets of all other
//! ports would have to be punted.

use crate::flow_tables::MaskNo;
use flow::PortNo;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The number of megaflows of each port that use each mask.
#[derive(Debug, Default)]
pub(crate) struct PortMasks(HashMap<PortNo, HashMap<MaskNo, u32>>);

impl PortMasks {
    /// Whether a megaflow of `port` may add a mask to the tables when `free` masks can be added. A
    /// port may use at most as many masks as would remain free for others.
    pub fn may_add(&self, port: PortNo, free: usize) -> bool {
        self.0.get(&port).map_or(0, HashMap::len) < free
    }

    /// Adds a megaflow.
    pub fn add(&mut self, port: PortNo, mask: Option<MaskNo>) {
        if let Some(mask) = mask {
            *self.0.entry(port).or_default().entry(mask).or_default() += 1;
        }
    }

    /// Removes a megaflow.
    pub fn remove(&mut self, port: PortNo, mask: Option<MaskNo>) {
        let (Entry::Occupied(mut used), Some(mask)) = (self.0.entry(port), mask) else { return };
        if let Entry::Occupied(mut megaflows) = used.get_mut().entry(mask) {
            *megaflows.get_mut() -= 1;
            if *megaflows.get() == 0 {
                megaflows.remove();
            }
        }
        if used.get().is_empty() {
            used.remove();
        }
    }
}
