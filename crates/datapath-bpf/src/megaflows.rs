//! [`Megaflows`]: the megaflows in the programs' maps, by id and by entry.

#[cfg(test)]
mod tests;

use crate::action_list::ActionList;
use crate::action_list_map::ActionListMap;
use crate::entries;
use crate::flow_tables::{
    ActionListNo, FlowNo, FlowStats, FlowTableSizes, FlowTables, Generation, GracePeriod,
    LookupStats, MaskNo, RetiredEntries,
};
use crate::key::KernelMatch;
use crate::map_error::MapError;
use crate::map_use::map_use;
use crate::object::LoadedObject;
use crate::port_masks::PortMasks;
use datapath::megaflow::{Fusion, Megaflow, MegaflowId, Usage};
use datapath::stats::MapUse;
use flow::{Action, Field, FlowKey, FlowMask, Match, PortNo};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The megaflows in the programs' maps, with their conditions, actions and counters.
#[derive(Debug)]
pub(crate) struct Megaflows {
    tables: FlowTables,
    lists: ActionListMap,
    uplink: PortNo,
    numbers: HashMap<MegaflowId, FlowNo>,
    /// By number of the entry.
    entries: Vec<Option<MegaflowEntry>>,
    /// Masks of megaflows. Equal masks are stored once.
    masks: HashSet<Arc<FlowMask>>,
    port_masks: PortMasks,
    /// Megaflows that have to be deleted and could not be deleted yet.
    pending_deletion: HashSet<MegaflowId>,
    /// The least generation that lookups accept.
    least: Generation,
}

/// A megaflow in the maps.
#[derive(Debug)]
struct MegaflowEntry {
    id: MegaflowId,
    mask: Arc<FlowMask>,
    /// The key's words where the mask is not 0.
    values: Box<[u64]>,
    actions: Arc<[Action]>,
    fusion: Option<Arc<Fusion>>,
    list: ActionListNo,
    /// The entry's counters when this megaflow was added.
    base: FlowStats,
    /// Packets when the counters were last read, and when that number last changed.
    seen: u64,
    used_ms: u64,
    /// Packets when masks were last sorted.
    sorted: u64,
    generation: Generation,
}

/// Part of a dump: results for some megaflows, and the entry where the next part begins.
pub(crate) type DumpPage<T> = (Vec<(T, Usage)>, Option<FlowNo>);

/// Deleted megaflows, which programs may still execute.
#[derive(Debug, Default)]
#[must_use = "deleted megaflows have to be finished"]
pub(crate) struct DeletedMegaflows {
    entries: Vec<(FlowNo, MegaflowEntry)>,
    tables: RetiredEntries,
    lists: Vec<ActionListNo>,
}

impl DeletedMegaflows {
    /// Adds megaflows that were deleted later.
    pub(crate) fn append(&mut self, later: Self) {
        let Self { mut entries, tables, mut lists } = later;
        self.entries.append(&mut entries);
        self.tables.append(tables);
        self.lists.append(&mut lists);
    }

    /// Whether there is nothing to wait for.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.tables.is_empty() && self.lists.is_empty()
    }
}

impl MegaflowEntry {
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
        Megaflow {
            id: self.id,
            condition: self.condition(),
            actions: Arc::clone(&self.actions),
            fusion: self.fusion.clone(),
        }
    }

    /// The megaflow's counters, from those of its entry.
    fn usage(&mut self, served: FlowStats, now_ms: u64) -> Usage {
        let packets = served.packets.wrapping_sub(self.base.packets);
        if packets != self.seen {
            (self.seen, self.used_ms) = (packets, now_ms.max(1));
        }
        let bytes = served.bytes.wrapping_sub(self.base.bytes);
        Usage { packets, bytes, used_ms: self.used_ms }
    }
}

/// The ingress port of a megaflow's packets.
fn port_of(condition: &Match) -> PortNo {
    // The cast is lossless: the field has 32 bits.
    PortNo(condition.key().get(Field::InPort) as u32)
}

/// True if all frames that match a megaflow in the maps meet `condition`.
fn serves_only(matched: &KernelMatch, condition: &Match) -> bool {
    let held = matched.condition();
    held.mask().covers(condition.mask()) && condition.matches(held.key())
}

fn values(condition: &Match) -> Box<[u64]> {
    let words = condition.key().words().iter().zip(condition.mask().words());
    words.filter(|(_, mask)| **mask != 0).map(|(word, _)| *word).collect()
}

impl Megaflows {
    /// Wraps the maps of an object that has just been loaded, which are empty. Frames that leave by
    /// the port `uplink` leave by the uplink device.
    pub(crate) fn new(loaded: &LoadedObject, uplink: PortNo) -> Result<Self, MapError> {
        let tables = FlowTables::new(loaded)?;
        Ok(Self {
            tables,
            lists: ActionListMap::new(loaded)?,
            uplink,
            numbers: HashMap::new(),
            entries: Vec::new(),
            masks: HashSet::new(),
            port_masks: PortMasks::default(),
            pending_deletion: HashSet::new(),
            least: Generation::default(),
        })
    }

    /// Adds a megaflow, or replaces the one with the same condition. If the programs' key cannot
    /// express its condition, or its port has used up its share of the masks, it is left out, and
    /// its packets are punted. `example` is the key of one of its packets, if known.
    ///
    /// # Errors
    /// [`MapError::is_full`]: after [`Megaflows::reclaim`] there may be room. After any error the
    /// megaflow is absent, even if it existed before.
    pub(crate) fn put(
        &mut self,
        megaflow: &Megaflow,
        example: Option<&FlowKey>,
    ) -> Result<(), MapError> {
        self.pending_deletion.remove(&megaflow.id);
        let put = match self.numbers.get(&megaflow.id).copied() {
            Some(number) => self.replace(number, megaflow),
            None => self.insert(megaflow, example),
        };
        if put.is_err() {
            self.discard(megaflow.id);
        }
        put
    }

    fn insert(&mut self, megaflow: &Megaflow, example: Option<&FlowKey>) -> Result<(), MapError> {
        let mask = megaflow.condition.mask();
        let Ok(matched) = KernelMatch::of(&megaflow.condition, example) else { return Ok(()) };
        let port = port_of(&megaflow.condition);
        if !self.tables.has_mask(matched.mask())
            && !self.port_masks.may_add(port, self.tables.free_masks())
        {
            return Ok(());
        }
        let list = self.list(megaflow)?;
        if list == ActionListNo::PUNT && megaflow.fusion.is_some() {
            // Not needed: the megaflow of the first pass punts these packets already.
            return Ok(());
        }
        let number = self.tables.put(&matched, list).inspect_err(|_| self.lists.release(list))?;
        let mask_no = self.tables.mask_of(number);
        self.port_masks.add(port, mask_no);
        let mask = match self.masks.get(mask) {
            Some(known) => Arc::clone(known),
            None => Arc::new(mask.clone()),
        };
        self.masks.insert(Arc::clone(&mask));
        self.numbers.insert(megaflow.id, number);
        let entry = MegaflowEntry {
            id: megaflow.id,
            mask,
            values: values(&megaflow.condition),
            actions: Arc::clone(&megaflow.actions),
            fusion: megaflow.fusion.clone(),
            list,
            base: FlowStats::default(),
            seen: 0,
            used_ms: 0,
            sorted: 0,
            generation: self.tables.generation(),
        };
        let entry = entries::set(&mut self.entries, number.0, entry);
        entry.base = self.tables.stats(number)?;
        match mask_no {
            Some(mask) if megaflow.fusion.is_some() => self.tables.prefer(mask),
            _ => Ok(()),
        }
    }

    /// Replaces the actions of a megaflow.
    fn replace(&mut self, number: FlowNo, megaflow: &Megaflow) -> Result<(), MapError> {
        let held = self.entry(number).filter(|entry| entry.is_of(&megaflow.condition));
        let Some(held) = held else {
            // Two conditions with one id: a collision of the secret hash.
            return Ok(());
        };
        // A fused megaflow stays suspended as long as it depends on the same connections.
        let is_suspended = held.fusion.is_some()
            && held.fusion == megaflow.fusion
            && held.list == ActionListNo::PUNT;
        let list = if is_suspended { ActionListNo::PUNT } else { self.list(megaflow)? };
        let Some(entry) = self.entries.get_mut(number.0 as usize).and_then(Option::as_mut) else {
            return Ok(());
        };
        entry.generation =
            self.tables.renew(number, list).inspect_err(|_| self.lists.release(list))?;
        entry.actions = Arc::clone(&megaflow.actions);
        entry.fusion = megaflow.fusion.clone();
        self.lists.release(std::mem::replace(&mut entry.list, list));
        Ok(())
    }

    /// Makes programs punt the packets of megaflows. A megaflow that cannot be changed is deleted.
    pub(crate) fn suspend(&mut self, ids: &[MegaflowId]) {
        for id in ids {
            let Some(&number) = self.numbers.get(id) else { continue };
            let entry = self.entries.get_mut(number.0 as usize).and_then(Option::as_mut);
            let Some(entry) = entry.filter(|entry| entry.list != ActionListNo::PUNT) else {
                continue;
            };
            match self.tables.renew(number, ActionListNo::PUNT) {
                Ok(generation) => {
                    entry.generation = generation;
                    self.lists.release(std::mem::replace(&mut entry.list, ActionListNo::PUNT));
                }
                Err(_) => self.discard(*id),
            }
        }
    }

    /// Begins an epoch: megaflows that are put or confirmed from now on belong to it.
    pub(crate) fn begin_epoch(&mut self) {
        self.tables.begin_epoch();
    }

    /// Moves megaflows that lookups accept to the current epoch. Returns the first error; that
    /// megaflow stays in its epoch.
    pub(crate) fn confirm(&mut self, ids: &[MegaflowId]) -> Result<(), MapError> {
        let mut result = Ok(());
        for id in ids {
            let Some(&number) = self.numbers.get(id) else { continue };
            let entry = self.entries.get_mut(number.0 as usize).and_then(Option::as_mut);
            let Some(entry) = entry.filter(|entry| entry.generation >= self.least) else {
                continue;
            };
            match self.tables.renew(number, entry.list) {
                Ok(generation) => entry.generation = generation,
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }

    /// Declares the megaflows of earlier epochs invalid. Returns the least generation that is still
    /// valid, which has to be written to the programs' settings.
    pub(crate) fn withdraw_unconfirmed(&mut self) -> Generation {
        self.least = self.tables.epoch();
        self.least
    }

    /// Deletes a megaflow whose update has failed, so that its packets are punted. If that fails,
    /// too, the megaflow stays visible, and [`Megaflows::retry_deletions`] tries again.
    fn discard(&mut self, id: MegaflowId) {
        if self.remove_from_maps(id).is_err() {
            self.pending_deletion.insert(id);
        }
    }

    /// Tries again to delete megaflows that could not be deleted.
    pub(crate) fn retry_deletions(&mut self) {
        std::mem::take(&mut self.pending_deletion).into_iter().for_each(|id| self.discard(id));
    }

    /// Removes a megaflow from the maps, if it is there. Programs may still execute it.
    fn remove_from_maps(
        &mut self,
        id: MegaflowId,
    ) -> Result<Option<(FlowNo, MegaflowEntry)>, MapError> {
        let Some(&number) = self.numbers.get(&id) else { return Ok(None) };
        let mask = self.tables.mask_of(number);
        self.tables.delete(number)?;
        self.numbers.remove(&id);
        let entry = self.entries.get_mut(number.0 as usize).and_then(Option::take);
        let Some(entry) = entry else { return Ok(None) };
        self.port_masks.remove(port_of(&entry.condition()), mask);
        self.lists.release(entry.list);
        Ok(Some((number, entry)))
    }

    fn entry(&self, number: FlowNo) -> Option<&MegaflowEntry> {
        self.entries.get(number.0 as usize)?.as_ref()
    }

    /// Acquires the action list of a megaflow.
    fn list(&mut self, megaflow: &Megaflow) -> Result<ActionListNo, MapError> {
        let Some(list) = ActionList::of(megaflow, self.uplink) else {
            return Ok(ActionListNo::PUNT);
        };
        match self.lists.acquire(list) {
            Err(MapError::ActionListsFull) => Ok(ActionListNo::PUNT),
            result => result,
        }
    }

    /// Deletes megaflows. After a grace period [`Megaflows::finish`] returns their counters. Also
    /// returns the first error; a megaflow that could not be deleted stays.
    pub(crate) fn delete(
        &mut self,
        ids: &[MegaflowId],
    ) -> (DeletedMegaflows, Result<(), MapError>) {
        let (mut entries, mut result) = (Vec::new(), Ok(()));
        for &id in ids {
            match self.remove_from_maps(id) {
                Ok(entry) => {
                    self.pending_deletion.remove(&id);
                    entries.extend(entry);
                }
                Err(error) => {
                    self.pending_deletion.insert(id);
                    result = result.and(Err(error));
                }
            }
        }
        (
            DeletedMegaflows { entries, tables: self.tables.retire(), lists: self.lists.retire() },
            result,
        )
    }

    /// Takes deleted entries, which become free after a grace period.
    pub(crate) fn reclaim(&mut self) -> Result<DeletedMegaflows, MapError> {
        let tables = self.tables.retire_and_sort(|_| 0)?;
        Ok(DeletedMegaflows { entries: Vec::new(), tables, lists: self.lists.retire() })
    }

    /// Returns deleted entries when waiting for a grace period has failed.
    pub(crate) fn requeue(&mut self, deleted: DeletedMegaflows) {
        let DeletedMegaflows { entries: _, tables, lists } = deleted;
        self.tables.requeue(tables);
        self.lists.requeue(lists);
    }

    /// Sorts masks by their hits since the last call, and takes unused masks and lists.
    pub(crate) fn maintain(&mut self) -> Result<DeletedMegaflows, MapError> {
        let mut hits: HashMap<MaskNo, u64> = HashMap::new();
        let end = self.tables.end();
        let served = self.tables.stats_from(FlowNo(0), end.0)?;
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
        Ok(DeletedMegaflows { entries: Vec::new(), tables, lists: self.lists.retire() })
    }

    /// Waits for a grace period, without a lock.
    pub(crate) fn grace(&self) -> GracePeriod {
        self.tables.grace()
    }

    /// Frees entries that no program uses any more, and returns their megaflows' counters.
    pub(crate) fn finish(
        &mut self,
        deleted: DeletedMegaflows,
        now_ms: u64,
    ) -> Result<Vec<(MegaflowId, Usage)>, MapError> {
        let DeletedMegaflows { entries, tables, lists } = deleted;
        let count = |(number, mut entry): (FlowNo, MegaflowEntry)| {
            let served = self.tables.stats(number)?;
            Ok((entry.id, entry.usage(served, now_ms)))
        };
        let counted = entries.into_iter().map(count).collect();
        self.tables.free(tables);
        self.lists.free(lists);
        counted
    }

    /// The megaflows with these ids. Ids that do not exist are left out.
    pub(crate) fn get(&self, ids: impl IntoIterator<Item = MegaflowId>) -> Vec<Megaflow> {
        let entries = ids.into_iter().filter_map(|id| self.entry(*self.numbers.get(&id)?));
        entries.map(MegaflowEntry::megaflow).collect()
    }

    /// Returns those of these megaflows whose map entries differ from what was written there.
    pub(crate) fn damaged(&self, ids: &[MegaflowId]) -> Result<Vec<MegaflowId>, MapError> {
        let mut damaged = Vec::new();
        for &id in ids {
            let Some(&number) = self.numbers.get(&id) else { continue };
            let Some(entry) = self.entry(number) else { continue };
            let held = self.tables.held(number)?;
            let is_intact = held.generation == entry.generation
                && held.list == entry.list
                && held.matched.is_some_and(|matched| serves_only(&matched, &entry.condition()))
                && self.lists.is_intact(entry.list)?;
            if !is_intact {
                damaged.push(id);
            }
        }
        Ok(damaged)
    }

    /// Calls `of` for the megaflows in the next `most` entries after `from`. Also returns the entry
    /// where the next call should begin.
    pub(crate) fn portion<T>(
        &mut self,
        from: FlowNo,
        most: usize,
        now_ms: u64,
        of: impl Fn(MegaflowId, &dyn Fn() -> Megaflow) -> T,
    ) -> Result<DumpPage<T>, MapError> {
        let most = u32::try_from(most).unwrap_or(u32::MAX).max(1);
        let end = self.tables.end();
        let most = most.min(end.0.saturating_sub(from.0));
        let served = self.tables.stats_from(from, most)?;
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

    /// Whether a megaflow is in the maps.
    pub(crate) fn contains(&self, id: MegaflowId) -> bool {
        self.numbers.contains_key(&id)
    }

    /// Number of megaflows, and of masks.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.numbers.len(), self.tables.masks().len())
    }

    /// How full the maps are.
    pub(crate) fn map_use(&self) -> [MapUse; 3] {
        // Entry 0 is never used.
        let (flows, places) = (self.numbers.len(), self.tables.capacity().saturating_sub(1));
        let masks = FlowTableSizes::MASKS - self.tables.free_masks();
        [
            map_use("weft_flows", flows, places),
            map_use("weft_masks", masks, FlowTableSizes::MASKS),
            self.lists.map_use(),
        ]
    }

    /// Packets that programs have matched, and their lookup counters.
    pub(crate) fn lookups(&self) -> Result<(u64, LookupStats), MapError> {
        let served = self.tables.stats_from(FlowNo(0), self.tables.end().0)?;
        let packets = served.iter().map(|served| served.packets).sum();
        Ok((packets, self.tables.lookups()?))
    }
}
