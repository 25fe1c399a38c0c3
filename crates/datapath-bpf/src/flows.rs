//! [`Flows`]: the megaflows that programs have, by number and by entry.

use crate::key::KernelMatch;
use crate::list::List;
use crate::lists::Lists;
use crate::pieces::Pieces;
use crate::tables::{FlowNo, Grace, ListNo, Lookups, MaskNo, Retired, Served, TableError, Tables};
use datapath::megaflow::{Megaflow, MegaflowId, Usage};
use flow::{Action, FlowKey, FlowMask, Match, PortNo};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub(crate) struct Flows {
    tables: Tables,
    lists: Lists,
    uplink: PortNo,
    numbers: HashMap<MegaflowId, FlowNo>,
    /// By the number of the entry.
    entries: Vec<Option<Entry>>,
    /// The masks of megaflows, each once.
    masks: HashSet<Arc<FlowMask>>,
}

/// A megaflow that programs have.
#[derive(Debug)]
struct Entry {
    id: MegaflowId,
    mask: Arc<FlowMask>,
    /// The words of the key of which the mask has bits.
    values: Box<[u64]>,
    actions: Arc<[Action]>,
    list: ListNo,
    /// What the place had served before.
    base: Served,
    /// Packets that it had served when it was looked at last, and when that was another number than before.
    seen: u64,
    used_ms: u64,
    /// Packets when the masks were put in order last.
    sorted: u64,
}

/// What is told of some megaflows, and where the others begin.
pub(crate) type Portion<T> = (Vec<(T, Usage)>, Option<FlowNo>);

/// Megaflows that were deleted; programs may still be executing them.
#[derive(Debug, Default)]
#[must_use = "their places are to be given back"]
pub(crate) struct Deleted {
    entries: Vec<(FlowNo, Entry)>,
    tables: Retired,
    lists: Vec<ListNo>,
}

impl Deleted {
    /// Nobody has to wait.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.tables.is_empty() && self.lists.is_empty()
    }
}

impl Entry {
    fn condition(&self) -> Match {
        let mut key = FlowKey::default();
        let words = key.words_mut().iter_mut().zip(self.mask.words());
        let words = words.filter(|(_, mask)| **mask != 0);
        words.zip(&self.values).for_each(|((word, _), value)| *word = *value);
        Match::new(&key, (*self.mask).clone())
    }

    fn is_of(&self, condition: &Match) -> bool {
        *self.mask == *condition.mask() && *self.values == *values(condition)
    }

    fn megaflow(&self) -> Megaflow {
        Megaflow { id: self.id, condition: self.condition(), actions: Arc::clone(&self.actions) }
    }

    /// What it has counted, when its place has served so much.
    fn usage(&mut self, served: Served, now_ms: u64) -> Usage {
        let packets = served.packets.wrapping_sub(self.base.packets);
        if packets != self.seen {
            (self.seen, self.used_ms) = (packets, now_ms.max(1));
        }
        let bytes = served.bytes.wrapping_sub(self.base.bytes);
        Usage { packets, bytes, used_ms: self.used_ms }
    }
}

fn values(condition: &Match) -> Box<[u64]> {
    let words = condition.key().words().iter().zip(condition.mask().words());
    words.filter(|(_, mask)| **mask != 0).map(|(word, _)| *word).collect()
}

impl Flows {
    /// Those of freshly loaded programs: none. Frames leave by the uplink when they leave by the port `uplink`.
    pub(crate) fn new(pieces: &Pieces, uplink: PortNo) -> Result<Self, TableError> {
        let tables = Tables::new(pieces)?;
        let entries = std::iter::repeat_with(|| None).take(tables.capacity()).collect();
        Ok(Self {
            tables,
            lists: Lists::new(pieces)?,
            uplink,
            numbers: HashMap::new(),
            entries,
            masks: HashSet::new(),
        })
    }

    /// Puts a megaflow, in the place of the one with the same condition. What does not fit, or what programs cannot tell from
    /// others, is not put: its packets are handed over.
    /// `example` is the key of a packet that it is for, if one is known.
    pub(crate) fn put(
        &mut self,
        megaflow: &Megaflow,
        example: Option<&FlowKey>,
    ) -> Result<(), TableError> {
        let known = self.numbers.get(&megaflow.id).copied();
        if let Some(number) = known {
            return self.replace(number, megaflow);
        }
        let mask = megaflow.condition.mask();
        let Ok(matched) = KernelMatch::of(&megaflow.condition, example) else { return Ok(()) };
        let list = self.list(megaflow)?;
        let number = match self.tables.put(&matched, list) {
            Ok(number) => number,
            Err(error) => {
                self.lists.release(list);
                return match error {
                    TableError::FlowsFull | TableError::MasksFull | TableError::ChainFull => Ok(()),
                    error => Err(error),
                };
            }
        };
        let base = self.tables.served(number)?;
        let mask = match self.masks.get(mask) {
            Some(known) => Arc::clone(known),
            None => Arc::new(mask.clone()),
        };
        self.masks.insert(Arc::clone(&mask));
        self.numbers.insert(megaflow.id, number);
        if let Some(place) = self.entries.get_mut(number.0 as usize) {
            *place = Some(Entry {
                id: megaflow.id,
                mask,
                values: values(&megaflow.condition),
                actions: Arc::clone(&megaflow.actions),
                list,
                base,
                seen: 0,
                used_ms: 0,
                sorted: 0,
            });
        }
        Ok(())
    }

    /// Other actions for a megaflow that there is.
    fn replace(&mut self, number: FlowNo, megaflow: &Megaflow) -> Result<(), TableError> {
        let same = self.entry(number).is_some_and(|entry| entry.is_of(&megaflow.condition));
        if !same {
            // Another condition with the same number: as rare as a hash with a secret makes it.
            return Ok(());
        }
        let list = self.list(megaflow)?;
        let Some(entry) = self.entries.get_mut(number.0 as usize).and_then(Option::as_mut) else {
            return Ok(());
        };
        entry.actions = Arc::clone(&megaflow.actions);
        let had = std::mem::replace(&mut entry.list, list);
        if had != list {
            self.tables.set_list(number, list)?;
        }
        self.lists.release(had);
        Ok(())
    }

    fn entry(&self, number: FlowNo) -> Option<&Entry> {
        self.entries.get(number.0 as usize)?.as_ref()
    }

    /// The list of a megaflow, used once more.
    fn list(&mut self, megaflow: &Megaflow) -> Result<ListNo, TableError> {
        let Some(list) = List::of(megaflow, self.uplink) else { return Ok(ListNo::HAND_OVER) };
        match self.lists.acquire(list) {
            Err(TableError::ListsFull) => Ok(ListNo::HAND_OVER),
            result => result,
        }
    }

    /// Takes megaflows out. When a grace period has passed, [`Flows::finish`] says what they have counted.
    pub(crate) fn delete(&mut self, ids: &[MegaflowId]) -> Result<Deleted, TableError> {
        let mut entries = Vec::new();
        for id in ids {
            let Some(number) = self.numbers.remove(id) else { continue };
            self.tables.delete(number)?;
            if let Some(entry) = self.entries.get_mut(number.0 as usize).and_then(Option::take) {
                self.lists.release(entry.list);
                entries.push((number, entry));
            }
        }
        Ok(Deleted { entries, tables: self.tables.retire(), lists: self.lists.retire() })
    }

    /// What is to be done now and then: masks are tried in the order in which they have been hit since the last time, and what
    /// nobody uses any more is taken out.
    pub(crate) fn maintain(&mut self) -> Result<Deleted, TableError> {
        let mut hits: HashMap<MaskNo, u64> = HashMap::new();
        let end = self.tables.end();
        let served = self.tables.served_from(FlowNo(0), end.0)?;
        for (number, (entry, served)) in (0..).map(FlowNo).zip(self.entries.iter_mut().zip(served))
        {
            if let (Some(entry), Some(mask)) = (entry, self.tables.mask_of(number)) {
                let packets = served.packets.wrapping_sub(entry.base.packets);
                *hits.entry(mask).or_default() += packets.wrapping_sub(entry.sorted);
                entry.sorted = packets;
            }
        }
        let tables = self.tables.retire_and_sort(|mask| hits.get(&mask).copied().unwrap_or(0))?;
        self.masks.retain(|mask| Arc::strong_count(mask) > 1);
        Ok(Deleted { entries: Vec::new(), tables, lists: self.lists.retire() })
    }

    /// What waits for a grace period.
    pub(crate) fn grace(&self) -> Grace {
        self.tables.grace()
    }

    /// Gives places back that no program uses any more; what their megaflows have counted.
    pub(crate) fn finish(
        &mut self,
        deleted: Deleted,
        now_ms: u64,
    ) -> Result<Vec<(MegaflowId, Usage)>, TableError> {
        let Deleted { entries, tables, lists } = deleted;
        let mut counted = Vec::with_capacity(entries.len());
        for (number, mut entry) in entries {
            let served = self.tables.served(number)?;
            counted.push((entry.id, entry.usage(served, now_ms)));
        }
        self.tables.give_back(tables);
        self.lists.give_back(lists);
        Ok(counted)
    }

    /// Those of these that there are.
    pub(crate) fn get(&self, ids: &[MegaflowId]) -> Vec<Megaflow> {
        let entries = ids.iter().filter_map(|id| self.entry(*self.numbers.get(id)?));
        entries.map(Entry::megaflow).collect()
    }

    /// What `of` says of the megaflows in the next `most` entries from `from` on, and where the others begin.
    pub(crate) fn portion<T>(
        &mut self,
        from: FlowNo,
        most: usize,
        now_ms: u64,
        of: impl Fn(MegaflowId, &dyn Fn() -> Megaflow) -> T,
    ) -> Result<Portion<T>, TableError> {
        let most = u32::try_from(most).unwrap_or(u32::MAX).max(1);
        let end = self.tables.end();
        let most = most.min(end.0.saturating_sub(from.0));
        let served = self.tables.served_from(from, most)?;
        let entries = self.entries.iter_mut().skip(from.0 as usize).zip(served);
        let portion = entries.filter_map(|(entry, served)| {
            let entry = entry.as_mut()?;
            let usage = entry.usage(served, now_ms);
            Some((of(entry.id, &|| entry.megaflow()), usage))
        });
        let portion = portion.collect();
        let next = FlowNo(from.0 + most);
        Ok((portion, (next < end).then_some(next)))
    }

    /// How many there are, and how many masks.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.numbers.len(), self.tables.masks().len())
    }

    /// Packets that programs have served, and what their lookups came to.
    pub(crate) fn lookups(&self) -> Result<(u64, Lookups), TableError> {
        let served = self.tables.served_from(FlowNo(0), self.tables.end().0)?;
        let packets = served.iter().map(|served| served.packets).sum();
        Ok((packets, self.tables.lookups()?))
    }
}
