//! [`Ports`]: the devices that programs stand at, and what they count there.

use crate::attach::Attached;
use crate::layout::{weft_bucket, weft_device, weft_drop, weft_port};
use crate::pieces::Pieces;
use crate::record::record;
use crate::tables::{TableError, sums};
use datapath::stats::Count;
use datapath::user::MAX_PORT;
use flow::{DropCounters, DropReason, PortNo};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use netdev::{Ifindex, Link};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use wire::MacAddr;

const ETHERNET_LEN: u32 = 14;
const PEER: u32 = 1;
const WATCHED: u32 = 2;
/// Places in the table of devices, and in how many of them a program looks for one: `WEFT_DEVICES` and `WEFT_DEVICE_PROBES`.
const DEVICES: u32 = 1 << 16;
const PROBES: u32 = 4;

/// See the module.
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
    places: Places,
    known: BTreeMap<PortNo, Port>,
    uplink: Option<(Ifindex, Attached)>,
}

/// What is known of a port, whether its device is there or not.
#[derive(Debug, Default)]
struct Port {
    /// The guest's address, of a device that was made for it.
    mac: Option<MacAddr>,
    is_watched: bool,
    device: Option<Device>,
    /// Why no program stands at its device.
    trouble: Option<String>,
    /// What has been counted of other ports of this number.
    base: [Count; 2],
}

#[derive(Debug)]
struct Device {
    ifindex: Ifindex,
    place: Place,
    max_len: u32,
    is_peer: bool,
    is_usable: bool,
    _attached: Attached,
}

/// What programs have counted of a port, or of the uplink.
#[derive(Debug, Default)]
pub(crate) struct PortCounts {
    pub(crate) rx: Count,
    pub(crate) tx: Count,
    pub(crate) drops: DropCounters,
}

impl Ports {
    pub(crate) fn new(pieces: &Pieces) -> Result<Self, TableError> {
        Ok(Self {
            ports: pieces.map("weft_ports")?,
            devices: pieces.map("weft_devices")?,
            counts: pieces.map("weft_port_counts")?,
            misses: pieces.map("weft_misses")?,
            uplink_count: pieces.map("weft_uplink_count")?,
            drops: pieces.map("weft_drops")?,
            vif: pieces.own_program("weft_vif")?,
            uplink_program: pieces.own_program("weft_uplink")?,
            places: Places::default(),
            known: BTreeMap::new(),
            uplink: None,
        })
    }

    /// There is always a place for what is dropped at the uplink, so that what finds the table full is counted there.
    pub(crate) fn count_for(&self, uplink: PortNo) -> Result<(), TableError> {
        let cpus = libbpf_rs::num_possible_cpus()?;
        for &reason in DropReason::ALL {
            let key = record!(weft_drop { port_reason: u64::from(uplink.0) << 8 | reason as u64 });
            self.drops.update_percpu(&key, &vec![vec![0; 8]; cpus], MapFlags::ANY)?;
        }
        Ok(())
    }

    /// There is a port, whose guest has this address if it is known.
    pub(crate) fn add(&mut self, port: PortNo, mac: Option<MacAddr>) -> Result<(), TableError> {
        let base = self.counted(port)?;
        self.forget_drops(port)?;
        self.misses.update(&key(port), &record!(weft_bucket {}), MapFlags::ANY)?;
        self.known.insert(port, Port { mac, base, ..Port::default() });
        Ok(())
    }

    pub(crate) fn has(&self, port: PortNo) -> bool {
        self.known.contains_key(&port)
    }

    /// There is no such port any more, even when the kernel refuses something.
    pub(crate) fn remove(&mut self, port: PortNo) -> Result<(), TableError> {
        let unplugged = self.unplug(port);
        self.known.remove(&port);
        unplugged.and(self.forget_drops(port))
    }

    /// The device of a port is like this, or not there.
    pub(crate) fn observe(
        &mut self,
        number: PortNo,
        link: Option<&Link>,
    ) -> Result<(), TableError> {
        let Some(link) = link else { return self.unplug(number) };
        let Some(port) = self.known.get_mut(&number) else { return Ok(()) };
        if port.device.as_ref().is_some_and(|device| device.ifindex != link.index) {
            self.unplug(number)?;
        }
        let Some(port) = self.known.get_mut(&number) else { return Ok(()) };
        if port.device.is_none() {
            let Some(place) = self.places.take(link.index) else {
                let text = format!(
                    "the number {} of {} is too like those of other ports' devices",
                    link.index, link.name
                );
                tracing::error!(port = number.0, "{text}");
                port.trouble = Some(text);
                return Ok(());
            };
            let entry = record!(weft_device { ifindex: link.index.0, port: number.0 });
            if let Err(error) = self.devices.update(&place.key(), &entry, MapFlags::ANY) {
                self.places.give_back(place);
                return Err(error.into());
            }
            match Attached::new(self.vif.as_fd(), link.index.0) {
                Ok(attached) => {
                    tracing::info!(port = number.0, device = %link.name, "a program stands at the device, by {attached}");
                    port.trouble = None;
                    port.device = Some(Device {
                        ifindex: link.index,
                        place,
                        max_len: 0,
                        is_peer: false,
                        is_usable: false,
                        _attached: attached,
                    });
                }
                Err(error) => {
                    let text = format!("cannot attach a program to {}: {error}", link.name);
                    tracing::error!(port = number.0, "{text}");
                    port.trouble = Some(text);
                    return self.clear(place);
                }
            }
        }
        if let Some(device) = &mut port.device {
            device.max_len = link.mtu + ETHERNET_LEN;
            device.is_peer = link.leads_elsewhere();
            device.is_usable = link.is_usable();
        }
        self.write(number)
    }

    /// What comes from it or goes to it is handed over while somebody watches it.
    pub(crate) fn watch(&mut self, number: PortNo, is_watched: bool) -> Result<(), TableError> {
        match self.known.get_mut(&number) {
            Some(port) if port.is_watched != is_watched => {
                port.is_watched = is_watched;
                self.write(number)
            }
            _ => Ok(()),
        }
    }

    /// Why no program stands at its device, although it is there.
    pub(crate) fn trouble(&self, port: PortNo) -> Option<&str> {
        self.known.get(&port)?.trouble.as_deref()
    }

    /// The uplink is this device, or there is none.
    pub(crate) fn set_uplink(&mut self, link: Option<&Link>) {
        if self.uplink.as_ref().map(|(ifindex, _)| *ifindex) == link.map(|link| link.index) {
            return;
        }
        self.uplink = None;
        let Some(link) = link else { return };
        match Attached::new(self.uplink_program.as_fd(), link.index.0) {
            Ok(attached) => {
                tracing::info!(device = %link.name, "a program stands at the uplink, by {attached}");
                self.uplink = Some((link.index, attached));
            }
            Err(error) => tracing::error!("cannot attach a program to {}: {error}", link.name),
        }
    }

    /// Detaches all programs.
    pub(crate) fn close(&mut self) {
        self.uplink = None;
        self.known.values_mut().for_each(|port| port.device = None);
    }

    /// What programs have counted, by port; what they have dropped before a port of a VIF was known counts for the uplink.
    pub(crate) fn counts(&self) -> Result<(HashMap<PortNo, PortCounts>, PortCounts), TableError> {
        let mut ports: HashMap<PortNo, PortCounts> = HashMap::new();
        let last = self.known.last_key_value().map_or(0, |(port, _)| port.0);
        let counted: Vec<[u64; 4]> = sums(&self.counts, 0, last + 1)?;
        for (&number, port) in &self.known {
            let Some(&words) = counted.get(number.0 as usize) else { continue };
            let [rx, tx] = count(words);
            let [base_rx, base_tx] = port.base;
            let counts = PortCounts {
                rx: since(rx, base_rx),
                tx: since(tx, base_tx),
                ..PortCounts::default()
            };
            ports.insert(number, counts);
        }
        let mut uplink = PortCounts::default();
        if let Some(&words) = sums(&self.uplink_count, 0, 1)?.first() {
            [uplink.rx, uplink.tx] = count(words);
        }
        for key in self.drops.keys() {
            let Some((port, reason)) = read_key(&key) else { continue };
            let counted = self.drops.lookup_percpu(&key, MapFlags::ANY)?.unwrap_or_default();
            let total: u64 = counted.iter().map(|cpu| crate::record::u64_at(cpu, 0)).sum();
            match ports.get_mut(&port) {
                Some(counts) => counts.drops.add(reason, total),
                // Of a port that there was: gone with it.
                None if (1..=MAX_PORT.0).contains(&port.0) => {}
                None => uplink.drops.add(reason, total),
            }
        }
        Ok((ports, uplink))
    }

    fn counted(&self, port: PortNo) -> Result<[Count; 2], TableError> {
        let words: Vec<[u64; 4]> = sums(&self.counts, port.0, 1)?;
        Ok(words.first().map_or_else(Default::default, |&words| count(words)))
    }

    /// What another port of this number has dropped is not counted any more.
    fn forget_drops(&self, port: PortNo) -> Result<(), TableError> {
        for key in self.drops.keys().filter(|key| read_key(key).is_some_and(|(of, _)| of == port)) {
            self.drops.delete(&key)?;
        }
        Ok(())
    }

    fn unplug(&mut self, number: PortNo) -> Result<(), TableError> {
        let Some(port) = self.known.get_mut(&number) else { return Ok(()) };
        let Some(device) = port.device.take() else { return Ok(()) };
        let silenced = self.ports.update(&key(number), &record!(weft_port {}), MapFlags::ANY);
        let Device { place, _attached: attached, .. } = device;
        // The program first: without a place it does not know whose the device is.
        drop(attached);
        self.clear(place)?;
        Ok(silenced?)
    }

    /// A device has gone from its place.
    fn clear(&mut self, place: Place) -> Result<(), TableError> {
        let cleared = self.devices.update(&place.key(), &record!(weft_device {}), MapFlags::ANY);
        if cleared.is_ok() {
            self.places.give_back(place);
        }
        Ok(cleared?)
    }

    fn write(&self, number: PortNo) -> Result<(), TableError> {
        let Some(Port { mac, is_watched, device: Some(device), .. }) = self.known.get(&number)
        else {
            return Ok(());
        };
        let flag = |is_set, bit| if is_set { bit } else { 0 };
        let [a, b, c, d, e, f] = mac.map_or([0; 6], |mac| mac.0);
        let entry = record!(weft_port {
            ifindex: if device.is_usable { device.ifindex.0 } else { 0 },
            flags: flag(device.is_peer, PEER) | flag(*is_watched, WATCHED),
            max_len: device.max_len,
            eth_dst: u64::from_be_bytes([a, b, c, d, e, f, 0, 0]),
        });
        Ok(self.ports.update(&key(number), &entry, MapFlags::ANY)?)
    }
}

/// A place in the table of devices, which one device has.
#[derive(Debug, PartialEq, Eq)]
struct Place(u32);

impl Place {
    fn key(&self) -> [u8; 4] {
        self.0.to_ne_bytes()
    }
}

/// Who has which place.
#[derive(Debug, Default)]
struct Places(HashSet<u32>);

impl Places {
    /// One of those where a program looks for a device: see `device_of()` in `bpf/vif.bpf.c`.
    fn take(&mut self, device: Ifindex) -> Option<Place> {
        let mut places = (0..PROBES).map(|probe| device.0.wrapping_add(probe) % DEVICES);
        places.find(|&place| self.0.insert(place)).map(Place)
    }

    fn give_back(&mut self, place: Place) {
        self.0.remove(&place.0);
    }
}

fn key(port: PortNo) -> [u8; 4] {
    port.0.to_ne_bytes()
}

/// The words of a `struct weft_port_count`.
fn count([rx_packets, rx_bytes, tx_packets, tx_bytes]: [u64; 4]) -> [Count; 2] {
    [Count { packets: rx_packets, bytes: rx_bytes }, Count { packets: tx_packets, bytes: tx_bytes }]
}

fn since(now: Count, base: Count) -> Count {
    Count {
        packets: now.packets.wrapping_sub(base.packets),
        bytes: now.bytes.wrapping_sub(base.bytes),
    }
}

/// Port and reason of a `struct weft_drop`.
fn read_key(key: &[u8]) -> Option<(PortNo, DropReason)> {
    let word = u64::from_ne_bytes(*key.first_chunk()?);
    let reason = DropReason::ALL.get((word & 0xff) as usize)?;
    Some((PortNo(u32::try_from(word >> 8).ok()?), *reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_places_of_their_own_when_their_numbers_end_alike() {
        let mut places = Places::default();
        let of = |number: u32| Ifindex(7 + number * DEVICES);
        let taken: Vec<_> = (0..PROBES).map(|number| places.take(of(number))).collect();
        assert_eq!(taken, [7, 8, 9, 10].map(|place| Some(Place(place))));
        assert_eq!(places.take(of(PROBES)), None, "that would be another's");
        places.give_back(Place(8));
        assert_eq!(places.take(of(PROBES)), Some(Place(8)));
        assert_eq!(places.take(Ifindex(u32::MAX)), Some(Place(DEVICES - 1)), "the last");
        assert_eq!(places.take(Ifindex(DEVICES - 1)), Some(Place(0)), "behind the last");
    }
}
