//! How a switch uses the offloads of its devices and kernel, with reasons.
//!
//! [`OuterChecksum`] is a decision, which `weft run` applies. The functions of this module predict
//! what the kernel and the devices do with super-packets. `weft show` prints the decision and the
//! predictions.

use crate::checks::tunnel::{OuterHeaders, PerformedBy, TunnelSupport, tunnel_support};
use crate::cost::{self, Cost};
use crate::facts::{Features, KernelVersion, NicFacts};
use flow::{Carrier, TunnelType};
use network::UnderlayFamily;
use serde::{Deserialize, Serialize};

/// A decision, and the reason for it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Decision {
    /// The subject: the datapath, a tunnel type, a port ...
    pub what: String,
    /// The chosen method, for example how super-packets of a tunnel type are sent.
    pub how: String,
    /// The reason: the capability that decided, or the setting that requested it.
    pub why: String,
}

impl Decision {
    /// Creates a decision from its three texts.
    pub fn new(what: impl Into<String>, how: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), how: how.into(), why: why.into() }
    }
}

/// The default for outer UDP checksums of VXLAN and Geneve, and the reason. It applies when the
/// network file has no `checksum` setting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OuterChecksum {
    /// True when outer checksums are sent.
    pub on: bool,
    /// The reason, in a few words.
    pub why: String,
}

impl OuterChecksum {
    /// Chooses for a host that sends through `uplink`, which is `None` if its features cannot be
    /// read. `by_kernel` is true if BPF programs send, false if worker threads do.
    ///
    /// A checksum protects the outer headers and the tunnel key in transit. Over IPv6 it is always
    /// on. Over IPv4 it is off in two cases: the CPU would have to compute it, or BPF programs
    /// would send most packets without one.
    pub fn choose(uplink: Option<&NicFacts>, family: UnderlayFamily, by_kernel: bool) -> Self {
        let (on, why) = match (family, by_kernel, uplink) {
            (UnderlayFamily::V6, ..) => (true, "IPv6 has none of its own (RFC 8200)".to_owned()),
            (UnderlayFamily::V4, true, _) => (
                false,
                "BPF programs cannot request them for super-packets, and checksums on the other \
                 packets alone would protect little"
                    .to_owned(),
            ),
            (UnderlayFamily::V4, false, None) => {
                (true, "the uplink's offloads are unknown".to_owned())
            }
            (UnderlayFamily::V4, false, Some(nic)) => {
                match SUMS4.iter().find(|name| nic.features.on(name)) {
                    Some(name) => (true, format!("{} makes them: {name} on", nic.name)),
                    None => (
                        false,
                        format!("{} makes none, so the processor would sum every byte", nic.name),
                    ),
                }
            }
        };
        Self { on, why }
    }

    /// The decision for a tunnel type. `requested` is the setting in the network file.
    pub fn chosen(
        &self,
        tunnel: TunnelType,
        family: UnderlayFamily,
        by_kernel: bool,
        requested: Option<bool>,
    ) -> Decision {
        let how = match (requested.unwrap_or(self.on), family, by_kernel) {
            // Over IPv6, the programs punt super-packets, and the user datapath sends them with
            // checksums. So the exception is for IPv4 only.
            (true, UnderlayFamily::V4, true) => "on, except for super-packets from BPF programs",
            (true, ..) => "on",
            (false, ..) => "off, except for UDP GSO packets, for which the kernel computes them",
        };
        let why = if requested.is_some() { "as configured" } else { &self.why };
        Decision::new(format!("{tunnel} checksum"), how, why)
    }
}

/// Over IPv4, a device computes checksums if one of these ethtool features is on.
const SUMS4: [&str; 2] = ["tx-checksum-ip-generic", "tx-checksum-ipv4"];
const WHOLE: &str = "super-packets whole";
const JOINED: &str = "segments joined before programs";
const SINGLE: &str = "segments one by one";
/// The first kernel that segments UDP GSO packets (batches of datagrams) for devices without
/// checksum offload.
const BATCHES_WITHOUT_CHECKSUM: KernelVersion = KernelVersion::new(6, 11);

/// The attach point at which BPF programs decapsulate. `hook` is `tcx` or `clsact`.
pub fn decap_by_programs(uplink: &NicFacts, hook: &str) -> Decision {
    let xdp = match uplink.xdp {
        Some(xdp) if xdp.is_native() => "supports native XDP",
        Some(_) => "supports only generic XDP",
        None => "does not report XDP support",
    };
    let why = format!(
        "weft decapsulates at tc, because XDP runs before GRO and cannot redirect to a veth peer; \
         {} {xdp}",
        uplink.name
    );
    Decision::new("decap", format!("programs at tc, by {hook}"), why)
}

/// How super-packets of a tunnel type are sent through a device, and whether the device or the
/// kernel segments them. `by_programs` is true if BPF programs send, false if worker threads do.
pub fn sending(
    nic: &NicFacts,
    kernel: KernelVersion,
    tunnel: TunnelType,
    family: UnderlayFamily,
    by_programs: bool,
) -> Decision {
    // `OuterHeaders::of` assumes no outer checksum. BPF programs send super-packets without one.
    // When worker threads send, the kernel computes it for each segment.
    let TunnelSupport { segmentation, kernel_segmentation, .. } =
        tunnel_support(nic, tunnel, OuterHeaders::of(family));
    let by_kernel = kernel_segmentation.filter(|_| by_programs);
    let in_kernel = by_kernel.is_some();
    let segmentation = by_kernel.unwrap_or(segmentation);
    let sums = if family == UnderlayFamily::V4 { SUMS4 } else { [SUMS4[0], "tx-checksum-ipv6"] };
    let has_batches =
        kernel >= BATCHES_WITHOUT_CHECKSUM || sums.iter().any(|name| nic.features.on(name));
    let how = match (tunnel.carrier(), in_kernel) {
        (Carrier::Udp | Carrier::Gre, true) => "super-packets inside the outer headers",
        (Carrier::Udp, false) if has_batches => "UDP batches (UDP_SEGMENT)",
        (Carrier::Udp, false) => "one UDP datagram after the other",
        (Carrier::Gre, false) => "a packet for each segment",
        (Carrier::TcpLike, _) => "one TCP-like super-packet",
        (Carrier::Tags, _) => "tagged super-packets",
    };
    if how.starts_with("one UDP") {
        let why = format!(
            "Linux {kernel} sends UDP batches only through devices that compute checksums; {} does not",
            nic.name
        );
        return Decision::new(tunnel.name(), how, why);
    }
    let device = &nic.name;
    let who = match segmentation.outcome {
        PerformedBy::Yes => format!("{device} segments them"),
        PerformedBy::InSoftware => format!("the kernel segments them for {device}"),
        PerformedBy::No => "there are no super-packets".to_owned(),
        PerformedBy::Unknown => format!("{device} or the kernel segments them"),
    };
    let in_software = segmentation.outcome == PerformedBy::InSoftware;
    let cost = match (in_software, in_kernel) {
        (false, _) => None,
        (true, false) => cost::without_tunnel_segmentation(tunnel),
        (true, true) => cost::of_kernel_without_tunnel_segmentation(tunnel),
    };
    let keeps = cost.map_or(String::new(), |Cost { at_least, .. }| {
        format!("; that leaves at least {at_least:.2} of the throughput")
    });
    let stt = tunnel_support(nic, TunnelType::Stt, OuterHeaders::of(family)).segmentation;
    let is_udp = tunnel.carrier() == Carrier::Udp;
    let better = match is_udp && in_software && stt.outcome == PerformedBy::Yes {
        true => format!("; {device} would cut those of stt"),
        false => String::new(),
    };
    Decision::new(tunnel.name(), how, format!("{who}: {}{keeps}{better}", segmentation.why))
}

/// How TCP segments inside a tunnel arrive at BPF programs: merged by GRO, or one by one.
///
/// `has_gro_device` is true if a kernel device, `weft-gro`, owns the tunnel's UDP port. GRO merges
/// segments inside a UDP tunnel only if such a device exists.
pub fn receiving(nic: &NicFacts, tunnel: TunnelType, has_gro_device: bool) -> Decision {
    let gro = tunnel_support(nic, tunnel, OuterHeaders::of(UnderlayFamily::V4)).gro;
    let is_udp = tunnel.carrier() == Carrier::Udp;
    let (how, why) = match (gro.outcome, is_udp, has_gro_device) {
        (PerformedBy::No, ..) => (SINGLE, gro.why),
        (_, false, _) => (JOINED, gro.why),
        (_, true, true) => {
            (JOINED, "weft-gro has the tunnel's port, so GRO looks inside the tunnel".to_owned())
        }
        (_, true, false) => {
            (SINGLE, "GRO looks inside a tunnel only when a kernel device has its port".to_owned())
        }
    };
    Decision::new(format!("{tunnel} received"), how, why)
}

/// How super-packets reach a guest with a TAP device: a worker thread writes them to it.
pub fn tap(name: &str) -> Decision {
    let why = "a thread writes them into its TAP, and the guest's kernel takes them as received";
    Decision::new(format!("port {name}"), WHOLE, why)
}

/// How super-packets reach the guest behind `device`, which has these `features`.
pub fn port(name: &str, device: &str, features: &Features) -> Decision {
    let needed = ["tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-checksum-ip-generic"];
    let lacks: Vec<_> = needed.into_iter().filter(|name| !features.on(name)).collect();
    let what = format!("port {name}");
    if lacks.is_empty() {
        return Decision::new(what, WHOLE, format!("{device} accepts them"));
    }
    let why = format!("{device} lacks {}", lacks.join(", "));
    Decision::new(what, "super-packets cut or summed by the kernel", why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Feature;

    const NEW: KernelVersion = KernelVersion::new(6, 12);

    fn nic(on: &[&str]) -> NicFacts {
        let feature = Feature { on: true, fixed: false, wanted: true };
        let features = on.iter().map(|name| ((*name).to_owned(), feature)).collect();
        NicFacts { name: "eth0".to_owned(), features: Features(features), ..NicFacts::default() }
    }

    #[test]
    fn outer_checksums_are_sent_where_they_are_whole_and_cheap() {
        let (sums, plain) = (nic(&["tx-checksum-ipv4"]), nic(&[]));
        let table = [
            (Some(&sums), UnderlayFamily::V4, false, true, "eth0 makes them: tx-checksum-ipv4 on"),
            (Some(&plain), UnderlayFamily::V4, false, false, "eth0 makes none"),
            (None, UnderlayFamily::V4, false, true, "offloads are unknown"),
            (Some(&sums), UnderlayFamily::V4, true, false, "programs cannot request"),
            (Some(&plain), UnderlayFamily::V6, false, true, "IPv6"),
            (Some(&plain), UnderlayFamily::V6, true, true, "IPv6"),
        ];
        for (uplink, family, by_kernel, on, why) in table {
            let choice = OuterChecksum::choose(uplink, family, by_kernel);
            assert!(choice.on == on && choice.why.contains(why), "{choice:?}");
            let chosen = choice.chosen(TunnelType::Vxlan, family, by_kernel, None);
            assert_eq!((chosen.what.as_str(), chosen.why), ("vxlan checksum", choice.why.clone()));
            assert!(chosen.how.starts_with(if on { "on" } else { "off" }), "{}", chosen.how);
            for requested in [true, false] {
                let decision =
                    choice.chosen(TunnelType::Geneve, family, by_kernel, Some(requested));
                assert_eq!(decision.why, "as configured");
                let partly = family == UnderlayFamily::V4 && by_kernel || !requested;
                let how = if requested { "on" } else { "off" };
                assert!(
                    decision.how.starts_with(how) && (decision.how != how) == partly,
                    "{decision:?}"
                );
            }
        }
    }

    #[test]
    fn batches_are_sent_where_the_kernel_segments_them() {
        let old = KernelVersion::new(6, 1);
        let how = |nic: &NicFacts, kernel, by_programs| {
            sending(nic, kernel, TunnelType::Geneve, UnderlayFamily::V4, by_programs)
        };
        let sums = nic(&["tx-checksum-ip-generic", "tx-udp-segmentation"]);
        let batches = "UDP batches (UDP_SEGMENT)";
        assert_eq!(how(&sums, old, false).how, batches);
        assert_eq!(how(&sums, old, false).why, "eth0 segments them: tx-udp-segmentation on");
        assert_eq!(how(&nic(&[]), NEW, false).how, batches);
        let single = how(&nic(&[]), old, false);
        assert_eq!(single.how, "one UDP datagram after the other");
        assert!(single.why.starts_with("Linux 6.1 sends UDP batches only"), "{single:?}");
        assert_eq!(how(&sums, old, true).how, "super-packets inside the outer headers");
        let stt = how(&nic(&["tx-checksum-ip-generic", "tx-tcp-segmentation"]), old, false);
        assert!(stt.why.ends_with("; eth0 would cut those of stt"), "{stt:?}");
    }

    #[test]
    fn segments_are_merged_where_the_kernel_dissects_the_tunnel() {
        use TunnelType::{Geneve, Gre, Vxlan};
        let (on, off) = (nic(&["rx-gro"]), nic(&[]));
        for (nic, tunnel, has_gro_device, how, why) in [
            (&on, Vxlan, true, JOINED, "weft-gro"),
            (&on, Vxlan, false, SINGLE, "only when a kernel device"),
            (&on, Geneve, false, SINGLE, "only when a kernel device"),
            (&on, Gre, false, JOINED, "inner TCP"),
            (&off, Vxlan, true, SINGLE, "rx-gro off"),
            (&off, Gre, false, SINGLE, "rx-gro off"),
        ] {
            let chosen = receiving(nic, tunnel, has_gro_device);
            assert!(chosen.how == how && chosen.why.contains(why), "{chosen:?}");
        }
    }

    #[test]
    fn ports_report_what_segments_for_them() {
        let needed = ["tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-checksum-ip-generic"];
        let decision = |on: &[&str]| port("a", "eth0", &nic(on).features);
        assert_eq!(decision(&needed).how, "super-packets whole");
        let cut = decision(&needed[1..]);
        assert_eq!(cut.why, "eth0 lacks tx-tcp-segmentation");
    }
}
