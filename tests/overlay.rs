//! Tests traffic between guests through every tunnel type. The tests compare every byte and check
//! that weft drops no packet.

use crate::common::daemon::port;
use crate::common::frames::{FrameSocket, count, note};
use crate::common::trunk::Trunk;
use crate::common::{
    Attachment, Daemon, GUEST_DEVICE, Guest, Host, INNER_VLAN, Lab, PATIENCE, Setup, TUNNELS, VLAN,
    traffic,
};
use datapath::stats::Drops;
use netdev::NeighbourState;
use testkit::host::wait_until;
use testkit::program;
use testkit::{require_program, require_root};
use wire::MacAddr;

const MEGABYTE: usize = 1 << 20;
/// UDP payload sizes: empty, one byte, a full packet, and sizes that guests must fragment.
const DATAGRAMS: &[usize] = &[0, 1, 1400, 1473, 4000, 60_000];

/// The tunnel types for tests of the guest side: one for each carrier, and those with VLAN tags,
/// which weft must distinguish from the tags of guests. Geneve represents the types over UDP,
/// because it has options.
const KINDS: [&str; 5] = ["geneve", "gre", "stt", "vlan", "qinq"];

/// Runs all checks with two guests on each host.
fn everything_works(setup: Setup) {
    let lab = Lab::new(setup.guests(2, 2));
    let daemons = lab.start_both();
    let before = drops(&daemons);
    let [a, b, c, d] = &lab.guests[..] else { panic!("there are two guests on each host") };
    for (from, to) in [(a, c), (d, b), (a, b), (d, c)] {
        for family in [4, 6] {
            traffic::ping(&from.netns, to.ip(family));
            neighbours_know_each_other(from, to, family);
            DATAGRAMS.iter().for_each(|&len| traffic::udp_echo(from, to, family, len));
        }
    }
    traffic::tcp(a, c, 4, 4 * MEGABYTE);
    traffic::tcp(c, a, 4, 4 * MEGABYTE);
    traffic::tcp(b, d, 6, 4 * MEGABYTE);
    traffic::tcp(d, b, 6, 4 * MEGABYTE);
    traffic::tcp(a, b, 4, MEGABYTE);
    traffic::tcp(d, c, 6, MEGABYTE);
    group_frames_reach_everybody_once(&lab.guests);
    assert_eq!(drops(&daemons), before, "something was dropped on the way");
    daemons.into_iter().for_each(Daemon::stop);
}

/// Runs the essential checks, for variations of a tunnel type.
fn essentials_work(setup: Setup) {
    let lab = Lab::new(setup);
    let daemons = lab.start_both();
    let before = drops(&daemons);
    let (a, b) = lab.ends();
    essentials(a, b);
    assert_eq!(drops(&daemons), before, "something was dropped on the way");
    daemons.into_iter().for_each(Daemon::stop);
}

fn essentials(a: &Guest, b: &Guest) {
    for family in [4, 6] {
        traffic::ping(&a.netns, b.ip(family));
        DATAGRAMS.iter().for_each(|&len| traffic::udp_echo(a, b, family, len));
        traffic::tcp(a, b, family, MEGABYTE);
        traffic::tcp(b, a, family, MEGABYTE);
    }
}

fn drops(daemons: &[Daemon; 2]) -> [Drops; 2] {
    [daemons[0].drops(), daemons[1].drops()]
}

/// Checks that both guests have resolved the MAC address of the other by ARP or neighbour
/// discovery.
fn neighbours_know_each_other(a: &Guest, b: &Guest, family: u8) {
    for (guest, other) in [(a, b), (b, a)] {
        let netlink = guest.netns.netlink();
        let index = netlink.index_of(GUEST_DEVICE).expect("a guest has an interface");
        // The guest that only replied may still be verifying the address.
        wait_until(PATIENCE, "the neighbour is resolved", || {
            let neighbour = netlink.neighbour(index, other.ip(family)).expect("a neighbour table");
            neighbour.is_some_and(|neighbour| {
                assert_ne!(neighbour.state, NeighbourState::Permanent);
                neighbour.usable_mac() == Some(other.mac)
            })
        });
    }
}

/// Checks that a broadcast and a multicast frame of every guest arrive once at every other guest,
/// and not at the sender.
fn group_frames_reach_everybody_once(guests: &[Guest]) {
    const ALL_HOSTS: MacAddr = MacAddr([0x01, 0, 0x5e, 0, 0, 1]);
    let sockets: Vec<_> =
        guests.iter().map(|guest| FrameSocket::open(&guest.netns, GUEST_DEVICE)).collect();
    for (guest, socket) in guests.iter().zip(&sockets) {
        let text = |what| format!("{what} of {};", guest.name);
        socket.send(&note(MacAddr::BROADCAST, guest.mac, &text("broadcast")));
        socket.send(&note(ALL_HOSTS, guest.mac, &text("multicast")));
    }
    let collect = |kinds: &[&str], received: &mut [Vec<Vec<u8>>]| {
        for ((receiver, socket), frames) in guests.iter().zip(&sockets).zip(received) {
            for sender in guests.iter().filter(|sender| sender.mac != receiver.mac) {
                for what in kinds {
                    let text = format!("{what} of {};", sender.name);
                    if count(frames, &text) == 0 {
                        frames.extend(socket.until_note(&text));
                    }
                }
            }
        }
    };
    let mut received = vec![Vec::new(); guests.len()];
    collect(&["broadcast", "multicast"], &mut received);
    // All megaflows exist now, so frames stay in order: a second copy of a frame would arrive
    // before the final frames.
    for (guest, socket) in guests.iter().zip(&sockets) {
        socket.send(&note(MacAddr::BROADCAST, guest.mac, &format!("end of {};", guest.name)));
    }
    collect(&["end"], &mut received);
    for (receiver, frames) in guests.iter().zip(&received) {
        for sender in guests {
            let expected = usize::from(sender.mac != receiver.mac);
            for what in ["broadcast", "multicast"] {
                let times = count(frames, &format!("{what} of {};", sender.name));
                assert_eq!(times, expected, "{what} of {} at {}", sender.name, receiver.name);
            }
        }
    }
}

macro_rules! everything {
    ($($name:ident: $setup:expr;)+) => {$(
        #[test]
        fn $name() {
            require_root!();
            everything_works($setup);
        }
    )+};
}

everything! {
    guests_exchange_everything_when_vxlan_runs_over_ipv4: Setup::new("vxlan");
    guests_exchange_everything_when_vxlan_runs_over_ipv6: Setup::new("vxlan").family(6);
    guests_exchange_everything_when_geneve_runs_over_ipv4: Setup::new("geneve");
    guests_exchange_everything_when_geneve_runs_over_ipv6: Setup::new("geneve").family(6);
    guests_exchange_everything_when_gre_runs_over_ipv4: Setup::new("gre");
    guests_exchange_everything_when_gre_runs_over_ipv6: Setup::new("gre").family(6);
    guests_exchange_everything_when_nvgre_runs_over_ipv4: Setup::new("nvgre");
    guests_exchange_everything_when_nvgre_runs_over_ipv6: Setup::new("nvgre").family(6);
    guests_exchange_everything_when_stt_runs_over_ipv4: Setup::new("stt");
    guests_exchange_everything_when_stt_runs_over_ipv6: Setup::new("stt").family(6);
    guests_exchange_everything_when_vlan_is_used: Setup::new("vlan");
    guests_exchange_everything_when_qinq_is_used: Setup::new("qinq");
}

macro_rules! essentials {
    ($($name:ident: $setup:expr;)+) => {$(
        #[test]
        fn $name() {
            require_root!();
            essentials_work($setup);
        }
    )+};
}

essentials! {
    frames_cross_when_geneve_carries_no_logical_ports:
        Setup::new("geneve").options("logical_ports = false");
    frames_cross_when_stt_carries_no_logical_ports:
        Setup::new("stt").options("logical_ports = false");
    frames_cross_when_vxlan_has_no_checksum: Setup::new("vxlan").options("checksum = false");
    frames_cross_when_vxlan_over_ipv6_has_no_checksum:
        Setup::new("vxlan").family(6).options("checksum = false");
    frames_cross_when_geneve_over_ipv6_has_no_checksum:
        Setup::new("geneve").family(6).options("checksum = false");
    frames_cross_when_gre_has_no_key: Setup::new("gre").options("key = false").without_key();
    frames_cross_when_gre_has_a_checksum: Setup::new("gre").options("checksum = true");
    frames_cross_when_gre_has_everything:
        Setup::new("gre").family(6).options("checksum = true\nsequence = true");
    frames_cross_when_gre_is_numbered: Setup::new("gre").options("sequence = true");
    frames_cross_when_qinq_has_the_customer_tpid: Setup::new("qinq").options("s_tpid = 0x8100");
    frames_cross_when_qinq_has_the_old_tpid: Setup::new("qinq").options("s_tpid = 0x9100");
    frames_cross_when_ports_and_dscp_are_others:
        Setup::new("geneve").options("udp_port = 16081\nttl = 7\ndscp = \"inherit\"");
    frames_cross_when_stt_has_another_port: Setup::new("stt").options("tcp_port = 17471");
    frames_cross_when_the_underlay_is_jumbo: Setup::new("vxlan").underlay_mtu(9000);
    frames_cross_when_stt_cuts_packets_longer_than_the_underlay: Setup::new("stt").mtu(9000);
}

#[test]
fn bytes_are_the_same_when_the_uplink_offloads_nothing() {
    require_root!();
    for tunnel in TUNNELS {
        let lab = Lab::new(Setup::new(tunnel));
        without_offloads(&lab);
        let daemons = lab.start_both();
        let before = drops(&daemons);
        let (a, b) = lab.ends();
        essentials(a, b);
        assert_eq!(drops(&daemons), before, "{tunnel}: something was dropped on the way");
        daemons.into_iter().for_each(Daemon::stop);
    }
}

/// The uplinks have GRO but no segmentation or checksum offload, like a network card without tunnel
/// offloads. A TCP stream then reaches a guest in super-packets, whether or not the eBPF programs
/// punt its packets.
#[test]
fn bytes_are_the_same_when_the_uplink_joins_what_it_receives() {
    require_root!();
    for tunnel in TUNNELS {
        let lab = Lab::new(Setup::new(tunnel));
        without_offloads(&lab);
        for host in &lab.hosts {
            switch(host, &[("rx-gro", true)]);
        }
        let daemons = lab.start_both();
        let before = drops(&daemons);
        let (a, b) = lab.ends();
        essentials(a, b);
        let packets = || {
            let guest = b.netns.netlink().link(GUEST_DEVICE).expect("a guest has an interface");
            let uplink = lab.hosts[1].netns.netlink().link(&lab.hosts[1].uplink.name);
            [guest, uplink.expect("there is an uplink")].map(|link| link.stats.rx_packets)
        };
        let [guest, uplink] = packets();
        traffic::tcp(a, b, 4, 10 * MEGABYTE);
        let [to_guest, by_wire] = [packets()[0] - guest, packets()[1] - uplink];
        // The kernel's GRO merges frames with one tag before the eBPF programs receive them, but
        // not before packet sockets do. It merges Geneve packets only after the programs have
        // received them.
        let by_programs = daemons[0].show().datapath == "kernel";
        let is_joined = match tunnel {
            "geneve" => !by_programs,
            "vlan" => by_programs,
            "qinq" => false,
            _ => true,
        };
        // A few frames are not part of the stream, such as ARP and neighbour discovery.
        // Kernels with 802.1Q merge tagged frames as well, so others have no lower bound.
        let limit = if is_joined { by_wire / 3 } else { by_wire + by_wire / 20 };
        assert!(to_guest <= limit, "{tunnel}: {to_guest} of {by_wire}");
        assert_eq!(drops(&daemons), before, "{tunnel}: something was dropped on the way");
        daemons.into_iter().for_each(Daemon::stop);
    }
}

/// A host's firewall needs to accept only the port of the tunnel.
#[test]
fn guests_talk_when_firewalls_accept_only_the_tunnel() {
    require_root!();
    require_program!("nft", "nftables");
    for (tunnel, rule) in [
        ("vxlan", "udp dport 4789"),
        ("geneve", "udp dport 6081"),
        // A firewall cannot distinguish NVGRE from GRE.
        ("gre", "meta l4proto gre"),
        ("stt", "tcp dport 7471"),
    ] {
        for family in [4, 6] {
            let lab = Lab::new(Setup::new(tunnel).family(family));
            for host in &lab.hosts {
                let mut nft = host.netns.program("nft");
                nft.args(["-f", "-"]);
                let rules = format!(
                    "table inet f {{ chain i {{ type filter hook input priority 0; policy drop;
                     meta l4proto ipv6-icmp accept; {rule} accept; }}\n}}\n"
                );
                program::run(nft, rules.as_bytes());
            }
            let daemons = lab.start_both();
            let before = drops(&daemons);
            let (a, b) = lab.ends();
            essentials(a, b);
            assert_eq!(drops(&daemons), before, "{tunnel}: something was dropped on the way");
            daemons.into_iter().for_each(Daemon::stop);
        }
    }
}

/// Disables the offloads of both uplinks.
fn without_offloads(lab: &Lab) {
    const FEATURES: &[&str] = &[
        "tx-checksum-ip-generic",
        "tx-tcp-segmentation",
        "tx-tcp6-segmentation",
        "tx-udp-segmentation",
        "tx-generic-segmentation",
        "tx-scatter-gather",
        "rx-gro",
    ];
    let off: Vec<_> = FEATURES.iter().map(|&feature| (feature, false)).collect();
    for host in &lab.hosts {
        switch(host, &off);
    }
}

fn switch(host: &Host, features: &[(&str, bool)]) {
    let ethtool = host.netns.ethtool().expect("an ethtool socket");
    let unchanged = ethtool.set_features(&host.uplink.name, features).expect("features are set");
    assert!(unchanged.is_empty(), "these features stay as they are: {unchanged:?}");
}

/// Runs the essential checks between machines behind trunk guests, through every tunnel type of
/// `KINDS`.
fn trunks_work(tags: &[(u16, u16)], setup: impl Fn(&str) -> Setup, prepare: impl Fn(&Trunk)) {
    for tunnel in KINDS {
        let lab = Lab::new(setup(tunnel));
        let daemons = lab.start_both();
        let before = drops(&daemons);
        let (a, b) = lab.ends();
        let trunks = [a, b].map(|guest| Trunk::new(guest, tags));
        trunks.iter().for_each(&prepare);
        let [a, b] = trunks.each_ref().map(|trunk| &trunk.inside);
        essentials(a, b);
        assert_eq!(drops(&daemons), before, "{tunnel}: something was dropped on the way");
        daemons.into_iter().for_each(Daemon::stop);
    }
}

#[test]
fn trunks_exchange_frames_with_a_tag_of_their_own() {
    require_root!();
    trunks_work(&[(0x8100, 5)], Setup::new, |_| {});
}

#[test]
fn trunks_exchange_frames_with_two_tags_of_their_own() {
    require_root!();
    // The guests use the same tags as the underlay.
    trunks_work(&[(0x88a8, VLAN), (0x8100, INNER_VLAN)], Setup::new, |_| {});
}

#[test]
fn trunks_exchange_frames_when_the_kernel_does_not_know_their_tag() {
    require_root!();
    let attached = |tunnel: &str| Setup::new(tunnel).attachment(Attachment::Veth).mtu(1400);
    // The kernel cannot segment super-packets with such a tag. weft coalesces frames from tunnels,
    // so it must segment the result itself.
    trunks_work(&[(0x9100, 5)], attached, Trunk::without_segmentation);
}

#[test]
fn super_packets_of_trunks_stay_whole() {
    /// Longer than any frame with one TCP segment.
    const SEGMENT: u64 = 1600;
    require_root!();
    for tunnel in ["geneve", "gre", "stt", "vlan"] {
        let lab = Lab::new(Setup::new(tunnel));
        let daemons = lab.start_both();
        let (a, b) = lab.ends();
        let [a, b] = [a, b].map(|guest| Trunk::new(guest, &[(0x8100, 5)]));
        // Other congestion controls may send small bursts. Reno can be selected in every namespace.
        let reno = a.inside.netns.sysctl("net/ipv4/tcp_congestion_control", "reno");
        reno.expect("a sysctl can be set");
        traffic::tcp(&a.inside, &b.inside, 4, 10 * MEGABYTE);
        let (sent, received) = (port(&daemons[0], "g1").rx, port(&daemons[1], "g2").tx);
        let [received, sent] = [received, sent].map(|count| count.bytes / count.packets);
        // weft must not segment: the mean length of frames to the receiver must equal that of
        // frames from the sender. One in ten may be a short frame, such as ARP.
        assert!(received * 10 >= sent * 9, "{tunnel}: mean length {sent} became {received} bytes");
        // With the kernel datapath, the veth pair segments most frames with a pushed tag before the
        // eBPF programs receive them. In these tunnels, the kernel's GRO merges them again.
        let by_programs = daemons[0].show().datapath == "kernel";
        if !by_programs {
            assert!(
                sent > SEGMENT,
                "{tunnel}: frames from the sender have {sent} bytes on average"
            );
        }
        if !by_programs || ["geneve", "gre"].contains(&tunnel) {
            assert!(received > SEGMENT, "{tunnel}: frames to the receiver have {received} bytes");
        }
        daemons.into_iter().for_each(Daemon::stop);
    }
}

#[test]
fn frames_cross_when_guests_are_attached_by_their_interfaces() {
    require_root!();
    for tunnel in KINDS {
        essentials_work(Setup::new(tunnel).attachment(Attachment::Veth).mtu(1400));
    }
}
