//! Tunnels of every type over both address families, and their end points.

use super::reference::reference;
use super::switch::Switch;
use flow::{
    Action, Carrier, DatapathKey, Dscp, EndpointId, EndpointTable, FlowKey, LogicalPorts,
    LogicalPortsField, NetworkId, NextHop, OptionKind, OuterIp, PortKey, Ttl, TunnelInfo,
    TunnelKey, TunnelSpec, TunnelType, tun_flags,
};
use packet::PacketBuf;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use testkit::random::Random;
use wire::{MacAddr, Protocol};

pub const PATH_MTU: u16 = 3000;

/// A tunnel of this host.
#[derive(Clone, Copy, Debug)]
pub struct Tunnel {
    pub spec: TunnelSpec,
    pub id: EndpointId,
    pub local: IpAddr,
    pub remote: IpAddr,
}

/// Options of a tunnel type: a fixed TTL, and DSCP inherited from the inner packet.
pub fn spec(tunnel: TunnelType) -> TunnelSpec {
    TunnelSpec {
        tunnel,
        port: if tunnel == TunnelType::Geneve { 6081 } else { 4789 },
        checksum: false,
        ttl: Ttl::Fixed(64),
        dscp: Dscp::Inherit,
        key: true,
        sequence: false,
        path_mtu_bytes: PATH_MTU,
        clamp_mss: false,
    }
}

fn address(v6: bool, host: u8) -> IpAddr {
    if v6 {
        IpAddr::V6(Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0xff00, host.into()))
    } else {
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, host))
    }
}

/// Adds tunnels of each type and family, with different options.
pub fn add_all(switch: &mut Switch) -> Vec<Tunnel> {
    let gre_without_key = TunnelSpec { key: false, ..spec(TunnelType::Gre) };
    let changed = |tunnel| TunnelSpec { ttl: Ttl::Inherit, dscp: Dscp::Fixed(10), ..spec(tunnel) };
    let specs = [
        spec(TunnelType::Vxlan),
        spec(TunnelType::Geneve),
        spec(TunnelType::Gre),
        gre_without_key,
        spec(TunnelType::Nvgre),
        changed(TunnelType::Geneve),
    ];
    let mut tunnels = Vec::new();
    for (number, spec) in specs.into_iter().enumerate() {
        for v6 in [false, true] {
            let at = tunnels.len() as u16;
            // Two tunnels of one type need different local addresses.
            let (local, remote) = (address(v6, number as u8 + 1), address(v6, 100 + at as u8));
            tunnels.push(add(switch, &spec, at, local, remote));
        }
    }
    tunnels
}

/// Adds tunnels with outer checksums, of each type that can have them and each family, with classes
/// from `class` on.
pub fn add_checked(switch: &mut Switch, class: u16) -> Vec<Tunnel> {
    let mut tunnels = Vec::new();
    for kind in [TunnelType::Vxlan, TunnelType::Geneve] {
        for (local, remote) in [("192.0.2.30", "192.0.2.200"), ("fd01::30", "fd01::200")] {
            let [local, remote] = [local, remote].map(|text| text.parse().expect("an address"));
            let spec = TunnelSpec { checksum: true, ..spec(kind) };
            tunnels.push(add(switch, &spec, class + tunnels.len() as u16, local, remote));
        }
    }
    tunnels
}

/// [`add_all`] and [`add_checked`].
pub fn add_every(switch: &mut Switch) -> Vec<Tunnel> {
    let mut tunnels = add_all(switch);
    tunnels.extend(add_checked(switch, tunnels.len() as u16));
    tunnels
}

/// Adds a tunnel with class number `class`.
pub fn add(
    switch: &mut Switch,
    spec: &TunnelSpec,
    class: u16,
    local: IpAddr,
    remote: IpAddr,
) -> Tunnel {
    let id = switch.endpoints.add(spec, local, remote).expect("the addresses are of one family");
    switch.endpoints.resolve(id, Some(next_hop()));
    switch.put_endpoint(id, class, spec, local);
    Tunnel { spec: *spec, id, local, remote }
}

pub fn next_hop() -> NextHop {
    NextHop { source: MacAddr([2, 0, 0, 0, 1, 1]), destination: MacAddr([2, 0, 0, 0, 1, 2]) }
}

impl Tunnel {
    /// A random key that the tunnel's header can carry.
    pub fn key(&self, random: &mut Random) -> TunnelKey {
        let descriptor = self.spec.tunnel.descriptor();
        let is_keyed = self.spec.key || !self.spec.tunnel.has_option(OptionKind::Key);
        let datapath = match descriptor.network_id {
            NetworkId::Vni { max, .. } if is_keyed => random.word() as u32 % max,
            _ => 0,
        };
        let has_ports = descriptor.logical_ports != LogicalPortsField::Absent;
        let ports = (has_ports && random.once_in(2)).then(|| LogicalPorts {
            ingress: PortKey::new(random.word() as u16 & 0x7fff),
            egress: PortKey::new(random.word() as u16 | 1).expect("not 0"),
        });
        TunnelKey { datapath: DatapathKey(datapath), ports }
    }

    /// The other end's end point table.
    pub fn sender(&self) -> (EndpointTable, EndpointId) {
        let mut table = EndpointTable::new(Switch::ENTROPY_BASE, Switch::ENTROPY_PORTS);
        let id = table.add(&self.spec, self.remote, self.local).expect("of one family");
        table.resolve(id, Some(next_hop()));
        (table, id)
    }
}

/// A frame as the other end of a tunnel sends it.
pub fn outer(tunnel: &Tunnel, inner: &[u8], key: &TunnelKey) -> Vec<u8> {
    let (mut table, id) = tunnel.sender();
    let encap = Action::Encap { endpoint: id, key: *key };
    let leaves = reference(&[encap], &PacketBuf::from_bytes(inner), &mut table);
    leaves.frames.first().expect("it leaves").1.to_vec()
}

/// The tunnel part of the key of a packet that [`outer`] returned. A UDP socket reports neither TTL
/// nor "don't fragment".
pub fn info(tunnel: &Tunnel, outer: &[u8], key: &TunnelKey) -> TunnelInfo {
    let is_v4 = outer[14] >> 4 == 4;
    let (tos, ttl) =
        if is_v4 { (outer[15], outer[22]) } else { (outer[14] << 4 | outer[15] >> 4, outer[21]) };
    let is_gre = tunnel.spec.tunnel.carrier() == Carrier::Gre;
    let ip = OuterIp {
        source: tunnel.remote,
        destination: tunnel.local,
        protocol: Protocol::UDP,
        traffic_class: tos,
        ttl: if is_gre { ttl } else { 0 },
        dont_fragment: is_gre && is_v4,
    };
    let mut info = TunnelInfo::new(tunnel.spec.tunnel, &ip, key);
    if tunnel.spec.tunnel.has_option(OptionKind::Key) && !tunnel.spec.key {
        info.flags &= !tun_flags::KEY;
    }
    info
}

/// A frame as the other end of a tunnel sends it, and its key on arrival at this host.
pub fn arrival(tunnel: &Tunnel, inner: &[u8], key: &TunnelKey) -> (Vec<u8>, FlowKey) {
    let outer = outer(tunnel, inner, key);
    let info = info(tunnel, &outer, key);
    let key = flow::extract(&PacketBuf::from_bytes(inner), Switch::TUNNEL, Some(&info));
    (outer, key.expect("it is whole"))
}
