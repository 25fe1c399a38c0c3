//! Tests packets of a known host that use another tunnel type than configured, or another address
//! of this host as the destination.

use super::geneve::geneve;
use super::gre::{gre, nvgre};
use super::stt::stt;
use super::target::{Target, Wrap, kernel_counter};
use super::vxlan::vxlan;
use crate::common::outer::Outer;
use crate::common::{Lab, PATIENCE, Setup, VNI};
use netdev::{Dad, IpNet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use testkit::host::wait_until;
use testkit::require_root;

/// For each tunnel type: its name, the function that builds a packet, and the kernel counter for
/// such packets without a receiver.
const TYPES: [TunnelCase; 5] = [
    ("vxlan", vxlan, ("Udp", "NoPorts")),
    ("geneve", geneve, ("Udp", "NoPorts")),
    ("gre", gre, ("Ip", "InUnknownProtos")),
    ("nvgre", nvgre, ("Ip", "InUnknownProtos")),
    ("stt", stt, ("Tcp", "OutRsts")),
];

/// Every tunnel type over IPv4, and one type of each IP protocol over IPv6.
fn cases() -> Vec<(u8, TunnelCase)> {
    let over6 = TYPES.into_iter().filter(|(tunnel, ..)| ["geneve", "gre", "stt"].contains(tunnel));
    TYPES.map(|case| (4, case)).into_iter().chain(over6.map(|case| (6, case))).collect()
}

type TunnelCase = (&'static str, Wrap, KernelCounter);

/// The protocol and the name of a counter in `/proc/net/snmp`.
type KernelCounter = (&'static str, &'static str);

/// The network file text of further logical switches between `h1` and another host, one of each of
/// these types. If `host` is `None`, each switch has a separate other host; their addresses start
/// at `first`.
fn further_switches(types: &[&str], host: Option<&str>, first: IpAddr, vni: u32) -> String {
    let mut text = String::new();
    for (number, tunnel) in (0..).zip(types) {
        let own = format!("h3{number}");
        let other = host.unwrap_or(&own);
        if host.is_none() {
            let address: IpAddr = match first {
                IpAddr::V4(ip) => Ipv4Addr::from(u32::from(ip) + number).into(),
                IpAddr::V6(ip) => Ipv6Addr::from(u128::from(ip) + u128::from(number)).into(),
            };
            text += &format!(
                "[[host]]\nname = \"{own}\"\nuplink = \"eth0\"\nunderlay = [\"{address}\"]\n"
            );
        }
        text += &format!(
            "[[logical_switch]]\nname = \"s{number}\"\ntunnel = \"{tunnel}\"\nvni = {vni}\n\
             [[logical_switch.port]]\nname = \"n{number}\"\nhost = \"h1\"\n\
             mac = \"02:00:00:00:00:01\"\ndevice = {{ tap = \"n{number}\" }}\n\
             [[logical_switch.port]]\nname = \"f{number}\"\nhost = \"{other}\"\n\
             mac = \"02:00:00:00:00:02\"\ndevice = {{ tap = \"f{number}\" }}\n"
        );
    }
    text
}

/// A daemon that also has a logical switch of each of these types.
fn target_with(setup: Setup, types: &[&str], host: Option<&str>, vni: u32) -> Target {
    let mut lab = Lab::new(setup);
    let second = Outer::between(&lab.hosts[1], &lab.hosts[0], lab.family());
    let text = further_switches(types, host, second.as_stranger().src, vni);
    lab.change_setup(|setup| setup.more(&text));
    Target::on(lab)
}

fn is_gre(tunnel: &str) -> bool {
    tunnel.ends_with("gre")
}

/// The setup in which the packets of a tunnel type's function in [`TYPES`] are valid.
fn setup(tunnel: &str, family: u8) -> Setup {
    let setup = Setup::new(tunnel).family(family);
    if tunnel == "stt" { setup.options("logical_ports = false") } else { setup }
}

/// The types that a network file can contain in addition to this one. GRE and NVGRE exclude each
/// other, because they have the same protocol number.
fn others(tunnel: &str) -> Vec<TunnelCase> {
    let left_out = if tunnel == "nvgre" { "gre" } else { "nvgre" };
    TYPES.into_iter().filter(|(other, ..)| ![tunnel, left_out].contains(other)).collect()
}

fn names(types: &[TunnelCase]) -> Vec<&'static str> {
    types.iter().map(|(name, ..)| *name).collect()
}

#[test]
fn packets_are_dropped_when_their_sender_has_another_tunnel_type() {
    require_root!();
    for (family, (tunnel, wrap, _)) in cases() {
        let others = others(tunnel);
        // Other hosts use these types, so this host receives their packets.
        let mut target = target_with(setup(tunnel, family), &names(&others), None, VNI);
        for (other, wrong, _) in others {
            let packet = wrong(&target.outer, &target.forbidden());
            let what = format!("{other} of a host with {tunnel}, IPv{family}");
            target.refuses(wrap, &what, Some("unknown_endpoint"), &[packet]);
        }
        target.finish();
    }
}

#[test]
fn packets_are_dropped_when_their_switch_has_another_tunnel_type() {
    require_root!();
    for (tunnel, wrap, _) in TYPES {
        let others = others(tunnel);
        // The sender uses all types. The logical switch with this VNI uses the first one.
        let mut target = target_with(setup(tunnel, 4), &names(&others), Some("h2"), VNI + 1);
        for (other, wrong, _) in others {
            let packet = wrong(&target.outer, &target.forbidden());
            let what = format!("{other} for a switch with {tunnel}");
            target.refuses(wrap, &what, Some("unknown_datapath"), &[packet]);
        }
        target.finish();
    }
}

#[test]
fn packets_are_not_taken_when_they_have_another_type_or_address() {
    require_root!();
    for (family, (tunnel, wrap, counter)) in cases() {
        let mut target = Target::new(setup(tunnel, family));
        // No host uses these types.
        for (other, wrong, counter) in TYPES {
            if other == tunnel || (is_gre(other) && is_gre(tunnel)) {
                continue;
            }
            let packet = wrong(&target.outer, &target.forbidden());
            let what = format!("{other} beside {tunnel}, IPv{family}");
            not_taken(&mut target, wrap, &what, counter, packet);
        }
        let (second, len): (IpAddr, u8) = match target.outer.dst {
            IpAddr::V4(ip) => (Ipv4Addr::from(u32::from(ip) | 0x40).into(), 24),
            IpAddr::V6(ip) => (Ipv6Addr::from(u128::from(ip) | 0x40).into(), 64),
        };
        let host = &target.lab.hosts[0];
        let prefix = IpNet::new(second, len).expect("the length fits the family");
        let added = host.netns.netlink().add_address(host.uplink.index, prefix, Dad::Skip);
        added.expect("an address can be added");
        // The kernel adds the route of a new IPv6 address with a delay.
        wait_until(PATIENCE, "packets to the address are received", || {
            let mut ip = host.netns.program("ip");
            let route = ip.args(["route", "get", &second.to_string()]).output().expect("ip runs");
            route.stdout.starts_with(b"local ")
        });
        let outer = Outer { dst: second, ..target.outer };
        let packet = wrap(&outer, &target.forbidden());
        let what = format!("{tunnel} for a second address, IPv{family}");
        not_taken(&mut target, wrap, &what, counter, packet);
        target.finish();
    }
}

/// Checks that weft leaves a packet to the kernel, which counts it because no socket receives it.
fn not_taken(target: &mut Target, wrap: Wrap, what: &str, counter: KernelCounter, packet: Vec<u8>) {
    let (protocol, name) = counter;
    let before = kernel_counter(target, protocol, name);
    target.refuses(wrap, what, None, &[packet]);
    assert_eq!(kernel_counter(target, protocol, name), before + 1, "{what}: {counter:?}");
}
