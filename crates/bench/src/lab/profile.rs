//! The offloads of the underlay's network card, emulated with the features of a veth pair.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Offload features of a device by their ethtool names: on or off.
pub type OffloadFlags = BTreeMap<String, bool>;

/// Tunnel segmentation: super-packets inside UDP tunnels or GRE.
const TUNNEL_SEGMENTATION: &[&str] = &[
    "tx-udp_tnl-segmentation",
    "tx-udp_tnl-csum-segmentation",
    "tx-gre-segmentation",
    "tx-gre-csum-segmentation",
];
/// UDP segmentation offload (UDP_SEGMENT).
const UDP_SEGMENTATION: &[&str] = &["tx-udp-segmentation"];
/// Plain TCP segmentation.
const TCP_SEGMENTATION: &[&str] = &[
    "tx-tcp-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-accecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp6-segmentation",
];

/// Receive offload, which veth supports but does not enable by default.
const RECEIVE_OFFLOAD: &[&str] = &["rx-gro"];

/// An underlay profile. All have checksum offload, scatter-gather and GRO, as current cards do.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Everything that veth offers.
    Full,
    /// Plain TCP segmentation, without tunnels and UDP. This is pessimistic for tunnels: veth does
    /// GRO only when the peer has no TCP segmentation at all, while a network card always does.
    Tso,
    /// No segmentation offload: the kernel segments before the device, and the peer does GRO.
    None,
}

impl Profile {
    /// All profiles, in the order of reports.
    pub const ALL: [Self; 3] = [Self::Full, Self::Tso, Self::None];

    /// The ethtool features that are switched off on both ends of the underlay.
    pub fn features_off(self) -> Vec<&'static str> {
        let groups: &[&[&str]] = match self {
            Self::Full => &[],
            Self::Tso => &[TUNNEL_SEGMENTATION, UDP_SEGMENTATION],
            Self::None => &[TUNNEL_SEGMENTATION, UDP_SEGMENTATION, TCP_SEGMENTATION],
        };
        groups.concat()
    }

    /// The ethtool features that are switched on at both ends of the underlay.
    pub fn features_on(self) -> &'static [&'static str] {
        RECEIVE_OFFLOAD
    }

    /// The features that a report states, on or off.
    pub fn reported_features() -> impl Iterator<Item = &'static str> {
        let groups = [TUNNEL_SEGMENTATION, UDP_SEGMENTATION, TCP_SEGMENTATION, OTHER_REPORTED];
        groups.into_iter().flatten().copied()
    }
}

/// Features that reports list and that no profile changes.
const OTHER_REPORTED: &[&str] =
    &["tx-checksum-ip-generic", "tx-scatter-gather", "tx-generic-segmentation", "rx-gro"];

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "full",
            Self::Tso => "tso",
            Self::None => "none",
        })
    }
}

/// A text that is not a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected one of the underlay profiles: full, tso, none")]
pub struct ProfileError;

impl FromStr for Profile {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Self, ProfileError> {
        Self::ALL.into_iter().find(|profile| profile.to_string() == text).ok_or(ProfileError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_round_trips_through_text() {
        for profile in Profile::ALL {
            assert_eq!(profile.to_string().parse(), Ok(profile));
        }
        assert_eq!("Full".parse::<Profile>(), Err(ProfileError));
    }

    #[test]
    fn each_profile_switches_off_more_offloads() {
        let [full, tso, none] = Profile::ALL.map(Profile::features_off);
        assert!(full.is_empty() && tso.iter().all(|feature| none.contains(feature)));
        assert!(!tso.contains(&"tx-tcp-segmentation") && none.contains(&"tx-tcp-segmentation"));
        assert!(none.iter().all(|f| Profile::reported_features().any(|r| r == *f)));
    }
}
