//! [`FlowTables`]: the megaflows and masks that the programs look up, written while they do.
//!
//! The rules that make this safe are told in `bpf/lookup.h`. Userspace's part is that it writes only to what no program can endpoint_maps:
//! an entry or a mask that has been taken out is used again only after a grace period, which [`FlowTables::reclaim`] waits
//! for.

use crate::abi::{
    self, weft_control, weft_flow, weft_flow_stats, weft_flow_stats_page, weft_key,
    weft_lookup_stats, weft_mask_list,
};
use crate::key::{KernelMask, KernelMatch};
use crate::layout::WORDS;
use crate::object::LoadedObject;
use crate::sys;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, OpenObject};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

/// The number of a megaflow's entry, 1 to [`FlowTableSizes::flows`]. It is used again after the megaflow is deleted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FlowNo(pub u32);

/// The number of a mask, 0 to [`FlowTableSizes::MASKS`] - 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MaskNo(pub u32);

/// The number of a list of actions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ActionListNo(pub u32);

impl ActionListNo {
    /// The list that hands packets over.
    pub const PUNT: Self = Self(abi::WEFT_ACTIONS_PUNT);
}

/// How much the tables hold; all of it is allocated when they are loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowTableSizes {
    /// Megaflows, 1 to 2^30.
    pub flows: u32,
    /// Entries of the exact-match cache of each CPU; a power of two is made of it.
    pub cached: u32,
}

impl FlowTableSizes {
    /// Masks.
    pub const MASKS: usize = abi::WEFT_MAX_MASKS as usize;

    /// Entries, with the one that is none.
    fn places(self) -> u32 {
        self.flows.clamp(1, 1 << 30) + 1
    }

    fn buckets(self) -> u32 {
        self.flows.clamp(2, 1 << 30).next_power_of_two()
    }

    fn cached(self) -> u32 {
        self.cached.clamp(2, 1 << 24).next_power_of_two()
    }

    /// For the constant `bucket_shift` of the programs.
    pub fn bucket_shift(self) -> u32 {
        64 - self.buckets().ilog2()
    }

    /// For the constant `cache_shift` of the programs.
    pub fn cache_shift(self) -> u32 {
        64 - self.cached().ilog2()
    }

    /// For the constants `hash_factors` of the programs: random and odd.
    pub fn hash_factors() -> [u64; WORDS + 2] {
        let random = RandomState::new();
        std::array::from_fn(|at| random.hash_one(at) | 1)
    }

    /// FlowTableSizes the maps of an object that is not loaded yet. Its constants are for the caller to set.
    ///
    /// # Errors
    /// When libbpf does not take a size.
    pub fn apply(self, object: &mut OpenObject) -> Result<(), libbpf_rs::Error> {
        for mut map in object.maps_mut() {
            let entries = match map.name().to_str() {
                Some("weft_flows") => self.places(),
                Some("weft_flow_stats") => self.places().div_ceil(PAGE),
                Some("weft_buckets") => self.buckets(),
                Some("weft_cache") => self.cached(),
                _ => continue,
            };
            map.set_max_entries(entries)?;
        }
        Ok(())
    }
}

/// What the lookups of all CPUs came to, those apart that the exact-match cache answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LookupStats {
    /// Found by a mask.
    pub hits: u64,
    /// Not found.
    pub misses: u64,
    /// Masks tried for both.
    pub masks: u64,
}

/// What an entry of the table of megaflows has served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowStats {
    /// Packets; a super-packet is one.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Why the tables did not do what they were asked to.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// As many megaflows as there are places for.
    #[error("the table of megaflows is full")]
    FlowsFull,
    /// As many masks as there are places for.
    #[error("the table of masks is full")]
    MasksFull,
    /// As many lists of actions as there are places for.
    #[error("the table of lists of actions is full")]
    ActionListsFull,
    /// As many end points, tunnels or links as there are places for.
    #[error("there is no room for {0}")]
    Full(&'static str),
    /// There are too many megaflows of this hash; as rare as a hash with a secret makes it.
    #[error("too many megaflows share a hash")]
    ChainFull,
    /// There is no such megaflow.
    #[error("there is no megaflow {0:?}")]
    NoSuchFlow(FlowNo),
    /// The object has no map or program of this name.
    #[error("the object has no {0}")]
    Missing(&'static str),
    /// A program refused what it was asked to do.
    #[error("a control program says {0}")]
    Refused(i32),
    /// The kernel refused something.
    #[error(transparent)]
    Kernel(#[from] libbpf_rs::Error),
}

impl MapError {
    /// There is no room, for now or at all.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::FlowsFull | Self::MasksFull | Self::ChainFull)
    }
}

/// The tables of an object that `control.bpf.c` is a part of, written by one thread.
#[derive(Debug)]
pub struct FlowTables {
    flow_put: OwnedFd,
    flow_set_list: OwnedFd,
    flow_delete: OwnedFd,
    mask_append: OwnedFd,
    mask_list_swap: OwnedFd,
    masks: MapHandle,
    mask_lists: MapHandle,
    served: MapHandle,
    lookups: MapHandle,
    grace: Grace,
    flows: FlowEntries,
    numbers: HashMap<KernelMask, MaskNo>,
    /// How many megaflows each mask has; `None` when nobody can endpoint_maps it.
    users: Vec<Option<u32>>,
    /// As the programs try them.
    order: Vec<MaskNo>,
    /// The list in use, 0 or 1.
    in_use: u32,
    /// The other one may still be read.
    flipped: bool,
    /// What could not be waited for.
    late: Retired,
}

/// Waits until no program runs any more that runs now, without the tables: those may be written meanwhile.
#[derive(Clone, Debug)]
pub struct Grace {
    map: Arc<MapHandle>,
    /// What is put into it.
    anything: Arc<MapHandle>,
}

impl Grace {
    fn new(loaded: &LoadedObject) -> Result<Self, MapError> {
        let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
            ..Default::default()
        };
        let anything = MapHandle::create(MapType::Array, Some("weft_grace_in"), 4, 4, 1, &options)?;
        Ok(Self { map: Arc::new(loaded.map("weft_grace")?), anything: Arc::new(anything) })
    }

    /// Waits, some tens of milliseconds: see `weft_grace` in `bpf/maps.h`.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn wait(&self) -> Result<(), MapError> {
        let anything = self.anything.as_fd().as_raw_fd().to_ne_bytes();
        Ok(self.map.update(&0_u32.to_ne_bytes(), &anything, MapFlags::ANY)?)
    }
}

/// What has been taken out, and may still be in use until a grace period has passed.
#[derive(Debug, Default)]
#[must_use = "what is not given back is lost"]
pub struct Retired {
    flows: Vec<FlowNo>,
    masks: Vec<MaskNo>,
    flipped: bool,
}

impl Retired {
    /// Nothing, for which nobody has to wait.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty() && self.masks.is_empty() && !self.flipped
    }
}

/// Who has which entry.
#[derive(Debug)]
struct FlowEntries {
    /// The mask of each megaflow, by its number.
    masks: Vec<Option<MaskNo>>,
    /// Nobody can endpoint_maps these.
    free: Vec<FlowNo>,
    /// Programs may still be using these.
    deleted: Vec<FlowNo>,
    /// Behind the last that has ever been used.
    end: FlowNo,
    /// Of the latest megaflow.
    generation: u64,
}

impl FlowTables {
    /// The tables of a freshly loaded object, which are empty.
    ///
    /// # Errors
    /// [`MapError::Missing`] for an object that is not of this kind.
    pub fn new(loaded: &LoadedObject) -> Result<Self, MapError> {
        let flows = loaded.map("weft_flows")?.max_entries();
        Ok(Self {
            flow_put: loaded.own_program("flow_put")?,
            flow_set_list: loaded.own_program("flow_set_list")?,
            flow_delete: loaded.own_program("flow_delete")?,
            mask_append: loaded.own_program("mask_append")?,
            mask_list_swap: loaded.own_program("mask_list_swap")?,
            masks: loaded.map("weft_masks")?,
            mask_lists: loaded.map("weft_mask_lists")?,
            served: loaded.map("weft_flow_stats")?,
            lookups: loaded.map("weft_lookups")?,
            grace: Grace::new(loaded)?,
            flows: FlowEntries {
                masks: vec![None; flows as usize],
                free: (1..flows).rev().map(FlowNo).collect(),
                deleted: Vec::new(),
                end: FlowNo(1),
                generation: 0,
            },
            numbers: HashMap::new(),
            users: vec![None; FlowTableSizes::MASKS],
            order: Vec::new(),
            in_use: 0,
            flipped: false,
            late: Retired::default(),
        })
    }

    /// Installs a megaflow. It must not be there already: the programs find the one that was put last.
    ///
    /// # Errors
    /// [`MapError::FlowsFull`], [`MapError::MasksFull`], both until something is [reclaimed](FlowTables::reclaim), or
    /// [`MapError::ChainFull`]; the megaflow is not there then.
    pub fn put(&mut self, megaflow: &KernelMatch, list: ActionListNo) -> Result<FlowNo, MapError> {
        let flow = *self.flows.free.last().ok_or(MapError::FlowsFull)?;
        let mask = self.mask(megaflow.mask())?;
        self.flows.generation += 1;
        let control = control(megaflow.key().words(), self.flows.generation, flow, mask, list);
        match run(&self.flow_put, control)? {
            0 => {}
            refused if is_chain_full(refused) => return Err(MapError::ChainFull),
            refused => return Err(MapError::Refused(refused)),
        }
        self.flows.free.pop();
        self.flows.end = self.flows.end.max(FlowNo(flow.0 + 1));
        self.flows.masks[flow.0 as usize] = Some(mask);
        if let Some(users) = &mut self.users[mask.0 as usize] {
            *users += 1;
        }
        Ok(flow)
    }

    /// Gives a megaflow another list; its counters go on.
    ///
    /// # Errors
    /// [`MapError::NoSuchFlow`].
    pub fn set_list(&mut self, flow: FlowNo, list: ActionListNo) -> Result<(), MapError> {
        let mask = self.mask_of(flow).ok_or(MapError::NoSuchFlow(flow))?;
        match run(&self.flow_set_list, control(&[0; WORDS], 0, flow, mask, list))? {
            0 => Ok(()),
            other => Err(MapError::Refused(other)),
        }
    }

    /// The mask of a megaflow.
    pub fn mask_of(&self, flow: FlowNo) -> Option<MaskNo> {
        self.flows.masks.get(flow.0 as usize).copied().flatten()
    }

    /// Takes a megaflow out: no lookup that begins later finds it, not in an exact-match cache either.
    ///
    /// # Errors
    /// [`MapError::NoSuchFlow`]; with any other error, it is still there.
    pub fn delete(&mut self, flow: FlowNo) -> Result<(), MapError> {
        let mask = self.mask_of(flow).ok_or(MapError::NoSuchFlow(flow))?;
        match run(&self.flow_delete, control(&[0; WORDS], 0, flow, mask, ActionListNo::PUNT))? {
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

    /// Makes the places of what was deleted free, and has the masks tried in the order of `hits`, those with the most first; those
    /// that nobody uses any more are not tried at all. Waits for a grace period.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn reclaim_and_sort(&mut self, hits: impl Fn(MaskNo) -> u64) -> Result<(), MapError> {
        let retired = self.retire_and_sort(hits)?;
        let waited = self.grace.wait();
        match &waited {
            Ok(()) => self.free(retired),
            Err(_) => self.requeue(retired),
        }
        waited
    }

    /// What waits for a grace period.
    pub fn grace(&self) -> Grace {
        self.grace.clone()
    }

    /// What has been deleted. When a grace period has passed that began later, it is to be [given back](FlowTables::free).
    pub fn retire(&mut self) -> Retired {
        let mut retired = std::mem::take(&mut self.late);
        retired.flows.append(&mut self.flows.deleted);
        retired
    }

    /// No grace period could be waited for: it is retired once more the next time.
    pub fn requeue(&mut self, retired: Retired) {
        let Retired { mut flows, mut masks, flipped } = retired;
        self.late.flows.append(&mut flows);
        self.late.masks.append(&mut masks);
        self.late.flipped |= flipped;
    }

    /// The same, and the masks that nobody uses any more; the others are tried in the order of `hits`.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn retire_and_sort(&mut self, hits: impl Fn(MaskNo) -> u64) -> Result<Retired, MapError> {
        if self.flipped {
            return Ok(self.retire());
        }
        let mut order = self.order.clone();
        order.retain(|&mask| self.users(mask) != Some(0));
        order.sort_by_key(|&mask| std::cmp::Reverse(hits(mask)));
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
        // From now on another megaflow of such a mask gets a new number: this one is not tried.
        self.numbers.retain(|_, number| !retired.masks.contains(number));
        (self.flipped, retired.flipped) = (true, true);
        Ok(retired)
    }

    /// Makes free what nobody can be using any more.
    pub fn free(&mut self, retired: Retired) {
        let Retired { mut flows, masks, flipped } = retired;
        self.flows.free.append(&mut flows);
        for mask in masks {
            self.users[mask.0 as usize] = None;
        }
        if flipped {
            self.flipped = false;
        }
    }

    /// [`FlowTables::reclaim_and_sort`] that leaves the order as it is.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn reclaim(&mut self) -> Result<(), MapError> {
        self.reclaim_and_sort(|_| 0)
    }

    /// Packets and bytes that this entry has ever served, whichever megaflow it held.
    ///
    /// # Errors
    /// [`MapError::NoSuchFlow`].
    pub fn stats(&self, flow: FlowNo) -> Result<FlowStats, MapError> {
        self.stats_from(flow, 1)?.first().copied().ok_or(MapError::NoSuchFlow(flow))
    }

    /// The same of at most `most` entries from `first` on; fewer where the table ends.
    ///
    /// # Errors
    /// When the kernel refuses it.
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

    /// As many entries as there are, with the one that is none.
    pub(crate) fn capacity(&self) -> usize {
        self.flows.masks.len()
    }

    /// Behind the last entry that has ever been used.
    pub fn end(&self) -> FlowNo {
        self.flows.end
    }

    /// What lookups have come to since the programs were loaded.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn lookups(&self) -> Result<LookupStats, MapError> {
        let sums = sums(&self.lookups, 0, 1)?;
        let &[hits, misses, masks] = sums.first().ok_or(MapError::Missing("weft_lookups"))?;
        Ok(LookupStats { hits, misses, masks })
    }

    /// The masks in the order in which they are tried.
    pub fn masks(&self) -> &[MaskNo] {
        &self.order
    }

    fn users(&self, mask: MaskNo) -> Option<u32> {
        self.users.get(mask.0 as usize).copied().flatten()
    }

    /// The number of a mask, which the programs try from now on.
    fn mask(&mut self, mask: &KernelMask) -> Result<MaskNo, MapError> {
        if let Some(&number) = self.numbers.get(mask) {
            return Ok(number);
        }
        let free = self.users.iter().position(Option::is_none).ok_or(MapError::MasksFull)?;
        let number = MaskNo(free as u32);
        self.masks.update(&number.0.to_ne_bytes(), &bytes(mask.words()), MapFlags::ANY)?;
        match run(
            &self.mask_append,
            control(&[0; WORDS], 0, FlowNo(0), number, ActionListNo::PUNT),
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

/// Entries whose counters are side by side, and the words of these.
const PAGE: u32 = abi::WEFT_FLOW_STATS_PER_PAGE;
const PAGE_WORDS: usize = size_of::<weft_flow_stats_page>() / 8;

// What `sums` takes for words in this order.
const _: () = assert!(
    offset_of!(weft_flow_stats, packets) == 0
        && offset_of!(weft_flow_stats, bytes) == 8
        && size_of::<weft_flow_stats>() == 16
        && offset_of!(weft_lookup_stats, hits) == 0
        && offset_of!(weft_lookup_stats, misses) == 8
        && offset_of!(weft_lookup_stats, masks) == 16
);

/// The sums over all CPUs of the first `N` words of at most `most` entries from `first` on.
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

/// A `struct weft_control`.
fn control(
    key: &[u64; WORDS],
    generation: u64,
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
    control.extend(generation.to_ne_bytes());
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

/// Runs a control program, and returns what it does.
fn run(program: &OwnedFd, mut context: Vec<u8>) -> Result<i32, MapError> {
    Ok(sys::run(program.as_fd(), &mut context).map_err(libbpf_rs::Error::from)?)
}
