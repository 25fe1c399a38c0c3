//! Map entries of end points, their classes, and logical links.

use crate::abi::{self, weft_class, weft_endpoint, weft_local, weft_tag_link, weft_tag_link_key};
use crate::struct_bytes::struct_bytes;
use datapath::config::EndpointConfig;
use flow::{
    Carrier, Dscp, EndpointId, EndpointTable, Field, NextHop, OptionKind, PortNo, TagLink, Ttl,
    TunnelSpec, TunnelType, tun_flags,
};
use std::mem::offset_of;
use std::net::IpAddr;
use wire::checksum::Sum;
use wire::ethernet::HEADER_LEN as ETHERNET_LEN;

const HEADER_MAX: usize = abi::WEFT_HEADER_MAX as usize;

/// The properties that end points of one class share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ClassKey {
    pub(crate) spec: TunnelSpec,
    pub(crate) local: IpAddr,
    pub(crate) port: PortNo,
}

/// An end point in the programs' map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndpointEntry {
    pub(crate) config: EndpointConfig,
    pub(crate) class: u16,
    pub(crate) hop: Option<NextHop>,
    pub(crate) path_mtu: Option<u16>,
    /// Programs find it by its addresses, so that they accept its packets.
    pub(crate) is_source: bool,
}

/// The carrier in `struct weft_class`; see `carrier()` in `bpf/endpoint_lookup.h`.
pub(crate) fn carrier(spec: &TunnelSpec, is_ip6: bool) -> u32 {
    let protocol = spec.tunnel.carrier().protocol().map_or(0, |protocol| protocol.0);
    let port = if spec.tunnel.descriptor().default_port == 0 { 0 } else { spec.port.to_be() };
    u32::from(is_ip6) << abi::WEFT_CARRIER_IP6_SHIFT
        | u32::from(protocol) << abi::WEFT_CARRIER_PROTO_SHIFT
        | u32::from(port)
}

/// The key in `weft_locals` of a local address and carrier.
pub(crate) fn local_key(local: IpAddr, carrier: u32) -> Vec<u8> {
    struct_bytes!(weft_local { local: words(local), carrier: carrier })
}

/// An address in network order; IPv4 is the first word.
pub(crate) fn words(ip: IpAddr) -> [u32; 4] {
    match ip {
        IpAddr::V4(ip) => [ip.to_bits().to_be(), 0, 0, 0],
        IpAddr::V6(ip) => {
            let bits = ip.to_bits();
            [96, 64, 32, 0].map(|shift| ((bits >> shift) as u32).to_be())
        }
    }
}

/// The value in `weft_endpoints` of an end point.
pub(crate) fn endpoint_value(entry: &EndpointEntry, overhead: usize) -> Vec<u8> {
    let EndpointEntry { config, class, hop, path_mtu, is_source: _ } = entry;
    let EndpointConfig { spec, local, remote, .. } = config;
    let mtu = path_mtu.map_or(spec.path_mtu_bytes, |mtu| mtu.min(spec.path_mtu_bytes));
    let max_len = usize::from(mtu).saturating_sub(overhead) as u16;
    let [destination, source] = hop.map_or([[0; 6]; 2], |hop| [hop.destination.0, hop.source.0]);
    let state = if hop.is_some() {
        abi::WEFT_ENDPOINT_PRESENT | abi::WEFT_ENDPOINT_RESOLVED
    } else {
        abi::WEFT_ENDPOINT_PRESENT
    };
    let has_option = spec.tunnel.descriptor().header.logical_ports != 0;
    let option = if has_option { abi::WEFT_ENDPOINT_OPTION } else { 0 };
    let from_class = u32::from(class_flags(spec, local.is_ipv6()))
        << abi::WEFT_ENDPOINT_CLASS_SHIFT
        | ((overhead + ETHERNET_LEN) as u32) << abi::WEFT_ENDPOINT_LEN_SHIFT;
    let flags = state | option | from_class;
    struct_bytes!(weft_endpoint {
        remote: words(*remote),
        eth_dst: destination,
        eth_src: source,
        class: *class,
        max_len: max_len,
        flags: flags,
    })
}

/// Outer headers in bytes, without the outer Ethernet header.
pub(crate) fn overhead(class: &ClassKey) -> usize {
    template(class).len().saturating_sub(ETHERNET_LEN)
}

/// The outer header of a class. Its remote address does not matter.
fn template(class: &ClassKey) -> Vec<u8> {
    let mut table = EndpointTable::new(0, 1);
    let remote = class.local;
    let added = table.insert(EndpointId(0), &class.spec, class.local, remote);
    let endpoint = added.ok().and_then(|()| table.get(EndpointId(0)));
    endpoint.map_or_else(Vec::new, |endpoint| endpoint.template().as_bytes().to_vec())
}

fn class_flags(spec: &TunnelSpec, is_ip6: bool) -> u8 {
    let flag = |is_set: bool, bit: u32| if is_set { bit as u8 } else { 0 };
    flag(is_ip6, abi::WEFT_CLASS_IP6)
        | flag(spec.checksum, abi::WEFT_CLASS_CHECKSUM)
        | flag(spec.ttl == Ttl::Inherit, abi::WEFT_CLASS_TTL_INHERIT)
        | flag(spec.dscp == Dscp::Inherit, abi::WEFT_CLASS_DSCP_INHERIT)
        | flag(spec.key && spec.tunnel.has_option(OptionKind::Key), abi::WEFT_CLASS_KEY)
        | flag(spec.clamp_mss, abi::WEFT_CLASS_CLAMP_MSS)
}

/// The `tunnel` of a `struct weft_class`: the number of the type, and what carries it.
fn class_tunnel(tunnel: TunnelType) -> u8 {
    let carrier = if tunnel.carrier() == Carrier::Gre { abi::WEFT_OVER_GRE } else { 0 };
    tunnel as u8 | carrier as u8
}

/// The value in `weft_classes` of a class.
pub(crate) fn class_value(class: &ClassKey) -> Vec<u8> {
    let ClassKey { spec, local, port } = class;
    let mut header = template(class);
    let len = header.len();
    let mut ip_sum = 0;
    if local.is_ipv4() {
        // Checksum and destination address, which differ per end point.
        header[ETHERNET_LEN + 10..ETHERNET_LEN + 12].fill(0);
        header[ETHERNET_LEN + 16..ETHERNET_LEN + 20].fill(0);
        // TOS, length and TTL are 0 in the template.
        ip_sum = Sum::of(&header[ETHERNET_LEN..ETHERNET_LEN + 20]).fold().to_be();
    } else {
        header[ETHERNET_LEN + 24..ETHERNET_LEN + 40].fill(0);
    }
    header.resize(HEADER_MAX, 0);
    let ttl = match spec.ttl {
        Ttl::Fixed(ttl) => ttl,
        Ttl::Inherit => 0,
    };
    let dscp = match spec.dscp {
        Dscp::Fixed(dscp) => dscp << 2,
        Dscp::Inherit => 0,
    };
    let flags = class_flags(spec, local.is_ipv6());
    let mut bytes = struct_bytes!(weft_class {
        len: len as u8,
        tunnel: class_tunnel(spec.tunnel),
        flags: flags,
        ttl: ttl,
        dscp: dscp,
        ip_sum: ip_sum,
        in_port: port.0,
        carrier: carrier(spec, local.is_ipv6()),
        local: words(*local),
    });
    let at = offset_of!(weft_class, header);
    bytes[at..at + HEADER_MAX].copy_from_slice(&header[..HEADER_MAX]);
    bytes
}

/// The value in `weft_tag_links` of a logical link.
pub(crate) fn tag_link_value(port: PortNo, link: TagLink) -> Vec<u8> {
    struct_bytes!(weft_tag_link {
        in_port: port.0,
        tun_id: u64::from(link.key().0),
        tun_flags: u64::from(tun_flags::KEY) << Field::TunFlags.shift(),
    })
}

/// The key in `weft_tag_links` of a logical link: its VLAN tags.
pub(crate) fn tag_link_key(link: TagLink) -> Vec<u8> {
    let (outer, inner) = link.tags();
    let vlan = |tag: wire::vlan::Tag| tag.tci() & 0xfff;
    struct_bytes!(weft_tag_link_key {
        tpid: outer.tpid.0,
        vlan: vlan(outer),
        inner_tpid: inner.map_or(0, |tag| tag.tpid.0),
        inner_vlan: inner.map_or(0, vlan),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::{WEFT_ENDPOINT_PRESENT as PRESENT, WEFT_ENDPOINT_RESOLVED as RESOLVED};
    use flow::KernelDatapath;

    /// The programs take a type that is not VXLAN for Geneve, or one that is not NVGRE for GRE. So
    /// a further type needs code in `read_over_udp()` or `read_gre()`, and in `fill_tunnel()`.
    #[test]
    fn programs_have_code_for_each_type_when_its_class_tells_the_carrier() {
        let mut over = [Vec::new(), Vec::new()];
        for tunnel in TunnelType::ALL {
            let descriptor = tunnel.descriptor();
            if descriptor.kernel_datapath == KernelDatapath::EndPoints {
                let class = u32::from(class_tunnel(tunnel));
                let is_over_gre = class >= abi::WEFT_OVER_GRE;
                let carrier = if is_over_gre { Carrier::Gre } else { Carrier::Udp };
                assert_eq!(carrier, descriptor.carrier, "{tunnel}");
                assert_eq!(class & !abi::WEFT_OVER_GRE, tunnel as u32, "{tunnel}");
                over[usize::from(is_over_gre)].push(tunnel);
            }
        }
        assert_eq!(over[0], [TunnelType::Vxlan, TunnelType::Geneve]);
        assert_eq!(over[1], [TunnelType::Gre, TunnelType::Nvgre]);
    }

    #[test]
    fn end_point_flags_contain_those_of_the_class() {
        let addresses = [("192.0.2.1", "192.0.2.2"), ("fd01::1", "fd01::2")];
        let hop = NextHop { source: wire::MacAddr([2; 6]), destination: wire::MacAddr([4; 6]) };
        for tunnel in [TunnelType::Vxlan, TunnelType::Geneve, TunnelType::Gre] {
            for (local, remote) in addresses {
                for bits in 0..32 {
                    let is = |bit: u32| bits & 1 << bit != 0;
                    let spec = TunnelSpec {
                        tunnel,
                        port: 4789,
                        checksum: is(0),
                        ttl: if is(1) { Ttl::Inherit } else { Ttl::Fixed(64) },
                        dscp: if is(2) { Dscp::Inherit } else { Dscp::Fixed(1) },
                        key: is(3),
                        sequence: false,
                        path_mtu_bytes: 1500,
                        clamp_mss: is(4),
                    };
                    let [local, remote] = [local, remote].map(|text| text.parse().unwrap());
                    let class = ClassKey { spec, local, port: PortNo(1) };
                    let config = EndpointConfig { id: EndpointId(0), spec, local, remote };
                    let hop = is(0).then_some(hop);
                    let endpoint =
                        EndpointEntry { config, class: 3, hop, path_mtu: None, is_source: true };
                    let (class_entry, entry) =
                        (class_value(&class), endpoint_value(&endpoint, overhead(&class)));
                    let at = offset_of!(weft_endpoint, flags);
                    let flags = u32::from_ne_bytes(entry[at..at + 4].try_into().unwrap());
                    let [state, class_flags, len, rest] = flags.to_le_bytes();
                    assert_eq!(class_flags, class_entry[offset_of!(weft_class, flags)], "{spec:?}");
                    assert_eq!(len, class_entry[offset_of!(weft_class, len)], "{spec:?}");
                    let option =
                        if tunnel == TunnelType::Geneve { abi::WEFT_ENDPOINT_OPTION } else { 0 };
                    assert_eq!(
                        (state, rest),
                        ((option | if is(0) { PRESENT | RESOLVED } else { PRESENT }) as u8, 0),
                        "{spec:?}"
                    );
                }
            }
        }
    }
}
