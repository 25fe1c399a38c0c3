//! Remote tunnel end points.
//!
//! The outer header of an end point is built once, as a [`HeaderTemplate`]. Encapsulation copies it and fills in lengths,
//! traffic class, TTL, entropy, key and checksums; see `encap`.

use crate::header_template::{HeaderTemplate, L3, addresses};
use crate::{Carrier, DropReason, EndpointId, EntropySeed, TunnelKey, TunnelSettings, TunnelType};
use ahash::HashMap;
use std::net::IpAddr;
use wire::{MacAddr, ipv4, ipv6};

/// The outer DSCP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Dscp {
    /// That of the inner IP header; 0 for other frames (RFC 2983, the uniform model).
    #[default]
    Inherit,
    /// Always this one, 0 to 63 (the pipe model).
    Fixed(u8),
}

/// The outer TTL or hop limit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ttl {
    /// That of the inner IP header, but at least 1; [`Ttl::UNLESS_GIVEN`] for other frames.
    Inherit,
    /// Always this one, 1 to 255.
    Fixed(u8),
}

impl Ttl {
    /// RFC 1700's, which most hosts use.
    pub const UNLESS_GIVEN: u8 = 64;
}

impl Default for Ttl {
    fn default() -> Self {
        Self::Fixed(Self::UNLESS_GIVEN)
    }
}

/// What is the same for all end points of one tunnel type on a host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TunnelSpec {
    /// The tunnel type; one that has end points.
    pub tunnel: TunnelType,
    /// The destination port: UDP for VXLAN and Geneve, that of the TCP-shaped header for STT; unused for GRE.
    pub port: u16,
    /// The outer UDP checksum of VXLAN and Geneve, or the GRE checksum.
    pub checksum: bool,
    /// The outer TTL or hop limit.
    pub ttl: Ttl,
    /// The outer DSCP.
    pub dscp: Dscp,
    /// GRE: a key is sent and demanded.
    pub key: bool,
    /// GRE: packets are numbered.
    pub sequence: bool,
    /// The MTU of the underlay in bytes: of the longest outer packet in one piece.
    pub path_mtu_bytes: u16,
    /// The maximum segment size of guests' TCP connections is lowered to what the tunnel carries.
    pub clamp_mss: bool,
}

impl TunnelSpec {
    /// A tunnel with these settings on an Ethernet underlay. A UDP checksum that the settings
    /// leave to the host is not sent.
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

/// The Ethernet addresses toward an end point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextHop {
    /// The uplink's own address.
    pub source: MacAddr,
    /// The end point's, or that of the router on the way.
    pub destination: MacAddr,
}

/// The least MTU that a path may be found to have: what every host of IPv4 can put together (RFC 1122 section 3.3.2).
const MIN_PATH_MTU: u16 = 576;

/// One remote end point of one tunnel type.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) template: HeaderTemplate,
    /// Which [`TunnelSpec`] and local address of the table it uses.
    pub(crate) class: u16,
    /// True when the template's Ethernet addresses are known.
    pub resolved: bool,
    /// What the underlay was found to carry, in bytes; 0 as long as that is what the specification says.
    path_mtu_bytes: u16,
    pub(crate) next_sequence: u32,
    /// Frames and bytes encapsulated toward it.
    pub tx: Traffic,
    /// Frames and bytes received from it, after decapsulation.
    pub rx: Traffic,
}

impl Endpoint {
    /// The outer header.
    pub fn template(&self) -> &HeaderTemplate {
        &self.template
    }

    /// The longest outer packet that reaches it in one piece, in bytes.
    pub(crate) fn path_mtu_bytes(&self, spec: &TunnelSpec) -> u16 {
        match self.path_mtu_bytes {
            0 => spec.path_mtu_bytes,
            found => found.min(spec.path_mtu_bytes),
        }
    }

    /// The end point's address.
    pub fn remote(&self) -> IpAddr {
        addresses(self.template.as_bytes()).1
    }
}

/// A count of frames and their bytes. A super-packet counts as one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Frames.
    pub packets: u64,
    /// Bytes, from the Ethernet header on.
    pub bytes: u64,
}

impl Traffic {
    /// Counts one frame.
    pub fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// Where the parts of an outer header are; the same for all end points of a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
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

impl Layout {
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

    /// Bytes of the outer header of a packet with this key.
    #[inline]
    pub(crate) fn outer_len(&self, key: &TunnelKey) -> usize {
        let ports = if key.ports.is_some() { self.logical_ports_len } else { 0 };
        usize::from(self.len) + usize::from(ports)
    }
}

/// What end points of one tunnel specification and one local address share.
#[derive(Debug)]
pub(crate) struct Class {
    pub(crate) spec: TunnelSpec,
    pub(crate) local: IpAddr,
    pub(crate) layout: Layout,
}

/// All remote end points of a host, found by their number when sending and by (type, remote address) when receiving.
#[derive(Debug)]
pub struct EndpointTable {
    pub(crate) classes: Vec<Class>,
    /// By number; `None` where one was removed.
    pub(crate) endpoints: Vec<Option<Endpoint>>,
    by_remote: HashMap<(u16, IpAddr), EndpointId>,
    pub(crate) seed: EntropySeed,
    pub(crate) next_packet_id: u32,
    /// The first outer source port of the range that carries entropy.
    pub(crate) entropy_base: u16,
    /// How many ports the range has; a power of two.
    pub(crate) entropy_ports: u16,
}

/// What the path to an end point demands of inner frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathLimit {
    /// The longest that goes in one piece, in bytes from its Ethernet header on.
    pub max_frame_len: usize,
    /// The MSS of connections is to be lowered to that.
    pub clamp_mss: bool,
}

/// Why an end point cannot be added.
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
    #[error("the end point is there already, as number {0}")]
    Taken(EndpointId),
    /// The number is beyond [`EndpointTable::MAX`].
    #[error("{0} is beyond the highest number of an end point")]
    Number(EndpointId),
}

impl EndpointTable {
    /// The highest number of an end point.
    pub const MAX: EndpointId = EndpointId(0xff_ffff);

    /// An empty table whose outer source ports are `entropy_base` up to `entropy_base + entropy_ports - 1`;
    /// `entropy_ports` is rounded up to a power of two. Which of them a flow gets is random.
    pub fn new(entropy_base: u16, entropy_ports: u16) -> Self {
        Self::with_seed(entropy_base, entropy_ports, EntropySeed::random())
    }

    /// The same, but which of them a flow gets is said by `seed`.
    pub fn with_seed(entropy_base: u16, entropy_ports: u16, seed: EntropySeed) -> Self {
        Self {
            classes: Vec::new(),
            endpoints: Vec::new(),
            by_remote: HashMap::default(),
            seed,
            // Not the same after every start: receivers keep the pieces of incomplete frames for half a minute.
            next_packet_id: ahash::RandomState::new().hash_one(0) as u32,
            entropy_base,
            entropy_ports: entropy_ports.max(1).next_power_of_two(),
        }
    }

    /// Adds the end point from `local` to `remote` under the lowest number that is free; the same one again returns the same
    /// number.
    ///
    /// # Errors
    /// [`EndpointError`] when the addresses or the type cannot be.
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
        // Free are those behind the last, unless some were removed.
        let free = if self.len() < self.endpoints.len() {
            self.endpoints.iter().position(Option::is_none)
        } else {
            None
        };
        let id = EndpointId(free.unwrap_or(self.endpoints.len()) as u32);
        self.insert(id, spec, local, remote)?;
        Ok(id)
    }

    /// Adds the end point from `local` to `remote` under a number, in the place of what had that number.
    ///
    /// # Errors
    /// [`EndpointError`] when the addresses or the type cannot be, or it has another number already.
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
            path_mtu_bytes: 0,
            next_sequence: 0,
            tx: Traffic::default(),
            rx: Traffic::default(),
        });
        self.by_remote.insert((class, remote), id);
        Ok(())
    }

    /// Removes an end point: nothing is sent to it or taken from it any more.
    pub fn remove(&mut self, id: EndpointId) {
        if let Some(endpoint) = self.endpoints.get_mut(id.0 as usize).and_then(Option::take) {
            self.by_remote.remove(&(endpoint.class, endpoint.remote()));
        }
    }

    /// The class of an end point, made if there is none.
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
                let layout = Layout::new(spec, local.is_ipv4());
                self.classes.push(Class { spec: *spec, local, layout });
                self.classes.len() - 1
            }
        };
        u16::try_from(class).map_err(|_| EndpointError::TooManyClasses)
    }

    /// Frees what growing has left over.
    pub fn shrink_to_fit(&mut self) {
        self.endpoints.shrink_to_fit();
        self.by_remote.shrink_to_fit();
    }

    /// Sets the Ethernet addresses toward an end point, or makes them unknown.
    pub fn resolve(&mut self, id: EndpointId, next_hop: Option<NextHop>) {
        let Some(endpoint) = self.get_mut(id) else { return };
        endpoint.resolved = next_hop.is_some();
        if let Some(next_hop) = next_hop {
            let header = endpoint.template.as_bytes_mut();
            header[0..6].copy_from_slice(&next_hop.destination.0);
            header[6..12].copy_from_slice(&next_hop.source.0);
        }
    }

    /// Sets what the path to an end point was found to carry in one piece, in bytes of outer packet; `None` when nothing says
    /// other than the specification does. More than that has no effect, and less than 576 bytes none either: no path of today
    /// is so narrow, and whoever claims it could make every packet a hundred.
    pub fn set_path_mtu(&mut self, id: EndpointId, bytes: Option<u16>) {
        if let Some(endpoint) = self.get_mut(id) {
            endpoint.path_mtu_bytes = bytes.filter(|&bytes| bytes >= MIN_PATH_MTU).unwrap_or(0);
        }
    }

    /// The longest outer packet that reaches an end point in one piece, in bytes.
    pub fn path_mtu(&self, id: EndpointId) -> Option<u16> {
        let endpoint = self.get(id)?;
        Some(endpoint.path_mtu_bytes(self.class(endpoint).0))
    }

    /// What the path to an end point demands of inner frames. `None` for STT, which cuts frames itself and carries all.
    ///
    /// # Errors
    /// [`DropReason::UnknownEndpoint`].
    #[inline]
    pub(crate) fn path_limit(
        &self,
        id: EndpointId,
        key: &TunnelKey,
    ) -> Result<Option<PathLimit>, DropReason> {
        let endpoint = self.get(id).ok_or(DropReason::UnknownEndpoint)?;
        let Class { spec, layout, .. } = &self.classes[usize::from(endpoint.class)];
        if layout.carrier == Carrier::TcpShaped {
            return Ok(None);
        }
        let overhead = layout.outer_len(key) - L3;
        let max_frame_len = usize::from(endpoint.path_mtu_bytes(spec)).saturating_sub(overhead);
        Ok(Some(PathLimit { max_frame_len, clamp_mss: spec.clamp_mss }))
    }

    /// The end point from which a packet of type `tunnel` came, to `local`.
    ///
    /// # Errors
    /// [`DropReason::UnknownEndpoint`]: whoever is not configured is not listened to.
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
            .ok_or(DropReason::UnknownEndpoint)
    }

    /// An end point by its number.
    pub fn get(&self, id: EndpointId) -> Option<&Endpoint> {
        self.endpoints.get(id.0 as usize)?.as_ref()
    }

    /// An end point by its number.
    pub fn get_mut(&mut self, id: EndpointId) -> Option<&mut Endpoint> {
        self.endpoints.get_mut(id.0 as usize)?.as_mut()
    }

    /// Specification and local address of an end point.
    pub fn class(&self, endpoint: &Endpoint) -> (&TunnelSpec, IpAddr) {
        let class = &self.classes[usize::from(endpoint.class)];
        (&class.spec, class.local)
    }

    /// All end points: number, remote address, end point. In no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (EndpointId, IpAddr, &Endpoint)> {
        let rows = self.by_remote.iter();
        rows.filter_map(|(&(_, remote), &id)| Some((id, remote, self.get(id)?)))
    }

    /// How many end points there are.
    pub fn len(&self) -> usize {
        self.by_remote.len()
    }

    /// True when there is no end point.
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
        // Another end point in its place takes over the number, and nothing else of it.
        table.insert(EndpointId(1), &spec, host(1), host(4)).unwrap();
        assert!(table.find(TunnelType::Vxlan, host(1), host(3)).is_err());
        assert_eq!(table.get(EndpointId(1)).unwrap().remote(), host(4));
        let beyond = EndpointId(EndpointTable::MAX.0 + 1);
        let error = table.insert(beyond, &spec, host(1), host(5));
        assert_eq!(error, Err(EndpointError::Number(beyond)));
    }
}
