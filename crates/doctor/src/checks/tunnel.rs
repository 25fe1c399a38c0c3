//! What a device does for the packets of each tunnel type, and why.
//!
//! The kernel cuts a super-packet in software before a device that lacks one of the offloads that the packet's kind asks for. So
//! the verdict follows from what weft hands over: the user datapath trains of equal UDP datagrams (VXLAN, Geneve), one frame for
//! each segment (GRE), a TCP-shaped super-packet (STT) or tagged super-packets (VLAN, QinQ); the kernel datapath, like the kernel's own
//! tunnels, a TCP super-packet inside the outer headers.

use crate::checks::mtu::guest_mtu;
use crate::cost::{self, Cost};
use crate::drivers::{self, Driver};
use crate::facts::{Features, NicFacts};
use flow::{Carrier, DeviceOffloads, TSO, TSO6, TunnelType};
use netdev::ethtool::hardware::FlowType;
use network::{Family, TunnelOptions, overhead_bytes};
use serde::Serialize;

/// Who does something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The device.
    Yes,
    /// The kernel, at the cost of processor time.
    InSoftware,
    /// Nobody.
    No,
    /// It depends on what only the driver knows.
    Unknown,
}

impl Outcome {
    /// As it is printed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::InSoftware => "in software",
            Self::No => "no",
            Self::Unknown => "unknown",
        }
    }
}

/// Who does it, and why not the device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Support {
    /// Who.
    pub outcome: Outcome,
    /// Why, in a few words.
    pub why: String,
    /// Offloads that are off and would have to be on.
    pub lacks: Vec<&'static str>,
}

impl Support {
    fn new(outcome: Outcome, why: impl Into<String>) -> Self {
        Self { outcome, why: why.into(), lacks: Vec::new() }
    }
}

/// What a device does for one tunnel type.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TunnelSupport {
    /// The tunnel.
    #[serde(serialize_with = "tunnel_name")]
    pub tunnel: TunnelType,
    /// Segmentation of what the user datapath sends.
    pub segmentation: Support,
    /// Segmentation of what the kernel datapath sends, and the kernel's own tunnels; `None` for STT, which the kernel cannot send.
    pub kernel_segmentation: Option<Support>,
    /// Checksums of what is sent.
    pub checksum: Support,
    /// Merging of what is received.
    pub gro: Support,
    /// Spreading of what one host sends over the processors of another.
    pub spreading: Support,
    /// What is left of the throughput where segmentation is in software.
    pub cost: Option<Cost>,
    /// The largest MTU of guests whose packets fit the device's, in bytes; a round one on a jumbo underlay.
    pub guest_mtu: u32,
}

fn tunnel_name<S: serde::Serializer>(tunnel: &TunnelType, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(tunnel)
}

/// What the outer headers are like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outer {
    /// The underlay is IPv6.
    pub v6: bool,
    /// UDP or GRE have a checksum.
    pub checksum: bool,
}

impl Outer {
    /// What programs of the kernel datapath send over IPv4: they cannot ask for outer checksums of super-packets.
    pub const DEFAULT: Self = Self { v6: false, checksum: false };

    /// The same over that family.
    pub fn of(family: Family) -> Self {
        Self { v6: family == Family::V6, ..Self::DEFAULT }
    }
}

/// What a device does for a tunnel type.
pub fn tunnel_support(nic: &NicFacts, tunnel: TunnelType, outer: Outer) -> TunnelSupport {
    let driver = drivers::find(&nic.driver.driver);
    let segmentation = user_segmentation(&nic.features, tunnel, outer, driver);
    let kernel_segmentation = kernel_segmentation(&nic.features, tunnel, outer, driver);
    let in_software = |support: &Support| support.outcome == Outcome::InSoftware;
    let cost = if in_software(&segmentation) {
        cost::without_tunnel_segmentation(tunnel)
    } else if kernel_segmentation.as_ref().is_some_and(in_software) {
        cost::of_kernel_without_tunnel_segmentation(tunnel)
    } else {
        None
    };
    let family = if outer.v6 { Family::V6 } else { Family::V4 };
    let overhead = overhead_bytes(tunnel, family, &TunnelOptions::default());
    TunnelSupport {
        tunnel,
        segmentation,
        kernel_segmentation,
        checksum: checksum(&nic.features, tunnel, outer),
        gro: gro(nic, tunnel),
        spreading: spreading(nic, tunnel, outer, driver),
        cost,
        guest_mtu: guest_mtu(nic.mtu, overhead.into()),
    }
}

/// The verdicts for all tunnel types.
pub fn all_tunnels(nic: &NicFacts, outer: Outer) -> Vec<TunnelSupport> {
    TunnelType::ALL.into_iter().map(|tunnel| tunnel_support(nic, tunnel, outer)).collect()
}

/// Yes when all of `needed` are on, else in software.
fn by_features(features: &Features, needed: &[&'static str]) -> Support {
    let lacks: Vec<_> = needed.iter().copied().filter(|name| !features.on(name)).collect();
    if lacks.is_empty() {
        return Support::new(Outcome::Yes, format!("{} on", needed.join(", ")));
    }
    let fixed = |name: &&&str| features.get(name).fixed;
    let cannot: Vec<_> = lacks.iter().filter(fixed).copied().collect();
    let why = if cannot.is_empty() {
        format!("{} off", lacks.join(", "))
    } else {
        format!("the device has no {}", cannot.join(", "))
    };
    Support { outcome: Outcome::InSoftware, why, lacks }
}

fn user_segmentation(
    features: &Features,
    tunnel: TunnelType,
    outer: Outer,
    driver: Option<&Driver>,
) -> Support {
    let offloads = tunnel.descriptor().offloads;
    let needed = if outer.v6 { offloads.user_ipv6 } else { offloads.user };
    if needed.is_empty() {
        return Support::new(Outcome::No, "the user datapath sends a packet for each segment");
    }
    segmentation(features, tunnel, needed, driver)
}

fn kernel_segmentation(
    features: &Features,
    tunnel: TunnelType,
    outer: Outer,
    driver: Option<&Driver>,
) -> Option<Support> {
    let offloads = tunnel.descriptor().offloads;
    let needed = if outer.checksum { offloads.kernel_checksum } else { offloads.kernel };
    (!needed.is_empty()).then(|| segmentation(features, tunnel, needed, driver))
}

/// Tags do not keep a device from segmenting; behind two of them the kernel does it itself unless the driver has a say.
fn segmentation(
    features: &Features,
    tunnel: TunnelType,
    needed: &[&'static str],
    driver: Option<&Driver>,
) -> Support {
    let plain = by_features(features, needed);
    if tunnel.descriptor().network_id.tags() < 2 || plain.outcome != Outcome::Yes {
        return plain;
    }
    match driver.and_then(|driver| driver.segments_two_tags) {
        Some(true) => plain,
        Some(false) => Support::new(
            Outcome::InSoftware,
            "the kernel does not let this driver segment behind two tags",
        ),
        None => Support::new(
            Outcome::Unknown,
            "whether the driver may segment behind two tags is not known of it",
        ),
    }
}

/// A device sums what is inside other headers when it has generic checksums, or when it says so by segmenting it.
fn checksum(features: &Features, tunnel: TunnelType, outer: Outer) -> Support {
    const GENERIC: &str = "tx-checksum-ip-generic";
    if features.on(GENERIC) {
        return by_features(features, &[GENERIC]);
    }
    let own = if outer.v6 { "tx-checksum-ipv6" } else { "tx-checksum-ipv4" };
    let plain = by_features(features, &[own]);
    let descriptor = tunnel.descriptor();
    let DeviceOffloads { kernel, kernel_checksum, .. } = descriptor.offloads;
    match descriptor.carrier {
        // The outer sum of UDP comes from the headers once the inner one is known to be right.
        Carrier::Udp | Carrier::Gre => {
            let mut inside = kernel.iter().chain(kernel_checksum);
            if plain.outcome != Outcome::Yes {
                plain
            } else if inside.any(|name| ![TSO, TSO6].contains(name) && features.on(name)) {
                Support::new(Outcome::Yes, format!("{own} on, and inside the tunnel too"))
            } else {
                Support::new(Outcome::InSoftware, "the device sums plain packets only")
            }
        }
        Carrier::TcpShaped | Carrier::Tags => plain,
    }
}

fn gro(nic: &NicFacts, tunnel: TunnelType) -> Support {
    const GRO: &str = "rx-gro";
    if !nic.features.on(GRO) {
        return Support { outcome: Outcome::No, why: format!("{GRO} off"), lacks: vec![GRO] };
    }
    // A card takes off one tag; a software device leaves them where the sender has put them.
    let in_frame = match tunnel.descriptor().network_id.tags() {
        0 => false,
        1 => !nic.features.on("rx-vlan-hw-parse") || nic.kind.is_some(),
        _ => true,
    };
    if in_frame && nic.tags_stop_gro {
        let why = "the kernel was built without VLANs (CONFIG_VLAN_8021Q), and merges nothing behind tags in the frame";
        return Support::new(Outcome::No, why);
    }
    let by = match tunnel.carrier() {
        Carrier::Udp => "trains, for the socket of the tunnel (UDP_GRO)",
        Carrier::Gre => "what is inside, as any TCP",
        Carrier::TcpShaped => "segments of a frame, as any TCP",
        Carrier::Tags => "behind tags",
    };
    Support::new(Outcome::InSoftware, format!("the kernel merges {by}"))
}

/// Which fields a device must hash to tell the flows of one remote host apart.
fn spreading(nic: &NicFacts, tunnel: TunnelType, outer: Outer, driver: Option<&Driver>) -> Support {
    let rps = nic.rps_cpus();
    let otherwise = |why: String| {
        if rps > 1 {
            let why = format!("{why}; RPS hands packets to {rps} processors");
            Support::new(Outcome::InSoftware, why)
        } else {
            Support::new(Outcome::No, why)
        }
    };
    let queues = nic.active_rx_queues();
    if queues < 2 {
        return otherwise("one receive queue".to_owned());
    }
    let inner = driver.is_some_and(|driver| driver.hashes_inside(tunnel));
    let flow = match (tunnel.carrier(), outer.v6) {
        (Carrier::Udp, false) => FlowType::Udp4,
        (Carrier::Udp, true) => FlowType::Udp6,
        (Carrier::TcpShaped, false) => FlowType::Tcp4,
        (Carrier::TcpShaped, true) => FlowType::Tcp6,
        (Carrier::Gre | Carrier::Tags, _) => {
            return match (tunnel.descriptor().network_id.tags(), inner) {
                (_, true) => Support::new(Outcome::Yes, "the driver hashes what is inside"),
                (0, false) => {
                    otherwise("GRE has no ports, and only addresses are hashed".to_owned())
                }
                (1, false) => Support::new(
                    Outcome::Yes,
                    format!("{queues} queues, by the IP header behind the tag"),
                ),
                _ => Support::new(
                    Outcome::Unknown,
                    "whether the driver looks behind two tags is not known of it",
                ),
            };
        }
    };
    let Some(fields) = nic.rss.as_ref().and_then(|rss| rss.fields.get(&flow)) else {
        return Support::new(Outcome::Unknown, "the driver does not say which fields it hashes");
    };
    if fields.has_ports() {
        let why = format!("{queues} queues, by ports ({} hashes addresses and ports)", flow.name());
        Support::new(Outcome::Yes, why)
    } else if inner {
        Support::new(Outcome::Yes, "the driver hashes what is inside")
    } else {
        otherwise(format!("{} hashes addresses only: one remote host is one queue", flow.name()))
    }
}
