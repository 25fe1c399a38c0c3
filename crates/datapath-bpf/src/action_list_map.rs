//! [`ActionListMap`]: the map of action lists. Megaflows with equal lists share an entry.

use crate::abi::{self, weft_action, weft_action_list};
use crate::action_list::{ActionList, BpfAction, MAX_ACTIONS};
use crate::entries::{self, FreeEntries};
use crate::flow_tables::ActionListNo;
use crate::map_error::MapError;
use crate::map_use::map_use;
use crate::object::LoadedObject;
use crate::struct_bytes::struct_bytes;
use datapath::stats::MapUse;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem::offset_of;
use std::sync::Arc;

/// The map, and how many megaflows use each entry.
#[derive(Debug)]
pub struct ActionListMap {
    map: MapHandle,
    numbers: HashMap<Arc<ActionList>, ActionListNo>,
    /// Lists and numbers of users, by entry. Entry [`ActionListNo::PUNT`] is unused.
    users: Vec<Option<(Arc<ActionList>, u32)>>,
    /// Entries that no program can use.
    free: FreeEntries,
    /// Entries without users. Programs may still execute them.
    unused: Vec<ActionListNo>,
}

impl ActionListMap {
    /// Wraps the map of an object that has just been loaded, which is empty.
    ///
    /// # Errors
    /// [`MapError::Missing`].
    pub fn new(loaded: &LoadedObject) -> Result<Self, MapError> {
        let map = loaded.map("weft_actions")?;
        let free = FreeEntries::new(1, map.max_entries());
        Ok(Self { map, numbers: HashMap::new(), users: Vec::new(), free, unused: Vec::new() })
    }

    /// Returns the entry of a list for one more user, who has to [release](ActionListMap::release)
    /// it.
    ///
    /// # Errors
    /// [`MapError::ActionListsFull`].
    pub fn acquire(&mut self, list: ActionList) -> Result<ActionListNo, MapError> {
        let list = Arc::new(list);
        match self.numbers.entry(Arc::clone(&list)) {
            Entry::Occupied(had) => {
                let number = *had.get();
                if let Some((_, users)) = &mut self.users[number.0 as usize] {
                    *users += 1;
                }
                Ok(number)
            }
            Entry::Vacant(place) => {
                let number = self.free.next().ok_or(MapError::ActionListsFull)?;
                let number = ActionListNo(number);
                self.map.update(&number.0.to_ne_bytes(), &bytes(&list), MapFlags::ANY)?;
                self.free.take();
                entries::set(&mut self.users, number.0, (list, 1));
                Ok(*place.insert(number))
            }
        }
    }

    /// How full the map is. Entry [`ActionListNo::PUNT`] does not count.
    pub(crate) fn map_use(&self) -> MapUse {
        let limit = self.free.limit().saturating_sub(1) as usize;
        map_use("weft_actions", limit.saturating_sub(self.free.len()), limit)
    }

    /// Removes one user of an entry. [`ActionListNo::PUNT`] has no users and is never removed.
    pub fn release(&mut self, number: ActionListNo) {
        let Some(place) = self.users.get_mut(number.0 as usize) else { return };
        if let Some((_, users)) = place {
            *users -= 1;
        }
        if let Some((list, _)) = place.take_if(|(_, users)| *users == 0) {
            self.numbers.remove(&list);
            self.unused.push(number);
        }
    }

    /// Whether the map holds the list that was written to this entry.
    ///
    /// # Errors
    /// When the kernel rejects the read.
    pub fn is_intact(&self, number: ActionListNo) -> Result<bool, MapError> {
        let Some(Some((list, _))) = self.users.get(number.0 as usize) else {
            return Ok(number == ActionListNo::PUNT);
        };
        let held = self.map.lookup(&number.0.to_ne_bytes(), MapFlags::ANY)?;
        Ok(held.is_some_and(|held| held == bytes(list)))
    }

    /// Takes the entries without users. They may be [freed](ActionListMap::free) after a grace
    /// period that begins later.
    pub fn retire(&mut self) -> Vec<ActionListNo> {
        std::mem::take(&mut self.unused)
    }

    /// Returns retired entries when waiting for a grace period has failed.
    pub fn requeue(&mut self, mut retired: Vec<ActionListNo>) {
        self.unused.append(&mut retired);
    }

    /// Frees entries that no program can execute any more.
    pub fn free(&mut self, retired: Vec<ActionListNo>) {
        self.free.release(retired.into_iter().map(|number| number.0));
    }
}

const ACTION: usize = size_of::<weft_action>();
const _: () = assert!(
    size_of::<weft_action_list>() == offset_of!(weft_action_list, actions) + MAX_ACTIONS * ACTION
);

fn bytes(list: &ActionList) -> Vec<u8> {
    let mut bytes = struct_bytes!(weft_action_list {
        count: list.actions.len() as u32,
        endpoint: list.endpoint().map_or(abi::WEFT_NO_ENDPOINT, |endpoint| endpoint.0),
        // 0 is "no limit": programs then skip reading the segment length of super-packets.
        max_len: if list.max_len == u32::MAX { 0 } else { list.max_len },
        grows: list.grows,
    });
    let places = bytes[offset_of!(weft_action_list, actions)..].chunks_exact_mut(ACTION);
    for (place, step) in places.zip(&list.actions) {
        place.copy_from_slice(&action(step));
    }
    bytes
}

/// The bytes of a `struct weft_action`.
fn action(step: &BpfAction) -> Vec<u8> {
    match *step {
        BpfAction::Output(port) => {
            struct_bytes!(weft_action { kind: abi::WEFT_ACTION_OUTPUT as u8, number: port.0 })
        }
        BpfAction::Uplink => struct_bytes!(weft_action { kind: abi::WEFT_ACTION_UPLINK as u8 }),
        BpfAction::Encap { endpoint, key, ports } => struct_bytes!(weft_action {
            kind: abi::WEFT_ACTION_ENCAP as u8,
            has_ports: ports.is_some().into(),
            number: endpoint.0,
            value: u64::from(key) << abi::WEFT_ENCAP_KEY_SHIFT | u64::from(ports.unwrap_or(0)),
        }),
        BpfAction::Drop(reason) => {
            struct_bytes!(weft_action { kind: abi::WEFT_ACTION_DROP as u8, field: reason as u8 })
        }
        BpfAction::PushVlan(tag) => struct_bytes!(weft_action {
            kind: abi::WEFT_ACTION_PUSH_VLAN as u8,
            value: u64::from(tag.tpid.0) << abi::WEFT_PUSH_VLAN_TPID_SHIFT | u64::from(tag.tci()),
        }),
        BpfAction::PopVlan => struct_bytes!(weft_action { kind: abi::WEFT_ACTION_POP_VLAN as u8 }),
        BpfAction::Set { field, bits, value } => {
            let kind = abi::WEFT_ACTION_SET as u8;
            struct_bytes!(weft_action {
                kind: kind,
                field: field as u8,
                number: bits,
                value: value
            })
        }
    }
}
