//! Checks of one device.

use super::tunnel::{OuterHeaders, PerformedBy, tunnel_support};
use crate::facts::{HostFacts, NicFacts};
use crate::finding::{Finding, Fix, Level};
use crate::fix::Action;
use flow::{Carrier, TunnelType};
use netdev::XdpMode;
use netdev::ethtool::hardware::FlowType;

/// All findings about a device that carries these tunnel types with these outer headers.
pub fn findings(
    nic: &NicFacts,
    host: &HostFacts,
    tunnels: &[TunnelType],
    outer: OuterHeaders,
) -> Vec<Finding> {
    let mut findings = vec![link(nic)];
    findings.extend(offloads(nic, tunnels, outer));
    findings.push(gro(nic));
    findings.push(lro(nic));
    findings.push(xdp(nic));
    findings.push(rss(nic, host, tunnels, outer));
    let unread = |(what, error): &(&str, String)| {
        let look = Fix::Command(format!("ethtool {what} {}", nic.name));
        Finding::unreadable("nic", &nic.name, error, look)
    };
    findings.extend(nic.unread.iter().map(unread));
    findings
}

fn link(nic: &NicFacts) -> Finding {
    let speed = nic.speed_mbps.map_or(String::new(), |mbps| format!(", {mbps} Mbit/s"));
    let state = match (nic.up, nic.carrier) {
        (false, _) => "down",
        (true, false) => "up, no carrier",
        (true, true) => "up",
    };
    let seen = format!("{state}{speed}, MTU {}", nic.mtu);
    let finding = Finding::pass("link", &nic.name, seen, "tunnels need a link that is up");
    // If the device is part of a bond, the other ports carry the traffic.
    let level = if nic.is_bonded { Level::Warn } else { Level::Fail };
    match (nic.up, nic.carrier) {
        (true, true) => finding,
        (true, false) => finding.worse(
            level,
            Fix::Command(format!("check the cable and the switch port; ethtool {}", nic.name)),
        ),
        (false, _) => finding.worse(level, Fix::Command(format!("ip link set {} up", nic.name))),
    }
}

/// A transmit offload, and why tunnels need it.
struct Offload {
    check: &'static str,
    feature: &'static str,
    carriers: &'static [Carrier],
    why: &'static str,
}

impl Offload {
    fn is_for(&self, tunnel: TunnelType) -> bool {
        self.carriers.contains(&tunnel.carrier())
    }
}

const ALL: &[Carrier] = &[Carrier::Udp, Carrier::Gre, Carrier::TcpLike, Carrier::Tags];

const OFFLOADS: &[Offload] = &[
    Offload {
        check: "tx_tcp",
        feature: "tx-tcp-segmentation",
        carriers: ALL,
        why: "the CPU segments super-packets, in every tunnel",
    },
    Offload {
        check: "tx_tcp6",
        feature: "tx-tcp6-segmentation",
        carriers: ALL,
        why: "the CPU segments super-packets of IPv6, in every tunnel",
    },
    Offload {
        check: "tx_udp",
        feature: "tx-udp-segmentation",
        carriers: &[Carrier::Udp],
        why: "the CPU segments the UDP batches that the user datapath sends for VXLAN and Geneve",
    },
    Offload {
        check: "tx_udp_tnl",
        feature: "tx-udp_tnl-segmentation",
        carriers: &[Carrier::Udp],
        why: "the CPU segments super-packets in VXLAN and Geneve without outer checksum",
    },
    Offload {
        check: "tx_udp_tnl_csum",
        feature: "tx-udp_tnl-csum-segmentation",
        carriers: &[Carrier::Udp],
        why: "the CPU segments super-packets in VXLAN and Geneve with outer checksum",
    },
    Offload {
        check: "tx_gre",
        feature: "tx-gre-segmentation",
        carriers: &[Carrier::Gre],
        why: "the CPU segments super-packets in GRE",
    },
    Offload {
        check: "tx_gre_csum",
        feature: "tx-gre-csum-segmentation",
        carriers: &[Carrier::Gre],
        why: "the CPU segments super-packets in GRE with checksum",
    },
    Offload {
        check: "tx_gso_partial",
        feature: "tx-gso-partial",
        carriers: &[Carrier::Udp, Carrier::Gre],
        why: "the kernel cannot use the device's partial segmentation of tunnels with checksums",
    },
    Offload {
        check: "tx_gso",
        feature: "tx-generic-segmentation",
        carriers: ALL,
        why: "super-packets are segmented before encapsulation instead of after it",
    },
    Offload {
        check: "tx_sg",
        feature: "tx-scatter-gather",
        carriers: ALL,
        why: "the kernel copies every super-packet into one buffer, and the device segments none",
    },
    Offload {
        check: "tx_checksum",
        feature: "tx-checksum-ip-generic",
        carriers: ALL,
        why: "the CPU computes the checksum of every packet, and the device segments none",
    },
    Offload {
        check: "tx_checksum4",
        feature: "tx-checksum-ipv4",
        carriers: ALL,
        why: "the CPU computes the checksum of every IPv4 packet, and the device segments none",
    },
    Offload {
        check: "tx_checksum6",
        feature: "tx-checksum-ipv6",
        carriers: ALL,
        why: "the CPU computes the checksum of every IPv6 packet, and the device segments none",
    },
    Offload {
        check: "rx_checksum",
        feature: "rx-checksum",
        carriers: ALL,
        why: "the CPU verifies the checksum of every packet, and GRO merges less",
    },
];

/// The offloads that an administrator switched off, one finding each. An offload that the device
/// never had is no fault of this host; the table of tunnels shows its effect.
fn offloads(nic: &NicFacts, tunnels: &[TunnelType], outer: OuterHeaders) -> Vec<Finding> {
    let used = |offload: &&Offload| tunnels.iter().any(|tunnel| offload.is_for(*tunnel));
    let off = |offload: &&Offload| nic.features.switched_off(offload.feature);
    let mut findings: Vec<_> = OFFLOADS
        .iter()
        .filter(used)
        .filter(off)
        .map(|offload| {
            let cost = costs(nic, offload, tunnels, outer);
            let seen = format!("{} off", offload.feature);
            Finding::pass(offload.check, &nic.name, seen, format!("{}{cost}", offload.why))
                .worse(Level::Warn, switch(nic, offload.feature, true))
        })
        .collect();
    if findings.is_empty() {
        let on = OFFLOADS.iter().filter(|offload| nic.features.on(offload.feature)).count();
        let seen = format!("{on} of {} on, none switched off", OFFLOADS.len());
        let why = "the device does all segmentation and checksums that it supports";
        findings.push(Finding::pass("tx_offloads", &nic.name, seen, why));
    }
    findings
}

/// The throughput that the tunnels in use lose because an offload is off.
fn costs(nic: &NicFacts, offload: &Offload, tunnels: &[TunnelType], outer: OuterHeaders) -> String {
    let mut costs: Vec<String> = Vec::new();
    for &tunnel in tunnels.iter().filter(|tunnel| offload.is_for(**tunnel)) {
        let support = tunnel_support(nic, tunnel, outer);
        let kernel = support.kernel_segmentation.as_ref();
        let lacks = support.segmentation.lacks.contains(&offload.feature)
            || kernel.is_some_and(|support| support.lacks.contains(&offload.feature));
        if let Some(cost) = support.cost.filter(|_| lacks) {
            costs.push(format!("{tunnel} keeps at least {:.2} of its throughput", cost.at_least));
        }
    }
    if costs.is_empty() { String::new() } else { format!(" (measured: {})", costs.join(", ")) }
}

fn switch(nic: &NicFacts, feature: &str, on: bool) -> Fix {
    let (link, name) = (nic.name.clone(), feature.to_owned());
    Fix::safe(Action::Feature { link, name, on })
}

fn gro(nic: &NicFacts) -> Finding {
    const GRO: &str = "rx-gro";
    let why = "without GRO every segment of a stream crosses the whole stack";
    if nic.features.switched_off(GRO) {
        return Finding::pass("rx_gro", &nic.name, "rx-gro off", why)
            .worse(Level::Warn, switch(nic, GRO, true));
    }
    let seen = if nic.features.on(GRO) { "rx-gro on" } else { "the device has none" };
    Finding::pass("rx_gro", &nic.name, seen, why)
}

fn lro(nic: &NicFacts) -> Finding {
    const LRO: &str = "rx-lro";
    let why = "a switch cannot forward what LRO merged; GRO merges without losing information";
    if nic.features.on(LRO) && !nic.features.get(LRO).fixed {
        return Finding::pass("rx_lro", &nic.name, "rx-lro on", why)
            .worse(Level::Warn, switch(nic, LRO, false));
    }
    Finding::pass("rx_lro", &nic.name, "rx-lro off", why)
}

/// Warns of an XDP program, which sees packets first and may drop them.
fn xdp(nic: &NicFacts) -> Finding {
    let pass = |seen: &str| {
        let why = "an XDP program sees tunnel packets before weft, and may drop or redirect them";
        Finding::pass("xdp", &nic.name, seen, why)
    };
    let (seen, off) = match nic.xdp_program {
        None => return pass("no program attached"),
        Some(XdpMode::Native) => ("a native program is attached", "xdpdrv off"),
        Some(XdpMode::Offloaded) => ("a program is offloaded to the NIC", "xdpoffload off"),
        Some(XdpMode::Several) => ("several programs are attached", "xdpdrv off"),
        Some(XdpMode::Generic) => {
            ("a generic program is attached, which costs a copy", "xdpgeneric off")
        }
    };
    let fix = format!("bpftool net show dev {0}; if unneeded: ip link set dev {0} {off}", nic.name);
    pass(seen).worse(Level::Warn, Fix::Command(fix))
}

/// Checks whether more than one CPU processes received packets.
fn rss(nic: &NicFacts, host: &HostFacts, tunnels: &[TunnelType], outer: OuterHeaders) -> Finding {
    let (queues, rps) = (nic.active_rx_queues(), nic.rps_cpus());
    let seen = format!("{queues} receive queue(s) in use, RPS to {rps} CPU(s)");
    let pass = |why: &str| Finding::pass("rx_spreading", &nic.name, seen.clone(), why);
    if host.cpus.count() < 2 {
        return pass("this host has one CPU");
    }
    if nic.is_virtual() && rps == 0 {
        return pass("a software device receives on the CPU that sends");
    }
    let everything_on_one = rps == 1 || (rps == 0 && queues < 2);
    if everything_on_one {
        return pass("one CPU receives all packets, and limits what this host can receive")
            .worse(Level::Warn, spread(nic, host));
    }
    let alone = |tunnel: &&TunnelType| {
        tunnel_support(nic, **tunnel, outer).spreading.outcome == PerformedBy::No
    };
    let crowded: Vec<_> = tunnels.iter().filter(alone).copied().collect();
    if crowded.is_empty() {
        return pass("flows are spread over CPUs");
    }
    let names: Vec<_> = crowded.iter().map(ToString::to_string).collect();
    let fix = if crowded.iter().all(|tunnel| tunnel.carrier() == Carrier::Udp) {
        let flow = if outer.v6 { FlowType::Udp6 } else { FlowType::Udp4 };
        Fix::Command(format!("ethtool -N {} rx-flow-hash {} sdfn", nic.name, flow.name()))
    } else {
        spread(nic, host)
    };
    let why = format!("one CPU receives all packets that one host sends in {}", names.join(", "));
    pass(&why).worse(Level::Warn, fix)
}

/// Sets RPS to all CPUs, for every queue that has another setting.
fn spread(nic: &NicFacts, host: &HostFacts) -> Fix {
    let all = &host.cpus;
    let Some(steering) = nic.steering.as_ref().filter(|steering| !steering.rx.is_empty()) else {
        return Fix::Command(format!(
            "echo {all} > /sys/class/net/{}/queues/rx-0/rps_cpus",
            nic.name
        ));
    };
    let actions = steering.rx.iter().enumerate().filter(|(_, queue)| queue.rps_cpus != *all);
    Fix::Safe(
        actions
            .map(|(queue, state)| Action::Rps {
                link: nic.name.clone(),
                queue,
                cpus: all.clone(),
                was: state.rps_cpus.clone(),
            })
            .collect(),
    )
}
