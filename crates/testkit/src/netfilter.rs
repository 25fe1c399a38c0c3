//! A router that filters and translates packets with the kernel's nf_conntrack. Tests use it as the
//! reference for weft's own connection tracking.
//!
//! Both neighbours of the router are packet sockets in one namespace. All functions here panic on
//! errors.

use std::collections::HashMap;
use std::io::Write;
use std::net::IpAddr;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::SocketFilter;
use netdev::{IpNet, Route, cpu};
use packet::PacketBuf;
use wire::MacAddr;

use crate::host::{TestHost, WireEnd, pair};

const ETHERNET_LEN: usize = 14;
const TIMEOUT: Duration = Duration::from_secs(10);

/// A neighbour of the router.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// The clients' side.
    Inside,
    /// The servers' side.
    Outside,
}

/// The router and its two neighbours.
#[derive(Debug)]
pub struct Router {
    host: TestHost,
    inside: Neighbour,
    outside: Neighbour,
    /// Keeps the namespace of the packet sockets alive.
    _neighbours: TestHost,
}

#[derive(Debug)]
struct Neighbour {
    socket: PacketSocket,
    own_mac: MacAddr,
    router_mac: MacAddr,
}

/// A connection as `/proc/net/nf_conntrack` lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelConnection {
    /// The number of its protocol.
    pub protocol: u8,
    /// Seconds until it expires.
    pub timeout_s: u64,
    /// The state, which only TCP and SCTP have.
    pub state: Option<String>,
    /// The values of `src`, `dst`, `sport`, `dport`, `type`, `code` and `id`, for the original and
    /// the reply direction.
    pub tuples: [HashMap<String, String>; 2],
}

impl Router {
    /// Makes a router with the nftables rules `ruleset`. It routes the networks `inside` and
    /// `outside` to these sides.
    pub fn new(inside: &[&str], outside: &[&str], ruleset: &str) -> Self {
        let (host, neighbours) = (TestHost::new("router"), TestHost::new("neighbours"));
        for (key, value) in [
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
            ("net/ipv4/conf/all/send_redirects", "0"),
            ("net/ipv4/conf/default/send_redirects", "0"),
            ("net/ipv4/conf/all/rp_filter", "0"),
            ("net/ipv4/conf/default/rp_filter", "0"),
        ] {
            host.sysctl(key, value).expect("a router can be configured");
        }
        let sides = [inside, outside].map(|networks| {
            let (near, far) = pair(&host, &neighbours);
            add_routes(&host, &near, &far, networks);
            neighbours.run(|| Neighbour::new(&near, &far))
        });
        let [inside, outside] = sides;
        load(&host, ruleset);
        Self { host, inside, outside, _neighbours: neighbours }
    }

    /// Sets an option of nf_conntrack: `tcp_timeout_close` and so on.
    pub fn set_conntrack(&self, option: &str, value: u32) {
        let key = format!("net/netfilter/nf_conntrack_{option}");
        self.host.sysctl(&key, &value.to_string()).expect("nf_conntrack has the option");
    }

    /// Keeps packets in order by using one CPU for sending, forwarding and receiving. Call it in
    /// the sending thread.
    pub fn pin_thread() {
        let usable = cpu::usable().expect("the CPUs can be listed");
        let last = *usable.last().expect("there is a CPU");
        cpu::pin_current_thread(last).expect("a thread can be pinned to a CPU");
    }

    /// Sends an IP packet from one side.
    pub fn send(&self, side: Side, ip: &[u8]) {
        let neighbour = self.side(side);
        let ethertype = if ip[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
        let frame = [&neighbour.router_mac.0[..], &neighbour.own_mac.0, &ethertype, ip].concat();
        let packet = PacketBuf::from_bytes(&frame);
        let deadline = Instant::now() + TIMEOUT;
        while let Err(error) = neighbour.socket.send(&packet) {
            assert!(Instant::now() < deadline, "cannot send: {error:?}");
            thread::yield_now();
        }
    }

    /// Calls `take` with each IP packet that the router has sent, until it returns true.
    ///
    /// # Panics
    /// When `take` does not return true within ten seconds.
    pub fn receive(&self, mut take: impl FnMut(Side, &[u8]) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        let mut packet = PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME);
        loop {
            let mut idle = true;
            for side in [Side::Outside, Side::Inside] {
                while self.side(side).socket.recv(&mut packet).expect("a packet").is_some() {
                    idle = false;
                    if take(side, packet.head().get(ETHERNET_LEN..).unwrap_or_default()) {
                        return;
                    }
                }
            }
            if idle {
                assert!(Instant::now() < deadline, "the router does not send the expected packets");
                thread::yield_now();
            }
        }
    }

    /// The connections that the kernel tracks.
    pub fn connections(&self) -> Vec<KernelConnection> {
        let read = || std::fs::read_to_string("/proc/thread-self/net/nf_conntrack");
        let text = self.host.run(read).expect("the kernel lists its connections");
        text.lines().filter_map(KernelConnection::parse).collect()
    }

    fn side(&self, side: Side) -> &Neighbour {
        match side {
            Side::Inside => &self.inside,
            Side::Outside => &self.outside,
        }
    }
}

impl Neighbour {
    fn new(near: &WireEnd, far: &WireEnd) -> Self {
        let options = PacketOptions { rx_queue_bytes: 64 << 20, ..PacketOptions::default() };
        let socket = PacketSocket::open(far.index, &SocketFilter::everything(), options)
            .expect("a packet socket can be opened");
        Self { socket, own_mac: far.mac, router_mac: near.mac }
    }
}

impl KernelConnection {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace().skip(3);
        let protocol = words.next()?.parse().ok()?;
        let timeout_s = words.next()?.parse().ok()?;
        let mut tuples = [HashMap::new(), HashMap::new()];
        let (mut state, mut direction) = (None, None);
        for word in words {
            let Some((name, value)) = word.split_once('=') else {
                if direction.is_none() && !word.starts_with('[') {
                    state = Some(word.to_owned());
                }
                continue;
            };
            if name == "src" {
                direction = Some(direction.map_or(0, |_| 1));
            }
            if let Some(direction) = direction {
                tuples[direction].insert(name.to_owned(), value.to_owned());
            }
        }
        Some(Self { protocol, timeout_s, state, tuples })
    }
}

fn add_routes(host: &TestHost, near: &WireEnd, far: &WireEnd, networks: &[&str]) {
    for network in networks {
        let network: IpNet = network.parse().expect("a network");
        let gateway = match network {
            IpNet::V4(_) => IpAddr::from(far.ip4),
            IpNet::V6(_) => IpAddr::from(far.ip6),
        };
        let netlink = host.netlink();
        netlink.set_neighbour(near.index, gateway, far.mac).expect("a neighbour can be set");
        netlink.add_route(&Route::via(network, gateway)).expect("a route can be added");
    }
}

fn load(host: &TestHost, ruleset: &str) {
    let mut nft = host
        .program("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("nft can be started");
    let mut stdin = nft.stdin.take().expect("stdin is piped");
    stdin.write_all(ruleset.as_bytes()).expect("nft reads its rules");
    drop(stdin);
    assert!(nft.wait().expect("nft ends").success(), "nft refuses the rules");
}
