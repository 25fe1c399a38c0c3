//! What is wrong with a device, by itself.

use super::tunnel::{Outcome, Outer, verdict};
use crate::facts::{HostFacts, NicFacts};
use crate::finding::{Finding, Level, Mend};
use crate::mend::Action;
use flow::TunnelType;
use netdev::XdpMode;
use netdev::ethtool::hardware::FlowType;

/// Everything that is to be said of a device whose tunnels are `tunnels`, with these outer headers.
pub fn findings(
    nic: &NicFacts,
    host: &HostFacts,
    tunnels: &[TunnelType],
    outer: Outer,
) -> Vec<Finding> {
    let mut findings = vec![link(nic)];
    findings.extend(offloads(nic, tunnels, outer));
    findings.push(gro(nic));
    findings.push(lro(nic));
    findings.push(xdp(nic));
    findings.push(spreading(nic, host, tunnels, outer));
    let unread = |(what, error): &(&str, String)| {
        let look = Mend::Command(format!("ethtool {what} {}", nic.name));
        Finding::unexamined("nic", &nic.name, error, look)
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
    // Of several ports of a bond the others carry on.
    let level = if nic.is_bonded { Level::Warn } else { Level::Fail };
    match (nic.up, nic.carrier) {
        (true, true) => finding,
        (true, false) => finding.worse(
            level,
            Mend::Command(format!("look at the cable and the switch; ethtool {}", nic.name)),
        ),
        (false, _) => finding.worse(level, Mend::Command(format!("ip link set {} up", nic.name))),
    }
}

/// An offload of sending, and what it is for.
struct Offload {
    check: &'static str,
    feature: &'static str,
    tunnels: &'static [TunnelType],
    why: &'static str,
}

const UDP_TUNNELS: &[TunnelType] = &[TunnelType::Vxlan, TunnelType::Geneve];

const OFFLOADS: &[Offload] = &[
    Offload {
        check: "tx_tcp",
        feature: "tx-tcp-segmentation",
        tunnels: &TunnelType::ALL,
        why: "super-packets are cut by the processor, whatever tunnel they are in",
    },
    Offload {
        check: "tx_tcp6",
        feature: "tx-tcp6-segmentation",
        tunnels: &TunnelType::ALL,
        why: "super-packets of IPv6 are cut by the processor, whatever tunnel they are in",
    },
    Offload {
        check: "tx_udp",
        feature: "tx-udp-segmentation",
        tunnels: UDP_TUNNELS,
        why: "the user datapath sends VXLAN and Geneve as trains of datagrams, which the processor cuts then",
    },
    Offload {
        check: "tx_udp_tnl",
        feature: "tx-udp_tnl-segmentation",
        tunnels: UDP_TUNNELS,
        why: "super-packets in VXLAN and Geneve without outer checksum are cut by the processor",
    },
    Offload {
        check: "tx_udp_tnl_csum",
        feature: "tx-udp_tnl-csum-segmentation",
        tunnels: UDP_TUNNELS,
        why: "super-packets in VXLAN and Geneve with outer checksum are cut by the processor",
    },
    Offload {
        check: "tx_gre",
        feature: "tx-gre-segmentation",
        tunnels: &[TunnelType::Gre],
        why: "super-packets in GRE are cut by the processor",
    },
    Offload {
        check: "tx_gre_csum",
        feature: "tx-gre-csum-segmentation",
        tunnels: &[TunnelType::Gre],
        why: "super-packets in GRE with checksum are cut by the processor",
    },
    Offload {
        check: "tx_gso_partial",
        feature: "tx-gso-partial",
        tunnels: &[TunnelType::Vxlan, TunnelType::Geneve, TunnelType::Gre],
        why: "the kernel may not leave to the device what it can do of tunnels with checksums",
    },
    Offload {
        check: "tx_gso",
        feature: "tx-generic-segmentation",
        tunnels: &TunnelType::ALL,
        why: "super-packets are cut before they reach the tunnel instead of behind it",
    },
    Offload {
        check: "tx_sg",
        feature: "tx-scatter-gather",
        tunnels: &TunnelType::ALL,
        why: "every super-packet is copied into one piece, and none is segmented by the device",
    },
    Offload {
        check: "tx_checksum",
        feature: "tx-checksum-ip-generic",
        tunnels: &TunnelType::ALL,
        why: "the processor sums every byte that is sent, and the device segments nothing",
    },
    Offload {
        check: "tx_checksum4",
        feature: "tx-checksum-ipv4",
        tunnels: &TunnelType::ALL,
        why: "the processor sums every byte that is sent over IPv4, and the device segments nothing",
    },
    Offload {
        check: "tx_checksum6",
        feature: "tx-checksum-ipv6",
        tunnels: &TunnelType::ALL,
        why: "the processor sums every byte that is sent over IPv6, and the device segments nothing",
    },
    Offload {
        check: "rx_checksum",
        feature: "rx-checksum",
        tunnels: &TunnelType::ALL,
        why: "the processor sums every byte that is received, and merges nothing before",
    },
];

/// The offloads that somebody has switched off, each for itself. What the device never had is no fault of this host: the verdict
/// on its tunnels says so.
fn offloads(nic: &NicFacts, tunnels: &[TunnelType], outer: Outer) -> Vec<Finding> {
    let used = |offload: &&Offload| offload.tunnels.iter().any(|tunnel| tunnels.contains(tunnel));
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
        let why = "what the device can do of segmentation and checksums, it does";
        findings.push(Finding::pass("tx_offloads", &nic.name, seen, why));
    }
    findings
}

/// What the tunnels in use lose by an offload that is off.
fn costs(nic: &NicFacts, offload: &Offload, tunnels: &[TunnelType], outer: Outer) -> String {
    let mut costs: Vec<String> = Vec::new();
    for &tunnel in offload.tunnels.iter().filter(|tunnel| tunnels.contains(tunnel)) {
        let verdict = verdict(nic, tunnel, outer);
        let kernel = verdict.kernel_segmentation.as_ref();
        let lacks = verdict.segmentation.lacks.contains(&offload.feature)
            || kernel.is_some_and(|verdict| verdict.lacks.contains(&offload.feature));
        if let Some(cost) = verdict.cost.filter(|_| lacks) {
            costs.push(format!("{tunnel} keeps at least {:.2} of its throughput", cost.at_least));
        }
    }
    if costs.is_empty() { String::new() } else { format!(" (measured: {})", costs.join(", ")) }
}

fn switch(nic: &NicFacts, feature: &str, on: bool) -> Mend {
    let (link, name) = (nic.name.clone(), feature.to_owned());
    Mend::safe(Action::Feature { link, name, on })
}

fn gro(nic: &NicFacts) -> Finding {
    const GRO: &str = "rx-gro";
    let why = "without it every segment of a stream crosses the whole stack by itself";
    if nic.features.switched_off(GRO) {
        return Finding::pass("rx_gro", &nic.name, "rx-gro off", why)
            .worse(Level::Warn, switch(nic, GRO, true));
    }
    let seen = if nic.features.on(GRO) { "rx-gro on" } else { "the device has none" };
    Finding::pass("rx_gro", &nic.name, seen, why)
}

fn lro(nic: &NicFacts) -> Finding {
    const LRO: &str = "rx-lro";
    let why = "packets merged by LRO cannot be forwarded as they came; GRO merges so that they can";
    if nic.features.on(LRO) && !nic.features.get(LRO).fixed {
        return Finding::pass("rx_lro", &nic.name, "rx-lro on", why)
            .worse(Level::Warn, switch(nic, LRO, false));
    }
    Finding::pass("rx_lro", &nic.name, "rx-lro off", why)
}

/// A program that sees packets before anybody else, and may keep them.
fn xdp(nic: &NicFacts) -> Finding {
    let pass = |seen: &str| {
        let why = "a program at XDP sees tunnel packets before weft does, and may drop them or send them elsewhere";
        Finding::pass("xdp", &nic.name, seen, why)
    };
    let (seen, off) = match nic.xdp_program {
        None => return pass("no program attached"),
        Some(XdpMode::Native) => ("a native program is attached", "xdpdrv off"),
        Some(XdpMode::Offloaded) => ("a program is attached to the card", "xdpoffload off"),
        Some(XdpMode::Several) => ("several programs are attached", "xdpdrv off"),
        Some(XdpMode::Generic) => {
            ("a generic program is attached, before which frames are copied", "xdpgeneric off")
        }
    };
    let mend =
        format!("bpftool net show dev {0}; if it may go: ip link set dev {0} {off}", nic.name);
    pass(seen).worse(Level::Warn, Mend::Command(mend))
}

/// Whether more than one processor receives.
fn spreading(nic: &NicFacts, host: &HostFacts, tunnels: &[TunnelType], outer: Outer) -> Finding {
    let (queues, rps) = (nic.active_rx_queues(), nic.rps_cpus());
    let seen = format!("{queues} receive queue(s) in use, RPS to {rps} processor(s)");
    let pass = |why: &str| Finding::pass("rx_spreading", &nic.name, seen.clone(), why);
    if host.cpus.count() < 2 {
        return pass("this host has one processor");
    }
    if nic.is_virtual() && rps == 0 {
        return pass("a software device receives where its frames are sent");
    }
    let everything_on_one = rps == 1 || (rps == 0 && queues < 2);
    if everything_on_one {
        return pass(
            "one processor receives everything, and is the limit of what this host receives",
        )
        .worse(Level::Warn, spread(nic, host));
    }
    let alone =
        |tunnel: &&TunnelType| verdict(nic, **tunnel, outer).spreading.outcome == Outcome::No;
    let crowded: Vec<_> = tunnels.iter().filter(alone).copied().collect();
    if crowded.is_empty() {
        return pass("flows are spread over processors");
    }
    let names: Vec<_> = crowded.iter().map(ToString::to_string).collect();
    let mend = if crowded.iter().all(|tunnel| UDP_TUNNELS.contains(tunnel)) {
        let flow = if outer.v6 { FlowType::Udp6 } else { FlowType::Udp4 };
        Mend::Command(format!("ethtool -N {} rx-flow-hash {} sdfn", nic.name, flow.name()))
    } else {
        spread(nic, host)
    };
    let why =
        format!("all that one host sends in {} is received by one processor", names.join(", "));
    pass(&why).worse(Level::Warn, mend)
}

/// RPS over all processors, for every queue that does not have it.
fn spread(nic: &NicFacts, host: &HostFacts) -> Mend {
    let all = &host.cpus;
    let Some(steering) = nic.steering.as_ref().filter(|steering| !steering.rx.is_empty()) else {
        return Mend::Command(format!(
            "echo {all} > /sys/class/net/{}/queues/rx-0/rps_cpus",
            nic.name
        ));
    };
    let actions = steering.rx.iter().enumerate().filter(|(_, queue)| queue.rps_cpus != *all);
    Mend::Safe(
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
