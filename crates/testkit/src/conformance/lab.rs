//! A provider between veth pairs: the suite holds the other ends.

use super::reference::Sighting;
use super::{BASE, PORTS, Start, UPLINK, endpoints, links, tunnel_port};
use crate::host::{TestHost, wait_until};
use datapath::upcall::{Upcall, UpcallLimits};
use datapath::user::Workers;
use datapath::user::{Config, DeviceConfig, EndpointConfig, PortConfig, TunnelConfig, Underlay};
use datapath::{Datapath, stats::PortStats, stats::Snapshot};
use flow::{PortNo, TunnelSpec};
use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::Filter;
use netdev::{Dad, IpPrefix, LinkKind, LinkSpec};
use packet::PacketBuf;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::MacAddr;
use wire::vlan::Tag;

/// How long anything may take on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// The longest MTU of a veth interface: frames are not too long for a port.
const MTU: u32 = 65_535;
/// The address of the uplink, and that of every other host.
pub(super) const UPLINK_MAC: MacAddr = MacAddr([6, 0, 0, 0, 0, 1]);
pub(super) const PEER_MAC: MacAddr = MacAddr([6, 0, 0, 0, 0, 2]);
/// The uplink's address.
pub(super) const LOCAL: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// The provider, and the ends of its wires that are not its own.
pub(super) struct Lab {
    pub datapath: Arc<dyn Datapath>,
    ends: BTreeMap<PortNo, PacketSocket>,
    buffer: PacketBuf,
    /// Removed last.
    _hosts: [TestHost; 2],
}

impl Lab {
    /// Starts a provider with all ports and end points, and no megaflow.
    pub fn new(start: Start<'_>, upcalls: UpcallLimits, megaflows: usize) -> Self {
        let (inside, outside) = (TestHost::new("inside"), TestHost::new("outside"));
        for host in [&inside, &outside] {
            // Nobody but the suite and the provider is to speak.
            host.sysctl("net/ipv6/conf/default/disable_ipv6", "1").expect("a setting");
            // What a test sends at once is not to be lost on its way.
            let _ = host.sysctl("net/core/netdev_max_backlog", "10000");
        }
        let mut ends = BTreeMap::new();
        for port in [UPLINK].into_iter().chain(PORTS) {
            ends.insert(port, wire(&inside, &outside, port));
        }
        underlay(&inside);
        let config = config(upcalls, megaflows);
        let datapath = inside.run(|| start(config));
        let buffer = PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME);
        let lab = Self { datapath, ends, buffer, _hosts: [inside, outside] };
        wait_until(PATIENCE, "all ports are up", || {
            lab.snapshot().ports.iter().all(|port| port.state == "up")
        });
        lab
    }

    /// Sends a frame into a port, or into the uplink.
    pub fn send(&self, port: PortNo, packet: &PacketBuf) {
        let end = self.ends.get(&port).expect("a port with a wire");
        end.send(packet).unwrap_or_else(|error| panic!("port {port}: {error}: {packet:?}"));
    }

    pub fn snapshot(&self) -> Snapshot {
        self.datapath.snapshot().expect("the provider runs")
    }

    /// Waits until the provider has received that many frames by its ports since `before`.
    pub fn wait_received(&self, before: &Snapshot, frames: &BTreeMap<PortNo, u64>) {
        for (&port, &count) in frames {
            let received = |snapshot: &Snapshot| rx(snapshot, port);
            let until = received(before) + count;
            wait_until(PATIENCE, "all frames are received", || received(&self.snapshot()) >= until);
        }
    }

    /// Takes what leaves by each wire: as many frames as said, or those that come until it is clear that there are no more; and
    /// what else is there.
    pub fn collect(
        &mut self,
        expected: &BTreeMap<PortNo, usize>,
    ) -> BTreeMap<PortNo, Vec<Sighting>> {
        self.collect_by(expected, |packet, port| Sighting::of_wire(packet, port == UPLINK))
    }

    /// The same, of frames that are cut before they are compared.
    pub fn collect_cut(
        &mut self,
        expected: &BTreeMap<PortNo, usize>,
    ) -> BTreeMap<PortNo, Vec<Sighting>> {
        self.collect_by(expected, |packet, _| Sighting::cut(packet))
    }

    fn collect_by(
        &mut self,
        expected: &BTreeMap<PortNo, usize>,
        see: impl Fn(&PacketBuf, PortNo) -> Vec<Sighting>,
    ) -> BTreeMap<PortNo, Vec<Sighting>> {
        let mut seen: BTreeMap<PortNo, Vec<Sighting>> = BTreeMap::new();
        let deadline = Instant::now() + Duration::from_secs(2);
        for (&port, end) in &self.ends {
            let list = seen.entry(port).or_default();
            let count = expected.get(&port).copied().unwrap_or(0);
            loop {
                match end.recv(&mut self.buffer).expect("the wire is there") {
                    Some(received) => {
                        if let Some(tag) = received.vlan {
                            let tag = Tag::from_tci(wire::EtherType(tag.tpid), tag.tci);
                            flow::push_vlan(&mut self.buffer, tag).expect("there is headroom");
                        }
                        list.extend(see(&self.buffer, port));
                    }
                    None if list.len() >= count || Instant::now() > deadline => break,
                    None => std::thread::sleep(Duration::from_micros(100)),
                }
            }
        }
        seen
    }

    /// The upcalls that wait now, at least `count`.
    pub fn upcalls(&self, count: usize) -> Vec<Upcall> {
        let mut upcalls = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(2);
        loop {
            let enough = upcalls.len() >= count || Instant::now() > deadline;
            let timeout = if enough { Duration::ZERO } else { Duration::from_millis(10) };
            let had = upcalls.len();
            assert!(self.datapath.upcalls(4096, timeout, &mut upcalls), "it has not stopped");
            if enough && upcalls.len() == had {
                return upcalls;
            }
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.datapath.stop();
    }
}

/// Frames received by a port.
pub(super) fn rx(snapshot: &Snapshot, port: PortNo) -> u64 {
    if port == UPLINK {
        return snapshot.uplink.rx.packets;
    }
    port_stats(snapshot, port).map_or(0, |port| port.rx.packets)
}

pub(super) fn port_stats(snapshot: &Snapshot, port: PortNo) -> Option<&PortStats> {
    snapshot.ports.iter().find(|stats| stats.port == port.0)
}

fn name(port: PortNo) -> String {
    if port == UPLINK { "uplink".to_owned() } else { format!("port{port}") }
}

/// Both ends have one name, each in its own host.
fn wire(inside: &TestHost, outside: &TestHost, port: PortNo) -> PacketSocket {
    let name = name(port);
    let [own, other] = if port == UPLINK {
        [UPLINK_MAC, PEER_MAC]
    } else {
        [6, 10].map(|first| MacAddr([first, 0, 0, 0, 1, port.0 as u8]))
    };
    let peer = LinkSpec::new(&name).mac(other).mtu(MTU).netns(outside).up();
    let own = LinkSpec::new(&name).mac(own).mtu(MTU).up();
    inside.netlink().create(&own, &LinkKind::Veth { peer }).expect("a veth pair can be made");
    let options =
        PacketOptions { promiscuous: true, rx_queue_bytes: 64 << 20, ..PacketOptions::default() };
    let open = || PacketSocket::open_name(&name, &Filter::everything(), options);
    outside.run(open).expect("a packet socket can be opened")
}

/// Gives the uplink its address, and tells it where the other hosts are.
fn underlay(inside: &TestHost) {
    let netlink = inside.netlink();
    let uplink = netlink.index_of("uplink").expect("the uplink is there");
    let prefix = IpPrefix::new(LOCAL, 24).expect("a prefix");
    netlink.add_address(uplink, prefix, Dad::Skip).expect("an address can be added");
    for (_, _, remote) in endpoints() {
        netlink.set_neighbour(uplink, remote, PEER_MAC).expect("a neighbour can be set");
    }
}

pub(super) fn port_config(port: PortNo) -> PortConfig {
    PortConfig {
        port,
        name: name(port),
        logical_switch: "conformance".to_owned(),
        device: DeviceConfig::Interface { name: name(port), mtu: MTU as u16 },
    }
}

fn config(upcalls: UpcallLimits, megaflows: usize) -> Config {
    let local = IpAddr::from(LOCAL);
    let tunnel = |spec: TunnelSpec| TunnelConfig {
        port: tunnel_port(spec.tunnel),
        spec,
        local,
        group: None,
    };
    let endpoint = |(id, spec, remote)| EndpointConfig { id, spec, local, remote };
    Config {
        host: "conformance".to_owned(),
        uplink: name(UPLINK),
        uplink_port: UPLINK,
        underlay: Underlay {
            links: links::links(),
            tagged_mtu_bytes: 0,
            tunnels: endpoints().map(|(_, spec, _)| tunnel(spec)).collect(),
            endpoints: endpoints().map(endpoint).collect(),
        },
        ports: PORTS.map(port_config).into(),
        entropy_base: BASE,
        entropy_ports: 64,
        workers: Workers::default(),
        megaflows,
        upcalls,
    }
}
