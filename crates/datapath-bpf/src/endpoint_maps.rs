//! [`EndpointMaps`]: remote end points and logical links in the programs' maps.
//!
//! The user datapath handles end points that the programs cannot: packets to them are punted, and
//! packets from them continue to its sockets.

use crate::abi::{weft_endpoint, weft_endpoint_range, weft_endpoint_update};
use crate::endpoint_entries::{self, ClassKey, EndpointEntry};
use crate::local_tunnels::{IncompleteTunnels, LocalTunnels};
use crate::map_error::MapError;
use crate::map_use::map_use;
use crate::object::LoadedObject;
use crate::struct_bytes::{struct_bytes, u64_at};
use crate::sys;
use datapath::config::{EndpointConfig, TunnelConfig, Underlay};
use datapath::stats::{MapUse, PacketCount};
use datapath_user::fast_path::RouteChange;
use flow::{Carrier, EndpointId, KernelDatapath, NextHop, PortNo, TagLink, TunnelSpec};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::mem::offset_of;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

/// End points that are written by one system call.
const BATCH: usize = 4096;

/// Received and sent packets, by tunnel type, local and remote address.
pub(crate) type EndpointCounts = HashMap<(&'static str, IpAddr, IpAddr), [PacketCount; 2]>;

/// The maps of end points, classes, local addresses and tag links, and a copy of their contents.
#[derive(Debug)]
pub(crate) struct EndpointMaps {
    classes_map: MapHandle,
    endpoints_map: MapHandle,
    links_map: MapHandle,
    locals: LocalTunnels,
    endpoint_put: OwnedFd,
    sources_put: OwnedFd,
    sources_delete: OwnedFd,
    /// By number of the class.
    classes: Vec<Option<ClassKey>>,
    /// Outer headers of each class in bytes, without the outer Ethernet header.
    overheads: Vec<usize>,
    endpoints: BTreeMap<EndpointId, EndpointEntry>,
    links: HashSet<(PortNo, TagLink)>,
    incomplete: IncompleteTunnels,
    /// An end point did not fit into its hash chain, so programs do not know all senders.
    is_chain_full: bool,
    /// Next hops and path MTUs as last reported, also of end points that are not in the maps.
    hops: HashMap<EndpointId, NextHop>,
    path_mtus: HashMap<EndpointId, u16>,
    /// End points that use the next hop of a previous daemon, which nothing has confirmed yet.
    inherited: HashSet<EndpointId>,
    /// Programs find only `routed` end points as senders, and drop the packets of others.
    checks_reverse_path: bool,
    /// End points to which a route leads over the uplink, also those that are not in the maps.
    routed: HashSet<EndpointId>,
}

/// Classes without end points. Programs may use them until a grace period has passed.
#[derive(Debug, Default)]
#[must_use = "retired classes have to be freed"]
pub(crate) struct RetiredClasses(Vec<u16>);

impl EndpointMaps {
    /// Wraps the maps of an object that has just been loaded, which are empty.
    pub(crate) fn new(loaded: &LoadedObject) -> Result<Self, MapError> {
        let classes_map = loaded.map("weft_classes")?;
        Ok(Self {
            classes: vec![None; classes_map.max_entries() as usize],
            overheads: vec![0; classes_map.max_entries() as usize],
            classes_map,
            endpoints_map: loaded.map("weft_endpoints")?,
            links_map: loaded.map("weft_tag_links")?,
            locals: LocalTunnels::new(loaded)?,
            endpoint_put: loaded.own_program("endpoint_put")?,
            sources_put: loaded.own_program("sources_put")?,
            sources_delete: loaded.own_program("sources_delete")?,
            endpoints: BTreeMap::new(),
            links: HashSet::new(),
            incomplete: IncompleteTunnels::new(),
            is_chain_full: false,
            hops: HashMap::new(),
            path_mtus: HashMap::new(),
            inherited: HashSet::new(),
            checks_reverse_path: false,
            routed: HashSet::new(),
        })
    }

    /// Removes end points and links that a new underlay does not have. Programs may use them until
    /// a grace period has passed.
    ///
    /// # Errors
    /// When the kernel rejects an update.
    pub(crate) fn forget(&mut self, underlay: &Underlay) -> Result<(), MapError> {
        self.locals.open()?;
        let wanted: HashMap<EndpointId, &EndpointConfig> =
            underlay.endpoints.iter().map(|endpoint| (endpoint.id, endpoint)).collect();
        let ports = ports(underlay);
        let stays = |entry: &EndpointEntry| {
            let port = self.classes[usize::from(entry.class)].map(|class| class.port);
            let EndpointConfig { id, spec, local, .. } = entry.config;
            wanted.get(&id).is_some_and(|config| **config == entry.config)
                && ports.get(&(spec, local)).copied() == port
        };
        let (stay, gone): (Vec<EndpointEntry>, Vec<EndpointEntry>) =
            self.endpoints.values().copied().partition(stays);
        // A number may be used again for another end point. Its next hop will be reported.
        let stay: HashSet<EndpointId> = stay.iter().map(|entry| entry.config.id).collect();
        self.hops.retain(|id, _| stay.contains(id));
        self.path_mtus.retain(|id, _| stay.contains(id));
        self.inherited.retain(|id| stay.contains(id));
        self.routed.retain(|id| stay.contains(id));
        self.remove(&gone)?;
        let links: HashSet<(PortNo, TagLink)> = links(underlay);
        for &(_, link) in self.links.difference(&links) {
            self.links_map.delete(&endpoint_entries::tag_link_key(link))?;
        }
        self.links.retain(|link| links.contains(link));
        Ok(())
    }

    /// Adds the end points and links of a new underlay, after [`EndpointMaps::forget`].
    ///
    /// # Errors
    /// When the kernel rejects an update.
    pub(crate) fn add_all(&mut self, underlay: &Underlay) -> Result<(), MapError> {
        self.locals.set(underlay)?;
        self.checks_reverse_path = underlay.checks_reverse_path;
        if !self.checks_reverse_path {
            // Changes are not reported now.
            self.routed.clear();
        }
        let ports = ports(underlay);
        let mut new = Vec::new();
        self.incomplete.clear();
        for end in &underlay.endpoints {
            // Packets never have a multicast source address.
            if self.endpoints.contains_key(&end.id) || end.remote.is_multicast() {
                continue;
            }
            let fits = end.id.0 < self.endpoints_map.max_entries();
            let port = ports.get(&(end.spec, end.local)).filter(|_| fits && can_send(&end.spec));
            let Some(&port) = port else {
                self.incomplete.insert((end.spec.tunnel, end.local));
                continue;
            };
            let Some(class) = self.class(ClassKey { spec: end.spec, local: end.local, port })?
            else {
                let remote = end.remote;
                messages::log!(
                    ENDPOINT_CLASSES_FULL,
                    %remote,
                    "map weft_classes is full: the user datapath serves this end point"
                );
                self.incomplete.insert((end.spec.tunnel, end.local));
                continue;
            };
            let (hop, path_mtu) =
                (self.hops.get(&end.id).copied(), self.path_mtus.get(&end.id).copied());
            new.push(EndpointEntry { config: *end, class, hop, path_mtu, is_source: false });
        }
        self.add(&new)?;
        let wrong = |is_source| {
            let entries = self.endpoints.values();
            let entries = entries.filter(|entry| self.needs_source_change(entry, is_source));
            entries.copied().collect::<Vec<EndpointEntry>>()
        };
        let (gone, new) = (wrong(true), wrong(false));
        self.remove_sources(&gone)?;
        self.add_sources(&new)?;
        for (port, link) in links(underlay).difference(&self.links) {
            let entry = endpoint_entries::tag_link_value(*port, *link);
            self.links_map.update(&endpoint_entries::tag_link_key(*link), &entry, MapFlags::ANY)?;
        }
        self.links = links(underlay);
        Ok(())
    }

    /// Makes programs drop packets from senders that this underlay does not have. A grace period
    /// must have passed since [`EndpointMaps::add_all`], so that every program knows all end
    /// points.
    ///
    /// # Errors
    /// When the kernel rejects an update.
    pub(crate) fn complete(&mut self, underlay: &Underlay) -> Result<(), MapError> {
        if self.is_chain_full { Ok(()) } else { self.locals.complete(underlay, &self.incomplete) }
    }

    /// The classes without end points. After a grace period they may be
    /// [freed](EndpointMaps::free).
    pub(crate) fn retire(&self) -> RetiredClasses {
        let used: HashSet<u16> = self.endpoints.values().map(|entry| entry.class).collect();
        let is_unused =
            |(class, had): &(u16, &Option<ClassKey>)| had.is_some() && !used.contains(class);
        let retired = (0..).zip(&self.classes).filter(is_unused);
        RetiredClasses(retired.map(|(class, _)| class).collect())
    }

    /// Frees classes that no program uses any more.
    pub(crate) fn free(&mut self, retired: RetiredClasses) {
        retired.0.into_iter().for_each(|class| self.classes[usize::from(class)] = None);
    }

    /// Sets the next hop of an end point, or marks it as unresolved.
    pub(crate) fn resolve(&mut self, id: EndpointId, hop: Option<NextHop>) -> Result<(), MapError> {
        match hop {
            Some(hop) => drop(self.hops.insert(id, hop)),
            None => drop(self.hops.remove(&id)),
        }
        self.inherited.remove(&id);
        match self.endpoints.get_mut(&id) {
            Some(entry) if entry.hop != hop => {
                entry.hop = hop;
                self.write(id)
            }
            _ => Ok(()),
        }
    }

    /// Sets whether the routes to end points lead over the uplink. Programs stop at once to accept
    /// packets of those that do not. Of the others they accept them after
    /// [`EndpointMaps::add_accepted`], for which a grace period must have passed.
    ///
    /// # Errors
    /// When the kernel rejects an update.
    pub(crate) fn set_routed(&mut self, changes: &[RouteChange]) -> Result<(), MapError> {
        for &(id, is_routed) in changes {
            if is_routed {
                self.routed.insert(id);
            } else {
                self.routed.remove(&id);
            }
        }
        let gone = self.changed(changes, true);
        self.remove_sources(&gone)
    }

    /// Has programs accept packets of those changed end points that are accepted now.
    ///
    /// # Errors
    /// When the kernel rejects an update.
    pub(crate) fn add_accepted(&mut self, changes: &[RouteChange]) -> Result<(), MapError> {
        let new = self.changed(changes, false);
        self.add_sources(&new)
    }

    /// The end points of these changes that are a source or not, but should not be or should.
    fn changed(&self, changes: &[RouteChange], is_source: bool) -> Vec<EndpointEntry> {
        let ids: BTreeSet<EndpointId> = changes.iter().map(|(id, _)| *id).collect();
        let entries = ids.iter().filter_map(|id| self.endpoints.get(id));
        entries.filter(|entry| self.needs_source_change(entry, is_source)).copied().collect()
    }

    /// Whether an end point is a source or not, but should not be or should.
    fn needs_source_change(&self, entry: &EndpointEntry, is_source: bool) -> bool {
        let is_accepted = !self.checks_reverse_path || self.routed.contains(&entry.config.id);
        entry.is_source == is_source && is_accepted != is_source
    }

    fn remove_sources(&mut self, gone: &[EndpointEntry]) -> Result<(), MapError> {
        self.run_on_ranges(gone, &self.sources_delete)?;
        self.mark_sources(gone, false);
        Ok(())
    }

    fn add_sources(&mut self, new: &[EndpointEntry]) -> Result<(), MapError> {
        let unfound = self.run_on_ranges(new, &self.sources_put)?;
        if unfound > 0 {
            self.is_chain_full = true;
            messages::log!(
                ENDPOINT_CHAINS_FULL,
                unfound,
                "hash chains of end points are full: the user datapath decapsulates what these send"
            );
        }
        self.mark_sources(new, true);
        Ok(())
    }

    fn mark_sources(&mut self, entries: &[EndpointEntry], is_source: bool) {
        for entry in entries {
            if let Some(entry) = self.endpoints.get_mut(&entry.config.id) {
                entry.is_source = is_source;
            }
        }
    }

    /// Sets the path MTU of an end point in bytes; `None` is the configured one.
    pub(crate) fn set_path_mtu(
        &mut self,
        id: EndpointId,
        mtu: Option<u16>,
    ) -> Result<(), MapError> {
        match mtu {
            Some(mtu) => drop(self.path_mtus.insert(id, mtu)),
            None => drop(self.path_mtus.remove(&id)),
        }
        match self.endpoints.get_mut(&id) {
            Some(entry) if entry.path_mtu != mtu => {
                entry.path_mtu = mtu;
                self.write(id)
            }
            _ => Ok(()),
        }
    }

    /// How full the maps are.
    pub(crate) fn map_use(&self) -> [MapUse; 4] {
        let limit = |map: &MapHandle| map.max_entries() as usize;
        let classes = self.classes.iter().flatten().count();
        [
            map_use("weft_endpoints", self.endpoints.len(), limit(&self.endpoints_map)),
            map_use("weft_classes", classes, self.classes.len()),
            map_use("weft_tag_links", self.links.len(), limit(&self.links_map)),
            self.locals.map_use(),
        ]
    }

    /// The received and sent packets of each end point that has received or sent any.
    pub(crate) fn counts(&self) -> Result<EndpointCounts, MapError> {
        let mut counts = HashMap::new();
        let Some((last, _)) = self.endpoints.last_key_value() else { return Ok(counts) };
        let entries =
            sys::read(&self.endpoints_map, 0, last.0 + 1).map_err(libbpf_rs::Error::from)?;
        let entries: Vec<&[u8]> = entries.chunks_exact(size_of::<weft_endpoint>()).collect();
        for (id, EndpointEntry { config, .. }) in &self.endpoints {
            let Some(entry) = entries.get(id.0 as usize) else { continue };
            let count = |packets, bytes| PacketCount {
                packets: u64_at(entry, packets),
                bytes: u64_at(entry, bytes),
            };
            let rx =
                count(offset_of!(weft_endpoint, rx_packets), offset_of!(weft_endpoint, rx_bytes));
            let tx =
                count(offset_of!(weft_endpoint, tx_packets), offset_of!(weft_endpoint, tx_bytes));
            if rx.packets + tx.packets > 0 {
                let EndpointConfig { spec, local, remote, .. } = config;
                counts.insert((spec.tunnel.name(), *local, *remote), [rx, tx]);
            }
        }
        Ok(counts)
    }

    /// For each end point without a next hop, uses the one that `hop` returns for its remote
    /// address in network order, until one is reported.
    pub(crate) fn inherit(
        &mut self,
        hop: impl Fn(&[u32; 4]) -> Option<NextHop>,
    ) -> Result<(), MapError> {
        let open = self.endpoints.values_mut().filter(|entry| entry.hop.is_none());
        let mut inherited = Vec::new();
        for entry in open {
            entry.hop = hop(&endpoint_entries::words(entry.config.remote));
            inherited.extend(entry.hop.map(|_| entry.config.id));
        }
        self.inherited.extend(&inherited);
        inherited.into_iter().try_for_each(|id| self.write(id))
    }

    /// Discards next hops of a previous daemon that nothing has confirmed.
    pub(crate) fn discard_inherited(&mut self) -> Result<(), MapError> {
        std::mem::take(&mut self.inherited).into_iter().try_for_each(|id| self.resolve(id, None))
    }

    fn remove(&mut self, gone: &[EndpointEntry]) -> Result<(), MapError> {
        let sources = gone.iter().filter(|entry| entry.is_source);
        let sources: Vec<EndpointEntry> = sources.copied().collect();
        self.run_on_ranges(&sources, &self.sources_delete)?;
        for entry in gone {
            self.endpoints.remove(&entry.config.id);
            self.put(entry.config.id, struct_bytes!(weft_endpoint { flags: 0_u32 }))?;
        }
        Ok(())
    }

    fn add(&mut self, new: &[EndpointEntry]) -> Result<(), MapError> {
        for batch in new.chunks(BATCH) {
            let (mut numbers, mut entries) = (Vec::new(), Vec::new());
            for entry in batch {
                numbers.extend(entry.config.id.0.to_ne_bytes());
                entries.extend(endpoint_entries::endpoint_value(entry, self.overhead(entry.class)));
            }
            self.endpoints_map.update_batch(
                &numbers,
                &entries,
                batch.len() as u32,
                MapFlags::ANY,
                MapFlags::ANY,
            )?;
        }
        self.endpoints.extend(new.iter().map(|entry| (entry.config.id, *entry)));
        Ok(())
    }

    /// Runs a program on end points, once for each range of consecutive numbers. Returns the sum of
    /// its results.
    fn run_on_ranges(
        &self,
        endpoints: &[EndpointEntry],
        program: &OwnedFd,
    ) -> Result<u32, MapError> {
        let mut sum = 0;
        for row in endpoints.chunk_by(|one, next| one.config.id.0 + 1 == next.config.id.0) {
            for part in row.chunks(BATCH) {
                let (first, count) = (part[0].config.id.0, part.len() as u32);
                let mut request = struct_bytes!(weft_endpoint_range { first: first, count: count });
                let done = sys::run(program.as_fd(), &mut request);
                match done.map_err(libbpf_rs::Error::from)? {
                    refused @ ..0 => return Err(MapError::Refused(refused)),
                    result => sum += result.cast_unsigned(),
                }
            }
        }
        Ok(sum)
    }

    /// Writes an end point again. Its counters stay.
    fn write(&self, id: EndpointId) -> Result<(), MapError> {
        let Some(entry) = self.endpoints.get(&id) else { return Ok(()) };
        self.put(id, endpoint_entries::endpoint_value(entry, self.overhead(entry.class)))
    }

    fn put(&self, id: EndpointId, mut endpoint: Vec<u8>) -> Result<(), MapError> {
        const _: () = assert!(offset_of!(weft_endpoint_update, endpoint) == 0);
        let change = struct_bytes!(weft_endpoint_update { number: id.0 });
        endpoint.extend_from_slice(&change[endpoint.len()..]);
        match sys::run(self.endpoint_put.as_fd(), &mut endpoint).map_err(libbpf_rs::Error::from)? {
            0 => Ok(()),
            other => Err(MapError::Refused(other)),
        }
    }

    /// Outer headers of a class in bytes, without the outer Ethernet header.
    fn overhead(&self, class: u16) -> usize {
        self.overheads.get(usize::from(class)).copied().unwrap_or_default()
    }

    /// The number of a class, which is added if it is new; `None` when there are too many.
    fn class(&mut self, wanted: ClassKey) -> Result<Option<u16>, MapError> {
        if let Some(at) = self.classes.iter().position(|class| *class == Some(wanted)) {
            return Ok(Some(at as u16));
        }
        let Some(free) = self.classes.iter().position(Option::is_none) else { return Ok(None) };
        self.classes_map.update(
            &(free as u32).to_ne_bytes(),
            &endpoint_entries::class_value(&wanted),
            MapFlags::ANY,
        )?;
        self.classes[free] = Some(wanted);
        self.overheads[free] = endpoint_entries::overhead(&wanted);
        Ok(Some(free as u16))
    }
}

/// The ingress port of each tunnel type and local address.
fn ports(underlay: &Underlay) -> HashMap<(TunnelSpec, IpAddr), PortNo> {
    let single = underlay.tunnels.iter().filter(|tunnel| tunnel.group.is_none());
    single.map(|TunnelConfig { spec, local, port, .. }| ((*spec, *local), *port)).collect()
}

fn links(underlay: &Underlay) -> HashSet<(PortNo, TagLink)> {
    underlay.links.iter().map(|link| (link.port, link.link)).collect()
}

/// Whether programs can use a tunnel with these options.
fn can_send(spec: &TunnelSpec) -> bool {
    let descriptor = spec.tunnel.descriptor();
    // They fill in the outer UDP checksum, but no optional field of a tunnel header except a key.
    let is_plain = !spec.sequence && (descriptor.carrier == Carrier::Udp || !spec.checksum);
    descriptor.kernel_datapath == KernelDatapath::EndPoints && is_plain
}

/// Whether programs can send super-packets in such a tunnel. They cannot where the outer header
/// needs a checksum: over IPv6, when checksums are on.
pub fn sends_super_packets(spec: &TunnelSpec, is_v6: bool) -> bool {
    can_send(spec) && !(is_v6 && spec.checksum)
}

#[cfg(test)]
mod tests;
