//! [`Ports`]: the devices with programs, and their counters.

use crate::abi::{self, weft_device, weft_drop_key, weft_port, weft_port_stats, weft_token_bucket};
use crate::attach_point::AttachPoint;
use crate::attachment::remove_filters;
use crate::device_slots::{DeviceSlot, DeviceSlots};
use crate::flow_tables::sums;
use crate::map_error::MapError;
use crate::map_use::map_use;
use crate::object::LoadedObject;
use crate::pin::Pins;
use crate::struct_bytes::struct_bytes;
use crate::sys;
use datapath::config::{DeviceConfig, MAX_PORT, PortConfig};
use datapath::stats::{MapUse, PacketCount};
use flow::{DropCounters, DropReason, PortNo};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use netdev::{Ifindex, Link, Netlink};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use wire::MacAddr;

const ETHERNET_LEN: u32 = wire::ethernet::HEADER_LEN as u32;

/// Reading this many unneeded entries costs less than another system call.
const MAX_GAP: u32 = 256;

/// The maps of ports, devices and drops, and the attachment of programs.
#[derive(Debug)]
pub(crate) struct Ports {
    ports: MapHandle,
    devices: MapHandle,
    counts: MapHandle,
    misses: MapHandle,
    uplink_count: MapHandle,
    drops: MapHandle,
    vif: OwnedFd,
    uplink_program: OwnedFd,
    slots: DeviceSlots,
    pins: Option<Arc<Pins>>,
    /// Programs of a previous daemon still forward, so none of ours is attached.
    wait_for_adoption: bool,
    known: BTreeMap<PortNo, Port>,
    uplink: Option<AttachPoint>,
    /// As [`Port::missed`], for the uplink.
    uplink_missed: u64,
}

/// A port, with or without its device.
#[derive(Debug, Default)]
struct Port {
    /// MAC address of a guest at the other end of a veth pair.
    mac: Option<MacAddr>,
    cleanup: DeviceCleanup,
    is_watched: bool,
    device: Option<Device>,
    /// The reason why its device has no slot.
    attach_error: Option<String>,
    /// The counters of earlier ports with this number, which are subtracted.
    base: [PacketCount; 2],
    /// Packets that the programs of a previous daemon dropped while no daemon ran.
    missed: u64,
}

/// The cleanup when a port's device is no longer used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum DeviceCleanup {
    #[default]
    None,
    /// The daemon did not create the device, but has changed it.
    Interface,
    /// The daemon created the device as a TAP for a virtual machine.
    VmTap,
}

impl DeviceCleanup {
    fn of(device: &DeviceConfig) -> Self {
        match device {
            DeviceConfig::Interface { .. } => Self::Interface,
            DeviceConfig::Vm { .. } => Self::VmTap,
            DeviceConfig::Tap { .. } => Self::None,
        }
    }

    fn flags(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Interface => abi::WEFT_PORT_INTERFACE,
            Self::VmTap => abi::WEFT_PORT_VM_TAP,
        }
    }

    /// Reads the flags of a `struct weft_port`.
    pub(crate) fn of_flags(flags: u32) -> Self {
        let all = [Self::Interface, Self::VmTap];
        all.into_iter().find(|cleanup| flags & cleanup.flags() != 0).unwrap_or_default()
    }
}

#[derive(Debug)]
struct Device {
    slot: DeviceSlot,
    point: AttachPoint,
    max_len: u32,
    is_peer: bool,
    is_usable: bool,
}

/// Counters of a port, or of the uplink, in the programs' maps.
#[derive(Debug, Default)]
pub(crate) struct PortCounts {
    pub(crate) rx: PacketCount,
    pub(crate) tx: PacketCount,
    pub(crate) drops: DropCounters,
}

/// The counters in the programs' maps.
#[derive(Debug)]
pub(crate) struct AllCounts {
    pub(crate) ports: HashMap<PortNo, PortCounts>,
    pub(crate) uplink: PortCounts,
    /// Entries of the map of drops.
    pub(crate) drop_keys: usize,
}

/// Splits ascending numbers into ranges. Each range is its first number and the one after its last.
fn number_ranges(numbers: impl Iterator<Item = u32>) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, end)) if number - *end <= MAX_GAP => *end = number + 1,
            _ => ranges.push((number, number + 1)),
        }
    }
    ranges
}

impl Ports {
    /// Manages programs that have just been loaded. With `wait_for_adoption`, they are attached
    /// only when [`Ports::replace_previous_programs`] is called.
    pub(crate) fn new(
        loaded: &LoadedObject,
        pins: Option<Arc<Pins>>,
        wait_for_adoption: bool,
    ) -> Result<Self, MapError> {
        Ok(Self {
            ports: loaded.map("weft_ports")?,
            devices: loaded.map("weft_devices")?,
            counts: loaded.map("weft_port_stats")?,
            misses: loaded.map("weft_miss_limit")?,
            uplink_count: loaded.map("weft_uplink_stats")?,
            drops: loaded.map("weft_drops")?,
            vif: loaded.own_program("weft_vif")?,
            uplink_program: loaded.own_program("weft_uplink")?,
            slots: DeviceSlots::default(),
            pins,
            wait_for_adoption,
            known: BTreeMap::new(),
            uplink: None,
            uplink_missed: 0,
        })
    }

    /// Adds drop counters of the uplink. Programs count drops there when the map is full.
    pub(crate) fn add_uplink_counters(&self, uplink: PortNo) -> Result<(), MapError> {
        let cpus = libbpf_rs::num_possible_cpus()?;
        for &reason in DropReason::ALL {
            let key = drop_key(uplink, reason);
            self.drops.update_percpu(&key, &vec![vec![0; 8]; cpus], MapFlags::ANY)?;
        }
        Ok(())
    }

    /// Adds a port, whose device is not there yet.
    pub(crate) fn add(&mut self, config: &PortConfig) -> Result<(), MapError> {
        let port = config.port;
        let mac = match &config.device {
            DeviceConfig::Tap { guest: Some(guest), .. } => Some(guest.mac),
            _ => None,
        };
        let base = self.counted(port)?;
        self.forget_drops(port)?;
        self.misses.update(&key(port), &struct_bytes!(weft_token_bucket {}), MapFlags::ANY)?;
        let cleanup = DeviceCleanup::of(&config.device);
        self.known.insert(port, Port { mac, cleanup, base, ..Port::default() });
        Ok(())
    }

    pub(crate) fn has(&self, port: PortNo) -> bool {
        self.known.contains_key(&port)
    }

    /// Removes a port, even if the kernel reports an error.
    pub(crate) fn remove(&mut self, port: PortNo) -> Result<(), MapError> {
        let detached = self.detach_device(port);
        self.known.remove(&port);
        detached.and(self.forget_drops(port))
    }

    /// Handles that the device of a port has appeared, changed or gone.
    pub(crate) fn observe(&mut self, number: PortNo, link: Option<&Link>) -> Result<(), MapError> {
        let Some(link) = link else { return self.detach_device(number) };
        let Some(port) = self.known.get_mut(&number) else { return Ok(()) };
        if port.device.as_ref().is_some_and(|device| device.point.link.index != link.index) {
            self.detach_device(number)?;
        }
        let Some(port) = self.known.get_mut(&number) else { return Ok(()) };
        if port.device.is_none() {
            let Some(slot) = self.slots.take(link.index) else {
                let text = format!(
                    "no free slot for ifindex {} of {}: too many other ports hash to it",
                    link.index, link.name
                );
                messages::log!(PORT_SLOT_TAKEN, port = number.0, "{text}");
                port.attach_error = Some(text);
                return Ok(());
            };
            let entry = struct_bytes!(weft_device { ifindex: link.index.0, port: number.0 });
            if let Err(error) = self.devices.update(&slot.key(), &entry, MapFlags::ANY) {
                self.slots.free(slot);
                return Err(error.into());
            }
            port.attach_error = None;
            let point = AttachPoint::new(link.clone());
            let (max_len, is_peer, is_usable) = (0, false, false);
            port.device = Some(Device { slot, point, max_len, is_peer, is_usable });
        }
        let Some(device) = &mut port.device else { return Ok(()) };
        device.max_len = link.mtu + ETHERNET_LEN;
        device.is_peer = link.has_peer_in_other_netns();
        let is_new = link.is_usable() && !device.is_usable;
        if device.is_peer && is_new && port.cleanup == DeviceCleanup::Interface && !link.has_qdisc {
            // With this address, programs inject frames at the guest's end of the veth pair.
            // Without it, frames pass the host's end, as they must if that has a queueing
            // discipline.
            let guest = Netlink::open().and_then(|netlink| netlink.other_end(link));
            port.mac = guest.ok().map(|guest| guest.mac);
        }
        device.is_usable = link.is_usable();
        self.write(number)?;
        self.attach_missing();
        Ok(())
    }

    /// Attaches programs to all devices that have none.
    pub(crate) fn attach_missing(&mut self) {
        if self.wait_for_adoption {
            return;
        }
        let pins = self.pins.as_ref();
        for device in self.known.values_mut().filter_map(|port| port.device.as_mut()) {
            device.point.attach(self.vif.as_fd(), pins);
        }
        if let Some(uplink) = &mut self.uplink {
            uplink.attach(self.uplink_program.as_fd(), pins);
        }
    }

    /// Attaches programs to all devices, replacing those of a previous daemon, and detaches its
    /// programs from all other devices.
    pub(crate) fn replace_previous_programs(&mut self) -> io::Result<()> {
        self.wait_for_adoption = false;
        self.attach_missing();
        let devices = self.known.values().filter_map(|port| port.device.as_ref());
        let points = devices.map(|device| &device.point).chain(&self.uplink);
        let devices: Vec<Ifindex> = points.map(|point| point.link.index).collect();
        let pins = self.pins.as_deref();
        let filters = remove_filters(pins, &devices);
        let keep: Vec<_> = devices.iter().map(|index| index.0).collect();
        let links = pins.map_or(Ok(0), |pins| pins.remove_links(&keep));
        filters.and(links).map(drop)
    }

    /// The port of each device.
    pub(crate) fn by_device(&self) -> HashMap<Ifindex, PortNo> {
        let device = |port: &Port| port.device.as_ref().map(|device| device.point.link.index);
        self.known.iter().filter_map(|(number, port)| Some((device(port)?, *number))).collect()
    }

    /// The uplink device.
    pub(crate) fn uplink(&self) -> Option<&Link> {
        self.uplink.as_ref().map(|point| &point.link)
    }

    /// Counts packets that the programs of a previous daemon dropped. They are not added to the
    /// map, because the next daemon would count them again.
    pub(crate) fn add_missed(&mut self, port: PortNo, packets: u64) {
        match self.known.get_mut(&port) {
            Some(port) => port.missed += packets,
            None => self.uplink_missed += packets,
        }
    }

    /// Makes programs punt the frames of a port while `is_watched`.
    pub(crate) fn watch(&mut self, number: PortNo, is_watched: bool) -> Result<(), MapError> {
        match self.known.get_mut(&number) {
            Some(port) if port.is_watched != is_watched => {
                port.is_watched = is_watched;
                let written = self.write(number);
                if let (Err(_), Some(port)) = (&written, self.known.get_mut(&number)) {
                    port.is_watched = !is_watched;
                }
                written
            }
            _ => Ok(()),
        }
    }

    /// Why the program is not attached to a port's device.
    pub(crate) fn attach_error(&self, port: PortNo) -> Option<&str> {
        let port = self.known.get(&port)?;
        let point = port.device.as_ref().and_then(|device| device.point.attach_error.as_deref());
        port.attach_error.as_deref().or(point)
    }

    /// Programs of others that run before ours at a port's device.
    pub(crate) fn programs_before(&self, port: PortNo) -> Option<String> {
        self.known.get(&port)?.device.as_ref()?.point.programs_before()
    }

    /// As [`Ports::programs_before`], for the uplink.
    pub(crate) fn programs_before_uplink(&self) -> Option<String> {
        self.uplink.as_ref()?.programs_before()
    }

    /// Why the program is not attached to the uplink.
    pub(crate) fn uplink_attach_error(&self) -> Option<&str> {
        self.uplink.as_ref()?.attach_error.as_deref()
    }

    /// How the uplink's program is attached, `tcx` or `clsact`; `None` if it is not.
    pub(crate) fn uplink_hook(&self) -> Option<String> {
        self.uplink.as_ref()?.hook()
    }

    /// Sets the uplink device.
    pub(crate) fn set_uplink(&mut self, link: Option<&Link>) {
        if self.uplink.as_ref().map(|point| point.link.index) != link.map(|link| link.index) {
            self.uplink = link.cloned().map(AttachPoint::new);
        }
        self.attach_missing();
    }

    /// Detaches all programs.
    pub(crate) fn close(&mut self) {
        self.uplink = None;
        self.known.values_mut().for_each(|port| port.device = None);
    }

    /// All counters, by port. Drops at a device that is not a port count for the uplink.
    pub(crate) fn counts(&self) -> Result<AllCounts, MapError> {
        let mut ports: HashMap<PortNo, PortCounts> = HashMap::new();
        let mut counted: HashMap<u32, StatsWords> = HashMap::new();
        for (first, end) in number_ranges(self.known.keys().map(|port| port.0)) {
            let words: Vec<StatsWords> = sums(&self.counts, first, end - first)?;
            counted.extend((first..).zip(words));
        }
        for (&number, port) in &self.known {
            let Some(&words) = counted.get(&number.0) else { continue };
            let [rx, tx] = count(words);
            let [base_rx, base_tx] = port.base;
            let mut counts = PortCounts {
                rx: since(rx, base_rx),
                tx: since(tx, base_tx),
                ..PortCounts::default()
            };
            counts.drops.add(DropReason::NoDaemon, port.missed);
            ports.insert(number, counts);
        }
        let mut uplink = PortCounts::default();
        uplink.drops.add(DropReason::NoDaemon, self.uplink_missed);
        if let Some(&words) = sums(&self.uplink_count, 0, 1)?.first() {
            [uplink.rx, uplink.tx] = count(words);
        }
        // In batches: at two system calls for each key, upcalls would wait for the lock too long.
        let counted = sys::read_hash(&self.drops).map_err(libbpf_rs::Error::from)?;
        for (key, cpus) in &counted {
            let Some((port, reason)) = read_drop_key(key) else { continue };
            let total = cpus.as_chunks().0.iter().map(|cpu| u64::from_ne_bytes(*cpu)).sum();
            match ports.get_mut(&port) {
                Some(counts) => counts.drops.add(reason, total),
                // The drops of a port that no longer exists are not reported.
                None if (1..=MAX_PORT.0).contains(&port.0) => {}
                None => uplink.drops.add(reason, total),
            }
        }
        let drop_keys = counted.len();
        Ok(AllCounts { ports, uplink, drop_keys })
    }

    /// How full the maps are. `drop_keys` is what [`Ports::counts`] has found.
    pub(crate) fn map_use(&self, drop_keys: usize) -> [MapUse; 3] {
        let limit = self.drops.max_entries() as usize;
        [
            map_use("weft_ports", self.known.len(), MAX_PORT.0 as usize),
            map_use("weft_devices", self.slots.len(), abi::WEFT_DEVICES as usize),
            map_use("weft_drops", drop_keys, limit),
        ]
    }

    fn counted(&self, port: PortNo) -> Result<[PacketCount; 2], MapError> {
        let words: Vec<StatsWords> = sums(&self.counts, port.0, 1)?;
        Ok(words.first().map_or_else(Default::default, |&words| count(words)))
    }

    /// Removes the drop counters of an earlier port of this number.
    fn forget_drops(&self, port: PortNo) -> Result<(), MapError> {
        let counted = sys::read_hash(&self.drops).map_err(libbpf_rs::Error::from)?;
        for (key, _) in
            counted.iter().filter(|(key, _)| read_drop_key(key).is_some_and(|it| it.0 == port))
        {
            self.drops.delete(key)?;
        }
        Ok(())
    }

    fn detach_device(&mut self, number: PortNo) -> Result<(), MapError> {
        let Some(port) = self.known.get_mut(&number) else { return Ok(()) };
        let Some(device) = port.device.take() else { return Ok(()) };
        let silenced = self.ports.update(&key(number), &struct_bytes!(weft_port {}), MapFlags::ANY);
        let Device { slot, point, .. } = device;
        // Detaches the program first: without a slot it would drop frames as those of an unknown
        // device.
        drop(point);
        self.clear(slot)?;
        Ok(silenced?)
    }

    /// Frees the slot of a device.
    fn clear(&mut self, slot: DeviceSlot) -> Result<(), MapError> {
        let cleared =
            self.devices.update(&slot.key(), &struct_bytes!(weft_device {}), MapFlags::ANY);
        if cleared.is_ok() {
            self.slots.free(slot);
        }
        Ok(cleared?)
    }

    fn write(&self, number: PortNo) -> Result<(), MapError> {
        let Some(Port { mac, cleanup, is_watched, device: Some(device), .. }) =
            self.known.get(&number)
        else {
            return Ok(());
        };
        let flag = |is_set, bit| if is_set { bit } else { 0 };
        let [a, b, c, d, e, f] = mac.map_or([0; 6], |mac| mac.0);
        let entry = struct_bytes!(weft_port {
            ifindex: if device.is_usable { device.point.link.index.0 } else { 0 },
            flags: flag(device.is_peer, abi::WEFT_PORT_PEER)
                | flag(*is_watched, abi::WEFT_PORT_WATCHED)
                | cleanup.flags(),
            max_len: device.max_len,
            eth_dst: u64::from_be_bytes([a, b, c, d, e, f, 0, 0]),
        });
        Ok(self.ports.update(&key(number), &entry, MapFlags::ANY)?)
    }
}

fn key(port: PortNo) -> [u8; 4] {
    port.0.to_ne_bytes()
}

/// The 64-bit words of a `struct weft_port_stats`.
type StatsWords = [u64; size_of::<weft_port_stats>() / 8];

/// Received and sent, from the counters of a `struct weft_port_stats`.
fn count(words: StatsWords) -> [PacketCount; 2] {
    const RX: usize = offset_of!(weft_port_stats, rx_packets) / 8;
    const TX: usize = offset_of!(weft_port_stats, tx_packets) / 8;
    const _: () = assert!(
        offset_of!(weft_port_stats, rx_bytes) == 8 * (RX + 1)
            && offset_of!(weft_port_stats, tx_bytes) == 8 * (TX + 1)
    );
    [RX, TX].map(|at| PacketCount { packets: words[at], bytes: words[at + 1] })
}

fn since(now: PacketCount, base: PacketCount) -> PacketCount {
    PacketCount {
        packets: now.packets.wrapping_sub(base.packets),
        bytes: now.bytes.wrapping_sub(base.bytes),
    }
}

/// A `struct weft_drop_key`.
fn drop_key(port: PortNo, reason: DropReason) -> Vec<u8> {
    struct_bytes!(weft_drop_key {
        port_reason: u64::from(port.0) << abi::WEFT_DROP_PORT_SHIFT | reason as u64,
    })
}

/// Ingress port and reason in a `struct weft_drop_key`.
pub(crate) fn read_drop_key(key: &[u8]) -> Option<(PortNo, DropReason)> {
    let word = u64::from_ne_bytes(*key.first_chunk()?);
    let number = word & u64::from(abi::WEFT_DROP_REASON_MASK);
    let port = u32::try_from(word >> abi::WEFT_DROP_PORT_SHIFT).ok()?;
    Some((PortNo(port), *DropReason::ALL.get(number as usize)?))
}

#[cfg(test)]
mod tests {
    use super::number_ranges;

    #[test]
    fn numbers_that_are_far_apart_are_read_one_by_one() {
        assert_eq!(number_ranges([].into_iter()), []);
        assert_eq!(number_ranges([1, 2, 200].into_iter()), [(1, 201)]);
        assert_eq!(
            number_ranges([0, 258, 65_534].into_iter()),
            [(0, 1), (258, 259), (65_534, 65_535)]
        );
    }
}
