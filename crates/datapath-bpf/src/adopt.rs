//! [`Old`]: what is left of a process that is gone, and goes on forwarding: read, to be decided again (docs/adr/0012).

use crate::key::{KernelKey, KernelMask, KernelMatch};
use crate::layout::{LAYOUT, WORDS, weft_drop, weft_endpoint, weft_flow, weft_key, weft_port};
use crate::pin::{Pins, read_state, remove_set};
use crate::record::{u16_at, u32_at, u64_at};
use crate::sys;
use flow::{DropReason, Field, Match, PortNo};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use netdev::Ifindex;
use std::collections::{HashMap, HashSet};
use std::io;
use std::mem::offset_of;
use std::path::{Path, PathBuf};

/// Entries that are read by one call.
const PORTION: u32 = 4096;
const PRESENT: u32 = 1;
const RESOLVED: u32 = 2;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Old {
    sets: Vec<PathBuf>,
    /// Those of which all is known.
    read: Vec<Set>,
    /// Megaflows of those that this version cannot read.
    pub(crate) unreadable: u64,
}

/// The programs of one process, and their maps.
#[derive(Debug)]
struct Set {
    /// The newest last; ports are numbered as that process had them.
    megaflows: Vec<Match>,
    devices: HashMap<PortNo, Ifindex>,
    resolved: HashSet<[u32; 4]>,
    drops: MapHandle,
    links: MapHandle,
}

impl Old {
    /// What is pinned.
    pub(crate) fn read(pins: &Pins) -> Self {
        let mut old = Self { sets: pins.sets(), ..Self::default() };
        for folder in &old.sets {
            match read_state(folder) {
                Some(state) if state.layout == LAYOUT => match Set::read(folder) {
                    Ok(set) => old.read.push(set),
                    Err(error) => {
                        tracing::warn!(set = %folder.display(), "cannot be read: {error}");
                        old.unreadable += state.megaflows;
                    }
                },
                Some(state) => old.unreadable += state.megaflows,
                // It was never in use.
                None => {}
            }
        }
        old
    }

    /// Nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    /// How many megaflows there are that can be read.
    pub(crate) fn megaflows(&self) -> usize {
        self.read.iter().map(|set| set.megaflows.len()).sum()
    }

    /// The conditions of megaflows, the oldest first, for ports as they are numbered now: `port_at` says which is at a device. One whose
    /// port is gone is left out.
    pub(crate) fn conditions(&self, port_at: impl Fn(Ifindex) -> Option<PortNo>) -> Vec<Match> {
        let mut conditions = Vec::with_capacity(self.megaflows());
        for set in &self.read {
            let now = |condition: &Match| {
                let port = PortNo(condition.key().get(Field::InPort) as u32);
                if port > datapath::user::MAX_PORT || port.0 == 0 {
                    // Not of a device: these are numbered by the kind of tunnel.
                    return Some(condition.clone());
                }
                let now = port_at(*set.devices.get(&port)?)?;
                let mut key = condition.key().clone();
                key.set(Field::InPort, now.0.into());
                Some(Match::new(&key, condition.mask().clone()))
            };
            conditions.extend(set.megaflows.iter().filter_map(now));
        }
        conditions
    }

    /// The devices of ports.
    pub(crate) fn devices(&self) -> HashSet<Ifindex> {
        self.read.iter().flat_map(|set| set.devices.values().copied()).collect()
    }

    /// Whether there were logical links of the uplink.
    pub(crate) fn has_links(&self) -> bool {
        self.read.iter().any(|set| set.links.keys().next().is_some())
    }

    /// The addresses of end points to which the way was known, as they are on the wire.
    pub(crate) fn resolved(&self) -> HashSet<[u32; 4]> {
        self.read.iter().flat_map(|set| set.resolved.iter().copied()).collect()
    }

    /// What was dropped because nobody was there, by ports as they are numbered now. What came from no device, or from one that is gone,
    /// is the uplink's, 0.
    pub(crate) fn missed(
        &self,
        port_at: impl Fn(Ifindex) -> Option<PortNo>,
    ) -> HashMap<PortNo, u64> {
        let mut missed = HashMap::new();
        for set in &self.read {
            for key in set.drops.keys() {
                let word = u64_at(&key, offset_of!(weft_drop, port_reason));
                if word & 0xff != DropReason::NoDaemon as u64 {
                    continue;
                }
                let Ok(Some(cpus)) = set.drops.lookup_percpu(&key, MapFlags::ANY) else { continue };
                let port = u32::try_from(word >> 8).ok().map(PortNo);
                let port = port.and_then(|port| port_at(*set.devices.get(&port)?));
                let count: u64 = cpus.iter().map(|cpu| u64_at(cpu, 0)).sum();
                *missed.entry(port.unwrap_or(PortNo(0))).or_default() += count;
            }
        }
        missed
    }

    /// Removes it: nothing executes it any more.
    pub(crate) fn remove(self) -> io::Result<()> {
        self.sets.iter().try_for_each(|set| remove_set(set))
    }
}

fn map(set: &Path, name: &str) -> Result<MapHandle, libbpf_rs::Error> {
    MapHandle::from_pinned_path(set.join(name))
}

/// Calls `take` with the number and the bytes of every entry of an array.
fn each(map: &MapHandle, mut take: impl FnMut(u32, &[u8])) -> io::Result<()> {
    let len = sys::entry_len(map)?;
    let (mut first, end) = (0, map.max_entries());
    while first < end {
        let bytes = sys::read(map, first, PORTION)?;
        let read = (bytes.len() / len) as u32;
        (first..).zip(bytes.chunks_exact(len)).for_each(|(number, entry)| take(number, entry));
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        first += read;
    }
    Ok(())
}

impl Set {
    fn read(set: &Path) -> Result<Self, libbpf_rs::Error> {
        let mut masks = Vec::new();
        each(&map(set, "weft_masks")?, |_, entry| {
            masks.push(KernelMask::from_words(words(entry)))
        })?;
        let mut megaflows = Vec::new();
        each(&map(set, "weft_flows")?, |_, entry| {
            let generation = u64_at(entry, offset_of!(weft_flow, generation));
            let mask = masks.get(usize::from(u16_at(entry, offset_of!(weft_flow, mask))));
            if let (1.., Some(mask)) = (generation, mask) {
                let key = KernelKey::from_words(words(&entry[offset_of!(weft_flow, key)..]));
                megaflows.push((generation, KernelMatch::from_parts(key, *mask).condition()));
            }
        })?;
        megaflows.sort_unstable_by_key(|(generation, _)| *generation);
        let mut devices = HashMap::new();
        each(&map(set, "weft_ports")?, |port, entry| {
            let ifindex = u32_at(entry, offset_of!(weft_port, ifindex));
            if ifindex != 0 {
                devices.insert(PortNo(port), Ifindex(ifindex));
            }
        })?;
        let mut resolved = HashSet::new();
        each(&map(set, "weft_endpoints")?, |_, entry| {
            let flags = u32_at(entry, offset_of!(weft_endpoint, flags));
            if flags & (PRESENT | RESOLVED) == PRESENT | RESOLVED {
                let at = offset_of!(weft_endpoint, remote);
                resolved.insert(std::array::from_fn(|word| u32_at(entry, at + 4 * word)));
            }
        })?;
        let megaflows = megaflows.into_iter().map(|(_, condition)| condition).collect();
        let (drops, links) = (map(set, "weft_drops")?, map(set, "weft_links")?);
        Ok(Self { megaflows, devices, resolved, drops, links })
    }
}

fn words(entry: &[u8]) -> [u64; WORDS] {
    const _: () = assert!(size_of::<weft_key>() == 8 * WORDS);
    std::array::from_fn(|at| u64_at(entry, 8 * at))
}
