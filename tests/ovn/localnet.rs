//! Tests provider networks: localnet ports, bridge mappings, provider bridges and container ports.
//!
//! A guest of the lab acts as a machine of the physical network. Its veth pair ends in a provider
//! bridge, in the place of a network card.

use super::{Hosts, LocalDatabase, is_silent, join, lab_of};
use crate::common::trunk::Trunk;
use crate::common::{Daemon, GUEST_DEVICE, Guest, Host, Lab, PATIENCE, traffic};
use crate::established::{Pair, fused, listen, while_stopped};
use crate::ovn::nat::{self, FORWARDED, OUTSIDE, SERVER};
use crate::peers::carry_wire_frames;
use netdev::{Dad, IpNet};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;
use testkit::host::{pair, wait_until};
use testkit::ovn::Ovn;
use traffic::EchoServer;

const STREAM: usize = 300_000;
const VLAN: u16 = 101;

/// The ovn-nbctl commands that create a logical switch with these guests and a localnet port for
/// `physnet`.
pub(super) fn provider_switch(name: &str, guests: &[&Guest]) -> Vec<String> {
    let mut commands = super::switch(name, guests);
    commands.push(format!(
        "lsp-add {name} ln-{name} -- lsp-set-type ln-{name} localnet -- \
         lsp-set-addresses ln-{name} unknown -- \
         lsp-set-options ln-{name} network_name=physnet"
    ));
    commands
}

/// Creates the provider bridge of a host, with these devices as ports.
pub(super) fn add_provider(database: &LocalDatabase<'_>, devices: &[&str]) {
    database.vsctl("set open . external_ids:ovn-bridge-mappings=physnet:br-ex");
    database.vsctl("add-br br-ex");
    for device in devices {
        database.vsctl(&format!("add-port br-ex {device}"));
        let state = database.vsctl(&format!("get Interface {device} ofport error"));
        assert!(!state.starts_with("-1") && state.ends_with("[]\n"), "{state}");
    }
}

/// Sends pings and TCP streams in both directions, over IPv4 and IPv6.
fn exchange(one: &Guest, other: &Guest) {
    for (from, to) in [(one, other), (other, one)] {
        for family in [4, 6] {
            traffic::ping(&from.netns, to.ip(family));
            traffic::tcp(from, to, family, STREAM);
        }
    }
}

/// Connects a machine behind a device with a VLAN tag. Its MTU becomes that of the guests in
/// `others`, because unknown unicast frames of these guests may reach it.
fn trunk(device: &Guest, vlan: u16, others: &[&Guest]) -> Trunk {
    let trunk = Trunk::new(device, &[(0x8100, vlan)]);
    let link = trunk.inside.netns.netlink().link(GUEST_DEVICE).expect("the machine has a device");
    for guest in others {
        let netlink = guest.netns.netlink();
        let index = netlink.index_of(GUEST_DEVICE).expect("a guest has its device");
        netlink.set_mtu(index, link.mtu).expect("an MTU can be set");
    }
    trunk
}

/// Starts the daemon of the first host, and attaches these guests.
pub(super) fn start_one<'l>(
    lab: &'l Lab,
    ovn: &Ovn,
    guests: &[&Guest],
) -> (LocalDatabase<'l>, Daemon) {
    let database = LocalDatabase::start(lab, ovn, 0);
    let daemon = join(lab, &database);
    daemon.wait_answers();
    for guest in guests {
        database.add_port(guest);
        ovn.nbctl(&format!("wait-until Logical_Switch_Port {} up=true", guest.name));
    }
    (database, daemon)
}

#[test]
fn guest_reaches_the_physical_network_by_a_localnet_port() {
    require_ovn!();
    let lab = lab_of(3, 0);
    let ovn = Ovn::start("localnet");
    let [guest, outside, second] = [0, 1, 2].map(|at| &lab.guests[at]);
    ovn.configure(&provider_switch("public", &[guest, second]));
    let (database, daemon) = start_one(&lab, &ovn, &[guest]);
    assert!(is_silent(guest, outside.ip(4)));
    add_provider(&database, &[&outside.host_device(), &second.host_device()]);
    // Only guests are limited: many machines share a device of the physical network.
    let limit = |device: &Guest| {
        let ports = daemon.show().ports;
        let port = ports.iter().find(|port| port.device.ends_with(&device.host_device()));
        port.expect("the device has a port").slow_path.upcall_cpu_limit_percent
    };
    assert_eq!([guest, outside].map(limit), [25, 0]);
    database.vsctl("set open . external_ids:weft-upcall-cpu-percent=400");
    wait_until(PATIENCE, "the limit changes", || [guest, outside].map(limit) == [400, 0]);
    exchange(guest, outside);
    traffic::broadcast(guest, outside);
    traffic::broadcast(outside, guest);
    // The bridge also forwards between its own devices.
    exchange(outside, second);
    // A device of the provider bridge becomes the interface of a guest, and later a device of the
    // bridge again.
    let device = second.host_device();
    database.vsctl(&format!(
        "del-port {device} -- add-port br-int {device} -- \
         set Interface {device} external_ids:iface-id={}",
        second.name
    ));
    exchange(guest, second);
    exchange(outside, second);
    database.vsctl(&format!("del-port {device} -- add-port br-ex {device}"));
    exchange(guest, second);
    exchange(outside, second);
    let counted = format!("get Interface {} statistics:rx_packets", outside.host_device());
    wait_until(PATIENCE, "the frames of the device are counted in the database", || {
        database.vsctl(&counted).trim().parse::<u64>().is_ok_and(|count| count > 20)
    });
    // With a tag on the localnet port, only frames of that VLAN pass.
    ovn.nbctl(&format!("--wait=hv set Logical_Switch_Port ln-public tag={VLAN}"));
    assert!(is_silent(guest, outside.ip(4)) && is_silent(outside, guest.ip(4)));
    exchange(outside, second);
    let tagged = trunk(outside, VLAN, &[guest]);
    exchange(guest, &tagged.inside);
    traffic::broadcast(&tagged.inside, guest);
    // The bridge mapping is removed and added again.
    database.vsctl("remove open . external_ids ovn-bridge-mappings");
    assert!(is_silent(guest, tagged.inside.ip(4)));
    database.vsctl("set open . external_ids:ovn-bridge-mappings=physnet:br-ex");
    exchange(guest, &tagged.inside);
    database.vsctl("del-br br-ex");
    assert!(is_silent(guest, tagged.inside.ip(4)) && is_silent(outside, second.ip(4)));
    daemon.stop();
}

#[test]
fn ports_of_a_provider_bridge_have_vlans() {
    require_ovn!();
    let lab = lab_of(4, 0);
    let ovn = Ovn::start("vlans");
    let [guest, port, access, other] = [0, 1, 2, 3].map(|at| &lab.guests[at]);
    ovn.configure(&provider_switch("public", &[guest]));
    ovn.nbctl(&format!("set Logical_Switch_Port ln-public tag={VLAN}"));
    let (database, daemon) = start_one(&lab, &ovn, &[guest]);
    let devices = [port, access, other].map(Guest::host_device);
    add_provider(&database, &devices.each_ref().map(String::as_str));
    let [_, access_port, other_port] = &devices;
    database.vsctl(&format!("set Port {access_port} tag={VLAN}"));
    database.vsctl(&format!("set Port {other_port} tag=102"));
    let tagged = trunk(port, VLAN, &[guest, access, other]);
    exchange(guest, &tagged.inside);
    exchange(guest, access);
    exchange(access, &tagged.inside);
    // Ports of other VLANs are separate networks.
    for peer in [guest, access, &tagged.inside] {
        assert!(is_silent(peer, other.ip(4)) && is_silent(other, peer.ip(4)));
    }
    // A trunk port without the VLAN does not pass its frames.
    let [trunk_port, ..] = &devices;
    database.vsctl(&format!("set Port {trunk_port} trunks=[7,8]"));
    assert!(is_silent(&tagged.inside, access.ip(4)));
    traffic::ping(&guest.netns, access.ip(4));
    assert!(daemon.drops().contains_key("wrong_vlan"), "{:?}", daemon.drops());
    database.vsctl(&format!("set Port {trunk_port} trunks=[7,8,{VLAN}]"));
    traffic::ping(&tagged.inside.netns, access.ip(4));
    // Untagged frames of a trunk belong to its native VLAN.
    database.vsctl(&format!("set Port {access_port} vlan_mode=native-untagged"));
    exchange(guest, access);
    daemon.stop();
}

/// Assigns a host its address in its provider network.
fn address_bridge(host: &Host, device: &str, ip: IpAddr) {
    let netlink = host.netns.netlink();
    let mut found = None;
    wait_until(PATIENCE, "the device is there", || {
        found = netlink.index_of(device).ok();
        found.is_some()
    });
    let index = found.expect("wait_until returns only on success");
    let prefix = IpNet::new(ip, 24).expect("a prefix");
    netlink.add_address(index, prefix, Dad::Skip).expect("an address can be added");
    netlink.set_up(index).expect("a link can be set up");
}

#[test]
fn host_reaches_guests_and_the_physical_network_by_the_internal_port() {
    require_ovn!();
    let lab = lab_of(2, 0);
    let ovn = Ovn::start("internal");
    let [guest, outside] = [0, 1].map(|at| &lab.guests[at]);
    ovn.configure(&provider_switch("public", &[guest]));
    let (database, daemon) = start_one(&lab, &ovn, &[guest]);
    add_provider(&database, &[&outside.host_device()]);
    // With the user datapath, the kernel also receives the frames of the device, and would respond
    // to them.
    let host = &lab.hosts[0];
    let ignore = format!("net/ipv4/conf/{}/arp_ignore", outside.host_device());
    host.netns.sysctl(&ignore, "1").expect("a sysctl can be set");
    host.netns.sysctl("net/ipv4/ping_group_range", "0 2147483647").expect("a sysctl can be set");
    let own: IpAddr = [192, 168, 7, 200].into();
    address_bridge(host, "br-ex", own);
    for peer in [guest, outside] {
        traffic::ping(&peer.netns, own);
        traffic::ping(&host.netns, peer.ip(4));
    }
    exchange(guest, outside);
    database.vsctl("del-br br-ex");
    let netlink = host.netns.netlink();
    wait_until(PATIENCE, "the device is gone", || netlink.index_of("br-ex").is_err());
    daemon.stop();
}

#[test]
fn guests_of_two_hosts_talk_by_the_physical_network_when_both_have_it() {
    require_ovn!();
    let lab = lab_of(1, 2);
    let ovn = Ovn::start("two");
    let [near, far, outside] = [0, 1, 2].map(|at| &lab.guests[at]);
    let [a, b] = &lab.hosts;
    let (wire_a, wire_b) = pair(&a.netns, &b.netns);
    ovn.configure(&provider_switch("public", &[near, far]));
    let databases = [0, 1].map(|at| LocalDatabase::start(&lab, &ovn, at));
    let daemons = [0, 1].map(|at| join(&lab, &databases[at]));
    daemons.iter().for_each(Daemon::wait_answers);
    for guest in [near, far] {
        databases[guest.host].add_port(guest);
        ovn.nbctl(&format!("wait-until Logical_Switch_Port {} up=true", guest.name));
    }
    ovn.nbctl("--wait=hv sync");
    // Without the bridge mappings, frames go through the tunnel.
    exchange(near, far);
    assert!(tunnelled(&daemons) > 0);
    add_provider(&databases[0], &[&wire_a.name]);
    add_provider(&databases[1], &[&wire_b.name, &outside.host_device()]);
    ovn.nbctl("--wait=hv sync");
    let before = tunnelled(&daemons);
    exchange(near, far);
    exchange(near, outside);
    exchange(far, outside);
    traffic::broadcast(near, far);
    assert_eq!(tunnelled(&daemons), before, "frames have gone through the tunnel");
    daemons.into_iter().for_each(Daemon::stop);
}

/// The number of packets that both hosts have sent through tunnels.
fn tunnelled(daemons: &[Daemon; 2]) -> u64 {
    daemons.iter().flat_map(|daemon| daemon.show().endpoints).map(|end| end.tx.packets).sum()
}

/// Configures a router with address translation between the provider network and the logical switch
/// `blue` of two guests.
pub(super) fn add_router(ovn: &Ovn, inside: [&Guest; 2], gateway: &str) {
    let [first, second] = inside;
    let mut commands = super::switch("blue", &inside);
    commands.extend(provider_switch("out", &[]));
    let ([out4, out6], name) = (OUTSIDE, "lr0");
    commands.extend([
        format!("lr-add {name}"),
        format!("lrp-add {name} {name}-blue 02:00:00:00:ff:01 192.168.7.254/24 fd77::fe/64"),
        format!("lrp-add {name} {name}-out 02:00:00:00:ff:02 {out4}/24 {out6}/64"),
        gateway.to_owned(),
    ]);
    for switch in ["blue", "out"] {
        commands.push(format!(
            "lsp-add {switch} {switch}-lr0 -- lsp-set-type {switch}-lr0 router -- \
             lsp-set-addresses {switch}-lr0 router -- \
             lsp-set-options {switch}-lr0 router-port=lr0-{switch}"
        ));
    }
    for (family, subnet) in [(4, "192.168.7.0/24"), (6, "fd77::/64")] {
        let floating = nat::ip(nat::FLOATING, family);
        commands.extend([
            format!("lr-nat-add lr0 snat {} {subnet}", nat::ip(OUTSIDE, family)),
            format!("lr-nat-add lr0 dnat_and_snat {floating} {}", second.ip(family)),
            format!("lr-nat-add lr0 dnat {} {}", nat::ip(FORWARDED, family), first.ip(family)),
        ]);
    }
    ovn.configure(&commands);
}

/// Guests on both hosts reach the physical network of the first host via a router.
fn routed_to_the_physical_network(name: &str, gateway: &str) {
    let lab: Lab = lab_of(2, 1);
    let ovn = Ovn::start(name);
    let guests @ [first, outside, second] = [0, 1, 2].map(|at| &lab.guests[at]);
    add_router(&ovn, [first, second], gateway);
    let databases = [0, 1].map(|at| LocalDatabase::start(&lab, &ovn, at));
    let daemons = [0, 1].map(|at| join(&lab, &databases[at]));
    daemons.iter().for_each(Daemon::wait_answers);
    add_provider(&databases[0], &[&outside.host_device()]);
    for guest in [first, second] {
        databases[guest.host].add_port(guest);
        ovn.nbctl(&format!("wait-until Logical_Switch_Port {} up=true", guest.name));
    }
    nat::address(guests);
    ovn.nbctl("--wait=hv sync");
    for offloads in [true, false] {
        if !offloads {
            // Without offloads, the kernel of each guest verifies every checksum.
            guests.iter().for_each(|guest| carry_wire_frames(&guest.netns, GUEST_DEVICE));
        }
        for family in [4, 6] {
            nat::exchange(guests, family);
        }
    }
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn gateway_port_translates_addresses_to_the_physical_network() {
    require_ovn!();
    routed_to_the_physical_network("lrp", "lrp-set-gateway-chassis lr0-out h1");
}

#[test]
fn gateway_router_translates_addresses_to_the_physical_network() {
    require_ovn!();
    routed_to_the_physical_network("lr", "set Logical_Router lr0 options:chassis=h1");
}

#[test]
fn gateway_reaches_a_physical_network_with_a_tag() {
    require_ovn!();
    let lab: Lab = lab_of(3, 0);
    let ovn = Ovn::start("tag");
    let [first, outside, guest] = [0, 1, 2].map(|at| &lab.guests[at]);
    let tagged = trunk(outside, VLAN, &[first, guest]);
    let server = &tagged.inside;
    add_router(&ovn, [first, guest], "lrp-set-gateway-chassis lr0-out h1");
    ovn.nbctl(&format!("set Logical_Switch_Port ln-out tag={VLAN}"));
    let (database, daemon) = start_one(&lab, &ovn, &[first, guest]);
    add_provider(&database, &[&outside.host_device()]);
    nat::address([first, server, guest]);
    ovn.nbctl("--wait=hv sync");
    for family in [4, 6] {
        let address = nat::ip(SERVER, family);
        traffic::ping(&guest.netns, address);
        let _server = EchoServer::start_at(server, SocketAddr::new(address, 80));
        let answer = traffic::tcp_echo(guest, SocketAddr::new(address, 80), STREAM);
        assert_eq!(answer.client, nat::ip(nat::FLOATING, family));
        let _inside = EchoServer::start(guest, family, 80);
        let floating = SocketAddr::new(nat::ip(nat::FLOATING, family), 80);
        let answer = traffic::tcp_echo(server, floating, STREAM);
        assert_eq!((answer.server, answer.client), (guest.name.clone(), address));
    }
    daemon.stop();
}

/// The ovn-nbctl commands that create the port of a container behind a guest.
fn container_commands(switch: &str, parent: &Guest, container: &Guest, tag: u16) -> [String; 2] {
    let Guest { name, mac, ip4, ip6, .. } = container;
    [
        format!("lsp-add {switch} {name} {} {tag}", parent.name),
        format!("lsp-set-addresses {name} '{mac} {ip4} {ip6}'"),
    ]
}

#[test]
fn containers_behind_a_guest_have_ports_of_their_own() {
    require_ovn!();
    let lab = lab_of(2, 1);
    let ovn = Ovn::start("nested");
    let [parent, near, far] = [0, 1, 2].map(|at| &lab.guests[at]);
    let nested = trunk(parent, 42, &[near, far]);
    let container = &nested.inside;
    ovn.configure(&super::switch("blue", &[near, far]));
    ovn.configure(&super::switch("red", &[parent]));
    ovn.configure(&container_commands("blue", parent, container, 42));
    let hosts = Hosts::start(&lab, &ovn);
    ovn.nbctl(&format!("wait-until Logical_Switch_Port {} up=true", container.name));
    ovn.nbctl("--wait=hv sync");
    for peer in [near, far] {
        exchange(container, peer);
        traffic::broadcast(container, peer);
        traffic::broadcast(peer, container);
        // The parent guest is in another network than the container.
        assert!(is_silent(parent, peer.ip(4)));
    }
    // The tag of the container changes, so frames with the old tag belong to no port.
    ovn.nbctl(&format!("--wait=hv set Logical_Switch_Port {} tag_request=43", container.name));
    ovn.nbctl("--wait=hv sync");
    assert!(is_silent(container, near.ip(4)) && is_silent(near, container.ip(4)));
    // Another container requests a tag that is in use. Its port stays down until the tag is free.
    ovn.nbctl(&format!("--wait=hv lsp-add blue late {} 43", parent.name));
    assert_eq!(ovn.nbctl("get Logical_Switch_Port late up").trim(), "false");
    ovn.nbctl(&format!("lsp-del {}", container.name));
    ovn.nbctl("wait-until Logical_Switch_Port late up=true");
    // When the interface of the parent is removed, the container's port goes down too.
    hosts.databases[0].vsctl(&format!("del-port {}", parent.host_device()));
    ovn.nbctl("wait-until Logical_Switch_Port late up=false");
    hosts.stop(&ovn);
}

/// Opens a TCP connection to a server at this address.
fn connect(from: &Guest, server: &Guest, address: IpAddr) -> Pair<TcpStream> {
    let listener = listen(server, SocketAddr::new(address, 0));
    let to = listener.local_addr().expect("a listener has an address");
    Pair::connect(from, to, &[listener])
}

/// Adds an address to a guest.
fn add_address(guest: &Guest, address: IpAddr, len: u8) {
    let netlink = guest.netns.netlink();
    let index = netlink.index_of(GUEST_DEVICE).expect("a guest has its device");
    let own = IpNet::new(address, len).expect("a prefix");
    netlink.add_address(index, own, Dad::Skip).expect("an address can be added");
}

/// The eBPF programs forward connections to the physical network: of a guest in the provider
/// network, and of a guest behind a router with address translation.
fn forwarded_by_programs(name: &str, tag: Option<u16>) {
    let lab = lab_of(4, 0);
    let ovn = Ovn::start(name);
    let [first, outside, second, plain] = [0, 1, 2, 3].map(|at| &lab.guests[at]);
    let tagged = tag.map(|vlan| trunk(outside, vlan, &[first, second, plain]));
    let server = tagged.as_ref().map_or(outside, |tagged| &tagged.inside);
    add_router(&ovn, [first, second], "lrp-set-gateway-chassis lr0-out h1");
    ovn.configure(&[format!(
        "lsp-add out {0} -- lsp-set-addresses {0} {1}",
        plain.name, plain.mac
    )]);
    if let Some(tag) = tag {
        ovn.nbctl(&format!("set Logical_Switch_Port ln-out tag={tag}"));
    }
    let database = LocalDatabase::start(&lab, &ovn, 0);
    let (remote, control) = (database.remote(), lab.control(0));
    let kernel = ["--datapath", "kernel"];
    let daemon = Daemon::join_ovn(&lab.hosts[0], &remote, &control, &kernel);
    daemon.wait_answers();
    add_provider(&database, &[&outside.host_device()]);
    for guest in [first, second, plain] {
        database.add_port(guest);
        ovn.nbctl(&format!("wait-until Logical_Switch_Port {} up=true", guest.name));
    }
    nat::address([first, server, second]);
    add_address(plain, [172, 16, 9, 40].into(), 24);
    ovn.nbctl("--wait=hv sync");
    let mut pairs = [plain, first, second].map(|guest| connect(guest, server, nat::ip(SERVER, 4)));
    let mut rounds = 0;
    wait_until(2 * PATIENCE, "connections are fused", || {
        assert!(pairs.iter_mut().all(|pair| pair.exchange(100)));
        std::thread::sleep(Duration::from_millis(150));
        // Two tracked connections with two directions each.
        rounds = if fused(&lab, 0) >= 4 { rounds + 1 } else { 0 };
        rounds >= 8
    });
    while_stopped(std::slice::from_ref(&daemon), || {
        std::thread::sleep(Duration::from_millis(200));
        for (pair, what) in pairs.iter_mut().zip(["plain", "translated", "floating"]) {
            assert!(pair.exchange(200_000), "{what}");
        }
    });
    assert!(pairs.iter_mut().all(|pair| pair.exchange(100)));
    daemon.stop();
}

#[test]
fn programs_forward_to_the_physical_network_without_the_daemon() {
    require_ovn!();
    forwarded_by_programs("programs", None);
}

#[test]
fn programs_forward_to_a_physical_network_with_a_tag_without_the_daemon() {
    require_ovn!();
    forwarded_by_programs("programs-tag", Some(VLAN));
}

#[test]
fn localport_is_reached_from_its_host_only() {
    require_ovn!();
    let lab = lab_of(3, 0);
    let ovn = Ovn::start("localport");
    let [guest, outside, local] = [0, 1, 2].map(|at| &lab.guests[at]);
    ovn.configure(&provider_switch("public", &[guest, local]));
    ovn.nbctl(&format!("lsp-set-type {} localport", local.name));
    let (database, daemon) = start_one(&lab, &ovn, &[guest]);
    database.add_port(local);
    add_provider(&database, &[&outside.host_device()]);
    for family in [4, 6] {
        traffic::ping(&guest.netns, local.ip(family));
        traffic::ping(&local.netns, guest.ip(family));
        assert!(is_silent(local, outside.ip(family)));
        assert!(is_silent(outside, local.ip(family)));
        traffic::ping(&guest.netns, outside.ip(family));
    }
    daemon.stop();
}

#[test]
fn provider_bridges_are_joined_by_patch_ports() {
    require_ovn!();
    let lab = lab_of(2, 0);
    let ovn = Ovn::start("patch");
    let [guest, outside] = [0, 1].map(|at| &lab.guests[at]);
    ovn.configure(&provider_switch("public", &[guest]));
    let (database, daemon) = start_one(&lab, &ovn, &[guest]);
    add_provider(&database, &[]);
    database.vsctl(&format!("add-br br-phys -- add-port br-phys {}", outside.host_device()));
    database.vsctl(
        "add-port br-ex to-phys -- set Interface to-phys type=patch options:peer=to-ex -- \
         add-port br-phys to-ex -- set Interface to-ex type=patch options:peer=to-phys",
    );
    exchange(guest, outside);
    // Patch ports that ovn-controller has left behind must do no harm.
    database.vsctl(
        "add-port br-int patch-br-int-to-ln-public -- set Interface patch-br-int-to-ln-public \
         type=patch options:peer=patch-ln-public-to-br-int -- \
         add-port br-ex patch-ln-public-to-br-int -- set Interface patch-ln-public-to-br-int \
         type=patch options:peer=patch-br-int-to-ln-public",
    );
    let error = database.vsctl("get Interface patch-br-int-to-ln-public error");
    assert_eq!(error.trim(), "[]");
    exchange(guest, outside);
    database.vsctl("del-port br-phys to-ex");
    assert!(is_silent(guest, outside.ip(4)));
    let error = database.vsctl("get Interface to-phys error");
    assert!(error.contains("options:peer"), "{error}");
    daemon.stop();
}
