//! Remote tunnel end points.
//!
//! The outer header of an end point is built once, as a [`HeaderTemplate`]. Encapsulation copies it
//! and fills in lengths, traffic class, TTL, entropy, key and checksums.

use crate::encap_interface::TTL_UNLESS_GIVEN;
use crate::header_template::{HeaderTemplate, L3};
use crate::{
    Carrier, DatapathKey, DropReason, EndpointId, EntropySeed, TunnelKey, TunnelSettings,
    TunnelType,
};
use ahash::HashMap;
use std::net::IpAddr;
use wire::{MacAddr, ipv4, ipv6};

/// The outer DSCP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Dscp {
    /// The DSCP of the inner IP header; 0 for other frames (RFC 2983, uniform model).
    #[default]
    Inherit,
    /// A fixed value, 0 to 63 (RFC 2983, pipe model).
    Fixed(u8),
}

/// The outer TTL or hop limit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ttl {
    /// The TTL of the inner IP header, but at least 1; [`Ttl::UNLESS_GIVEN`] for other frames.
    Inherit,
    /// A fixed value, 1 to 255.
    Fixed(u8),
}

impl Ttl {
    /// The default: the value of RFC 1700, which most hosts use.
    pub const UNLESS_GIVEN: u8 = TTL_UNLESS_GIVEN;
}

impl Default for Ttl {
    fn default() -> Self {
        Self::Fixed(Self::UNLESS_GIVEN)
    }
}

/// Tunnel settings that all end points of one tunnel type on a host share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TunnelSpec {
    /// The tunnel type; one that has end points.
    pub tunnel: TunnelType,
    /// The destination port: UDP for VXLAN and Geneve, TCP-like for STT; unused for GRE.
    pub port: u16,
    /// Whether the outer UDP header (VXLAN, Geneve) or the GRE header has a checksum.
    pub checksum: bool,
    /// The outer TTL or hop limit.
    pub ttl: Ttl,
    /// The outer DSCP.
    pub dscp: Dscp,
    /// GRE: a key is sent and required.
    pub key: bool,
    /// GRE: packets have sequence numbers.
    pub sequence: bool,
    /// The MTU of the underlay, in bytes: the longest outer packet that is not fragmented.
    pub path_mtu_bytes: u16,
    /// Whether the MSS of guests' TCP connections is lowered to fit the tunnel.
    pub clamp_mss: bool,
}

impl TunnelSpec {
    /// A tunnel with these settings on an Ethernet underlay. If the settings leave the UDP checksum
    /// to the host, no checksum is sent.
    pub fn new(tunnel: TunnelType, settings: &TunnelSettings) -> Self {
        Self {
            tunnel,
            port: settings.port,
            checksum: settings.checksum.unwrap_or(false),
            ttl: settings.ttl,
            dscp: settings.dscp,
            key: settings.key,
            sequence: settings.sequence,
            path_mtu_bytes: 1500,
            clamp_mss: false,
        }
    }
}

/// The Ethernet addresses of the next hop toward an end point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextHop {
    /// The uplink's own address.
    pub source: MacAddr,
    /// The MAC address of the end point, or of the router toward it.
    pub destination: MacAddr,
}

/// One remote end point of one tunnel type.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) template: HeaderTemplate,
    /// Index of the [`TunnelSpec`] and local address that the end point shares with others.
    pub(crate) class: u16,
    /// True when the template's Ethernet addresses are known.
    pub resolved: bool,
    /// The route to it leads over the uplink; see [`EndpointTable::check_reverse_path`].
    is_routed: bool,
    /// The discovered path MTU, in bytes; 0 while the specification's MTU applies.
    path_mtu_bytes: u16,
    pub(crate) next_sequence: u32,
    /// Frames and bytes encapsulated and sent to it.
    pub tx: PacketCounter,
    /// Frames and bytes received from it, after decapsulation.
    pub rx: PacketCounter,
}

impl Endpoint {
    /// The outer header.
    pub fn template(&self) -> &HeaderTemplate {
        &self.template
    }

    /// The path MTU, in bytes of outer packet.
    pub(crate) fn path_mtu_bytes(&self, spec: &TunnelSpec) -> u16 {
        match self.path_mtu_bytes {
            0 => spec.path_mtu_bytes,
            found => found.min(spec.path_mtu_bytes),
        }
    }

    /// The end point's IP address.
    pub fn remote(&self) -> IpAddr {
        self.template.remote()
    }
}

/// A count of frames and bytes. A super-packet counts as one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PacketCounter {
    /// Frames.
    pub packets: u64,
    /// Bytes, from the Ethernet header on.
    pub bytes: u64,
}

impl PacketCounter {
    /// Counts one frame.
    pub fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }
}

impl std::ops::AddAssign for PacketCounter {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// Layout of an outer header; the same for all end points of a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OuterLayout {
    pub(crate) ipv4: bool,
    pub(crate) carrier: Carrier,
    /// Offset of the outer transport header.
    pub(crate) l4: u8,
    /// Offset of the tunnel header.
    pub(crate) tunnel_header: u8,
    /// Bytes of the template.
    pub(crate) len: u8,
    /// Bytes that the logical ports add.
    logical_ports_len: u8,
}

impl OuterLayout {
    pub(crate) fn new(spec: &TunnelSpec, ipv4: bool) -> Self {
        let descriptor = spec.tunnel.descriptor();
        let l4 = L3 + if ipv4 { ipv4::MIN_HEADER_LEN } else { ipv6::HEADER_LEN };
        let tunnel_header = l4 + descriptor.carrier.header_len();
        let header_len = descriptor.header.with_fields(spec.checksum, spec.key, spec.sequence);
        Self {
            ipv4,
            carrier: descriptor.carrier,
            l4: l4 as u8,
            tunnel_header: tunnel_header as u8,
            len: (tunnel_header + header_len) as u8,
            logical_ports_len: descriptor.header.logical_ports,
        }
    }

    /// Bytes of the outer header for a packet with this key.
    #[inline]
    pub(crate) fn outer_len(&self, key: &TunnelKey) -> usize {
        let ports = if key.ports.is_some() { self.logical_ports_len } else { 0 };
        usize::from(self.len) + usize::from(ports)
    }
}

/// Data that end points with the same tunnel specification and local address share.
#[derive(Debug)]
pub(crate) struct EndpointClass {
    pub(crate) spec: TunnelSpec,
    pub(crate) local: IpAddr,
    pub(crate) layout: OuterLayout,
}

/// All remote end points of a host. Transmit looks them up by number, receive by type and remote
/// address.
#[derive(Debug)]
pub struct EndpointTable {
    pub(crate) classes: Vec<EndpointClass>,
    /// Indexed by number; `None` for a removed end point.
    pub(crate) endpoints: Vec<Option<Endpoint>>,
    by_remote: HashMap<(u16, IpAddr), EndpointId>,
    pub(crate) seed: EntropySeed,
    pub(crate) next_packet_id: u32,
    /// The first outer source port of the range that carries entropy.
    pub(crate) entropy_base: u16,
    /// The size of that range; a power of two.
    pub(crate) entropy_ports: u16,
    /// Whether only end points with a route over the uplink are found as senders.
    checks_reverse_path: bool,
}

/// The limits that the path to an end point sets for inner frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathLimit {
    /// The longest frame that needs no outer fragmentation, in bytes from its Ethernet header on.
    pub max_frame_len: usize,
    /// The same with the configured path MTU, which is never smaller than the discovered one.
    pub configured_frame_len: usize,
    /// Whether the MSS of TCP connections is lowered to that length.
    pub clamp_mss: bool,
}

/// The error for an end point that cannot be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EndpointError {
    /// The two addresses are of different families.
    #[error("local address {0} and remote address {1} are of different families")]
    MixedFamilies(IpAddr, IpAddr),
    /// The tunnel type has no end points.
    #[error("{0} has no end points")]
    NotATunnel(TunnelType),
    /// More than 65,535 combinations of local address and tunnel specification.
    #[error("too many combinations of local address and tunnel type")]
    TooManyClasses,
    /// The same end point has another number already.
    #[error("the end point already exists, as number {0}")]
    Taken(EndpointId),
    /// The number is beyond [`EndpointTable::MAX`].
    #[error("end point number {0} is out of range (0 to {max})", max = EndpointTable::MAX.0)]
    Number(EndpointId),
}

impl EndpointTable {
    /// The highest end point number.
    pub const MAX: EndpointId = EndpointId(0xff_ffff);

    /// An empty table whose outer source ports are `entropy_base` to `entropy_base + entropy_ports
    /// - 1`.
    ///
    /// `entropy_ports` is rounded up to a power of two. A random seed maps flows to ports.
    pub fn new(entropy_base: u16, entropy_ports: u16) -> Self {
        Self::with_seed(entropy_base, entropy_ports, EntropySeed::random())
    }

    /// Like [`EndpointTable::new`], but `seed` determines the source port of each flow.
    pub fn with_seed(entropy_base: u16, entropy_ports: u16, seed: EntropySeed) -> Self {
        Self {
            classes: Vec::new(),
            endpoints: Vec::new(),
            by_remote: HashMap::default(),
            seed,
            // Random at each start, because receivers keep the segments of incomplete frames for
            // half a minute.
            next_packet_id: ahash::RandomState::new().hash_one(0) as u32,
            entropy_base,
            entropy_ports: entropy_ports.max(1).next_power_of_two(),
            checks_reverse_path: false,
        }
    }

    /// Adds the end point from `local` to `remote` under the lowest free number. Adding the same
    /// end point again returns its existing number.
    ///
    /// # Errors
    /// [`EndpointError`] for invalid addresses or an invalid type.
    pub fn add(
        &mut self,
        spec: &TunnelSpec,
        local: IpAddr,
        remote: IpAddr,
    ) -> Result<EndpointId, EndpointError> {
        let class = self.class_of(spec, local, remote)?;
        if let Some(&id) = self.by_remote.get(&(class, remote)) {
            return Ok(id);
        }
        // Removed end points leave free numbers; otherwise the next number is free.
        let free = if self.len() < self.endpoints.len() {
            self.endpoints.iter().position(Option::is_none)
        } else {
            None
        };
        let id = EndpointId(free.unwrap_or(self.endpoints.len()) as u32);
        self.insert(id, spec, local, remote)?;
        Ok(id)
    }

    /// Adds the end point from `local` to `remote` under a given number, and replaces the end point
    /// that had that number.
    ///
    /// # Errors
    /// [`EndpointError`] for invalid addresses or an invalid type, or when the end point has
    /// another number already.
    pub fn insert(
        &mut self,
        id: EndpointId,
        spec: &TunnelSpec,
        local: IpAddr,
        remote: IpAddr,
    ) -> Result<(), EndpointError> {
        if id > Self::MAX {
            return Err(EndpointError::Number(id));
        }
        let class = self.class_of(spec, local, remote)?;
        match self.by_remote.get(&(class, remote)) {
            Some(&there) if there == id => return Ok(()),
            Some(&there) => return Err(EndpointError::Taken(there)),
            None => {}
        }
        self.remove(id);
        let index = id.0 as usize;
        if self.endpoints.len() <= index {
            self.endpoints.resize_with(index + 1, || None);
        }
        self.endpoints[index] = Some(Endpoint {
            template: HeaderTemplate::build(spec, local, remote, None),
            class,
            resolved: false,
            is_routed: false,
            path_mtu_bytes: 0,
            next_sequence: 0,
            tx: PacketCounter::default(),
            rx: PacketCounter::default(),
        });
        self.by_remote.insert((class, remote), id);
        Ok(())
    }

    /// Removes an end point: no packets are sent to it or accepted from it any more.
    pub fn remove(&mut self, id: EndpointId) {
        if let Some(endpoint) = self.endpoints.get_mut(id.0 as usize).and_then(Option::take) {
            self.by_remote.remove(&(endpoint.class, endpoint.remote()));
        }
    }

    /// Returns the class of an end point, and creates it if needed.
    fn class_of(
        &mut self,
        spec: &TunnelSpec,
        local: IpAddr,
        remote: IpAddr,
    ) -> Result<u16, EndpointError> {
        if local.is_ipv4() != remote.is_ipv4() {
            return Err(EndpointError::MixedFamilies(local, remote));
        }
        if !spec.tunnel.has_endpoints() {
            return Err(EndpointError::NotATunnel(spec.tunnel));
        }
        let class = match self.classes.iter().position(|c| c.spec == *spec && c.local == local) {
            Some(place) => place,
            None => {
                let layout = OuterLayout::new(spec, local.is_ipv4());
                self.classes.push(EndpointClass { spec: *spec, local, layout });
                self.classes.len() - 1
            }
        };
        u16::try_from(class).map_err(|_| EndpointError::TooManyClasses)
    }

    /// Releases spare capacity.
    pub fn shrink_to_fit(&mut self) {
        self.endpoints.shrink_to_fit();
        self.by_remote.shrink_to_fit();
    }

    /// Sets the next hop's Ethernet addresses for an end point; `None` marks them as unknown.
    pub fn resolve(&mut self, id: EndpointId, next_hop: Option<NextHop>) {
        let Some(endpoint) = self.get_mut(id) else { return };
        endpoint.resolved = next_hop.is_some();
        if let Some(next_hop) = next_hop {
            let header = endpoint.template.as_bytes_mut();
            header[0..6].copy_from_slice(&next_hop.destination.0);
            header[6..12].copy_from_slice(&next_hop.source.0);
        }
    }

    /// Sets the discovered path MTU of an end point, in bytes of outer packet; `None` restores the
    /// specification's MTU. Larger values than the specification's have no effect.
    ///
    /// Anybody can forge the ICMP message that states a path MTU. The caller decides which one to
    /// believe.
    pub fn set_path_mtu(&mut self, id: EndpointId, bytes: Option<u16>) {
        if let Some(endpoint) = self.get_mut(id) {
            endpoint.path_mtu_bytes = bytes.unwrap_or(0);
        }
    }

    /// The path MTU of an end point, in bytes of outer packet.
    pub fn path_mtu(&self, id: EndpointId) -> Option<u16> {
        let endpoint = self.get(id)?;
        Some(endpoint.path_mtu_bytes(self.class(endpoint).0))
    }

    /// The limits that the path to an end point sets for inner frames. `None` for STT, which
    /// segments frames itself and has no limit.
    ///
    /// # Errors
    /// [`DropReason::UnknownEndpoint`] when there is no such end point.
    #[inline]
    pub(crate) fn path_limit(
        &self,
        id: EndpointId,
        key: &TunnelKey,
    ) -> Result<Option<PathLimit>, DropReason> {
        let endpoint = self.get(id).ok_or(DropReason::UnknownEndpoint)?;
        let EndpointClass { spec, layout, .. } = &self.classes[usize::from(endpoint.class)];
        if layout.carrier == Carrier::TcpLike {
            return Ok(None);
        }
        let overhead = layout.outer_len(key) - L3;
        let frame_len = |mtu: u16| usize::from(mtu).saturating_sub(overhead);
        // Path probes must test sizes above the discovered path MTU. Only probes have tunnel key 0.
        let is_probe =
            key.datapath == DatapathKey(0) && (layout.carrier != Carrier::Gre || spec.key);
        let path_mtu = if is_probe { spec.path_mtu_bytes } else { endpoint.path_mtu_bytes(spec) };
        Ok(Some(PathLimit {
            max_frame_len: frame_len(path_mtu),
            configured_frame_len: frame_len(spec.path_mtu_bytes),
            clamp_mss: spec.clamp_mss,
        }))
    }

    /// Whether packets are accepted only from end points to which a route leads over the uplink. Of
    /// the others it is not known yet, or not the case. Turning it off forgets the routes.
    pub fn check_reverse_path(&mut self, is_on: bool) {
        self.checks_reverse_path = is_on;
        if !is_on {
            self.endpoints.iter_mut().flatten().for_each(|endpoint| endpoint.is_routed = false);
        }
    }

    /// Sets whether the route to an end point leads over the uplink. It does not at first.
    pub fn set_routed(&mut self, id: EndpointId, is_routed: bool) {
        if let Some(endpoint) = self.get_mut(id) {
            endpoint.is_routed = is_routed;
        }
    }

    /// Whether packets of an end point are accepted.
    pub fn accepts(&self, endpoint: &Endpoint) -> bool {
        endpoint.is_routed || !self.checks_reverse_path
    }

    /// The end point that sent a packet of type `tunnel` to `local`.
    ///
    /// # Errors
    /// [`DropReason::UnknownEndpoint`] when the sender is not configured, or fails the check of
    /// [`check_reverse_path`](Self::check_reverse_path).
    pub fn find(
        &self,
        tunnel: TunnelType,
        local: IpAddr,
        remote: IpAddr,
    ) -> Result<EndpointId, DropReason> {
        self.classes
            .iter()
            .enumerate()
            .filter(|(_, class)| class.spec.tunnel == tunnel && class.local == local)
            .find_map(|(place, _)| self.by_remote.get(&(place as u16, remote)).copied())
            .filter(|id| self.get(*id).is_some_and(|endpoint| self.accepts(endpoint)))
            .ok_or(DropReason::UnknownEndpoint)
    }

    /// Looks up an end point by its number.
    pub fn get(&self, id: EndpointId) -> Option<&Endpoint> {
        self.endpoints.get(id.0 as usize)?.as_ref()
    }

    /// Looks up an end point by its number, for modification.
    pub fn get_mut(&mut self, id: EndpointId) -> Option<&mut Endpoint> {
        self.endpoints.get_mut(id.0 as usize)?.as_mut()
    }

    /// Specification and local address of an end point.
    pub fn class(&self, endpoint: &Endpoint) -> (&TunnelSpec, IpAddr) {
        let class = &self.classes[usize::from(endpoint.class)];
        (&class.spec, class.local)
    }

    /// All end points, in no particular order: number, remote address, end point.
    pub fn iter(&self) -> impl Iterator<Item = (EndpointId, IpAddr, &Endpoint)> {
        let rows = self.by_remote.iter();
        rows.filter_map(|(&(_, remote), &id)| Some((id, remote, self.get(id)?)))
    }

    /// Number of end points.
    pub fn len(&self) -> usize {
        self.by_remote.len()
    }

    /// True when the table is empty.
    pub fn is_empty(&self) -> bool {
        self.by_remote.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_end_points_are_neither_heard_nor_sent_to_and_numbers_stay() {
        let spec = TunnelSpec {
            tunnel: TunnelType::Vxlan,
            port: 4789,
            checksum: false,
            ttl: Ttl::default(),
            dscp: Dscp::Inherit,
            key: false,
            sequence: false,
            path_mtu_bytes: 1500,
            clamp_mss: false,
        };
        let host = |last: u8| IpAddr::from([192, 0, 2, last]);
        let mut table = EndpointTable::new(49_152, 64);
        table.insert(EndpointId(1), &spec, host(1), host(3)).unwrap();
        let first = table.add(&spec, host(1), host(2)).unwrap();
        assert_eq!((first, table.len()), (EndpointId(0), 2), "the lowest number is free");
        let again = table.insert(EndpointId(7), &spec, host(1), host(2));
        assert_eq!(again, Err(EndpointError::Taken(EndpointId(0))));
        table.remove(EndpointId(0));
        assert!(table.get(EndpointId(0)).is_none());
        assert!(table.find(TunnelType::Vxlan, host(1), host(2)).is_err());
        assert_eq!(table.find(TunnelType::Vxlan, host(1), host(3)), Ok(EndpointId(1)));
        // A replacement takes over the number of the old end point, but none of its state.
        table.insert(EndpointId(1), &spec, host(1), host(4)).unwrap();
        assert!(table.find(TunnelType::Vxlan, host(1), host(3)).is_err());
        assert_eq!(table.get(EndpointId(1)).unwrap().remote(), host(4));
        // Nothing sends from an end point whose route leads elsewhere.
        table.check_reverse_path(true);
        assert!(table.find(TunnelType::Vxlan, host(1), host(4)).is_err());
        table.set_routed(EndpointId(1), true);
        assert_eq!(table.find(TunnelType::Vxlan, host(1), host(4)), Ok(EndpointId(1)));
        table.set_routed(EndpointId(1), false);
        assert!(table.find(TunnelType::Vxlan, host(1), host(4)).is_err());
        table.check_reverse_path(false);
        assert_eq!(table.find(TunnelType::Vxlan, host(1), host(4)), Ok(EndpointId(1)));
        let beyond = EndpointId(EndpointTable::MAX.0 + 1);
        let error = table.insert(beyond, &spec, host(1), host(5));
        assert_eq!(error, Err(EndpointError::Number(beyond)));
    }
}
