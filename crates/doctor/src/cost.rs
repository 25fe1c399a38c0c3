//! What it costs that a card cannot do something: ratios measured by this project, on veth with the offloads in question off.
//!
//! A veth underlay is not a card, and the machine had two cores: the ratios say how much work is left to the processors, not how
//! many Gb/s a host will have. They are floors: a card merges what it receives, and a veth does not while its far end has TCP
//! segmentation, so that in the recorded run the receiver did the work of a card as well.

use flow::TunnelType;
use serde::Serialize;

/// A measured ratio of throughput, one TCP stream, from below.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Cost {
    /// So much at least is left of the throughput with everything on, 1.0 for all of it.
    pub at_least: f64,
    /// Where it was measured, as a path in this repository.
    pub source: &'static str,
}

/// Two runs of one commit, offload profiles `full` and `tso`.
const DEMO: &str = "docs/results/2026-11-20-demo.json";

/// What is left of weft's throughput where tunnel segmentation and UDP trains are off, and plain TCP segmentation is on.
///
/// `None` for what was not measured or does not depend on it.
pub fn without_tunnel_segmentation(tunnel: TunnelType) -> Option<Cost> {
    let at_least = match tunnel {
        TunnelType::Vxlan => 0.45,
        TunnelType::Geneve => 0.47,
        TunnelType::Gre | TunnelType::Stt | TunnelType::Vlan | TunnelType::QinQ => return None,
    };
    Some(Cost { at_least, source: DEMO })
}

/// The same where programs send, or the kernel itself: measured of the kernel's own VXLAN, which stands for both types whose
/// super-packets the kernel cuts. `None` for the other types.
pub fn of_kernel_without_tunnel_segmentation(tunnel: TunnelType) -> Option<Cost> {
    let is_udp = matches!(tunnel, TunnelType::Vxlan | TunnelType::Geneve);
    is_udp.then_some(Cost { at_least: 0.30, source: DEMO })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Throughput of one stream by contender, of a profile of the recorded run.
    fn recorded(profile: &str) -> std::collections::BTreeMap<String, f64> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/2026-11-20-demo.json");
        let text = std::fs::read_to_string(path).unwrap();
        let run: serde_json::Value = serde_json::from_str(&text).unwrap();
        let profiles = run["profiles"].as_array().unwrap();
        let found = profiles.iter().find(|found| found["profile"] == profile).unwrap();
        let rows = found["rows"].as_array().unwrap().iter();
        rows.map(|row| {
            (row["contender"].as_str().unwrap().to_owned(), row["one_gbps"].as_f64().unwrap())
        })
        .collect()
    }

    #[test]
    fn costs_are_those_of_the_recorded_run() {
        let (full, tso) = (recorded("full"), recorded("tso"));
        let of_kernel = of_kernel_without_tunnel_segmentation(TunnelType::Vxlan).unwrap();
        let mut expected = vec![("kernel vxlan", of_kernel)];
        for (name, tunnel) in
            [("weft vxlan", TunnelType::Vxlan), ("weft geneve", TunnelType::Geneve)]
        {
            expected.push((name, without_tunnel_segmentation(tunnel).unwrap()));
        }
        for (name, cost) in expected {
            let measured = tso[name] / full[name];
            assert!((measured - cost.at_least).abs() < 0.005, "{name}: {measured:.3}, {cost:?}");
            assert!(cost.source.ends_with("2026-11-20-demo.json"));
        }
        for name in ["weft gre", "weft stt", "weft vlan", "weft qinq"] {
            assert!(tso[name] / full[name] > 0.95, "{name} does not depend on it");
        }
    }
}
