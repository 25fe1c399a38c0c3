//! A host with a logical switch of every tunnel type: the way of a frame between a tunnel header and a guest.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use flow::{
    Action, DatapathKey, DropReason, Dscp, Encapsulated, EndpointId, EndpointTable, Ingress,
    MacTable, NextHop, Output, PortKey, PortNo, PortPlace, SwitchLink, TunnelSpec, TunnelType,
    execute,
};
use packet::PacketBuf;
use wire::vlan::Tag;
use wire::{EtherType, EthernetPacket, MacAddr, VlanId};

use crate::offload;

/// The key of every tunnelled switch.
pub const KEY: DatapathKey = DatapathKey(5001);
/// The ports that belong to guests of this host.
const LOCAL_PORTS: [PortNo; 2] = [PortNo(1), PortNo(2)];
const UPLINK: PortNo = PortNo(0);

/// What became of a frame: how many guests got it, or why none did.
pub type Outcome = Result<usize, DropReason>;

/// The tables of the host.
pub struct Switch {
    table: MacTable,
    pub endpoints: EndpointTable,
}

/// The specification of a tunnel with everything on.
pub fn spec(tunnel: TunnelType) -> TunnelSpec {
    TunnelSpec {
        tunnel,
        port: match tunnel {
            TunnelType::Vxlan => 4789,
            TunnelType::Geneve => 6081,
            _ => 7471,
        },
        checksum: true,
        ttl: 64,
        dscp: Dscp::Inherit,
        key: true,
        sequence: false,
        path_mtu_bytes: 1500,
        clamp_mss: false,
    }
}

impl Switch {
    /// A host that runs `tunnel`.
    pub fn new(tunnel: TunnelType) -> Self {
        let mut endpoints = EndpointTable::new(49_152, 16_384);
        let v4 = |host| IpAddr::V4(Ipv4Addr::new(192, 0, 2, host));
        let mut remote = EndpointId(0);
        if tunnel.has_endpoints() {
            remote = endpoints.add(&spec(tunnel), v4(1), v4(2)).expect("one family");
            endpoints.resolve(remote, Some(next_hop()));
        }
        Self { table: table(tunnel, remote), endpoints }
    }

    /// Adds an IPv6 end point.
    pub fn add_v6(&mut self, tunnel: TunnelType) -> EndpointId {
        let v6 = |host| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host));
        let remote = self.endpoints.add(&spec(tunnel), v6(1), v6(2)).expect("one family");
        self.endpoints.resolve(remote, Some(next_hop()));
        remote
    }

    /// Looks a frame up and executes the actions. A frame that is neither delivered nor dropped for a reason is a fault.
    pub fn forward(&mut self, ingress: Ingress, packet: &mut PacketBuf) -> Outcome {
        let ethernet =
            EthernetPacket::new_checked(packet.head()).map_err(|_| DropReason::Malformed)?;
        let (source, destination) = (ethernet.src(), ethernet.dst());
        let mut actions: Vec<Action> = Vec::new();
        self.table.look_up(ingress, source, destination, &mut actions);
        let mut sink = Sink::default();
        execute(&actions, packet, &mut self.endpoints, &mut sink);
        match (sink.delivered, sink.dropped) {
            (0, None) => panic!("a frame is lost without a reason: {actions:?}"),
            (0, Some(reason)) => Err(reason),
            (delivered, _) => Ok(delivered),
        }
    }
}

fn next_hop() -> NextHop {
    let mac = |last| MacAddr([2, 0, 0, 0, 0, last]);
    NextHop { source: mac(1), destination: mac(2) }
}

fn table(tunnel: TunnelType, remote: EndpointId) -> MacTable {
    let tag = |tpid, vid| Tag::new(tpid, VlanId::new(vid).expect("in range"));
    let tags = |outer, inner| SwitchLink::Tags { uplink: UPLINK, outer, inner };
    let link = match tunnel {
        TunnelType::Vlan => tags(tag(EtherType::VLAN, 100), None),
        TunnelType::QinQ => tags(tag(EtherType::QINQ, 100), Some(tag(EtherType::VLAN, 20))),
        _ => SwitchLink::Tunnel { tunnel, logical_ports: tunnel == TunnelType::Geneve },
    };
    let away = if tunnel.has_endpoints() { PortPlace::Remote(remote) } else { PortPlace::Uplink };
    let places = [away, PortPlace::Local(LOCAL_PORTS[0]), PortPlace::Local(LOCAL_PORTS[1])];
    let mut table = MacTable::default();
    let switch = table.add_switch(KEY, link).expect("the first switch");
    for (number, place) in (1..).zip(places) {
        let key = PortKey::new(number + 2).expect("not zero");
        let mac = MacAddr([2, 0, 0, 0, 0, number as u8]);
        table.add_port(switch, key, mac, place).expect("a new port");
    }
    table
}

#[derive(Default)]
struct Sink {
    delivered: usize,
    dropped: Option<DropReason>,
}

impl Output for Sink {
    fn port(&mut self, port: PortNo, packet: &mut PacketBuf) -> Result<(), DropReason> {
        assert!(LOCAL_PORTS.contains(&port), "a frame from the underlay must not return to it");
        assert!(packet.len() >= wire::ethernet::HEADER_LEN);
        if packet.offload.gso.is_some() {
            packet.linearize();
            offload::cut(packet).ok_or(DropReason::Segmentation)?;
        }
        self.delivered += 1;
        Ok(())
    }

    fn underlay(&mut self, _: &Encapsulated, _: &mut PacketBuf) -> Result<(), DropReason> {
        panic!("a frame from the underlay must not return to it");
    }

    fn dropped(&mut self, reason: DropReason, _: &PacketBuf) {
        self.dropped.get_or_insert(reason);
    }
}
