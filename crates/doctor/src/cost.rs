//! The throughput lost when a NIC lacks an offload, as measured by this project.
//!
//! The ratios were measured on veth devices with the offload switched off, on a machine with two
//! cores. They show how much work is left to the CPU, not how many Gb/s a host will reach. A NIC
//! also coalesces received segments. A veth whose peer has TCP segmentation does not, so in the
//! measurement the receiving CPU also did this work: the ratios are lower bounds.

use flow::TunnelType;
use serde::Serialize;

/// A measured ratio of the throughput of one TCP stream: without the offload, to with it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Cost {
    /// The fraction of the throughput that remains, 0.0 to 1.0.
    pub at_least: f64,
    /// The file in this repository that holds the measurement.
    pub source: &'static str,
}

/// The study `software-tunnelling`: one TCP stream, offload profiles `full` and `tso`.
const STUDY: &str = "docs/results/2026-11-23-bench/results.json";

/// The remaining throughput of weft without tunnel segmentation and UDP segmentation (UDP_SEGMENT),
/// but with plain TCP segmentation.
///
/// `None` for tunnels that were not measured, and for tunnels that need neither offload.
pub fn without_tunnel_segmentation(tunnel: TunnelType) -> Option<Cost> {
    (tunnel == TunnelType::Vxlan).then_some(Cost { at_least: 0.46, source: STUDY })
}

/// As [`without_tunnel_segmentation`], for super-packets that the kernel sends. Measured with the
/// kernel's own VXLAN device.
///
/// `None` for tunnels that were not measured.
pub fn of_kernel_without_tunnel_segmentation(tunnel: TunnelType) -> Option<Cost> {
    (tunnel == TunnelType::Vxlan).then_some(Cost { at_least: 0.40, source: STUDY })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The median throughput in Gb/s of one TCP stream, by contender and offload profile.
    fn recorded(contender: &str, profile: &str) -> f64 {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/results/2026-11-23-bench/results.json"
        );
        let text = std::fs::read_to_string(path).unwrap();
        let run: serde_json::Value = serde_json::from_str(&text).unwrap();
        let samples = run["samples"].as_array().unwrap().iter();
        let mut gbps: Vec<f64> = samples
            .filter(|sample| {
                sample["study"] == "software-tunnelling"
                    && sample["scenario"] == "tcp_stream-32768B-1i"
                    && sample["contender"] == contender
                    && sample["shape"]["profile"] == profile
            })
            .filter_map(|sample| sample["figures"]["gbps"].as_f64())
            .collect();
        assert!(gbps.len() >= 9, "{contender} {profile}: {} samples", gbps.len());
        gbps.sort_by(f64::total_cmp);
        gbps[gbps.len() / 2]
    }

    #[test]
    fn costs_are_those_of_the_recorded_run() {
        let vxlan = TunnelType::Vxlan;
        for (contender, cost) in [
            ("kernel-vxlan", of_kernel_without_tunnel_segmentation(vxlan).unwrap()),
            ("weft-user-vxlan", without_tunnel_segmentation(vxlan).unwrap()),
        ] {
            let measured = recorded(contender, "tso") / recorded(contender, "full");
            assert!((measured - cost.at_least).abs() < 0.005, "{contender}: {measured:.3}");
            assert_eq!(cost.source, STUDY);
        }
        for contender in ["weft-user-gre", "weft-user-stt"] {
            let measured = recorded(contender, "tso") / recorded(contender, "full");
            assert!(measured > 0.9, "{contender} does not depend on it: {measured:.3}");
        }
    }
}
