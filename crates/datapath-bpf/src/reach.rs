//! [`Reach`]: remote end points and logical links as programs know them.
//!
//! What programs cannot do with an end point they leave to the user datapath: one that they do not know gets its packets from
//! there, and packets from it go there.

use crate::layout::{
    weft_class, weft_endpoint, weft_endpoint_change, weft_from4, weft_from6, weft_link, weft_tags,
};
use crate::pieces::Pieces;
use crate::record::{record, u64_at};
use crate::sys;
use crate::tables::TableError;
use datapath::stats::Count;
use datapath::user::{EndpointConfig, TunnelConfig, Underlay};
use flow::{
    Dscp, EndpointId, EndpointTable, NextHop, PortNo, TagLink, Ttl, TunnelSpec, TunnelType,
    tun_flags,
};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use wire::checksum::Sum;

/// Entries that are written by one call.
const BATCH: usize = 4096;
const ETHERNET_LEN: usize = 14;
const PRESENT: u32 = 1;
const RESOLVED: u32 = 2;
/// The number of no end point.
const NOBODY: u32 = u32::MAX;

/// What end points share that are of one class.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Class {
    spec: TunnelSpec,
    local: IpAddr,
    port: PortNo,
}

/// An end point that programs know.
#[derive(Clone, Copy, Debug)]
struct Known {
    config: EndpointConfig,
    class: u16,
    hop: Option<NextHop>,
    path_mtu: Option<u16>,
}

/// Received and sent, by tunnel type, local and remote address.
pub(crate) type EndpointCounts = HashMap<(&'static str, IpAddr, IpAddr), [Count; 2]>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Reach {
    classes_map: MapHandle,
    endpoints_map: MapHandle,
    from4: MapHandle,
    from6: MapHandle,
    links_map: MapHandle,
    endpoint_put: OwnedFd,
    /// By number.
    classes: Vec<Option<Class>>,
    endpoints: BTreeMap<EndpointId, Known>,
    links: HashSet<(PortNo, TagLink)>,
    /// This host's addresses of GRE tunnels.
    gre: HashSet<IpAddr>,
    /// What has been heard of those that there are, whether programs know them or not.
    hops: HashMap<EndpointId, NextHop>,
    path_mtus: HashMap<EndpointId, u16>,
    /// Those to which the way is another process's, and has not been heard of yet.
    inherited: HashSet<EndpointId>,
}

/// What is not in use any more, but may be until a grace period has passed.
#[derive(Debug, Default)]
#[must_use = "what is not given back is lost"]
pub(crate) struct RetiredClasses(Vec<u16>);

impl Reach {
    /// That of a freshly loaded object: nothing.
    pub(crate) fn new(pieces: &Pieces) -> Result<Self, TableError> {
        let classes_map = pieces.map("weft_classes")?;
        Ok(Self {
            classes: vec![None; classes_map.max_entries() as usize],
            classes_map,
            endpoints_map: pieces.map("weft_endpoints")?,
            from4: pieces.map("weft_from4")?,
            from6: pieces.map("weft_from6")?,
            links_map: pieces.map("weft_links")?,
            endpoint_put: pieces.own_program("endpoint_put")?,
            endpoints: BTreeMap::new(),
            links: HashSet::new(),
            gre: HashSet::new(),
            hops: HashMap::new(),
            path_mtus: HashMap::new(),
            inherited: HashSet::new(),
        })
    }

    /// Forgets what another underlay does not have. Programs that run now may still use it.
    ///
    /// # Errors
    /// When the kernel refuses something.
    pub(crate) fn forget(&mut self, underlay: &Underlay) -> Result<(), TableError> {
        let wanted: HashMap<EndpointId, &EndpointConfig> =
            underlay.endpoints.iter().map(|endpoint| (endpoint.id, endpoint)).collect();
        let ports = ports(underlay);
        let stays = |known: &Known| {
            let port = self.classes[usize::from(known.class)].map(|class| class.port);
            let EndpointConfig { id, spec, local, .. } = known.config;
            wanted.get(&id).is_some_and(|config| **config == known.config)
                && ports.get(&(spec, local)).copied() == port
        };
        let gone: Vec<Known> =
            self.endpoints.values().filter(|known| !stays(known)).copied().collect();
        // A number that is used again is another end point's, to which the way is another. It is told anew.
        let stay: HashSet<EndpointId> = self
            .endpoints
            .values()
            .filter(|known| stays(known))
            .map(|known| known.config.id)
            .collect();
        self.hops.retain(|id, _| stay.contains(id));
        self.path_mtus.retain(|id, _| stay.contains(id));
        self.inherited.retain(|id| stay.contains(id));
        self.remove(&gone)?;
        let links: HashSet<(PortNo, TagLink)> = links(underlay);
        for &(_, link) in self.links.difference(&links) {
            self.links_map.delete(&tags(link))?;
        }
        self.links.retain(|link| links.contains(link));
        let gre = gre(underlay);
        for &local in self.gre.difference(&gre) {
            let (map, key) = self.key_of_anybody(local);
            map.delete(&key)?;
        }
        self.gre.retain(|local| gre.contains(local));
        Ok(())
    }

    /// Adds what an underlay has. What it has not is [forgotten](Reach::forget) already.
    ///
    /// # Errors
    /// When the kernel refuses something.
    pub(crate) fn add_all(&mut self, underlay: &Underlay) -> Result<(), TableError> {
        let ports = ports(underlay);
        let mut new = Vec::new();
        for end in &underlay.endpoints {
            let fits = end.id.0 < self.endpoints_map.max_entries();
            if self.endpoints.contains_key(&end.id) || !is_for_programs(end) || !fits {
                continue;
            }
            let Some(&port) = ports.get(&(end.spec, end.local)) else { continue };
            let Some(class) = self.class(Class { spec: end.spec, local: end.local, port })? else {
                let remote = end.remote;
                tracing::warn!(%remote, "too many kinds of tunnels: the user datapath serves this end point");
                continue;
            };
            let (hop, path_mtu) =
                (self.hops.get(&end.id).copied(), self.path_mtus.get(&end.id).copied());
            new.push(Known { config: *end, class, hop, path_mtu });
        }
        self.add(&new)?;
        for (port, link) in links(underlay).difference(&self.links) {
            let entry = record!(weft_link {
                in_port: port.0,
                tun_id: u64::from(link.key().0),
                tun_flags: u64::from(tun_flags::KEY) << 48,
            });
            self.links_map.update(&tags(*link), &entry, MapFlags::ANY)?;
        }
        self.links = links(underlay);
        for &local in gre(underlay).difference(&self.gre) {
            let (map, key) = self.key_of_anybody(local);
            map.update(&key, &NOBODY.to_ne_bytes(), MapFlags::ANY)?;
        }
        self.gre = gre(underlay);
        Ok(())
    }

    /// The classes that no end point is of. They may be [given back](Reach::give_back) after a grace period.
    pub(crate) fn retire(&self) -> RetiredClasses {
        let used: HashSet<u16> = self.endpoints.values().map(|known| known.class).collect();
        let is_unused =
            |(class, had): &(u16, &Option<Class>)| had.is_some() && !used.contains(class);
        let retired = (0..).zip(&self.classes).filter(is_unused);
        RetiredClasses(retired.map(|(class, _)| class).collect())
    }

    /// Makes free what nobody can be using any more.
    pub(crate) fn give_back(&mut self, retired: RetiredClasses) {
        retired.0.into_iter().for_each(|class| self.classes[usize::from(class)] = None);
    }

    /// The way to an end point is another one, or not known any more.
    pub(crate) fn resolve(
        &mut self,
        id: EndpointId,
        hop: Option<NextHop>,
    ) -> Result<(), TableError> {
        match hop {
            Some(hop) => drop(self.hops.insert(id, hop)),
            None => drop(self.hops.remove(&id)),
        }
        self.inherited.remove(&id);
        match self.endpoints.get_mut(&id) {
            Some(known) if known.hop != hop => {
                known.hop = hop;
                self.write(id)
            }
            _ => Ok(()),
        }
    }

    /// The path to an end point carries packets of so many bytes; as many as configured when that is not known.
    pub(crate) fn set_path_mtu(
        &mut self,
        id: EndpointId,
        mtu: Option<u16>,
    ) -> Result<(), TableError> {
        match mtu {
            Some(mtu) => drop(self.path_mtus.insert(id, mtu)),
            None => drop(self.path_mtus.remove(&id)),
        }
        match self.endpoints.get_mut(&id) {
            Some(known) if known.path_mtu != mtu => {
                known.path_mtu = mtu;
                self.write(id)
            }
            _ => Ok(()),
        }
    }

    /// What programs have counted of each end point with which they have exchanged something: received, and sent.
    pub(crate) fn counts(&self) -> Result<EndpointCounts, TableError> {
        let mut counts = HashMap::new();
        let Some((last, _)) = self.endpoints.last_key_value() else { return Ok(counts) };
        let entries =
            sys::read(&self.endpoints_map, 0, last.0 + 1).map_err(libbpf_rs::Error::from)?;
        let entries: Vec<&[u8]> = entries.chunks_exact(size_of::<weft_endpoint>()).collect();
        for (id, Known { config, .. }) in &self.endpoints {
            let Some(entry) = entries.get(id.0 as usize) else { continue };
            let count = |packets, bytes| Count {
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

    /// Has end points to which the way is not known be reached by the one that `hop` says for their address, as that is on the wire, until
    /// something is heard of them.
    pub(crate) fn inherit(
        &mut self,
        hop: impl Fn(&[u32; 4]) -> Option<NextHop>,
    ) -> Result<(), TableError> {
        let open = self.endpoints.values_mut().filter(|known| known.hop.is_none());
        let mut inherited = Vec::new();
        for known in open {
            known.hop = hop(&words(known.config.remote));
            inherited.extend(known.hop.map(|_| known.config.id));
        }
        self.inherited.extend(&inherited);
        inherited.into_iter().try_for_each(|id| self.write(id))
    }

    /// Forgets ways of which nothing has been heard.
    pub(crate) fn disinherit(&mut self) -> Result<(), TableError> {
        std::mem::take(&mut self.inherited).into_iter().try_for_each(|id| self.resolve(id, None))
    }

    fn remove(&mut self, gone: &[Known]) -> Result<(), TableError> {
        for known in gone {
            let EndpointConfig { id, .. } = known.config;
            let (from, key) = self.key_of_end(&known.config);
            // Another end point may be found there by now.
            if from.lookup(&key, MapFlags::ANY)?.is_some_and(|had| had == id.0.to_ne_bytes()) {
                from.delete(&key)?;
            }
            self.endpoints.remove(&id);
            self.put(id, record!(weft_endpoint { flags: 0_u32 }))?;
        }
        Ok(())
    }

    fn add(&mut self, new: &[Known]) -> Result<(), TableError> {
        for batch in new.chunks(BATCH) {
            let (mut numbers, mut entries) = (Vec::new(), Vec::new());
            for known in batch {
                numbers.extend(known.config.id.0.to_ne_bytes());
                entries.extend(entry(known, self.overhead(known.class)));
            }
            self.endpoints_map.update_batch(
                &numbers,
                &entries,
                batch.len() as u32,
                MapFlags::ANY,
                MapFlags::ANY,
            )?;
            for v4 in [true, false] {
                let of_family: Vec<&Known> =
                    batch.iter().filter(|known| known.config.remote.is_ipv4() == v4).collect();
                let keys: Vec<u8> =
                    of_family.iter().flat_map(|known| self.key_of_end(&known.config).1).collect();
                let numbers: Vec<u8> =
                    of_family.iter().flat_map(|known| known.config.id.0.to_ne_bytes()).collect();
                let map = if v4 { &self.from4 } else { &self.from6 };
                if !of_family.is_empty() {
                    let count = of_family.len() as u32;
                    map.update_batch(&keys, &numbers, count, MapFlags::ANY, MapFlags::ANY)?;
                }
            }
        }
        self.endpoints.extend(new.iter().map(|known| (known.config.id, *known)));
        Ok(())
    }

    /// Writes an end point again, whose counters go on.
    fn write(&self, id: EndpointId) -> Result<(), TableError> {
        let Some(known) = self.endpoints.get(&id) else { return Ok(()) };
        self.put(id, entry(known, self.overhead(known.class)))
    }

    fn put(&self, id: EndpointId, mut endpoint: Vec<u8>) -> Result<(), TableError> {
        const _: () = assert!(offset_of!(weft_endpoint_change, endpoint) == 0);
        let change = record!(weft_endpoint_change { number: id.0 });
        endpoint.extend_from_slice(&change[endpoint.len()..]);
        match sys::run(self.endpoint_put.as_fd(), &mut endpoint).map_err(libbpf_rs::Error::from)? {
            0 => Ok(()),
            other => Err(TableError::Refused(other)),
        }
    }

    /// By what an end point is found when it sends.
    fn key_of_end(&self, end: &EndpointConfig) -> (&MapHandle, Vec<u8>) {
        let (proto, port) = match end.spec.tunnel {
            TunnelType::Gre => (47_u8, 0),
            _ => (17, end.spec.port.to_be()),
        };
        self.key_of(end.remote, end.local, proto, port)
    }

    /// By what GRE to this host is found, whoever sends it.
    fn key_of_anybody(&self, local: IpAddr) -> (&MapHandle, Vec<u8>) {
        let anybody = match local {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        self.key_of(anybody, local, 47, 0)
    }

    fn key_of(&self, remote: IpAddr, local: IpAddr, proto: u8, port: u16) -> (&MapHandle, Vec<u8>) {
        match (remote, local) {
            (IpAddr::V4(remote), IpAddr::V4(local)) => {
                let [remote, local] = [remote, local].map(|ip| ip.to_bits().to_be());
                (
                    &self.from4,
                    record!(weft_from4 { remote: remote, local: local, port: port, proto: proto }),
                )
            }
            (remote, local) => {
                let [remote, local] = [remote, local].map(words);
                (
                    &self.from6,
                    record!(weft_from6 { remote: remote, local: local, port: port, proto: proto }),
                )
            }
        }
    }

    /// Bytes of an outer packet around the inner frame, without its Ethernet header.
    fn overhead(&self, class: u16) -> usize {
        let class = self.classes.get(usize::from(class)).copied().flatten();
        class.map_or(0, |class| template(&class).len().saturating_sub(ETHERNET_LEN))
    }

    /// The number of a class; `None` when there are too many.
    fn class(&mut self, wanted: Class) -> Result<Option<u16>, TableError> {
        if let Some(at) = self.classes.iter().position(|class| *class == Some(wanted)) {
            return Ok(Some(at as u16));
        }
        let Some(free) = self.classes.iter().position(Option::is_none) else { return Ok(None) };
        self.classes_map.update(&(free as u32).to_ne_bytes(), &class(&wanted), MapFlags::ANY)?;
        self.classes[free] = Some(wanted);
        Ok(Some(free as u16))
    }
}

/// The port of each tunnel by which frames come that are for this host.
fn ports(underlay: &Underlay) -> HashMap<(TunnelSpec, IpAddr), PortNo> {
    let single = underlay.tunnels.iter().filter(|tunnel| tunnel.group.is_none());
    single.map(|TunnelConfig { spec, local, port, .. }| ((*spec, *local), *port)).collect()
}

/// The addresses of this host to which GRE is sent.
fn gre(underlay: &Underlay) -> HashSet<IpAddr> {
    let gre = underlay.tunnels.iter().filter(|tunnel| tunnel.spec.tunnel == TunnelType::Gre);
    gre.map(TunnelConfig::address).collect()
}

fn links(underlay: &Underlay) -> HashSet<(PortNo, TagLink)> {
    underlay.links.iter().map(|link| (link.port, link.link)).collect()
}

/// Whether programs can send to an end point and take from it.
fn is_for_programs(end: &EndpointConfig) -> bool {
    let TunnelSpec { tunnel, checksum, sequence, .. } = end.spec;
    let can = match tunnel {
        TunnelType::Vxlan | TunnelType::Geneve => true,
        TunnelType::Gre => !checksum && !sequence,
        TunnelType::Stt | TunnelType::Vlan | TunnelType::QinQ => false,
    };
    can && !end.remote.is_multicast()
}

/// An address as it is on the wire.
fn words(ip: IpAddr) -> [u32; 4] {
    match ip {
        IpAddr::V4(ip) => [ip.to_bits().to_be(), 0, 0, 0],
        IpAddr::V6(ip) => {
            let bits = ip.to_bits();
            [96, 64, 32, 0].map(|shift| ((bits >> shift) as u32).to_be())
        }
    }
}

fn entry(known: &Known, overhead: usize) -> Vec<u8> {
    let Known { config: EndpointConfig { spec, remote, .. }, class, hop, path_mtu } = known;
    let mtu = path_mtu.map_or(spec.path_mtu_bytes, |mtu| mtu.min(spec.path_mtu_bytes));
    let max_len = usize::from(mtu).saturating_sub(overhead) as u16;
    let [destination, source] = hop.map_or([[0; 6]; 2], |hop| [hop.destination.0, hop.source.0]);
    let flags = if hop.is_some() { PRESENT | RESOLVED } else { PRESENT };
    record!(weft_endpoint {
        remote: words(*remote),
        eth_dst: destination,
        eth_src: source,
        class: *class,
        max_len: max_len,
        flags: flags,
    })
}

/// The outer header of a class, to nobody.
fn template(class: &Class) -> Vec<u8> {
    let mut table = EndpointTable::new(0, 1);
    let remote = class.local;
    let added = table.insert(EndpointId(0), &class.spec, class.local, remote);
    let endpoint = added.ok().and_then(|()| table.get(EndpointId(0)));
    endpoint.map_or_else(Vec::new, |endpoint| endpoint.template().as_bytes().to_vec())
}

fn class(class: &Class) -> Vec<u8> {
    let Class { spec, local, port } = class;
    let mut header = template(class);
    let len = header.len();
    let mut ip_sum = 0;
    if local.is_ipv4() {
        // Checksum and destination.
        header[ETHERNET_LEN + 10..ETHERNET_LEN + 12].fill(0);
        header[ETHERNET_LEN + 16..ETHERNET_LEN + 20].fill(0);
        // What differs between packets: type of service, length, TTL are 0 already.
        ip_sum = Sum::of(&header[ETHERNET_LEN..ETHERNET_LEN + 20]).fold();
    } else {
        header[ETHERNET_LEN + 24..ETHERNET_LEN + 40].fill(0);
    }
    header.resize(HEADER_MAX, 0);
    let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
    let ttl = match spec.ttl {
        Ttl::Fixed(ttl) => ttl,
        Ttl::Inherit => 0,
    };
    let dscp = match spec.dscp {
        Dscp::Fixed(dscp) => dscp << 2,
        Dscp::Inherit => 0,
    };
    let flags = flag(local.is_ipv6(), 1)
        | flag(spec.checksum, 2)
        | flag(spec.ttl == Ttl::Inherit, 4)
        | flag(spec.dscp == Dscp::Inherit, 8)
        | flag(spec.key && spec.tunnel == TunnelType::Gre, 16)
        | flag(spec.clamp_mss, 32);
    let mut bytes = record!(weft_class {
        len: len as u8,
        tunnel: spec.tunnel as u8,
        flags: flags,
        ttl: ttl,
        dscp: dscp,
        ip_sum: ip_sum,
        in_port: port.0,
    });
    let at = offset_of!(weft_class, header);
    bytes[at..at + HEADER_MAX].copy_from_slice(&header[..HEADER_MAX]);
    bytes
}

const HEADER_MAX: usize = offset_of!(weft_class, len) - offset_of!(weft_class, header);

fn tags(link: TagLink) -> Vec<u8> {
    let (outer, inner) = link.tags();
    let vlan = |tag: wire::vlan::Tag| tag.tci() & 0xfff;
    record!(weft_tags {
        tpid: outer.tpid.0,
        vlan: vlan(outer),
        inner_tpid: inner.map_or(0, |tag| tag.tpid.0),
        inner_vlan: inner.map_or(0, vlan),
    })
}
