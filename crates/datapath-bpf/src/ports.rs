//! [`Ports`]: the devices that programs stand at, and what they count there.

use crate::attach::Attached;
use crate::layout::{weft_bucket, weft_device, weft_port};
use crate::pieces::Pieces;
use crate::record::record;
use crate::tables::{TableError, sums};
use datapath::stats::Count;
use flow::{DropCounters, DropReason, PortNo};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use netdev::{Ifindex, Link};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use wire::MacAddr;

const ETHERNET_LEN: u32 = 14;
const PEER: u32 = 1;
const WATCHED: u32 = 2;

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
            known: BTreeMap::new(),
            uplink: None,
        })
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

    /// There is no such port any more.
    pub(crate) fn remove(&mut self, port: PortNo) -> Result<(), TableError> {
        self.unplug(port)?;
        self.known.remove(&port);
        self.forget_drops(port)
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
            let place = (link.index.0 & 0xffff).to_ne_bytes();
            let entry = record!(weft_device { ifindex: link.index.0, port: number.0 });
            self.devices.update(&place, &entry, MapFlags::ANY)?;
            match Attached::new(self.vif.as_fd(), link.index.0) {
                Ok(attached) => {
                    tracing::info!(port = number.0, device = %link.name, "a program stands at the device, by {attached}");
                    port.trouble = None;
                    port.device = Some(Device {
                        ifindex: link.index,
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
                    return Ok(());
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
            let counts = ports.get_mut(&port).unwrap_or(&mut uplink);
            counts.drops.add(reason, total);
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
        self.ports.update(&key(number), &record!(weft_port {}), MapFlags::ANY)?;
        let place = (device.ifindex.0 & 0xffff).to_ne_bytes();
        Ok(self.devices.update(&place, &record!(weft_device {}), MapFlags::ANY)?)
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
