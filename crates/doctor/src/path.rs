//! How long packets may be on the way between two hosts, found out by sending some.

use crate::facts::SwitchMtu;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Lengths tried at once.
const AT_ONCE: u16 = 32;
/// Rounds: each makes the gap in which the limit is 32 times smaller, so that these do for all lengths there are.
const ROUNDS: usize = 4;

/// What a router has said.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Told {
    /// The longest packet that gets through, in bytes.
    pub mtu: u16,
    /// The router; `None` when it was said before anybody wrote that down.
    pub router: Option<IpAddr>,
}

/// One direction of a way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Way {
    /// The longest outer packet that arrived, in bytes; `None` when none did.
    pub mtu: Option<u16>,
    /// What a router has said about it.
    pub told: Option<Told>,
}

/// The way between two hosts, inside one tunnel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PathFacts {
    /// The other host.
    pub host: String,
    /// The tunnel type.
    pub tunnel: String,
    /// This host's end.
    pub local: IpAddr,
    /// The other's.
    pub remote: IpAddr,
    /// The longest outer packet that the network file lets tunnels send, in bytes: what there has to be.
    pub needed: u16,
    /// What the tunnel adds to a guest's packet, in bytes.
    pub overhead: u16,
    /// Questions that were asked until one was answered; `None` when none was.
    pub tries: Option<u32>,
    /// From the question to the answer, in microseconds.
    pub rtt_us: Option<u64>,
    /// Toward the other host.
    pub forward: Way,
    /// Back.
    pub back: Way,
    /// This host's uplink, and its MTU in bytes; `None` when it could not be looked at.
    pub uplink: Option<(String, u32)>,
    /// The other host's uplink, and its MTU in bytes, as it says.
    pub remote_uplink: Option<(String, u16)>,
    /// An interface of a guest of the other host has an MTU that does not fit, as that host says.
    pub remote_misfit: bool,
    /// The places on this host where the MTU has to be right.
    pub switches: Vec<SwitchMtu>,
}

/// The longest length from `low`, which is known to get through, to `high` that does. `ask` tries lengths and returns those that got
/// through. A length that got through stands for all shorter ones.
pub fn search(low: u16, high: u16, mut ask: impl FnMut(&[u16]) -> Vec<u16>) -> u16 {
    let longest = |arrived: Vec<u16>, low: u16| arrived.into_iter().max().unwrap_or(low).max(low);
    if high <= low || longest(ask(&[high]), low) >= high {
        return high.max(low);
    }
    // All that is known: `low` gets through, `high` does not.
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
    fn nothing_longer_is_believed_when_nothing_arrives() {
        assert_eq!(search(100, 1500, |_| Vec::new()), 100);
    }
}
