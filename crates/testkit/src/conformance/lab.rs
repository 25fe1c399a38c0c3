//! Connects a provider to the suite by veth pairs: one end is a port of the provider, the other one
//! belongs to the suite.

use super::reference::{ObservedFrame, is_of_host};
use super::{Ability, BASE, PORTS, Provider, UPLINK, links, tunnel_port};
use crate::host::{TestHost, wait_until};
use datapath::config::{
    Config, DeviceConfig, EndpointConfig, PUNT_LIMIT, PortConfig, PortPeer, TunnelConfig,
    UPCALL_CPU_PERCENT, Underlay, Workers,
};
use datapath::solicit::SolicitLimits;
use datapath::upcall::{Upcall, UpcallLimits};
use datapath::{Datapath, stats::PortStats, stats::Snapshot};
use flow::PortNo;
use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::SocketFilter;
use netdev::{Dad, IpNet, LinkKind, LinkSpec, Netns};
use packet::PacketBuf;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::MacAddr;
use wire::vlan::Tag;

/// The timeout of most waits, long enough for a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// The time within which late frames and counters arrive.
pub(super) const LATENESS: Duration = Duration::from_secs(4);
/// The MTU of the veth devices. It is the largest possible one, so that no frame is too long for a
/// port.
const MTU: u32 = 65_535;
/// The MAC addresses of the uplink and of every other host.
pub(super) const UPLINK_MAC: MacAddr = MacAddr([6, 0, 0, 0, 0, 1]);
pub(super) const PEER_MAC: MacAddr = MacAddr([6, 0, 0, 0, 0, 2]);
/// The IP addresses of the uplink.
pub(super) const LOCAL: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// The limits of the provider.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub megaflows: usize,
    pub upcalls: UpcallLimits,
    pub solicit: SolicitLimits,
}

impl Default for Limits {
    /// The limits suffice for all cases, and no behaviour depends on the clock.
    fn default() -> Self {
        let solicit = SolicitLimits { again_after: Duration::ZERO, neighbours: 1 };
        Self { megaflows: 10_000, upcalls: UpcallLimits::default(), solicit }
    }
}

/// The provider, and the suite's ends of its links.
pub(super) struct Lab {
    pub datapath: Arc<dyn Datapath>,
    ends: BTreeMap<PortNo, PacketSocket>,
    buffer: PacketBuf,
    /// The provider may omit the outer UDP checksum of super-packets.
    bare: bool,
    /// Dropped last.
    hosts: [TestHost; 2],
}

impl Lab {
    /// Starts a provider with all ports and end points, and without megaflows.
    pub fn new(provider: Provider<'_>, limits: Limits) -> Self {
        let (inside, outside) = (TestHost::new("inside"), TestHost::new("outside"));
        for host in [&inside, &outside] {
            // Only the suite and the provider may send frames.
            host.sysctl("net/ipv6/conf/default/disable_ipv6", "1").expect("a setting");
            // A test may send a burst, which must not overflow the backlog queue.
            let _ = host.sysctl("net/core/netdev_max_backlog", "10000");
        }
        let mut ends = BTreeMap::new();
        for port in [UPLINK].into_iter().chain(PORTS) {
            ends.insert(port, wire(&inside, &outside, port));
        }
        let endpoints = provider.endpoints();
        address_uplink(&inside, &endpoints);
        let config = config(underlay(&endpoints), limits);
        let datapath = inside.run(|| (provider.start)(config));
        let buffer = PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME);
        let bare = !provider.has(Ability::SuperPacketChecksum);
        let lab = Self { datapath, ends, buffer, bare, hosts: [inside, outside] };
        wait_until(PATIENCE, "all ports are up", || {
            lab.snapshot().ports.iter().all(|port| port.state == "up")
        });
        lab
    }

    /// Sends a frame to a port or to the uplink.
    pub fn send(&self, port: PortNo, packet: &PacketBuf) {
        let end = self.ends.get(&port).expect("a port with a wire");
        end.send(packet).unwrap_or_else(|error| panic!("port {port}: {error}: {packet:?}"));
    }

    /// The network namespace of the provider.
    pub fn netns(&self) -> &Netns {
        let [inside, _] = &self.hosts;
        inside
    }

    pub fn snapshot(&self) -> Snapshot {
        self.datapath.snapshot().expect("the provider runs")
    }

    /// Waits until the provider has received this number of frames on each port since `before`.
    pub fn wait_received(&self, before: &Snapshot, frames: &BTreeMap<PortNo, u64>) {
        for (&port, &count) in frames {
            let received = |snapshot: &Snapshot| rx(snapshot, port);
            let until = received(before) + count;
            wait_until(PATIENCE, "all frames are received", || received(&self.snapshot()) >= until);
        }
    }

    /// Collects the frames that were sent on each link. Waits for the expected number, with a
    /// timeout, and also returns additional frames that have arrived.
    pub fn collect(
        &mut self,
        expected: &BTreeMap<PortNo, usize>,
    ) -> BTreeMap<PortNo, Vec<ObservedFrame>> {
        let bare = self.bare;
        self.collect_by(expected, |packet, port| {
            ObservedFrame::of_wire(packet, port == UPLINK, bare)
        })
    }

    /// Like [`Lab::collect`], but segments the frames before they are compared.
    pub fn collect_cut(
        &mut self,
        expected: &BTreeMap<PortNo, usize>,
    ) -> BTreeMap<PortNo, Vec<ObservedFrame>> {
        self.collect_by(expected, |packet, _| ObservedFrame::cut(packet))
    }

    fn collect_by(
        &mut self,
        expected: &BTreeMap<PortNo, usize>,
        see: impl Fn(&PacketBuf, PortNo) -> Vec<ObservedFrame>,
    ) -> BTreeMap<PortNo, Vec<ObservedFrame>> {
        let mut seen: BTreeMap<PortNo, Vec<ObservedFrame>> = BTreeMap::new();
        let deadline = Instant::now() + LATENESS;
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
                        if port != UPLINK || !is_of_host(&self.buffer) {
                            list.extend(see(&self.buffer, port));
                        }
                    }
                    None if list.len() >= count || Instant::now() > deadline => break,
                    None => std::thread::sleep(Duration::from_micros(100)),
                }
            }
        }
        seen
    }

    /// Waits for at least `count` upcalls, and returns all that are queued.
    pub fn upcalls(&self, count: usize) -> Vec<Upcall> {
        self.upcalls_until(|upcalls| upcalls.len() >= count)
    }

    /// Waits until `enough` returns true for the queued upcalls, and returns them.
    pub fn upcalls_until(&self, enough: impl Fn(&[Upcall]) -> bool) -> Vec<Upcall> {
        let mut upcalls = Vec::new();
        let deadline = Instant::now() + LATENESS;
        loop {
            let enough = enough(&upcalls) || Instant::now() > deadline;
            let timeout = if enough { Duration::ZERO } else { Duration::from_millis(10) };
            let had = upcalls.len();
            assert!(self.datapath.upcalls(4096, timeout, &mut upcalls), "it has not stopped");
            if enough && upcalls.len() == had {
                return upcalls;
            }
        }
    }
}

/// Repeats a check of the counters until it succeeds or times out, because counters may lag behind.
/// Returns the last result.
pub(super) fn eventually(
    datapath: &dyn Datapath,
    check: impl Fn(&Snapshot) -> Result<(), String>,
) -> Result<(), String> {
    let deadline = Instant::now() + LATENESS;
    loop {
        let result = check(&datapath.snapshot().expect("the provider runs"));
        if result.is_ok() || Instant::now() > deadline {
            return result;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.datapath.stop();
    }
}

/// The frames received on a port.
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

/// Creates a veth pair with the same name on both hosts.
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
    let open = || PacketSocket::open_name(&name, &SocketFilter::everything(), options);
    outside.run(open).expect("a packet socket can be opened")
}

/// Configures the addresses and neighbours of the uplink.
fn address_uplink(inside: &TestHost, endpoints: &[EndpointConfig]) {
    for (setting, value) in
        [("router_solicitations", "0"), ("addr_gen_mode", "1"), ("disable_ipv6", "0")]
    {
        inside.sysctl(&format!("net/ipv6/conf/uplink/{setting}"), value).expect("a setting");
    }
    let netlink = inside.netlink();
    let uplink = netlink.index_of("uplink").expect("the uplink is there");
    for local in LOCAL {
        let prefix = IpNet::new(local, if local.is_ipv4() { 24 } else { 64 });
        let prefix = prefix.expect("a prefix");
        netlink.add_address(uplink, prefix, Dad::Skip).expect("an address can be added");
        wait_until(PATIENCE, "the kernel has installed the address", || {
            netlink.route_get(local, None).is_ok_and(|path| path.local)
        });
    }
    for endpoint in endpoints.iter().filter(|endpoint| !endpoint.remote.is_multicast()) {
        netlink.set_neighbour(uplink, endpoint.remote, PEER_MAC).expect("a neighbour can be set");
    }
}

/// The underlay configuration with these end points.
pub(super) fn underlay(endpoints: &[EndpointConfig]) -> Underlay {
    let mut tunnels: Vec<TunnelConfig> = Vec::new();
    for &EndpointConfig { spec, local, remote, .. } in endpoints {
        let port = tunnel_port(spec.tunnel);
        let group = remote.is_multicast().then_some(remote);
        for group in [None, group] {
            let tunnel = TunnelConfig { port, spec, local, group };
            if !tunnels.contains(&tunnel) {
                tunnels.push(tunnel);
            }
        }
    }
    let (links, endpoints) = (links::links(), endpoints.to_vec());
    Underlay { links, tunnels, endpoints, ..Underlay::default() }
}

pub(super) fn port_config(port: PortNo) -> PortConfig {
    PortConfig {
        port,
        name: name(port),
        logical_switch: "conformance".to_owned(),
        device: DeviceConfig::Interface { name: name(port), mtu: Some(MTU as u16) },
        peer: PortPeer::Guest,
    }
}

fn config(underlay: Underlay, limits: Limits) -> Config {
    let Limits { megaflows, upcalls, solicit } = limits;
    Config {
        host: "conformance".to_owned(),
        uplink: name(UPLINK),
        uplink_port: UPLINK,
        underlay,
        ports: PORTS.map(port_config).into(),
        entropy_base: BASE,
        entropy_ports: 64,
        workers: Workers::default(),
        megaflows,
        upcalls,
        punt_limit: PUNT_LIMIT,
        upcall_cpu_percent: UPCALL_CPU_PERCENT,
        solicit,
        conntrack: Default::default(),
    }
}
