//! A host with a logical switch for each tunnel type. It forwards frames between tunnels and
//! guests.
//!
//! The program of the host is compiled from a network file with a router and an access control
//! list. Each frame is translated separately.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use flow::{
    ActionOutput, DatapathKey, DropReason, Dscp, Encapsulated, EndpointId, EndpointTable,
    NetworkId, NextHop, PortNo, ShowActions, TagLink, TagLinks, Ttl, TunnelInfo, TunnelSpec,
    TunnelType, execute, extract,
};
use network::{Network, Placement, load_program, logical_flows};
use packet::PacketBuf;
use pipeline::{LearnedTables, Program, translate};
use wire::{EthernetPacket, MacAddr};

use crate::offload;

/// The tunnel key of every logical switch.
pub const KEY: DatapathKey = DatapathKey(5001);
/// The port of frames with VLAN tags.
const UPLINK: PortNo = Placement::UPLINK;
/// The ports of the guests on this host: two on the shared logical switch, one behind the router.
const LOCAL_PORTS: [PortNo; 3] = [PortNo(1), PortNo(2), PortNo(3)];
/// The MAC addresses that this host may use as a source: those of its guests (for ARP replies) and
/// of its router.
const OURS: [MacAddr; 5] = [mac(2), mac(3), mac(4), mac(0x11), mac(0x12)];

/// The result for a frame: the number of copies and replies that were sent, or the drop reason.
pub type Outcome = Result<usize, DropReason>;

/// The programs and the known VLAN tags of each tunnel type, in the order of [`TunnelType::ALL`].
static PROGRAMS: LazyLock<Vec<(Program, TagLinks)>> = LazyLock::new(|| {
    TunnelType::ALL
        .into_iter()
        .map(|tunnel| program(tunnel).expect("the network is valid"))
        .collect()
});

/// The program of a host with this tunnel type.
pub fn program_of(tunnel: TunnelType) -> &'static Program {
    let mut all = TunnelType::ALL.into_iter().zip(&*PROGRAMS);
    let found = all.find(|(other, _)| *other == tunnel);
    &found.expect("a program for every type").1.0
}

/// The program of a host, and its end points.
pub struct Switch {
    tunnel: TunnelType,
    program: &'static Program,
    links: &'static TagLinks,
    pub endpoints: EndpointTable,
}

/// The specification of a tunnel with all options enabled.
pub fn spec(tunnel: TunnelType) -> TunnelSpec {
    TunnelSpec {
        checksum: true,
        ttl: Ttl::Inherit,
        dscp: Dscp::Inherit,
        ..TunnelSpec::new(tunnel, &tunnel.descriptor().default_settings())
    }
}

impl Switch {
    /// A host that uses `tunnel`.
    pub fn new(tunnel: TunnelType) -> Self {
        let mut endpoints = EndpointTable::new(49_152, 16_384);
        let v4 = |host| IpAddr::V4(Ipv4Addr::new(192, 0, 2, host));
        if tunnel.has_endpoints() {
            let remote = endpoints.add(&spec(tunnel), v4(1), v4(2)).expect("one family");
            endpoints.resolve(remote, Some(next_hop()));
        }
        let program =
            TunnelType::ALL.into_iter().zip(&*PROGRAMS).find(|(other, _)| *other == tunnel);
        let (program, links) = program.expect("a program for every type").1;
        Self { tunnel, program, links, endpoints }
    }

    /// Adds an IPv6 end point.
    pub fn add_v6(&mut self, tunnel: TunnelType) -> EndpointId {
        let v6 = |host| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host));
        let remote = self.endpoints.add(&spec(tunnel), v6(1), v6(2)).expect("one family");
        self.endpoints.resolve(remote, Some(next_hop()));
        remote
    }

    /// Translates and executes a decapsulated frame. The frame must be delivered, or dropped with a
    /// reason.
    pub fn forward(&mut self, tunnel: &TunnelInfo, packet: &mut PacketBuf) -> Outcome {
        self.enter(Placement::tunnel_port(self.tunnel), Some(tunnel), packet)
    }

    /// Translates and executes a tagged frame of the underlay.
    pub fn forward_tagged(&mut self, packet: &mut PacketBuf) -> Outcome {
        let (link, port) = self.links.decap(packet)?;
        self.enter(port, Some(&TunnelInfo::of_link(link)), packet)
    }

    /// Translates and executes a frame as sent by each local guest.
    pub fn send(&mut self, packet: &PacketBuf) -> [Outcome; LOCAL_PORTS.len()] {
        LOCAL_PORTS.map(|port| self.enter(port, None, &mut packet.clone()))
    }

    fn enter(
        &mut self,
        port: PortNo,
        tunnel: Option<&TunnelInfo>,
        packet: &mut PacketBuf,
    ) -> Outcome {
        let key = extract(packet, port, tunnel).map_err(DropReason::of_invalid_frame)?;
        let translation = translate(self.program, &key, &LearnedTables::default(), &mut ());
        let from_underlay = !LOCAL_PORTS.contains(&port);
        let mut sink = Sink { from_underlay, ..Sink::default() };
        execute(&translation.actions, packet, &mut self.endpoints, &mut sink);
        match (sink.delivered, sink.dropped) {
            (0, None) => {
                panic!("a frame is lost without a reason: {}", ShowActions(&translation.actions))
            }
            (0, Some(reason)) => Err(reason),
            (delivered, _) => Ok(delivered),
        }
    }
}

const fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

fn next_hop() -> NextHop {
    NextHop { source: mac(1), destination: mac(2) }
}

/// The program of this host, which is called `here`.
fn program(tunnel: TunnelType) -> Option<(Program, TagLinks)> {
    let network = Network::parse(&text(tunnel), "network.toml").ok()?;
    let here = network.host("here")?.index;
    let mut ports = LOCAL_PORTS.into_iter();
    let placement = Placement::of_host(
        &network,
        here,
        |_, _| ports.next().expect("as many ports as guests"),
        |_, _| Some(EndpointId(0)),
    );
    let link = |&link: &TagLink| (link, Placement::tunnel_port(link.tunnel()));
    let links = placement.links.iter().map(link).collect();
    let loader = load_program(&logical_flows(&network), &placement, "network.toml").ok()?;
    Some((loader.program(), links))
}

fn text(tunnel: TunnelType) -> String {
    let segment = |number: u16| match tunnel.descriptor().network_id {
        NetworkId::Vlan => format!("vlan = {number}"),
        NetworkId::VlanPair => format!("vlan = {{ outer = {number}, inner = 20 }}"),
        NetworkId::Vni { .. } => format!("vni = {}", 4901 + number),
    };
    let port = |name: &str, host: &str, net: u8, number: u8| {
        format!(
            "[[logical_switch.port]]\nname = \"{name}\"\nhost = \"{host}\"\n\
             mac = \"02:00:00:00:00:{number:02x}\"\ndevice = {{ tap = \"{name}\" }}\n\
             addresses = [\"10.0.{net}.{number}/24\", \"fd00:{net}::{number:x}/64\"]\n"
        )
    };
    let router_port = |switch: &str, net: u8| {
        format!(
            "[[logical_router.port]]\nname = \"to-{switch}\"\nswitch = \"{switch}\"\n\
             mac = \"02:00:00:00:00:{:02x}\"\n\
             addresses = [\"10.0.{net}.254/24\", \"fd00:{net}::fe/64\"]\n",
            0x11 + net
        )
    };
    let host = |name: &str, number: u8| {
        format!(
            "[[host]]\nname = \"{name}\"\nuplink = \"eth0\"\nunderlay = [\"192.0.2.{number}\"]\n"
        )
    };
    let acl = "[[acl]]\nswitch = \"shared\"\ndirection = \"to-port\"\npriority = 1000\n\
               match = 'tcp.dst == 22'\naction = \"reject\"\n";
    let switch = |name: &str, number| {
        format!("[[logical_switch]]\nname = \"{name}\"\n{}\n", segment(number))
    };
    [
        format!("tunnel = \"{tunnel}\"\n"),
        host("here", 1),
        host("there", 2),
        switch("shared", 100),
        port("away1", "there", 0, 5),
        port("away2", "there", 0, 6),
        port("away", "there", 0, 1),
        port("guest1", "here", 0, 2),
        port("guest2", "here", 0, 3),
        switch("own", 101),
        port("guest3", "here", 1, 4),
        "[[logical_router]]\nname = \"router\"\n".to_owned(),
        router_port("shared", 0),
        router_port("own", 1),
        acl.to_owned(),
    ]
    .concat()
}

#[derive(Default)]
struct Sink {
    from_underlay: bool,
    delivered: usize,
    dropped: Option<DropReason>,
}

impl Sink {
    /// Frames from the underlay must not be sent back to it, except replies and routed packets.
    fn toward_underlay(&mut self, frame: &[u8]) {
        let ethernet = EthernetPacket::new_checked(frame).expect("a whole frame");
        assert!(
            !self.from_underlay || OURS.contains(&ethernet.src()),
            "a frame from the underlay must not return to it: {frame:02x?}"
        );
        self.delivered += 1;
    }
}

impl ActionOutput for Sink {
    fn port(&mut self, port: PortNo, packet: &mut PacketBuf) -> Result<(), DropReason> {
        if port == UPLINK {
            self.toward_underlay(packet.head());
            return Ok(());
        }
        assert!(LOCAL_PORTS.contains(&port), "there is no port {port}");
        assert!(packet.len() >= wire::ethernet::HEADER_LEN);
        if packet.offload.gso.is_some() {
            packet.linearize();
            offload::cut(packet).ok_or(DropReason::Segmentation)?;
        }
        self.delivered += 1;
        Ok(())
    }

    fn underlay(&mut self, outer: &Encapsulated, packet: &mut PacketBuf) -> Result<(), DropReason> {
        self.toward_underlay(packet.head().get(outer.outer_len..).unwrap_or_default());
        Ok(())
    }

    fn dropped(&mut self, reason: DropReason, _: &PacketBuf) {
        self.dropped.get_or_insert(reason);
    }
}
