//! The offloads that a device performs for the packets of each tunnel type, with reasons.
//!
//! The kernel segments a super-packet in software if the device lacks an offload that this type of
//! packet needs. The result therefore depends on the packets that weft sends:
//!
//! - The user datapath sends UDP GSO packets (VXLAN, Geneve), one frame for each segment (GRE), a
//!   TCP-like super-packet (STT) or tagged super-packets (VLAN, QinQ).
//! - The kernel datapath and the kernel's own tunnels send a TCP super-packet inside the outer
//!   headers.

use crate::checks::mtu::guest_mtu;
use crate::cost::{self, Cost};
use crate::drivers::{self, Driver};
use crate::facts::{Features, NicFacts};
use flow::{Carrier, DeviceOffloads, TSO, TSO6, TunnelType};
use netdev::ethtool::hardware::FlowType;
use network::{TunnelOptions, UnderlayFamily, overhead_bytes};
use serde::Serialize;

/// Whether the device or the kernel performs an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PerformedBy {
    /// The device.
    Yes,
    /// The kernel, at the cost of processor time.
    InSoftware,
    /// Neither.
    No,
    /// Unknown: it depends on the driver, which does not report it.
    Unknown,
}

impl PerformedBy {
    /// The name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::InSoftware => "in software",
            Self::No => "no",
            Self::Unknown => "unknown",
        }
    }
}

/// Whether the device or the kernel performs an operation, and the reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct OffloadSupport {
    /// The performer of the operation.
    pub outcome: PerformedBy,
    /// The reason, in a few words.
    pub why: String,
    /// Required offloads that are off.
    pub lacks: Vec<&'static str>,
}

impl OffloadSupport {
    fn new(outcome: PerformedBy, why: impl Into<String>) -> Self {
        Self { outcome, why: why.into(), lacks: Vec::new() }
    }
}

/// The offloads of a device for one tunnel type.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TunnelSupport {
    /// The tunnel.
    #[serde(serialize_with = "tunnel_name")]
    pub tunnel: TunnelType,
    /// Segmentation of super-packets from the user datapath.
    pub segmentation: OffloadSupport,
    /// Segmentation of super-packets from the kernel datapath and the kernel's own tunnels. `None`
    /// for STT, which the kernel cannot send.
    pub kernel_segmentation: Option<OffloadSupport>,
    /// Checksums of transmitted packets.
    pub checksum: OffloadSupport,
    /// GRO: merging of received packets.
    pub gro: OffloadSupport,
    /// Receive-side scaling: spreading the packets of one remote host over the processors.
    pub spreading: OffloadSupport,
    /// The throughput that remains with segmentation in software.
    pub cost: Option<Cost>,
    /// The largest guest MTU whose packets fit the device's MTU, in bytes; rounded on a jumbo
    /// underlay.
    pub guest_mtu: u32,
}

fn tunnel_name<S: serde::Serializer>(tunnel: &TunnelType, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(tunnel)
}

/// The outer headers: IP version and checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OuterHeaders {
    /// The underlay is IPv6.
    pub v6: bool,
    /// The UDP or GRE header has a checksum.
    pub checksum: bool,
}

impl OuterHeaders {
    /// The headers that BPF programs send over IPv4. Programs cannot request outer checksums for
    /// super-packets.
    pub const DEFAULT: Self = Self { v6: false, checksum: false };

    /// As [`Self::DEFAULT`], for this IP version.
    pub fn of(family: UnderlayFamily) -> Self {
        Self { v6: family == UnderlayFamily::V6, ..Self::DEFAULT }
    }
}

/// Determines the offloads of a device for a tunnel type.
pub fn tunnel_support(nic: &NicFacts, tunnel: TunnelType, outer: OuterHeaders) -> TunnelSupport {
    let driver = drivers::find(&nic.driver.driver);
    let segmentation = user_segmentation(&nic.features, tunnel, outer, driver);
    let kernel_segmentation = kernel_segmentation(&nic.features, tunnel, outer, driver);
    let in_software = |support: &OffloadSupport| support.outcome == PerformedBy::InSoftware;
    let cost = if in_software(&segmentation) {
        cost::without_tunnel_segmentation(tunnel)
    } else if kernel_segmentation.as_ref().is_some_and(in_software) {
        cost::of_kernel_without_tunnel_segmentation(tunnel)
    } else {
        None
    };
    let family = if outer.v6 { UnderlayFamily::V6 } else { UnderlayFamily::V4 };
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

/// The results for all tunnel types.
pub fn all_tunnels(nic: &NicFacts, outer: OuterHeaders) -> Vec<TunnelSupport> {
    TunnelType::ALL.into_iter().map(|tunnel| tunnel_support(nic, tunnel, outer)).collect()
}

/// [`PerformedBy::Yes`] if all `needed` features are on, otherwise [`PerformedBy::InSoftware`].
fn by_features(features: &Features, needed: &[&'static str]) -> OffloadSupport {
    let lacks: Vec<_> = needed.iter().copied().filter(|name| !features.on(name)).collect();
    if lacks.is_empty() {
        return OffloadSupport::new(PerformedBy::Yes, format!("{} on", needed.join(", ")));
    }
    let fixed = |name: &&&str| features.get(name).fixed;
    let cannot: Vec<_> = lacks.iter().filter(fixed).copied().collect();
    let why = if cannot.is_empty() {
        format!("{} off", lacks.join(", "))
    } else {
        format!("the device has no {}", cannot.join(", "))
    };
    OffloadSupport { outcome: PerformedBy::InSoftware, why, lacks }
}

fn user_segmentation(
    features: &Features,
    tunnel: TunnelType,
    outer: OuterHeaders,
    driver: Option<&Driver>,
) -> OffloadSupport {
    let offloads = tunnel.descriptor().offloads;
    let needed = if outer.v6 { offloads.user_ipv6 } else { offloads.user };
    if needed.is_empty() {
        return OffloadSupport::new(
            PerformedBy::No,
            "the user datapath sends a packet for each segment",
        );
    }
    segmentation(features, tunnel, needed, driver)
}

fn kernel_segmentation(
    features: &Features,
    tunnel: TunnelType,
    outer: OuterHeaders,
    driver: Option<&Driver>,
) -> Option<OffloadSupport> {
    let offloads = tunnel.descriptor().offloads;
    let needed = if outer.checksum { offloads.kernel_checksum } else { offloads.kernel };
    (!needed.is_empty()).then(|| segmentation(features, tunnel, needed, driver))
}

/// Segmentation of tagged super-packets.
///
/// A device can segment frames with one tag. For frames with two tags, the kernel segments in
/// software, unless the driver overrides the kernel's default check.
fn segmentation(
    features: &Features,
    tunnel: TunnelType,
    needed: &[&'static str],
    driver: Option<&Driver>,
) -> OffloadSupport {
    let plain = by_features(features, needed);
    if tunnel.descriptor().network_id.tags() < 2 || plain.outcome != PerformedBy::Yes {
        return plain;
    }
    match driver.and_then(|driver| driver.segments_two_tags) {
        Some(true) => plain,
        Some(false) => OffloadSupport::new(
            PerformedBy::InSoftware,
            "the kernel does not let this driver segment frames with two tags",
        ),
        None => OffloadSupport::new(
            PerformedBy::Unknown,
            "it is not known whether the driver may segment frames with two tags",
        ),
    }
}

/// Inner checksums. A device computes them if it has generic checksum offload, or if it can segment
/// packets in the tunnel, which includes checksums.
fn checksum(features: &Features, tunnel: TunnelType, outer: OuterHeaders) -> OffloadSupport {
    const GENERIC: &str = "tx-checksum-ip-generic";
    if features.on(GENERIC) {
        return by_features(features, &[GENERIC]);
    }
    let own = if outer.v6 { "tx-checksum-ipv6" } else { "tx-checksum-ipv4" };
    let plain = by_features(features, &[own]);
    let descriptor = tunnel.descriptor();
    let DeviceOffloads { kernel, kernel_checksum, .. } = descriptor.offloads;
    match descriptor.carrier {
        // The outer UDP checksum can be computed from the headers if the inner checksum is correct.
        Carrier::Udp | Carrier::Gre => {
            let mut inside = kernel.iter().chain(kernel_checksum);
            if plain.outcome != PerformedBy::Yes {
                plain
            } else if inside.any(|name| ![TSO, TSO6].contains(name) && features.on(name)) {
                OffloadSupport::new(
                    PerformedBy::Yes,
                    format!("{own} on, and inside the tunnel too"),
                )
            } else {
                OffloadSupport::new(
                    PerformedBy::InSoftware,
                    "the device handles only packets without a tunnel",
                )
            }
        }
        Carrier::TcpLike | Carrier::Tags => plain,
    }
}

fn gro(nic: &NicFacts, tunnel: TunnelType) -> OffloadSupport {
    const GRO: &str = "rx-gro";
    if !nic.features.on(GRO) {
        return OffloadSupport {
            outcome: PerformedBy::No,
            why: format!("{GRO} off"),
            lacks: vec![GRO],
        };
    }
    // A NIC strips one tag; a software device leaves all tags in the frame.
    let in_frame = match tunnel.descriptor().network_id.tags() {
        0 => false,
        1 => !nic.features.on("rx-vlan-hw-parse") || nic.kind.is_some(),
        _ => true,
    };
    if in_frame && nic.tags_stop_gro {
        let why = "the kernel was built without VLANs (CONFIG_VLAN_8021Q), so GRO ignores tagged \
                   frames";
        return OffloadSupport::new(PerformedBy::No, why);
    }
    let by = match tunnel.carrier() {
        Carrier::Udp => "UDP batches, for the socket of the tunnel (UDP_GRO)",
        Carrier::Gre => "inner TCP segments, as without a tunnel",
        Carrier::TcpLike => "segments of a frame, like those of TCP",
        Carrier::Tags => "tagged frames",
    };
    OffloadSupport::new(PerformedBy::InSoftware, format!("the kernel merges {by}"))
}

/// Determines whether a device spreads the flows of one remote host over its receive queues, by the
/// fields that it hashes.
fn spreading(
    nic: &NicFacts,
    tunnel: TunnelType,
    outer: OuterHeaders,
    driver: Option<&Driver>,
) -> OffloadSupport {
    let rps = nic.rps_cpus();
    let otherwise = |why: String| {
        if rps > 1 {
            let why = format!("{why}; RPS hands packets to {rps} processors");
            OffloadSupport::new(PerformedBy::InSoftware, why)
        } else {
            OffloadSupport::new(PerformedBy::No, why)
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
        (Carrier::TcpLike, false) => FlowType::Tcp4,
        (Carrier::TcpLike, true) => FlowType::Tcp6,
        (Carrier::Gre | Carrier::Tags, _) => {
            return match (tunnel.descriptor().network_id.tags(), inner) {
                (_, true) => {
                    OffloadSupport::new(PerformedBy::Yes, "the driver hashes inner headers")
                }
                (0, false) => {
                    otherwise("GRE has no ports, and only addresses are hashed".to_owned())
                }
                (1, false) => OffloadSupport::new(
                    PerformedBy::Yes,
                    format!("{queues} queues, by the IP header after the tag"),
                ),
                _ => OffloadSupport::new(
                    PerformedBy::Unknown,
                    "it is not known whether the driver hashes frames with two tags",
                ),
            };
        }
    };
    let Some(fields) = nic.rss.as_ref().and_then(|rss| rss.fields.get(&flow)) else {
        return OffloadSupport::new(
            PerformedBy::Unknown,
            "the driver does not say which fields it hashes",
        );
    };
    if fields.has_ports() {
        let why = format!("{queues} queues, by ports ({} hashes addresses and ports)", flow.name());
        OffloadSupport::new(PerformedBy::Yes, why)
    } else if inner {
        OffloadSupport::new(PerformedBy::Yes, "the driver hashes inner headers")
    } else {
        otherwise(format!("{} hashes addresses only: one remote host is one queue", flow.name()))
    }
}
