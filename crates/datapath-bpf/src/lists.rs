//! [`Lists`]: the lists of actions that programs execute. Megaflows with the same list share it.

use crate::layout::{weft_action, weft_list};
use crate::list::{List, MAX_STEPS, Step};
use crate::pieces::Pieces;
use crate::record::record;
use crate::tables::{ListNo, TableError};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem::offset_of;
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub struct Lists {
    map: MapHandle,
    numbers: HashMap<Arc<List>, ListNo>,
    /// By number; the first is [`ListNo::HAND_OVER`].
    users: Vec<Option<(Arc<List>, u32)>>,
    /// Nobody can be executing these.
    free: Vec<ListNo>,
    /// Programs may still be executing these.
    unused: Vec<ListNo>,
}

impl Lists {
    /// Those of a freshly loaded object: none.
    ///
    /// # Errors
    /// [`TableError::Lacks`].
    pub fn new(pieces: &Pieces) -> Result<Self, TableError> {
        let map = pieces.map("weft_lists")?;
        let count = map.max_entries();
        Ok(Self {
            map,
            numbers: HashMap::new(),
            users: vec![None; count as usize],
            free: (1..count).rev().map(ListNo).collect(),
            unused: Vec::new(),
        })
    }

    /// The number of a list for one more user, who [releases](Lists::release) it some day.
    ///
    /// # Errors
    /// [`TableError::ListsFull`].
    pub fn acquire(&mut self, list: List) -> Result<ListNo, TableError> {
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
                let number = *self.free.last().ok_or(TableError::ListsFull)?;
                self.map.update(&number.0.to_ne_bytes(), &bytes(&list), MapFlags::ANY)?;
                self.free.pop();
                self.users[number.0 as usize] = Some((list, 1));
                Ok(*place.insert(number))
            }
        }
    }

    /// One user less. [`ListNo::HAND_OVER`] has none, and is always there.
    pub fn release(&mut self, number: ListNo) {
        let Some(place) = self.users.get_mut(number.0 as usize) else { return };
        if let Some((_, users)) = place {
            *users -= 1;
        }
        if let Some((list, _)) = place.take_if(|(_, users)| *users == 0) {
            self.numbers.remove(&list);
            self.unused.push(number);
        }
    }

    /// Those that nobody uses any more. They may be [given back](Lists::give_back) after a grace period that has begun later.
    pub fn retire(&mut self) -> Vec<ListNo> {
        std::mem::take(&mut self.unused)
    }

    /// No grace period could be waited for: they are retired once more the next time.
    pub fn put_off(&mut self, mut retired: Vec<ListNo>) {
        self.unused.append(&mut retired);
    }

    /// Makes free what nobody can be executing any more.
    pub fn give_back(&mut self, mut retired: Vec<ListNo>) {
        self.free.append(&mut retired);
    }
}

const NO_ENDPOINT: u32 = u32::MAX;
const ACTION: usize = size_of::<weft_action>();
const _: () =
    assert!(size_of::<weft_list>() == offset_of!(weft_list, actions) + MAX_STEPS * ACTION);

fn bytes(list: &List) -> Vec<u8> {
    let mut bytes = record!(weft_list {
        count: list.steps.len() as u32,
        endpoint: list.endpoint().map_or(NO_ENDPOINT, |endpoint| endpoint.0),
        // Without a limit, nobody has to look at the segments of super-packets.
        max_len: if list.max_len == u32::MAX { 0 } else { list.max_len },
        grows: list.grows,
    });
    let places = bytes[offset_of!(weft_list, actions)..].chunks_exact_mut(ACTION);
    for (place, step) in places.zip(&list.steps) {
        place.copy_from_slice(&action(step));
    }
    bytes
}

/// `enum weft_action_kind` of `bpf/intf.h`.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Kind {
    Output = 1,
    Uplink = 2,
    Encap = 3,
    Drop = 4,
    PushVlan = 5,
    PopVlan = 6,
    Set = 7,
}

/// A `struct weft_action`.
fn action(step: &Step) -> Vec<u8> {
    match *step {
        Step::Output(port) => record!(weft_action { kind: Kind::Output as u8, number: port.0 }),
        Step::Uplink => record!(weft_action { kind: Kind::Uplink as u8 }),
        Step::Encap { endpoint, key, ports } => record!(weft_action {
            kind: Kind::Encap as u8,
            has_ports: ports.is_some().into(),
            number: endpoint.0,
            value: u64::from(key) << 32 | u64::from(ports.unwrap_or(0)),
        }),
        Step::Drop(reason) => record!(weft_action { kind: Kind::Drop as u8, field: reason as u8 }),
        Step::PushVlan(tag) => record!(weft_action {
            kind: Kind::PushVlan as u8,
            value: u64::from(tag.tpid.0) << 16 | u64::from(tag.tci()),
        }),
        Step::PopVlan => record!(weft_action { kind: Kind::PopVlan as u8 }),
        Step::Set { field, bits, value } => {
            let kind = Kind::Set as u8;
            record!(weft_action { kind: kind, field: field as u8, number: bits, value: value })
        }
    }
}
