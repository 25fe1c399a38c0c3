//! Checks that both datapaths count the same traffic in the same way.

use super::call::weft;
use crate::common::frames::{FrameSocket, frame, note};
use crate::common::outer::Outer;
use crate::common::{Daemon, Datapath, GUEST_DEVICE, Lab, PATIENCE, Setup, TUNNELS};
use ::datapath::stats::{Drops, PacketCount};
use serde_json::Value;
use std::collections::BTreeMap;
use testkit::host::wait_until;
use testkit::require_root;
use wire::MacAddr;

/// Number of frames of each kind.
const EACH: u64 = 20;
/// Types of frames that are delivered: two protocols to the other guest, and a broadcast.
const DELIVERED: u64 = 3;
/// The drop reasons of the frames that are not delivered: denied by an ACL, unknown unicast,
/// malformed.
const DROPPED: [&str; 3] = ["flow_drop", "unknown_mac", "malformed"];
const NOBODY: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x99]);
const LIST: &str = "[[acl]]\nswitch = \"blue\"\ndirection = \"from-port\"\npriority = 1000\n\
                    match = 'udp.dst == 53'\naction = \"drop\"\n";

/// All counters of both daemons, without times and underlay addresses.
#[derive(PartialEq, Eq, Debug)]
struct Counted {
    /// Per port: received from the guest, sent to it, and dropped.
    ports: Vec<(String, PacketCount, PacketCount, Drops)>,
    /// For the uplink: received, sent and dropped.
    uplinks: Vec<(PacketCount, PacketCount, Drops)>,
    /// For each end point: its name, received and sent.
    endpoints: Vec<(String, PacketCount, PacketCount)>,
    /// Packets and bytes of megaflows, by host, port and actions.
    megaflows: BTreeMap<(usize, String, String), [u64; 2]>,
}

impl Counted {
    fn read(lab: &Lab, daemons: &[Daemon; 2]) -> Self {
        let shown = daemons.each_ref().map(Daemon::show);
        let all = || shown.iter();
        let ports = all().flat_map(|show| &show.ports);
        let endpoints = all().flat_map(|show| &show.endpoints);
        let mut megaflows = BTreeMap::<_, [u64; 2]>::new();
        for host in [0, 1] {
            let (code, out, _) = weft(&lab.control(host), &["flows", "--json"]);
            assert_eq!(code, 0);
            let rows = out.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
            for row in rows.filter(|row| row["actions"].is_string()) {
                let key = (host, row["port"].to_string(), row["actions"].to_string());
                let sum = megaflows.entry(key).or_default();
                for (sum, name) in sum.iter_mut().zip(["packets", "bytes"]) {
                    *sum += row[name].as_u64().expect("a number");
                }
            }
        }
        Self {
            ports: ports.map(|p| (p.name.clone(), p.rx, p.tx, p.drops.clone())).collect(),
            uplinks: all()
                .map(|show| (show.uplink.rx, show.uplink.tx, show.uplink.drops.clone()))
                .collect(),
            endpoints: endpoints.map(|e| (e.tunnel.clone(), e.rx, e.tx)).collect(),
            megaflows,
        }
    }
}

/// The counters after a guest has sent frames through a tunnel and frames that are dropped.
fn counted(tunnel: &str, datapath: Datapath) -> Counted {
    let lab = Lab::new(Setup::new(tunnel).datapath(datapath).more(LIST));
    for guest in &lab.guests {
        // This applies to interfaces that are created later. Guests then send no packets by
        // themselves.
        let quiet = guest.netns.sysctl("net/ipv6/conf/default/disable_ipv6", "1");
        quiet.expect("a sysctl can be set");
    }
    let daemons = lab.start_both();
    let (near, far) = lab.ends();
    let [sender, receiver] = [near, far].map(|g| FrameSocket::open(&g.netns, GUEST_DEVICE));
    let outer = Outer {
        src: near.ip(4),
        // No host has this address, so no kernel responds.
        dst: [192, 168, 7, 200].into(),
        src_mac: near.mac,
        dst_mac: far.mac,
        ..Outer::between(&lab.hosts[0], &lab.hosts[1], 4)
    };
    let kinds = [
        note(far.mac, near.mac, "to the other guest"),
        outer.udp(7, b"datagram"),
        note(MacAddr::BROADCAST, near.mac, "to everybody"),
        outer.udp(53, b"refused by a list"),
        note(NOBODY, near.mac, "to nobody"),
        frame(far.mac, near.mac, 0x0800, b"no IP"),
    ];
    // The first frame of each type causes an upcall, so no megaflow counts it.
    let (delivered, dropped) = kinds.split_at(DELIVERED as usize);
    dropped.iter().for_each(|kind| sender.send(kind));
    for kind in delivered {
        sender.send(kind);
        receiver.until("a frame that is delivered", |frame| frame == kind);
    }
    let end = format!("end of the first {tunnel}");
    sender.send(&note(far.mac, near.mac, &end));
    receiver.until_note(&end);
    for _ in 1..EACH {
        kinds.iter().for_each(|kind| sender.send(kind));
    }
    let end = format!("end of {tunnel}");
    sender.send(&note(far.mac, near.mac, &end));
    receiver.until_note(&end);
    wait_until(PATIENCE, "all that is dropped is counted", || {
        let drops = daemons[0].drops();
        DROPPED.iter().all(|reason| drops.get(*reason) == Some(&EACH))
    });
    let counted = Counted::read(&lab, &daemons);
    let of = |name: &str| counted.ports.iter().find(|port| port.0 == name).expect("a port");
    let (sent, received) = (of("g1").1.packets, of("g2").2.packets);
    let dropped = DROPPED.len() as u64;
    assert_eq!((sent, received), ((DELIVERED + dropped) * EACH + 2, DELIVERED * EACH + 2));
    daemons.into_iter().for_each(Daemon::stop);
    counted
}

#[test]
fn counters_are_the_same_with_both_datapaths() {
    require_root!();
    for tunnel in TUNNELS {
        let [user, kernel] = Datapath::BOTH.map(|datapath| counted(tunnel, datapath));
        assert_eq!(kernel, user, "{tunnel}");
    }
}
