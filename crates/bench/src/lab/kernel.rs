//! The contenders of the Linux kernel: veth pairs, bridges, and tunnel devices.

use std::net::Ipv4Addr;

use netdev::{GeneveSpec, GreSpec, Ifindex, LinkKind, LinkSpec, OwnedNetns, VlanSpec, VxlanSpec};
use wire::Vni;

use super::attachment::Attachment;
use super::contender::{KernelTunnel, LAB_INNER_VLAN, LAB_VNI};
use super::host::{GUEST_DEVICE, Guest, Host, UPLINK};
use super::names;
use super::session::check_privileges;
use super::underlay::{Lab, host_end};
use crate::{Error, Result};

/// The source port of a tunnel that does not derive the port from the inner flow.
const ONE_PORT: u16 = 49_152;

/// Makes `eth0` of `guest` one end of a veth pair whose other end, `g1` or `g2`, is on its host.
pub(super) fn veth_guest(
    lab: &Lab<'_>,
    guest: &Guest,
    mtu: u16,
    bridge: Option<Ifindex>,
) -> Result<Ifindex> {
    let name = host_end(guest);
    let mtu = u32::from(mtu);
    let mut spec = LinkSpec::new(&name).mtu(mtu).up();
    if let Some(bridge) = bridge {
        spec = spec.master(bridge);
    }
    let peer = guest_end(guest, mtu);
    let index = lab.hosts()[guest.host()].netlink().create(&spec, &LinkKind::Veth { peer })?;
    guest.configure()?;
    Ok(index)
}

fn guest_end(guest: &Guest, mtu: u32) -> LinkSpec<'_> {
    LinkSpec::new(GUEST_DEVICE).mac(guest.mac()).mtu(mtu).up().netns(guest.netns())
}

/// Makes a bridge on each host with its guests as ports; `add_uplink` adds the path to the other
/// host as a further port.
fn bridged(
    lab: &Lab<'_>,
    guest_mtu: u16,
    mut add_uplink: impl FnMut(&Host, Ifindex) -> Result<()>,
) -> Result<Attachment> {
    for host in lab.hosts() {
        without_netfilter(host)?;
        let bridge = host.netlink().create(&LinkSpec::new("br0").up(), &LinkKind::Bridge)?;
        add_uplink(host, bridge)?;
        for guest in lab.guests().iter().filter(|guest| guest.host() == host.index) {
            veth_guest(lab, guest, guest_mtu, Some(bridge))?;
        }
    }
    Ok(Attachment::new(Vec::new(), None, guest_mtu))
}

/// Keeps bridged packets out of netfilter, to which `br_netfilter` would send them. A lab has no
/// netfilter rules, and the bridge without netfilter is the base of all comparisons.
fn without_netfilter(host: &Host) -> Result<()> {
    for table in ["iptables", "ip6tables", "arptables"] {
        match host.netns().sysctl(&format!("net/bridge/bridge-nf-call-{table}"), "0") {
            Err(error) if error.is_not_found() => {}
            other => other?,
        }
    }
    Ok(())
}

/// A Linux bridge on each host with the guests and the uplink as its ports: no tunnel.
pub(super) fn bridge(lab: &Lab<'_>) -> Result<Attachment> {
    bridged(lab, lab.guest_mtu(0)?, |host, bridge| {
        let uplink = host.netlink().index_of(UPLINK)?;
        Ok(host.netlink().set_master(uplink, Some(bridge))?)
    })
}

/// A Linux bridge on each host with the guests and a tunnel device of the kernel as its ports.
pub(super) fn tunnel(lab: &Lab<'_>, tunnel: KernelTunnel) -> Result<Attachment> {
    let mtu = lab.guest_mtu(tunnel.overhead(lab.shape().family))?;
    bridged(lab, mtu, |host, bridge| {
        let spec = LinkSpec::new("tun0").mtu(u32::from(mtu)).up().master(bridge);
        host.netlink().create(&spec, &kind(lab, tunnel, host)?)?;
        Ok(())
    })
}

/// The tunnel device of `host`; its parent device is created if it needs one.
fn kind(lab: &Lab<'_>, tunnel: KernelTunnel, host: &Host) -> Result<LinkKind<'static>> {
    let vni = Vni::new(LAB_VNI).ok_or_else(|| Error::Other("the VNI of the lab".into()))?;
    let other = lab.other(host);
    let shape = lab.shape();
    let uplink = host.netlink().index_of(UPLINK)?;
    let udp_checksum = shape.outer_checksum.unwrap_or(true);
    Ok(match tunnel {
        KernelTunnel::Vxlan => LinkKind::Vxlan(VxlanSpec {
            local: Some(host.underlay(shape.family)),
            remote: Some(other.underlay(shape.family)),
            underlay: Some(uplink),
            udp_checksum,
            udp_zero_checksum6: !udp_checksum,
            source_ports: shape.one_source_port.then_some((ONE_PORT, ONE_PORT + 1)),
            ..VxlanSpec::new(vni)
        }),
        KernelTunnel::Geneve => {
            let remote = other.underlay(shape.family);
            LinkKind::Geneve(GeneveSpec { vni, remote, udp_checksum })
        }
        KernelTunnel::Gre => {
            let (local, remote) = (host.underlay4(), other.underlay4());
            LinkKind::Gre(GreSpec { local, remote, key: LAB_VNI })
        }
        KernelTunnel::QinQ => {
            let outer = VlanSpec { parent: uplink, id: LAB_VNI as u16, service: true };
            // The outer device has the MTU of the uplink, so the device of the inner tag has four
            // bytes less.
            let spec = LinkSpec::new("stag").up();
            let parent = host.netlink().create(&spec, &LinkKind::Vlan(outer))?;
            LinkKind::Vlan(VlanSpec { parent, id: LAB_INNER_VLAN, service: false })
        }
    })
}

/// Why this kernel does not support the tunnel device, or `None` if it does. Creates one in a
/// temporary namespace to find out.
pub(super) fn tunnel_unavailable(tunnel: KernelTunnel) -> Option<String> {
    let probe = || -> Result<()> {
        let netns = OwnedNetns::create(&format!("{}probe", names::prefix()))?;
        let netlink = netns.netlink()?;
        let peer = LinkSpec::new("far");
        let parent = netlink.create(&LinkSpec::new("near"), &LinkKind::Veth { peer })?;
        let vni = Vni::new(LAB_VNI).ok_or_else(|| Error::Other("the VNI of the lab".into()))?;
        let (local, remote) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
        let kind = match tunnel {
            KernelTunnel::Vxlan => LinkKind::Vxlan(VxlanSpec::new(vni)),
            KernelTunnel::Geneve => {
                LinkKind::Geneve(GeneveSpec { vni, remote: remote.into(), udp_checksum: true })
            }
            KernelTunnel::Gre => LinkKind::Gre(GreSpec { local, remote, key: LAB_VNI }),
            KernelTunnel::QinQ => LinkKind::Vlan(VlanSpec { parent, id: 1, service: true }),
        };
        Ok(netlink.create(&LinkSpec::new("tun0"), &kind).map(drop)?)
    };
    match check_privileges() {
        Err(_) => Some("not known without root, which makes such a device to find out".to_owned()),
        Ok(()) => probe().err().map(|error| format!("this kernel has no such devices ({error})")),
    }
}

/// One veth pair from each guest to its counterpart, without hosts.
pub(super) fn direct(lab: &Lab<'_>) -> Result<Attachment> {
    let mtu = lab.guest_mtu(0)?;
    for number in 0..lab.shape().guests_per_host {
        let (first, second) = (lab.guest(0, number), lab.guest(1, number));
        let mtu = u32::from(mtu);
        let spec = guest_end(first, mtu);
        let kind = LinkKind::Veth { peer: guest_end(second, mtu) };
        lab.hosts()[0].netlink().create(&spec, &kind)?;
        first.configure()?;
        second.configure()?;
    }
    Ok(Attachment::new(Vec::new(), None, mtu))
}
