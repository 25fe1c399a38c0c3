//! Metrics of ports, uplink and tunnels.

use super::{add_reasons, counter, gauge, info, is_up};
use crate::metrics::Observation;
use crate::metrics::exposition::{Family, Samples};
use crate::metrics::observation::add_drops;
use datapath::stats::{Drops, PacketCount, PortStats};
use flow::DropReason;

pub const PORTS: &[Family] = &[
    info(
        "weft_port",
        &["port", "logical_switch", "device"],
        "A port of a guest: its logical switch, and its device with the namespace.",
        |of, to| {
            for port in &of.show.ports {
                to.add(&[&port.name, &port.logical_switch, &port.device], 1);
            }
        },
    ),
    gauge(
        "weft_port_up",
        &["port"],
        "1 if the port forwards; 0 if its device is missing or down.",
        |of, to| add_ports(of, to, |port| is_up(&port.state).into()),
    ),
    counter(
        "weft_port_receive_packets",
        &["port"],
        "Frames from the guest; a super-packet counts once.",
        |of, to| add_ports(of, to, |port| port.rx.packets),
    ),
    counter(
        "weft_port_receive_bytes",
        &["port"],
        "Bytes of frames from the guest, with the Ethernet header.",
        |of, to| add_ports(of, to, |port| port.rx.bytes),
    ),
    counter(
        "weft_port_transmit_packets",
        &["port"],
        "Frames to the guest; a super-packet counts once.",
        |of, to| add_ports(of, to, |port| port.tx.packets),
    ),
    counter(
        "weft_port_transmit_bytes",
        &["port"],
        "Bytes of frames to the guest, with the Ethernet header.",
        |of, to| add_ports(of, to, |port| port.tx.bytes),
    ),
    counter(
        "weft_port_drops",
        &["port", "reason"],
        "Frames from this guest that were dropped, and frames that could not be sent to it. \
         Reasons that have not occurred at the port are absent.",
        |of, to| {
            for port in &of.show.ports {
                for (reason, count) in &port.drops {
                    to.add(&[&port.name, reason], *count);
                }
            }
        },
    ),
    counter(
        "weft_port_upcalls",
        &["port"],
        "Packets of the port without a megaflow that the switch has decided about.",
        |of, to| add_ports(of, to, |port| port.slow_path.upcalls),
    ),
    counter(
        "weft_port_upcall_cpu_seconds",
        &["port"],
        "Processor time for packets of the port without a megaflow. Its rate is at most \
         weft_port_upcall_cpu_limit.",
        |of, to| add_port_seconds(of, to, |port| port.slow_path.upcall_cpu_ns),
    ),
    gauge(
        "weft_port_upcall_cpu_limit",
        &["port"],
        "The most processors that packets of the port without a megaflow may use. A port that leads \
         to a physical network has no limit.",
        |of, to| {
            for port in &of.show.ports {
                let percent = port.slow_path.upcall_cpu_limit_percent;
                if percent == 0 {
                    continue;
                }
                to.add_fraction(&[&port.name], f64::from(percent) / 100.0);
            }
        },
    ),
    counter(
        "weft_port_punted_packets",
        &["port"],
        "Packets of the port that eBPF programs have handed to the daemon.",
        |of, to| add_ports(of, to, |port| port.slow_path.punted),
    ),
    counter(
        "weft_port_punt_cpu_seconds",
        &["port"],
        "Processor time for those of them that had a megaflow.",
        |of, to| add_port_seconds(of, to, |port| port.slow_path.punted_cpu_ns),
    ),
    counter(
        "weft_drops",
        &["reason"],
        "Packets that were not delivered, of all ports and the uplink. Ports that have been \
         removed count with what the last scrape before has read.",
        |of, to| {
            let mut sums: Drops =
                DropReason::ALL.iter().map(|reason| (reason.name().to_owned(), 0)).collect();
            add_drops(&mut sums, &of.show.uplink.drops);
            add_drops(&mut sums, &of.port_drops);
            add_reasons(to, &sums);
        },
    ),
];

pub const UNDERLAY: &[Family] = &[
    info("weft_uplink", &["device"], "The device that leads to the other hosts.", |of, to| {
        to.add(&[&of.show.uplink.device], 1)
    }),
    gauge("weft_uplink_up", &[], "1 if the uplink is up.", |of, to| {
        to.add_flag(&[], is_up(&of.show.uplink.state));
    }),
    counter(
        "weft_uplink_receive_packets",
        &[],
        "Tagged frames received (VLAN and QinQ).",
        |of, to| to.add(&[], of.show.uplink.rx.packets),
    ),
    counter("weft_uplink_receive_bytes", &[], "Bytes of tagged frames received.", |of, to| {
        to.add(&[], of.show.uplink.rx.bytes);
    }),
    counter(
        "weft_uplink_transmit_packets",
        &[],
        "Tagged frames sent (VLAN and QinQ).",
        |of, to| to.add(&[], of.show.uplink.tx.packets),
    ),
    counter("weft_uplink_transmit_bytes", &[], "Bytes of tagged frames sent.", |of, to| {
        to.add(&[], of.show.uplink.tx.bytes);
    }),
    counter(
        "weft_uplink_drops",
        &["reason"],
        "Packets from the underlay that were dropped before their port was known.",
        |of, to| add_reasons(to, &of.show.uplink.drops),
    ),
    info(
        "weft_tunnel",
        &["tunnel", "local", "l4_port"],
        "A tunnel type of this host: its address, and its UDP or TCP port (0 for GRE).",
        |of, to| {
            for end in &of.tunnels.local {
                to.add(&[&end.tunnel, &end.local.to_string(), &end.port.to_string()], 1);
            }
        },
    ),
    gauge("weft_endpoints", &[], "Remote end points of tunnels.", |of, to| {
        to.add(&[], of.tunnels.endpoints.len() as u64);
    }),
    gauge(
        "weft_endpoints_unresolved",
        &[],
        "End points whose next hop is not known: packets to them are dropped.",
        |of, to| {
            let ends = of.tunnels.endpoints.iter();
            to.add(&[], ends.filter(|end| end.stats.neighbour == "unresolved").count() as u64);
        },
    ),
    counter(
        "weft_endpoint_receive_packets",
        END_LABELS,
        "Inner frames received from an end point.",
        |of, to| add_ends(of, to, |rx, _| rx.packets),
    ),
    counter(
        "weft_endpoint_receive_bytes",
        END_LABELS,
        "Bytes of inner frames received from an end point.",
        |of, to| add_ends(of, to, |rx, _| rx.bytes),
    ),
    counter(
        "weft_endpoint_transmit_packets",
        END_LABELS,
        "Inner frames sent to an end point.",
        |of, to| add_ends(of, to, |_, tx| tx.packets),
    ),
    counter(
        "weft_endpoint_transmit_bytes",
        END_LABELS,
        "Bytes of inner frames sent to an end point.",
        |of, to| add_ends(of, to, |_, tx| tx.bytes),
    ),
    gauge(
        "weft_endpoint_path_mtu_bytes",
        END_LABELS,
        "The path MTU to an end point, in bytes of outer packet.",
        |of, to| {
            for end in &of.tunnels.endpoints {
                let [local, remote] = [end.stats.local, end.stats.remote].map(|ip| ip.to_string());
                let host = end.host.as_deref().unwrap_or_default();
                to.add(&[&end.stats.tunnel, host, &local, &remote], end.stats.path_mtu.into());
            }
        },
    ),
    gauge(
        "weft_endpoint_path_mtu_report_age_seconds",
        &["tunnel", "local", "remote", "router"],
        "The age of what has lowered the path MTU: an ICMP message and its sender, or path probes \
         without a sender.",
        |of, to| {
            for end in &of.tunnels.endpoints {
                let Some(report) = end.stats.path_mtu_report else { continue };
                let [local, remote] = [end.stats.local, end.stats.remote].map(|ip| ip.to_string());
                let router = report.router.map_or_else(String::new, |router| router.to_string());
                to.add(&[&end.stats.tunnel, &local, &remote, &router], report.age_s);
            }
        },
    ),
    counter(
        "weft_path_mtu_reports",
        &["verdict"],
        "ICMP messages about path MTUs: `believed`, or why they were ignored.",
        |of, to| {
            let reports = &of.tunnels.path_mtu_reports;
            to.add(&["believed"], reports.believed);
            add_reasons(to, &reports.ignored);
        },
    ),
    gauge("weft_path_mtu_least_bytes", &[], "The least path MTU that is believed.", |of, to| {
        to.add(&[], of.tunnels.path_mtu_reports.least_path_mtu.into())
    }),
];

const END_LABELS: &[&str] = &["tunnel", "host", "local", "remote"];

fn add_ports(of: &Observation, to: &mut Samples<'_>, value: impl Fn(&PortStats) -> u64) {
    of.show.ports.iter().for_each(|port| to.add(&[&port.name], value(port)));
}

/// Adds a counter of each port, from nanoseconds.
fn add_port_seconds(
    of: &Observation,
    to: &mut Samples<'_>,
    nanoseconds: impl Fn(&PortStats) -> u64,
) {
    for port in &of.show.ports {
        to.add_fraction(&[&port.name], nanoseconds(port) as f64 / 1e9);
    }
}

/// Adds a counter of each end point, from what was received and sent.
fn add_ends(
    of: &Observation,
    to: &mut Samples<'_>,
    value: impl Fn(PacketCount, PacketCount) -> u64,
) {
    for end in &of.tunnels.endpoints {
        let [local, remote] = [end.stats.local, end.stats.remote].map(|ip| ip.to_string());
        let host = end.host.as_deref().unwrap_or_default();
        to.add(&[&end.stats.tunnel, host, &local, &remote], value(end.stats.rx, end.stats.tx));
    }
}
