//! The path MTU between two hosts, found by sending probes.

use crate::facts::SwitchMtu;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The number of lengths tried in one round.
const AT_ONCE: u16 = 32;
/// The maximum number of rounds. Each one narrows the search by a factor of 32, so four rounds
/// cover all lengths.
const ROUNDS: usize = 4;

/// An ICMP "packet too big" or "fragmentation needed" from a router.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PmtuReport {
    /// The MTU it reports, in bytes.
    pub mtu: u16,
    /// The router; `None` when only the kernel's path MTU is known.
    pub router: Option<IpAddr>,
}

/// One direction of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PathDirection {
    /// The longest outer packet that arrived, in bytes; `None` when none did.
    pub mtu: Option<u16>,
    /// The path MTU that a router reported.
    pub told: Option<PmtuReport>,
}

/// The path between two hosts, inside one tunnel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PathFacts {
    /// The other host.
    pub host: String,
    /// The tunnel type.
    pub tunnel: String,
    /// This host's underlay address.
    pub local: IpAddr,
    /// The other host's underlay address.
    pub remote: IpAddr,
    /// The longest outer packet that the network file permits, in bytes.
    pub needed: u16,
    /// The tunnel's overhead, in bytes per packet.
    pub overhead: u16,
    /// Number of probes sent until the first reply; `None` without a reply.
    pub tries: Option<u32>,
    /// Round-trip time in microseconds.
    pub rtt_us: Option<u64>,
    /// The direction to the other host.
    pub forward: PathDirection,
    /// The direction back.
    pub back: PathDirection,
    /// This host's uplink and its MTU in bytes; `None` when it cannot be read.
    pub uplink: Option<(String, u32)>,
    /// The other host's uplink and its MTU in bytes, as that host reports them.
    pub remote_uplink: Option<(String, u16)>,
    /// A guest interface of the other host has a wrong MTU, as that host reports.
    pub remote_misfit: bool,
    /// The MTU points on this host.
    pub switches: Vec<SwitchMtu>,
}

/// Searches for the longest packet that arrives, between `low`, which is known to arrive, and
/// `high`. `ask` sends probes of the given lengths and returns the lengths that arrived. If a
/// length arrives, all shorter ones are assumed to arrive too.
pub fn search(low: u16, high: u16, mut ask: impl FnMut(&[u16]) -> Vec<u16>) -> u16 {
    let longest = |arrived: Vec<u16>, low: u16| arrived.into_iter().max().unwrap_or(low).max(low);
    if high <= low || longest(ask(&[high]), low) >= high {
        return high.max(low);
    }
    // Invariant: `low` arrives, `high` does not.
    let (mut low, mut high) = (low, high);
    for _ in 0..ROUNDS {
        let gap = high - low;
        if gap <= 1 {
            break;
        }
        let step = gap.div_ceil(AT_ONCE).max(1);
        let sizes: Vec<u16> = (1..=AT_ONCE)
            .filter_map(|n| low.checked_add(n.checked_mul(step)?))
            .filter(|size| *size < high)
            .collect();
        let found = longest(ask(&sizes), low);
        high = sizes.into_iter().filter(|size| *size > found).min().unwrap_or(high);
        low = found;
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_found_to_the_byte_wherever_it_is() {
        for (low, high) in [(110u16, 1500u16), (110, 9000), (110, 65_535), (100, 101), (100, 100)] {
            for limit in [low, low.saturating_add(1), low.midpoint(high), high - 1, high, u16::MAX]
            {
                let mut rounds = 0;
                let found = search(low, high, |sizes| {
                    rounds += 1;
                    assert!(
                        sizes.len() <= usize::from(AT_ONCE) && sizes.iter().all(|s| *s <= high)
                    );
                    sizes.iter().copied().filter(|size| *size <= limit).collect()
                });
                assert_eq!(found, limit.clamp(low, high), "{low} to {high}, limit {limit}");
                assert!(rounds <= ROUNDS + 1);
            }
        }
    }

    #[test]
    fn result_is_the_lower_bound_when_no_probe_arrives() {
        assert_eq!(search(100, 1500, |_| Vec::new()), 100);
    }
}
