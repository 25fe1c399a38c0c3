//! Tests TCP of guests over a path that carries less than the underlay's MTU. A router between two
//! hosts has the narrow links. With ICMP, the router reports them. Without ICMP, the daemons find
//! the path MTU with probes (RFC 8899).

use crate::common::daemon::WEFT;
use crate::common::{Daemon, Datapath, Guest, Host, Lab, PATIENCE, Setup, TempDir, traffic};
use netdev::{IpNet, Route};
use serde_json::Value;
use std::net::IpAddr;
use std::process::Command;
use testkit::host::{TestHost, WireEnd, pair, wait_until};
use testkit::{require_program, require_root};

const MEGABYTE: usize = 1 << 20;
/// The MTU of the router's routes after [`RoutedLab::narrow`], in bytes.
const NARROW: u64 = 1404;

/// A lab whose hosts are connected by a router.
struct RoutedLab {
    lab: Lab,
    router: TestHost,
    /// The router's ends toward the hosts.
    ends: [WireEnd; 2],
}

impl RoutedLab {
    fn new(setup: Setup) -> Self {
        let router = TestHost::new("router");
        let [(end_a, a), (end_b, b)] = ["h1", "h2"].map(|name| {
            let netns = TestHost::new(name);
            let (uplink, end) = pair(&netns, &router);
            let gateways: [(IpAddr, IpAddr); 2] =
                [([0; 4].into(), end.ip4.into()), ([0_u16; 8].into(), end.ip6.into())];
            for (everywhere, gateway) in gateways {
                let everywhere = IpNet::new(everywhere, 0).expect("a prefix");
                let route = Route::via(everywhere, gateway);
                netns.netlink().add_route(&route).expect("a route can be added");
            }
            (end, Host { name, netns, uplink })
        });
        for (key, value) in [
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv4/icmp_ratelimit", "0"),
            ("net/ipv6/conf/all/forwarding", "1"),
            ("net/ipv6/icmp/ratelimit", "0"),
        ] {
            router.sysctl(key, value).expect("a sysctl can be set");
        }
        let guests = vec![Guest::new(1, 0), Guest::new(2, 1)];
        let mut lab = Lab { setup, hosts: [a, b], guests, dir: TempDir::new() };
        // Writes the network file of the unchanged setup.
        lab.change_setup(|setup| setup);
        let text = std::fs::read_to_string(lab.network_file()).expect("the network file");
        let text = format!("path_probes = true\n{text}");
        std::fs::write(lab.network_file(), text).expect("a file can be written");
        Self { lab, router, ends: [end_a, end_b] }
    }

    fn sh(&self, command: &str) {
        let output = self.router.program("sh").args(["-c", command]).output().expect("sh");
        assert!(output.status.success(), "{command}: {output:?}");
    }

    /// Reduces the MTU of the path through the router, in both directions.
    fn narrow(&self) {
        for end in &self.ends {
            let networks: [(IpAddr, u8); 2] = [(end.ip4.into(), 24), (end.ip6.into(), 64)];
            for (address, len) in networks {
                let network = IpNet::new(address, len).expect("a prefix").trunc();
                let device = &end.name;
                self.sh(&format!(
                    "ip route del {network} dev {device}; \
                     ip route add {network} dev {device} mtu lock {NARROW}"
                ));
            }
        }
    }

    /// Makes the router send no ICMP errors.
    fn filter_icmp(&self) {
        self.sh("nft add table inet f; \
             nft add chain inet f o '{ type filter hook output priority 0; }'; \
             nft add rule inet f o icmp type destination-unreachable drop; \
             nft add rule inet f o icmpv6 type packet-too-big drop");
    }

    /// The first end point of a host, in the output of `weft tunnels --json`.
    fn endpoint(&self, host: usize) -> Value {
        let mut weft = Command::new(WEFT);
        let output = weft.args(["tunnels", "--json", "--control"]).arg(self.lab.control(host));
        let output = output.output().expect("weft can be started");
        let mut shown: Value = serde_json::from_slice(&output.stdout).expect("an object");
        shown["endpoints"][0].take()
    }
}

/// Sends TCP streams of guests in both directions over a path whose MTU is reduced, and compares
/// the bytes.
fn tcp_continues(setup: Setup, has_icmp: bool) {
    let routed = RoutedLab::new(setup);
    let lab = &routed.lab;
    let daemons = lab.start_both();
    let (a, b) = lab.ends();
    traffic::ping(&a.netns, b.ip(4));
    traffic::tcp(a, b, 4, MEGABYTE);
    assert_eq!(routed.endpoint(0)["path_mtu"], 1500, "before the path is narrow");
    if !has_icmp {
        routed.filter_icmp();
    }
    routed.narrow();
    // A guest that has learned the path MTU offers its peer a small MSS. So the first stream of
    // each direction uses another IP version.
    for (host, from, to, family) in [(0, a, b, 4), (1, b, a, 6)] {
        traffic::tcp(from, to, family, 2 * MEGABYTE);
        let endpoint = routed.endpoint(host);
        assert_eq!(endpoint["path_mtu"], NARROW, "{endpoint}");
        let router = &endpoint["path_mtu_report"]["router"];
        assert_eq!(router.is_string(), has_icmp, "{endpoint}");
    }
    traffic::tcp(a, b, 6, 2 * MEGABYTE);
    traffic::tcp(b, a, 4, 2 * MEGABYTE);
    if lab.setup.tunnel() == "stt" {
        // It segments frames itself, so guests need not learn it.
        return daemons.into_iter().for_each(Daemon::stop);
    }
    // Guests have learned it: their next connections lose nothing.
    let socket = traffic::udp_socket(a, 4);
    wait_until(PATIENCE, "the guest learns the path MTU", || {
        // Sending fails when the guest has learned the path MTU.
        let _ = socket.send_to(&[0; 1400], (b.ip(4), 9));
        let mtu = a.netns.netlink().route_get(b.ip(4), None).expect("a route").mtu;
        (1280..u32::try_from(NARROW).expect("an MTU")).contains(&mtu)
    });
    daemons.into_iter().for_each(Daemon::stop);
}

fn setup(tunnel: &str, family: u8, datapath: Datapath) -> Setup {
    Setup::new(tunnel).family(family).datapath(datapath)
}

#[test]
fn tcp_in_vxlan_continues_when_a_router_reports_a_narrow_link_kernel() {
    require_root!();
    tcp_continues(setup("vxlan", 4, Datapath::Kernel), true);
}

#[test]
fn tcp_in_vxlan_continues_when_a_narrow_link_is_not_reported_kernel() {
    require_root!();
    require_program!("nft", "nftables");
    tcp_continues(setup("vxlan", 4, Datapath::Kernel), false);
}

#[test]
fn tcp_in_vxlan_continues_when_a_router_reports_a_narrow_link_user() {
    require_root!();
    tcp_continues(setup("vxlan", 4, Datapath::User), true);
}

#[test]
fn tcp_in_vxlan_continues_when_a_narrow_link_is_not_reported_user() {
    require_root!();
    require_program!("nft", "nftables");
    tcp_continues(setup("vxlan", 4, Datapath::User), false);
}

#[test]
fn tcp_in_geneve_continues_when_a_router_reports_a_narrow_link_kernel() {
    require_root!();
    tcp_continues(setup("geneve", 4, Datapath::Kernel), true);
}

#[test]
fn tcp_in_geneve_continues_when_a_router_reports_a_narrow_link_user() {
    require_root!();
    tcp_continues(setup("geneve", 4, Datapath::User), true);
}

#[test]
fn tcp_in_gre_continues_when_a_router_reports_a_narrow_link_kernel() {
    require_root!();
    tcp_continues(setup("gre", 4, Datapath::Kernel), true);
}

#[test]
fn tcp_in_gre_continues_when_a_narrow_link_is_not_reported_kernel() {
    require_root!();
    require_program!("nft", "nftables");
    tcp_continues(setup("gre", 4, Datapath::Kernel), false);
}

#[test]
fn tcp_in_gre_continues_when_a_router_reports_a_narrow_link_user() {
    require_root!();
    tcp_continues(setup("gre", 4, Datapath::User), true);
}

#[test]
fn tcp_in_geneve_over_ipv6_continues_when_a_router_reports_a_narrow_link_kernel() {
    require_root!();
    tcp_continues(setup("geneve", 6, Datapath::Kernel), true);
}

#[test]
fn tcp_in_geneve_over_ipv6_continues_when_a_narrow_link_is_not_reported_kernel() {
    require_root!();
    require_program!("nft", "nftables");
    tcp_continues(setup("geneve", 6, Datapath::Kernel), false);
}

#[test]
fn tcp_in_geneve_over_ipv6_continues_when_a_router_reports_a_narrow_link_user() {
    require_root!();
    tcp_continues(setup("geneve", 6, Datapath::User), true);
}

#[test]
fn tcp_in_geneve_continues_when_a_narrow_link_is_not_reported_kernel() {
    require_root!();
    require_program!("nft", "nftables");
    tcp_continues(setup("geneve", 4, Datapath::Kernel), false);
}

#[test]
fn tcp_in_geneve_continues_when_a_narrow_link_is_not_reported_user() {
    require_root!();
    require_program!("nft", "nftables");
    tcp_continues(setup("geneve", 4, Datapath::User), false);
}

/// Tunnel types without path probes, at the same time: they mostly wait.
#[test]
fn tcp_in_nvgre_and_stt_continues_when_a_router_reports_a_narrow_link() {
    require_root!();
    std::thread::scope(|scope| {
        for tunnel in ["nvgre", "stt"] {
            for datapath in Datapath::BOTH {
                scope.spawn(move || tcp_continues(setup(tunnel, 4, datapath), true));
            }
        }
    });
}
