//! [`PreviousState`]: the pinned megaflows, ports and end points of a previous daemon whose
//! programs still forward. They are read so that they can be translated again (docs/adr/0012).

use crate::abi::{self, weft_device, weft_endpoint, weft_flow, weft_key, weft_port};
use crate::key::{KernelKey, KernelMask, KernelMatch};
use crate::layout::{LAYOUT, WORDS};
use crate::pin::{Pins, read_state, remove_set};
use crate::ports::{DeviceCleanup, read_drop_key};
use crate::struct_bytes::{u16_at, u32_at, u64_at};
use crate::sys;
use datapath_user::fast_path::release_interface;
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

/// Map entries that are read by one system call.
const PORTION: u32 = 4096;

/// Everything that previous daemons left in the BPF file system.
#[derive(Debug, Default)]
pub(crate) struct PreviousState {
    sets: Vec<PathBuf>,
    /// Sets that this version can read.
    read: Vec<PreviousSet>,
    /// Megaflows in sets that this version cannot read.
    pub(crate) unreadable: u64,
}

/// The pinned maps of one process. This keeps only numbers and generations of megaflows, because
/// there may be a million.
#[derive(Debug)]
struct PreviousSet {
    /// Generations and numbers of megaflows, the oldest first.
    megaflows: Vec<(u64, u32)>,
    masks: Vec<KernelMask>,
    flows: MapHandle,
    /// By the port numbers of that process.
    devices: HashMap<PortNo, PreviousDevice>,
    hops: HashMap<[u32; 4], NextHop>,
    drops: MapHandle,
    links: MapHandle,
}

/// The device of a port, and how to clean it up.
#[derive(Clone, Copy, Debug)]
struct PreviousDevice {
    index: Ifindex,
    cleanup: DeviceCleanup,
}

/// The current port of each device.
pub(crate) type CurrentPorts = HashMap<Ifindex, PortNo>;

/// The conditions of a previous daemon's megaflows, the oldest first; see
/// [`crate::KernelDatapath::inherited`].
#[derive(Clone, Debug, Default)]
pub struct InheritedMatches {
    left: Option<(Arc<PreviousState>, Arc<CurrentPorts>)>,
    /// Index of the set and megaflow that comes next.
    at: (usize, usize),
}

impl InheritedMatches {
    pub(crate) fn new(previous: Arc<PreviousState>, now: CurrentPorts) -> Self {
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
    /// Reads what is pinned.
    pub(crate) fn read(pins: &Pins) -> Self {
        let mut previous = Self { sets: pins.sets(), ..Self::default() };
        for folder in &previous.sets {
            match read_state(folder) {
                Some(state) if state.layout == LAYOUT => match PreviousSet::read(folder) {
                    Ok(set) => previous.read.push(set),
                    Err(error) => {
                        messages::log!(
                            PINNED_MAPS_UNREADABLE,
                            set = %pins.shown(folder).display(),
                            "cannot read pinned maps: {error}; their megaflows are lost"
                        );
                        previous.unreadable += state.megaflows;
                    }
                },
                Some(state) => previous.unreadable += state.megaflows,
                // A set without state was never in use.
                None => {}
            }
        }
        previous
    }

    /// Whether nothing is pinned.
    pub(crate) fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    /// Number of megaflows that this version can read.
    pub(crate) fn megaflows(&self) -> usize {
        self.read.iter().map(|set| set.megaflows.len()).sum()
    }

    /// Undoes changes to devices as an orderly shutdown does, except for those in `stay`. That
    /// includes the uplink: the one device of `attached` that was not a port. Veth pairs are
    /// removed by their creator.
    pub(crate) fn close_devices(&self, attached: &[Ifindex], stay: &HashSet<Ifindex>) {
        let ports = || self.read.iter().flat_map(|set| set.devices.values());
        let vifs: HashSet<Ifindex> = ports().map(|device| device.index).collect();
        // The uplink was made promiscuous only for tagged frames.
        let has_links = self.read.iter().any(|set| set.links.keys().next().is_some());
        let uplinks = attached.iter().filter(|index| has_links && !vifs.contains(index));
        let uplinks =
            uplinks.map(|&index| PreviousDevice { index, cleanup: DeviceCleanup::Interface });
        for PreviousDevice { index, cleanup } in ports().copied().chain(uplinks) {
            if !stay.contains(&index)
                && let Err(error) = close(index, cleanup)
            {
                // The device may be gone.
                messages::log!(OLD_DEVICE_LEFT, "{error}");
            }
        }
    }

    /// Next hops of end points, by remote address in network order.
    pub(crate) fn next_hops(&self) -> HashMap<[u32; 4], NextHop> {
        self.read.iter().flat_map(|set| &set.hops).map(|(remote, hop)| (*remote, *hop)).collect()
    }

    /// Packets that were dropped while no daemon ran, by current port number. Those without a
    /// current device count for the uplink, port 0.
    pub(crate) fn drops_without_daemon(&self, now: &CurrentPorts) -> HashMap<PortNo, u64> {
        let mut dropped = HashMap::new();
        for set in &self.read {
            for key in set.drops.keys() {
                let Some((port, DropReason::NoDaemon)) = read_drop_key(&key) else { continue };
                let Ok(Some(cpus)) = set.drops.lookup_percpu(&key, MapFlags::ANY) else { continue };
                let device = set.devices.get(&port);
                let port = device.and_then(|device| now.get(&device.index).copied());
                let count: u64 = cpus.iter().map(|cpu| u64_at(cpu, 0)).sum();
                *dropped.entry(port.unwrap_or(PortNo(0))).or_default() += count;
            }
        }
        dropped
    }

    /// Removes the pinned sets. No program uses them any more.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.sets.iter().try_for_each(|set| remove_set(set))
    }
}

/// Calls `take` with the number and the bytes of each entry of an array map.
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

/// Undoes the changes to a device.
fn close(index: Ifindex, cleanup: DeviceCleanup) -> Result<(), netdev::Error> {
    let netlink = Netlink::open()?;
    match cleanup {
        DeviceCleanup::None => Ok(()),
        DeviceCleanup::Interface => release_interface(&netlink, index),
        // Keeps a TAP that a virtual machine has open.
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
        // Read from weft_devices, because the ifindex in weft_ports is 0 while a device has no
        // carrier.
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
                let byte = |at: usize| entry.get(at).copied().unwrap_or_default();
                let mac = |at: usize| MacAddr(std::array::from_fn(|number| byte(at + number)));
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

    /// The condition of a megaflow with current port numbers; `None` if its port is gone.
    fn condition(&self, (generation, number): (u64, u32), now: &CurrentPorts) -> Option<Match> {
        let entry = self.flows.lookup(&number.to_ne_bytes(), MapFlags::ANY).ok()??;
        if u64_at(&entry, offset_of!(weft_flow, generation)) != generation {
            return None;
        }
        let condition = condition_of(&entry, &self.masks)?;
        let port = PortNo(condition.key().get(Field::InPort) as u32);
        if port > datapath::config::MAX_PORT || port.0 == 0 {
            // Ingress ports of tunnels have fixed numbers.
            return Some(condition);
        }
        let now = now.get(&self.devices.get(&port)?.index)?;
        let mut key = condition.key().clone();
        key.set(Field::InPort, now.0.into());
        Some(Match::new(&key, condition.mask().clone()))
    }
}

/// The condition of a megaflow from its entry, with the port numbers of the earlier process; `None`
/// if there is no such mask.
fn condition_of(entry: &[u8], masks: &[KernelMask]) -> Option<Match> {
    let mask = masks.get(usize::from(u16_at(entry, offset_of!(weft_flow, mask))))?;
    let key = KernelKey::from_words(words(entry.get(offset_of!(weft_flow, key)..)?));
    Some(KernelMatch::from_parts(key, *mask).condition())
}

/// Bytes of an entry of the map of megaflows.
pub const PINNED_ENTRY_LEN: usize = size_of::<weft_flow>();

/// As a starting daemon reads a pinned megaflow: its condition, from the bytes of its entry and of
/// the map of masks. `None` if there is no such mask.
pub fn pinned_condition(entry: &[u8], masks: &[u8]) -> Option<Match> {
    let masks = masks.chunks(size_of::<weft_key>()).map(|mask| KernelMask::from_words(words(mask)));
    condition_of(entry, &masks.collect::<Vec<_>>())
}

/// The words of a key or mask at the start of a map entry.
pub(crate) fn words(entry: &[u8]) -> [u64; WORDS] {
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
    use datapath::config::{DeviceConfig, PortConfig, PortPeer};
    use datapath::megaflow::Megaflow;
    use flow::{Action, EntropySeed};
    use netdev::{Link, LinkKind, LinkSpec};
    use testkit::host::TestHost;

    /// Reads the maps of a loaded object as if they were pinned.
    fn set(loaded: &LoadedObject) -> PreviousSet {
        PreviousSet::from_maps(|name| {
            loaded.map(name).map_err(|error| io::Error::other(error).into())
        })
        .expect("all maps are there")
    }

    fn port(number: u32, device: DeviceConfig) -> PortConfig {
        let (name, logical_switch) = (format!("p{number}"), "blue".to_owned());
        let peer = PortPeer::Guest;
        PortConfig { port: PortNo(number), name, logical_switch, device, peer }
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
    fn megaflows_are_inherited_in_order_when_devices_have_no_carrier() {
        testkit::require_root!();
        let host = TestHost::new("carrier");
        let loaded = load(MapSizes::new(16, 16), &EntropySeed::random()).expect("programs");
        // The device is down.
        let link = bridge(&host, "d0");
        assert!(!link.is_usable());
        let mut ports = Ports::new(&loaded, None, true).unwrap();
        let device = DeviceConfig::Interface { name: "d0".to_owned(), mtu: Some(1500) };
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
        let inherited = InheritedMatches::new(
            Arc::new(previous),
            CurrentPorts::from([(link.index, PortNo(9))]),
        );
        let again = inherited.clone();
        let ports = |conditions: InheritedMatches| -> Vec<u128> {
            conditions.map(|condition| condition.key().get(Field::InPort)).collect()
        };
        assert_eq!(ports(inherited), [9, 100_000], "there is no device of port 4");
        assert_eq!(ports(again), [9, 100_000], "they can be read repeatedly");
    }

    #[test]
    fn devices_are_restored_when_they_are_no_longer_ports() {
        testkit::require_root!();
        let host = TestHost::new("closed");
        let loaded = load(MapSizes::new(16, 16), &EntropySeed::random()).expect("programs");
        let links = ["d0", "d1", "d2"].map(|name| bridge(&host, name));
        host.run(|| Tap::create_persistent("vm0", false)).expect("a TAP");
        let tap = host.netlink().link("vm0").expect("it is there");
        let mut ports = Ports::new(&loaded, None, true).unwrap();
        for (number, link) in (1..).zip(&links[..2]) {
            let device = DeviceConfig::Interface { name: link.name.clone(), mtu: Some(1500) };
            ports.add(&port(number, device)).unwrap();
            ports.observe(PortNo(number), Some(link)).unwrap();
        }
        let device = DeviceConfig::Vm { name: "vm0".to_owned(), mtu: 1500, multi_queue: false };
        ports.add(&port(3, device)).unwrap();
        ports.observe(PortNo(3), Some(&tap)).unwrap();
        for link in &links {
            host.netlink().set_promiscuous(link.index, true).unwrap();
        }
        let previous = PreviousState { read: vec![set(&loaded)], ..PreviousState::default() };
        host.run(|| previous.close_devices(&[], &HashSet::from([links[1].index])));
        let promiscuous =
            |link: &Link| host.netlink().link_by_index(link.index).unwrap().promiscuous;
        // The second is still a port, and the third never was one.
        assert_eq!(links.each_ref().map(promiscuous), [false, true, true]);
        assert!(host.netlink().link("vm0").is_err_and(|error| error.is_not_found()));
    }
}
