//! [`Old`]: what is left of a process that is gone, and goes on forwarding: read, to be decided again (docs/adr/0012).

use crate::abi::{self, weft_device, weft_drop_key, weft_endpoint, weft_flow, weft_key, weft_port};
use crate::key::{KernelKey, KernelMask, KernelMatch};
use crate::layout::{LAYOUT, WORDS};
use crate::pin::{Pins, read_state, remove_set};
use crate::ports::DeviceCleanup;
use crate::struct_bytes::{u16_at, u32_at, u64_at};
use crate::sys;
use flow::{DropReason, Field, Match, NextHop, PortNo};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use netdev::tap::Tap;
use netdev::{Ifindex, Netlink};
use std::collections::{HashMap, HashSet};
use std::io;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::MacAddr;

/// Entries that are read by one call.
const PORTION: u32 = 4096;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct PreviousState {
    sets: Vec<PathBuf>,
    /// Those of which all is known.
    read: Vec<PreviousSet>,
    /// Megaflows of those that this version cannot read.
    pub(crate) unreadable: u64,
}

/// The programs of one process, and their maps. Of a million megaflows only the numbers are here: the rest stays where it is.
#[derive(Debug)]
struct PreviousSet {
    /// Generations and numbers of megaflows, the newest last.
    megaflows: Vec<(u64, u32)>,
    masks: Vec<KernelMask>,
    flows: MapHandle,
    /// Ports are numbered as that process had them.
    devices: HashMap<PortNo, PreviousDevice>,
    hops: HashMap<[u32; 4], NextHop>,
    drops: MapHandle,
    links: MapHandle,
}

/// The device of a port.
#[derive(Clone, Copy, Debug)]
struct PreviousDevice {
    index: Ifindex,
    cleanup: DeviceCleanup,
}

/// The port at each device, as they are numbered now.
pub(crate) type PortsNow = HashMap<Ifindex, PortNo>;

/// The conditions of megaflows that a process has left, the oldest first; see [`crate::KernelDatapath::inherited`].
#[derive(Clone, Debug, Default)]
pub struct InheritedMatches {
    left: Option<(Arc<PreviousState>, Arc<PortsNow>)>,
    /// Set and megaflow of the next.
    at: (usize, usize),
}

impl InheritedMatches {
    pub(crate) fn new(previous: Arc<PreviousState>, now: PortsNow) -> Self {
        Self { left: Some((previous, Arc::new(now))), at: (0, 0) }
    }
}

impl Iterator for InheritedMatches {
    type Item = Match;

    fn next(&mut self) -> Option<Match> {
        let (previous, now) = self.left.as_ref()?;
        loop {
            let (set, megaflow) = self.at;
            let set = previous.read.get(set)?;
            match set.megaflows.get(megaflow) {
                None => self.at = (self.at.0 + 1, 0),
                Some(&which) => {
                    self.at.1 += 1;
                    if let Some(condition) = set.condition(which, now) {
                        return Some(condition);
                    }
                }
            }
        }
    }
}

impl PreviousState {
    /// What is pinned.
    pub(crate) fn read(pins: &Pins) -> Self {
        let mut previous = Self { sets: pins.sets(), ..Self::default() };
        for folder in &previous.sets {
            match read_state(folder) {
                Some(state) if state.layout == LAYOUT => match PreviousSet::read(folder) {
                    Ok(set) => previous.read.push(set),
                    Err(error) => {
                        tracing::warn!(set = %folder.display(), "cannot be read: {error}");
                        previous.unreadable += state.megaflows;
                    }
                },
                Some(state) => previous.unreadable += state.megaflows,
                // It was never in use.
                None => {}
            }
        }
        previous
    }

    /// Nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    /// How many megaflows there are that can be read.
    pub(crate) fn megaflows(&self) -> usize {
        self.read.iter().map(|set| set.megaflows.len()).sum()
    }

    /// Leaves the devices of ports as an orderly end would have left them, but those that are to `stay`; and the uplink, which is the one
    /// of those where programs `stood` that was no port's. Pairs are removed by whoever makes them.
    pub(crate) fn close_devices(&self, stood: &[Ifindex], stay: &HashSet<Ifindex>) {
        let ports = || self.read.iter().flat_map(|set| set.devices.values());
        let vifs: HashSet<Ifindex> = ports().map(|device| device.index).collect();
        // It was made to receive all frames for the sake of tags alone.
        let has_links = self.read.iter().any(|set| set.links.keys().next().is_some());
        let uplinks = stood.iter().filter(|index| has_links && !vifs.contains(index));
        let uplinks =
            uplinks.map(|&index| PreviousDevice { index, cleanup: DeviceCleanup::Promiscuous });
        for PreviousDevice { index, cleanup } in ports().copied().chain(uplinks) {
            if !stay.contains(&index)
                && let Err(error) = close(index, cleanup)
            {
                // It may be gone by now.
                tracing::debug!("{error}");
            }
        }
    }

    /// The ways that were known to end points, by their addresses as they are on the wire.
    pub(crate) fn hops(&self) -> HashMap<[u32; 4], NextHop> {
        self.read.iter().flat_map(|set| &set.hops).map(|(remote, hop)| (*remote, *hop)).collect()
    }

    /// What was dropped because nobody was there, by ports as they are numbered now. What came from no device, or from one that is gone,
    /// is the uplink's, 0.
    pub(crate) fn missed(&self, now: &PortsNow) -> HashMap<PortNo, u64> {
        let mut missed = HashMap::new();
        for set in &self.read {
            for key in set.drops.keys() {
                let word = u64_at(&key, offset_of!(weft_drop_key, port_reason));
                if word & 0xff != DropReason::NoDaemon as u64 {
                    continue;
                }
                let Ok(Some(cpus)) = set.drops.lookup_percpu(&key, MapFlags::ANY) else { continue };
                let port = u32::try_from(word >> 8).ok().map(PortNo);
                let port = port.and_then(|port| now.get(&set.devices.get(&port)?.index).copied());
                let count: u64 = cpus.iter().map(|cpu| u64_at(cpu, 0)).sum();
                *missed.entry(port.unwrap_or(PortNo(0))).or_default() += count;
            }
        }
        missed
    }

    /// Removes it: nothing executes it any more.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.sets.iter().try_for_each(|set| remove_set(set))
    }
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

/// Does to a device what an orderly end does.
fn close(index: Ifindex, cleanup: DeviceCleanup) -> Result<(), netdev::Error> {
    let netlink = Netlink::open()?;
    match cleanup {
        DeviceCleanup::None => Ok(()),
        DeviceCleanup::Promiscuous if !netlink.link_by_index(index)?.promiscuous => Ok(()),
        DeviceCleanup::Promiscuous => netlink.set_promiscuous(index, false),
        // Unless a machine has it open.
        DeviceCleanup::VmTap => {
            Tap::delete_persistent(&netlink.link_by_index(index)?.name).map(drop)
        }
    }
}

impl PreviousSet {
    fn read(set: &Path) -> Result<Self, libbpf_rs::Error> {
        Self::from_maps(|name| MapHandle::from_pinned_path(set.join(name)))
    }

    fn from_maps(
        map: impl Fn(&'static str) -> Result<MapHandle, libbpf_rs::Error>,
    ) -> Result<Self, libbpf_rs::Error> {
        let mut masks = Vec::new();
        each(&map("weft_masks")?, |_, entry| masks.push(KernelMask::from_words(words(entry))))?;
        let mut megaflows = Vec::new();
        let flows = map("weft_flows")?;
        each(&flows, |number, entry| {
            let generation = u64_at(entry, offset_of!(weft_flow, generation));
            if generation != 0 {
                megaflows.push((generation, number));
            }
        })?;
        megaflows.sort_unstable();
        let mut cleanups = HashMap::new();
        each(&map("weft_ports")?, |port, entry| {
            let cleanup = DeviceCleanup::of_flags(u32_at(entry, offset_of!(weft_port, flags)));
            if cleanup != DeviceCleanup::None {
                cleanups.insert(PortNo(port), cleanup);
            }
        })?;
        // Not by what frames to ports leave by: of a device without a carrier, that is nothing.
        let mut devices = HashMap::new();
        each(&map("weft_devices")?, |_, entry| {
            let index = Ifindex(u32_at(entry, offset_of!(weft_device, ifindex)));
            if index.0 != 0 {
                let port = PortNo(u32_at(entry, offset_of!(weft_device, port)));
                let cleanup = cleanups.get(&port).copied().unwrap_or_default();
                devices.insert(port, PreviousDevice { index, cleanup });
            }
        })?;
        let mut hops = HashMap::new();
        let ready = abi::WEFT_ENDPOINT_PRESENT | abi::WEFT_ENDPOINT_RESOLVED;
        each(&map("weft_endpoints")?, |_, entry| {
            let flags = u32_at(entry, offset_of!(weft_endpoint, flags));
            if flags & ready == ready {
                let at = offset_of!(weft_endpoint, remote);
                let remote = std::array::from_fn(|word| u32_at(entry, at + 4 * word));
                let mac = |at: usize| MacAddr(std::array::from_fn(|byte| entry[at + byte]));
                let hop = NextHop {
                    destination: mac(offset_of!(weft_endpoint, eth_dst)),
                    source: mac(offset_of!(weft_endpoint, eth_src)),
                };
                hops.insert(remote, hop);
            }
        })?;
        let (drops, links) = (map("weft_drops")?, map("weft_tag_links")?);
        Ok(Self { megaflows, masks, flows, devices, hops, drops, links })
    }

    /// The condition of a megaflow, for ports as they are numbered now; `None` when its port is gone.
    fn condition(&self, (generation, number): (u64, u32), now: &PortsNow) -> Option<Match> {
        let entry = self.flows.lookup(&number.to_ne_bytes(), MapFlags::ANY).ok()??;
        if u64_at(&entry, offset_of!(weft_flow, generation)) != generation {
            return None;
        }
        let mask = self.masks.get(usize::from(u16_at(&entry, offset_of!(weft_flow, mask))))?;
        let key = KernelKey::from_words(words(entry.get(offset_of!(weft_flow, key)..)?));
        let condition = KernelMatch::from_parts(key, *mask).condition();
        let port = PortNo(condition.key().get(Field::InPort) as u32);
        if port > datapath::config::MAX_PORT || port.0 == 0 {
            // Not of a device: these are numbered by the kind of tunnel.
            return Some(condition);
        }
        let now = now.get(&self.devices.get(&port)?.index)?;
        let mut key = condition.key().clone();
        key.set(Field::InPort, now.0.into());
        Some(Match::new(&key, condition.mask().clone()))
    }
}

fn words(entry: &[u8]) -> [u64; WORDS] {
    const _: () = assert!(size_of::<weft_key>() == 8 * WORDS);
    std::array::from_fn(|at| u64_at(entry, 8 * at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{MapSizes, load};
    use crate::megaflows::Megaflows;
    use crate::object::LoadedObject;
    use crate::ports::Ports;
    use datapath::config::{DeviceConfig, PortConfig};
    use datapath::megaflow::Megaflow;
    use flow::{Action, EntropySeed};
    use netdev::{Link, LinkKind, LinkSpec};
    use testkit::host::TestHost;

    /// What programs have, as it would be pinned.
    fn set(loaded: &LoadedObject) -> PreviousSet {
        PreviousSet::from_maps(|name| {
            loaded.map(name).map_err(|error| io::Error::other(error).into())
        })
        .expect("all maps are there")
    }

    fn port(number: u32, device: DeviceConfig) -> PortConfig {
        let (name, logical_switch) = (format!("p{number}"), "blue".to_owned());
        PortConfig { port: PortNo(number), name, logical_switch, device }
    }

    fn bridge(host: &TestHost, name: &str) -> Link {
        let index = host.netlink().create(&LinkSpec::new(name), &LinkKind::Bridge);
        host.netlink().link_by_index(index.expect("a device")).expect("it is there")
    }

    fn from(port: u32) -> Match {
        let mut condition = Match::any();
        assert!(condition.require(Field::InPort, port.into(), Field::InPort.all_ones()));
        condition
    }

    #[test]
    fn megaflows_are_inherited_in_their_order_when_their_devices_have_no_carrier() {
        testkit::require_root!();
        let host = TestHost::new("carrier");
        let loaded = load(MapSizes::new(16, 16), &EntropySeed::random()).expect("programs");
        // It is down.
        let link = bridge(&host, "d0");
        assert!(!link.is_usable());
        let mut ports = Ports::new(&loaded, None, true).unwrap();
        let device = DeviceConfig::Interface { name: "d0".to_owned(), mtu: 1500 };
        ports.add(&port(3, device)).unwrap();
        ports.observe(PortNo(3), Some(&link)).unwrap();
        let mut flows = Megaflows::new(&loaded, PortNo(0)).unwrap();
        for in_port in [3, 4, 100_000] {
            flows
                .put(&Megaflow::new(from(in_port), [Action::Output(PortNo(3))].into()), None)
                .unwrap();
        }
        let previous = PreviousState { read: vec![set(&loaded)], ..PreviousState::default() };
        assert_eq!(previous.megaflows(), 3);
        let inherited =
            InheritedMatches::new(Arc::new(previous), PortsNow::from([(link.index, PortNo(9))]));
        let again = inherited.clone();
        let ports = |conditions: InheritedMatches| -> Vec<u128> {
            conditions.map(|condition| condition.key().get(Field::InPort)).collect()
        };
        assert_eq!(ports(inherited), [9, 100_000], "there is no device of port 4");
        assert_eq!(ports(again), [9, 100_000], "as often as anybody likes");
    }

    #[test]
    fn devices_are_left_as_they_were_when_they_are_no_ports_any_more() {
        testkit::require_root!();
        let host = TestHost::new("closed");
        let loaded = load(MapSizes::new(16, 16), &EntropySeed::random()).expect("programs");
        let links = ["d0", "d1", "d2"].map(|name| bridge(&host, name));
        host.run(|| Tap::create_persistent("vm0")).expect("a TAP");
        let tap = host.netlink().link("vm0").expect("it is there");
        let mut ports = Ports::new(&loaded, None, true).unwrap();
        for (number, link) in (1..).zip(&links[..2]) {
            let device = DeviceConfig::Interface { name: link.name.clone(), mtu: 1500 };
            ports.add(&port(number, device)).unwrap();
            ports.observe(PortNo(number), Some(link)).unwrap();
        }
        ports.add(&port(3, DeviceConfig::Vm { name: "vm0".to_owned(), mtu: 1500 })).unwrap();
        ports.observe(PortNo(3), Some(&tap)).unwrap();
        for link in &links {
            host.netlink().set_promiscuous(link.index, true).unwrap();
        }
        let previous = PreviousState { read: vec![set(&loaded)], ..PreviousState::default() };
        host.run(|| previous.close_devices(&[], &HashSet::from([links[1].index])));
        let promiscuous =
            |link: &Link| host.netlink().link_by_index(link.index).unwrap().promiscuous;
        // The second is a port still, and the third was none.
        assert_eq!(links.each_ref().map(promiscuous), [false, true, true]);
        assert!(host.netlink().link("vm0").is_err_and(|error| error.is_not_found()));
    }
}
