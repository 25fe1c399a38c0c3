//! The parameters of a lab.

use std::fmt;

use super::profile::Profile;
use crate::{Error, Result};

/// The default MTU of the underlay, in bytes.
pub const DEFAULT_UPLINK_MTU: u16 = 1500;
/// The largest number of guests on a host: their addresses end in two decimal digits.
const MAX_GUESTS: usize = 8;

/// The address family of the underlay.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Debug,
    Default,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum IpVersion {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
}

impl IpVersion {
    /// Bytes of its IP header, without options or extension headers.
    pub(super) const fn header_bytes(self) -> u16 {
        match self {
            Self::V4 => 20,
            Self::V6 => 40,
        }
    }
}

impl fmt::Display for IpVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// The parameters of a lab's underlay and guests.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct Shape {
    /// Offloads of the underlay.
    pub profile: Profile,
    /// MTU of the underlay, in bytes.
    pub uplink_mtu: u16,
    /// MTU of the guests, in bytes; `None` is the largest that the contender can carry.
    pub guest_mtu: Option<u16>,
    /// The address family of tunnels.
    pub family: IpVersion,
    /// Guests of each host, 1 to 8.
    pub guests_per_host: usize,
    /// Whether tunnels over UDP or GRE send an outer checksum. With `None`, the VXLAN and Geneve
    /// tunnels of weft and of the kernel send one, and other contenders keep their default.
    pub outer_checksum: Option<bool>,
    /// Receive packet steering (RPS): the uplinks distribute packets over all processors.
    #[serde(default)]
    pub steering: bool,
    /// Tunnels over UDP send all flows from one source port, if the contender can be configured
    /// that way.
    #[serde(default)]
    pub one_source_port: bool,
    /// weft runs with ACLs and a logical router, as in the demo.
    pub policy: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            profile: Profile::Full,
            uplink_mtu: DEFAULT_UPLINK_MTU,
            guest_mtu: None,
            family: IpVersion::V4,
            guests_per_host: 2,
            outer_checksum: None,
            steering: false,
            one_source_port: false,
            policy: false,
        }
    }
}

impl Shape {
    pub(super) fn check(&self) -> Result<()> {
        if (1..=MAX_GUESTS).contains(&self.guests_per_host) {
            return Ok(());
        }
        Err(Error::Other(format!(
            "the number of guests per host is out of range (1 to {MAX_GUESTS})"
        )))
    }
}
