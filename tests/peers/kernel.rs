//! The kernel as the switch of `h2`: a bridge that connects the guest's device and a tunnel device.

use super::MTU;
use crate::common::{Lab, VNI};
use netdev::{GeneveSpec, GreSpec, LinkKind, LinkSpec, VxlanSpec};
use std::net::IpAddr;
use wire::Vni;

/// Connects the attached guest of `h2` to a VXLAN device of the kernel, whose remote end is `h1`.
/// The devices are removed together with the namespace of `h2`.
///
/// Over IPv4, zero checksums are an option only of the sender. Over IPv6 (RFC 6936), the device
/// either both sends and accepts them, or does neither.
pub fn attach(lab: &Lab, checksum: bool) {
    attach_to(lab, checksum, lab.hosts[0].underlay(lab.family()));
}

/// Like [`attach`], but the device sends broadcasts and unknown unicast to `remote`: the other
/// host, or a multicast group, which it joins.
pub fn attach_to(lab: &Lab, checksum: bool, remote: IpAddr) {
    let h2 = &lab.hosts[1];
    bridge(
        lab,
        LinkKind::Vxlan(VxlanSpec {
            local: Some(h2.underlay(lab.family())),
            remote: Some(remote),
            learning: true,
            udp_checksum: checksum,
            udp_zero_checksum6: !checksum && lab.family() == 6,
            underlay: Some(h2.uplink.index),
            ..VxlanSpec::new(vni())
        }),
    );
}

/// Like [`attach`], but with a Geneve device. It accepts no critical options, and so no logical
/// ports.
pub fn attach_geneve(lab: &Lab, udp_checksum: bool) {
    let remote = lab.hosts[0].underlay(lab.family());
    bridge(lab, LinkKind::Geneve(GeneveSpec { vni: vni(), remote, udp_checksum }));
}

/// Like [`attach`], but with a GRE device over IPv4 that uses a key.
pub fn attach_gre(lab: &Lab) {
    let [remote, local] = [&lab.hosts[0], &lab.hosts[1]].map(|host| host.uplink.ip4);
    bridge(lab, LinkKind::Gre(GreSpec { local, remote, key: VNI }));
}

fn vni() -> Vni {
    Vni::new(VNI).expect("the VNI of the lab is one")
}

/// Creates the bridge of `h2`.
fn bridge(lab: &Lab, tunnel: LinkKind<'_>) {
    let netlink = lab.hosts[1].netns.netlink();
    let (_, guest) = lab.ends();
    let bridge = netlink
        .create(&LinkSpec::new("br0").up(), &LinkKind::Bridge)
        .expect("a bridge can be made");
    let port = LinkSpec::new("tun0").mtu(MTU.into()).master(bridge).up();
    netlink.create(&port, &tunnel).expect("a tunnel device can be made");
    let device = netlink.index_of(&guest.host_device()).expect("the guest's device is there");
    netlink.set_master(device, Some(bridge)).expect("a bridge takes a device");
}
