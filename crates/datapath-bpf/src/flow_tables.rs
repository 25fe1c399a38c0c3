//! [`FlowTables`]: updates the maps of megaflows and masks while programs read them.
//!
//! `bpf/lookup.h` explains the protocol. Userspace only writes to entries that no program can
//! reach: a deleted entry or mask is used again only after an RCU grace period.

mod held;

use crate::abi::{
    self, weft_control, weft_flow, weft_flow_stats, weft_flow_stats_page, weft_key,
    weft_lookup_stats, weft_mask_list,
};
use crate::entries::{self, FreeEntries};
use crate::key::{KernelMask, KernelMatch};
use crate::layout::WORDS;
use crate::map_error::MapError;
use crate::object::LoadedObject;
use crate::sys;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, OpenObject};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

/// Number of a megaflow's entry, 1 to [`FlowTableSizes::flows`]. Used again after deletion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FlowNo(pub u32);

/// A number that each addition and renewal of a megaflow increases; 0 before the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Generation(pub u64);

/// Number of a mask, below [`FlowTableSizes::MASKS`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MaskNo(pub u32);

/// Number of an action list.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ActionListNo(pub u32);

impl ActionListNo {
    /// The list whose packets are punted to userspace.
    pub const PUNT: Self = Self(abi::WEFT_ACTIONS_PUNT);
}

/// Sizes of the maps. All memory is allocated when they are loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowTableSizes {
    /// Megaflows, 1 to 2^30.
    pub flows: u32,
    /// Entries of each CPU's exact-match cache; rounded up to a power of two.
    pub cached: u32,
}

impl FlowTableSizes {
    /// The largest number of masks.
    pub const MASKS: usize = abi::WEFT_MAX_MASKS as usize;

    /// Entries, including number 0, which is never used.
    fn places(self) -> u32 {
        self.flows.clamp(1, 1 << 30) + 1
    }

    fn buckets(self) -> u32 {
        self.flows.clamp(2, 1 << 30).next_power_of_two()
    }

    fn cached(self) -> u32 {
        self.cached.clamp(abi::WEFT_CACHED_PER_PAGE, 1 << 24).next_power_of_two()
    }

    /// Value of the constant `bucket_shift`.
    pub fn bucket_shift(self) -> u32 {
        64 - self.buckets().ilog2()
    }

    /// Value of the constant `cache_shift`.
    pub fn cache_shift(self) -> u32 {
        64 - self.cached().ilog2()
    }

    /// Values of the constant `hash_factors`: random and odd.
    pub fn hash_factors() -> [u64; WORDS + 2] {
        let random = RandomState::new();
        std::array::from_fn(|at| random.hash_one(at) | 1)
    }

    /// Sets the sizes of an object's maps before it is loaded. The caller sets the constants.
    ///
    /// # Errors
    /// When libbpf rejects a size.
    pub fn apply(self, object: &mut OpenObject) -> Result<(), libbpf_rs::Error> {
        for mut map in object.maps_mut() {
            let entries = match map.name().to_str() {
                Some("weft_flows") => self.places(),
                Some("weft_flow_stats") => self.places().div_ceil(PAGE),
                Some("weft_buckets") => self.buckets(),
                Some("weft_cache") => self.cached() / abi::WEFT_CACHED_PER_PAGE,
                _ => continue,
            };
            map.set_max_entries(entries)?;
        }
        Ok(())
    }
}

/// Counters of lookups that missed the exact-match caches, summed over all CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LookupStats {
    /// Found by the search.
    pub hits: u64,
    /// Not found.
    pub misses: u64,
    /// Masks tried by hits and misses.
    pub masks: u64,
}

/// Counters of a megaflow entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowStats {
    /// Packets; a super-packet counts once.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The maps of an object that includes `control.bpf.c`. There is one writer.
#[derive(Debug)]
pub struct FlowTables {
    flow_put: OwnedFd,
    flow_renew: OwnedFd,
    flow_delete: OwnedFd,
    mask_append: OwnedFd,
    mask_promote: OwnedFd,
    mask_list_swap: OwnedFd,
    entries: MapHandle,
    masks: MapHandle,
    mask_lists: MapHandle,
    served: MapHandle,
    lookups: MapHandle,
    grace: GracePeriod,
    flows: FlowEntries,
    numbers: HashMap<KernelMask, MaskNo>,
    /// Number of megaflows of each mask; `None` if no program can reach the mask.
    users: Vec<Option<u32>>,
    /// Masks in the order in which programs try them.
    order: Vec<MaskNo>,
    /// Masks that programs try first.
    preferred: HashSet<MaskNo>,
    /// Index of the mask list in use, 0 or 1.
    in_use: u32,
    /// Programs may still read the other list.
    flipped: bool,
    /// Retired entries for which waiting for a grace period has failed.
    late: RetiredEntries,
}

/// Waits for an RCU grace period. It is separate from the tables, so that they can be changed
/// meanwhile.
#[derive(Clone, Debug)]
pub struct GracePeriod {
    map: Arc<MapHandle>,
    /// A map to store into the other one.
    anything: Arc<MapHandle>,
}

impl GracePeriod {
    fn new(loaded: &LoadedObject) -> Result<Self, MapError> {
        let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
            ..Default::default()
        };
        let anything = MapHandle::create(MapType::Array, Some("weft_grace_in"), 4, 4, 1, &options)?;
        Ok(Self { map: Arc::new(loaded.map("weft_grace")?), anything: Arc::new(anything) })
    }

    /// Waits until all programs that run now have ended, typically tens of milliseconds: see
    /// `weft_grace` in `bpf/maps.h`.
    ///
    /// # Errors
    /// When the kernel rejects the update.
    pub fn wait(&self) -> Result<(), MapError> {
        let anything = self.anything.as_fd().as_raw_fd().to_ne_bytes();
        Ok(self.map.update(&0_u32.to_ne_bytes(), &anything, MapFlags::ANY)?)
    }
}

/// Deleted entries and masks, which programs may use until a grace period has passed.
#[derive(Debug, Default)]
#[must_use = "retired entries have to be freed"]
pub struct RetiredEntries {
    flows: Vec<FlowNo>,
    masks: Vec<MaskNo>,
    flipped: bool,
}

impl RetiredEntries {
    /// Adds entries that were retired later.
    pub fn append(&mut self, later: Self) {
        let Self { mut flows, mut masks, flipped } = later;
        self.flows.append(&mut flows);
        self.masks.append(&mut masks);
        self.flipped |= flipped;
    }

    /// Whether there is nothing to wait for.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty() && self.masks.is_empty() && !self.flipped
    }
}

/// The state of each megaflow entry.
#[derive(Debug)]
struct FlowEntries {
    /// The mask of each megaflow, by entry.
    masks: Vec<Option<MaskNo>>,
    /// Entries that no program can reach.
    free: FreeEntries,
    /// Deleted entries, which programs may still use.
    deleted: Vec<FlowNo>,
    /// The latest generation of a megaflow.
    generation: Generation,
    /// The first generation of the current epoch.
    epoch: Generation,
}

impl FlowEntries {
    fn next_generation(&mut self) -> Generation {
        self.generation.0 += 1;
        self.generation
    }
}

impl FlowTables {
    /// Wraps the maps of an object that has just been loaded, which are empty.
    ///
    /// # Errors
    /// [`MapError::Missing`] if the object does not include `control.bpf.c`.
    pub fn new(loaded: &LoadedObject) -> Result<Self, MapError> {
        let flows = loaded.map("weft_flows")?.max_entries();
        Ok(Self {
            flow_put: loaded.own_program("flow_put")?,
            flow_renew: loaded.own_program("flow_renew")?,
            flow_delete: loaded.own_program("flow_delete")?,
            mask_append: loaded.own_program("mask_append")?,
            mask_promote: loaded.own_program("mask_promote")?,
            mask_list_swap: loaded.own_program("mask_list_swap")?,
            entries: loaded.map("weft_flows")?,
            masks: loaded.map("weft_masks")?,
            mask_lists: loaded.map("weft_mask_lists")?,
            served: loaded.map("weft_flow_stats")?,
            lookups: loaded.map("weft_lookups")?,
            grace: GracePeriod::new(loaded)?,
            flows: FlowEntries {
                masks: Vec::new(),
                free: FreeEntries::new(1, flows),
                deleted: Vec::new(),
                generation: Generation::default(),
                epoch: Generation::default(),
            },
            numbers: HashMap::new(),
            users: vec![None; FlowTableSizes::MASKS],
            order: Vec::new(),
            preferred: HashSet::new(),
            in_use: 0,
            flipped: false,
            late: RetiredEntries::default(),
        })
    }

    /// Adds a megaflow, which must not exist yet. Otherwise programs would find the newer one.
    ///
    /// # Errors
    /// [`MapError::FlowsFull`] and [`MapError::MasksFull`], until deleted entries are
    /// [reclaimed](FlowTables::reclaim), or [`MapError::ChainFull`]. The megaflow is absent then.
    pub fn put(&mut self, megaflow: &KernelMatch, list: ActionListNo) -> Result<FlowNo, MapError> {
        let flow = self.flows.free.next().map(FlowNo).ok_or(MapError::FlowsFull)?;
        let mask = self.mask(megaflow.mask())?;
        let generation = self.flows.next_generation();
        let control = control(megaflow.key().words(), generation, flow, mask, list);
        match run(&self.flow_put, control)? {
            0 => {}
            refused if is_chain_full(refused) => return Err(MapError::ChainFull),
            refused => return Err(MapError::Refused(refused)),
        }
        self.flows.free.take();
        entries::set(&mut self.flows.masks, flow.0, mask);
        if let Some(users) = &mut self.users[mask.0 as usize] {
            *users += 1;
        }
        Ok(flow)
    }

    /// Gives a megaflow an action list, which may be its old one, and moves it to the current
    /// epoch. Its counters stay.
    ///
    /// # Errors
    /// [`MapError::NoSuchFlow`].
    pub fn renew(&mut self, flow: FlowNo, list: ActionListNo) -> Result<Generation, MapError> {
        let mask = self.mask_of(flow).ok_or(MapError::NoSuchFlow(flow))?;
        let generation = self.flows.next_generation();
        match run(&self.flow_renew, control(&[0; WORDS], generation, flow, mask, list))? {
            0 => Ok(generation),
            other => Err(MapError::Refused(other)),
        }
    }

    /// Begins an epoch: megaflows that are added or renewed from now on belong to it.
    pub fn begin_epoch(&mut self) {
        self.flows.epoch = Generation(self.flows.generation.0 + 1);
    }

    /// The first generation of the current epoch.
    pub fn epoch(&self) -> Generation {
        self.flows.epoch
    }

    /// The generation of the megaflow that was added or renewed last.
    pub fn generation(&self) -> Generation {
        self.flows.generation
    }

    /// The mask of a megaflow.
    pub fn mask_of(&self, flow: FlowNo) -> Option<MaskNo> {
        self.flows.masks.get(flow.0 as usize).copied().flatten()
    }

    /// Deletes a megaflow. Lookups that begin later do not find it, not even in a cache.
    ///
    /// # Errors
    /// [`MapError::NoSuchFlow`]. After any other error the megaflow is still there.
    pub fn delete(&mut self, flow: FlowNo) -> Result<(), MapError> {
        let mask = self.mask_of(flow).ok_or(MapError::NoSuchFlow(flow))?;
        match run(
            &self.flow_delete,
            control(&[0; WORDS], Generation::default(), flow, mask, ActionListNo::PUNT),
        )? {
            0 => {}
            other => return Err(MapError::Refused(other)),
        }
        self.flows.masks[flow.0 as usize] = None;
        self.flows.deleted.push(flow);
        if let Some(users) = &mut self.users[mask.0 as usize] {
            *users -= 1;
        }
        Ok(())
    }

    /// Frees deleted entries and unused masks, and sorts the masks by `hits`, highest first. Waits
    /// for a grace period.
    ///
    /// # Errors
    /// When the kernel rejects an update.
    pub fn reclaim_and_sort(&mut self, hits: impl Fn(MaskNo) -> u64) -> Result<(), MapError> {
        let retired = self.retire_and_sort(hits)?;
        let waited = self.grace.wait();
        match &waited {
            Ok(()) => self.free(retired),
            Err(_) => self.requeue(retired),
        }
        waited
    }

    /// Returns a handle that waits for a grace period without access to the tables.
    pub fn grace(&self) -> GracePeriod {
        self.grace.clone()
    }

    /// Takes deleted entries. After a grace period that begins later, they have to be
    /// [freed](FlowTables::free).
    pub fn retire(&mut self) -> RetiredEntries {
        let mut retired = std::mem::take(&mut self.late);
        retired.flows.append(&mut self.flows.deleted);
        retired
    }

    /// Returns retired entries when waiting for a grace period has failed.
    pub fn requeue(&mut self, retired: RetiredEntries) {
        self.late.append(retired);
    }

    /// As [`FlowTables::retire`], and also takes unused masks and sorts the others by `hits`.
    ///
    /// # Errors
    /// When the kernel rejects an update.
    pub fn retire_and_sort(
        &mut self,
        hits: impl Fn(MaskNo) -> u64,
    ) -> Result<RetiredEntries, MapError> {
        if self.flipped {
            return Ok(self.retire());
        }
        let mut order = self.order.clone();
        order.retain(|&mask| self.users(mask) != Some(0));
        order.sort_by_key(|mask| (!self.preferred.contains(mask), std::cmp::Reverse(hits(*mask))));
        if order == self.order {
            return Ok(self.retire());
        }
        self.mask_lists.update(
            &(self.in_use ^ 1).to_ne_bytes(),
            &list_bytes(&order),
            MapFlags::ANY,
        )?;
        run(&self.mask_list_swap, Vec::new())?;
        self.in_use ^= 1;
        let mut retired = self.retire();
        let had = std::mem::replace(&mut self.order, order);
        retired.masks.extend(had.into_iter().filter(|mask| self.users(*mask) == Some(0)));
        // A later megaflow with such a mask gets a new number, because programs no longer try this
        // one.
        self.numbers.retain(|_, number| !retired.masks.contains(number));
        (self.flipped, retired.flipped) = (true, true);
        Ok(retired)
    }

    /// Makes programs try a mask before those that are not preferred.
    ///
    /// # Errors
    /// When the kernel rejects an update.
    pub fn prefer(&mut self, mask: MaskNo) -> Result<(), MapError> {
        if self.preferred.contains(&mask) {
            return Ok(());
        }
        let nothing = (Generation::default(), FlowNo(0), ActionListNo::PUNT);
        let control = control(&[0; WORDS], nothing.0, nothing.1, mask, nothing.2);
        match run(&self.mask_promote, control)? {
            0 => {}
            other => return Err(MapError::Refused(other)),
        }
        self.preferred.insert(mask);
        self.order.retain(|other| *other != mask);
        self.order.insert(0, mask);
        Ok(())
    }

    /// Frees entries that no program can use any more.
    pub fn free(&mut self, retired: RetiredEntries) {
        let RetiredEntries { flows, masks, flipped } = retired;
        self.flows.free.release(flows.into_iter().map(|flow| flow.0));
        for mask in masks {
            self.users[mask.0 as usize] = None;
            self.preferred.remove(&mask);
        }
        if flipped {
            self.flipped = false;
        }
    }

    /// As [`FlowTables::reclaim_and_sort`], without sorting.
    ///
    /// # Errors
    /// When the kernel rejects an update.
    pub fn reclaim(&mut self) -> Result<(), MapError> {
        self.reclaim_and_sort(|_| 0)
    }

    /// Counters of an entry since the start, including those of earlier megaflows.
    ///
    /// # Errors
    /// [`MapError::NoSuchFlow`].
    pub fn stats(&self, flow: FlowNo) -> Result<FlowStats, MapError> {
        self.stats_from(flow, 1)?.first().copied().ok_or(MapError::NoSuchFlow(flow))
    }

    /// Counters of at most `most` entries from `first` on.
    ///
    /// # Errors
    /// When the kernel rejects the read.
    pub fn stats_from(&self, first: FlowNo, most: u32) -> Result<Vec<FlowStats>, MapError> {
        let most = most.min((self.capacity() as u32).saturating_sub(first.0));
        if most == 0 {
            return Ok(Vec::new());
        }
        let pages = (first.0 / PAGE, (first.0 + most).div_ceil(PAGE));
        let words: Vec<[u64; PAGE_WORDS]> = sums(&self.served, pages.0, pages.1 - pages.0)?;
        let served = words.as_flattened().as_chunks().0.iter();
        let served = served.map(|&[packets, bytes]| FlowStats { packets, bytes });
        Ok(served.skip((first.0 % PAGE) as usize).take(most as usize).collect())
    }

    /// Number of entries, including number 0.
    pub(crate) fn capacity(&self) -> usize {
        self.flows.free.limit() as usize
    }

    /// One more than the last entry that was ever used.
    pub fn end(&self) -> FlowNo {
        FlowNo(self.flows.free.end())
    }

    /// Lookup counters since the programs were loaded.
    ///
    /// # Errors
    /// When the kernel rejects the read.
    pub fn lookups(&self) -> Result<LookupStats, MapError> {
        let sums = sums(&self.lookups, 0, 1)?;
        let &[hits, misses, masks] = sums.first().ok_or(MapError::Missing("weft_lookups"))?;
        Ok(LookupStats { hits, misses, masks })
    }

    /// The masks in the order in which programs try them.
    pub fn masks(&self) -> &[MaskNo] {
        &self.order
    }

    /// Whether lookups try a mask.
    pub fn has_mask(&self, mask: &KernelMask) -> bool {
        self.numbers.contains_key(mask)
    }

    /// How many masks can be added, some of them after [`FlowTables::reclaim`].
    pub fn free_masks(&self) -> usize {
        self.users.iter().filter(|users| users.is_none_or(|users| users == 0)).count()
    }

    fn users(&self, mask: MaskNo) -> Option<u32> {
        self.users.get(mask.0 as usize).copied().flatten()
    }

    /// The number of a mask, which is added if it is new.
    fn mask(&mut self, mask: &KernelMask) -> Result<MaskNo, MapError> {
        if let Some(&number) = self.numbers.get(mask) {
            return Ok(number);
        }
        let free = self.users.iter().position(Option::is_none).ok_or(MapError::MasksFull)?;
        let number = MaskNo(free as u32);
        self.masks.update(&number.0.to_ne_bytes(), &bytes(mask.words()), MapFlags::ANY)?;
        match run(
            &self.mask_append,
            control(&[0; WORDS], Generation::default(), FlowNo(0), number, ActionListNo::PUNT),
        )? {
            0 => {}
            other => return Err(MapError::Refused(other)),
        }
        self.users[free] = Some(0);
        self.numbers.insert(*mask, number);
        self.order.push(number);
        Ok(number)
    }
}

/// Entries whose counters share a map element, and the 64-bit words of an element.
const PAGE: u32 = abi::WEFT_FLOW_STATS_PER_PAGE;
const PAGE_WORDS: usize = size_of::<weft_flow_stats_page>() / 8;

// `sums` reads these counters as words in this order.
const _: () = assert!(
    offset_of!(weft_flow_stats, packets) == 0
        && offset_of!(weft_flow_stats, bytes) == 8
        && size_of::<weft_flow_stats>() == 16
        && offset_of!(weft_lookup_stats, hits) == 0
        && offset_of!(weft_lookup_stats, misses) == 8
        && offset_of!(weft_lookup_stats, masks) == 16
);

/// The first `N` words of at most `most` entries from `first` on, summed over all CPUs.
pub(crate) fn sums<const N: usize>(
    map: &MapHandle,
    first: u32,
    most: u32,
) -> Result<Vec<[u64; N]>, MapError> {
    let bytes = sys::read(map, first, most).map_err(libbpf_rs::Error::from)?;
    let value = map.value_size().next_multiple_of(8) as usize;
    let entry = sys::entry_len(map).map_err(libbpf_rs::Error::from)?;
    let sum = |entry: &[u8]| {
        entry.chunks_exact(value).fold([0; N], |mut sums: [u64; N], cpu| {
            for (sum, &word) in sums.iter_mut().zip(cpu.as_chunks().0) {
                *sum += u64::from_ne_bytes(word);
            }
            sums
        })
    };
    Ok(bytes.chunks_exact(entry).map(sum).collect())
}

fn bytes(words: &[u64; WORDS]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn list_bytes(order: &[MaskNo]) -> Vec<u8> {
    const _: () = assert!(offset_of!(weft_mask_list, order) == 4);
    let count = order.len() as u32;
    let numbers = order.iter().map(|mask| mask.0);
    let mut list: Vec<_> =
        std::iter::once(count).chain(numbers).flat_map(u32::to_ne_bytes).collect();
    list.resize(size_of::<weft_mask_list>(), 0);
    list
}

/// The bytes of a `struct weft_control`.
fn control(
    key: &[u64; WORDS],
    generation: Generation,
    flow: FlowNo,
    mask: MaskNo,
    list: ActionListNo,
) -> Vec<u8> {
    const KEY: usize = size_of::<weft_key>();
    const _: () = assert!(
        offset_of!(weft_control, key) == 0
            && offset_of!(weft_control, generation) == KEY
            && offset_of!(weft_control, flow) == KEY + 8
            && offset_of!(weft_control, mask) == KEY + 12
            && offset_of!(weft_control, list) == KEY + 16
            && size_of::<weft_control>() == KEY + 24
            && offset_of!(weft_flow, generation) == KEY
    );
    let mut control = bytes(key);
    control.extend(generation.0.to_ne_bytes());
    control.extend(flow.0.to_ne_bytes());
    control.extend(mask.0.to_ne_bytes());
    control.extend(list.0.to_ne_bytes());
    control.extend([0; 4]);
    control
}

/// Whether `flow_put` failed with E2BIG.
fn is_chain_full(returned: i32) -> bool {
    io::Error::from_raw_os_error(-returned).kind() == io::ErrorKind::ArgumentListTooLong
}

/// Runs a control program and returns its result.
fn run(program: &OwnedFd, mut context: Vec<u8>) -> Result<i32, MapError> {
    Ok(sys::run(program.as_fd(), &mut context).map_err(libbpf_rs::Error::from)?)
}
