//! Tests tunnel packets from unknown end points, with the kernel datapath.

use super::geneve::geneve;
use super::gre::gre;
use super::target::{Target, Wrap, kernel_count};
use super::vxlan::vxlan;
use crate::common::{Datapath, PATIENCE, Setup};
use testkit::host::wait_until;
use testkit::require_root;

const PACKETS: u64 = 400;

/// The number of packets that reached the daemon, through its sockets and the TAP device for punts.
fn reached(target: &Target) -> u64 {
    let links = target.lab.hosts[0].netns.netlink().links().expect("the links of the host");
    let device = links.iter().find(|link| link.name.starts_with("weft-up"));
    let punted = device.expect("the TAP device for punts").stats.tx_packets;
    punted + kernel_count(target, "InDatagrams")
}

/// If the programs passed such packets to the daemon, a flood of them would use a whole processor.
#[test]
fn programs_drop_packets_from_unknown_end_points() {
    require_root!();
    for (tunnel, wrap) in [("vxlan", vxlan as Wrap), ("geneve", geneve), ("gre", gre)] {
        for family in [4, 6] {
            let setup = Setup::new(tunnel).family(family).datapath(Datapath::Kernel);
            let mut target = Target::new(setup);
            let stranger = wrap(&target.outer.as_stranger(), &target.forbidden());
            let before = reached(&target);
            (0..PACKETS).for_each(|_| target.wire.send(&stranger));
            let dropped = |target: &Target| target.dropped().get("unknown_endpoint").copied();
            wait_until(PATIENCE, "all are counted", || dropped(&target) >= Some(PACKETS));
            assert_eq!(dropped(&target), Some(PACKETS), "{tunnel} over IPv{family}");
            // Guests and routers of this host may have sent a few other packets meanwhile.
            let reached = reached(&target) - before;
            assert!(reached < PACKETS / 4, "{reached} reached the daemon, {tunnel}, IPv{family}");
            target.seen(wrap, &[]);
            target.finish();
        }
    }
}
