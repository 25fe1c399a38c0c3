//! What a lab is asked to be.

use std::fmt;

use super::profile::Profile;
use crate::{Error, Result};

/// The MTU of the underlay unless told otherwise, in bytes.
pub const DEFAULT_UPLINK_MTU: u16 = 1500;
/// The most guests of a host: their addresses end in two digits.
const MAX_GUESTS: usize = 8;

/// The protocol of the underlay.
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
pub enum Family {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Bytes of its header.
    pub(super) const fn header_bytes(self) -> u16 {
        match self {
            Self::V4 => 20,
            Self::V6 => 40,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// The underlay and the guests of a lab.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct Shape {
    /// Offloads of the underlay.
    pub profile: Profile,
    /// MTU of the underlay, in bytes.
    pub uplink_mtu: u16,
    /// MTU of the guests, in bytes; `None` is the most that the contender carries.
    pub guest_mtu: Option<u16>,
    /// The protocol over which tunnels go.
    pub family: Family,
    /// Guests of each host, 1 to 8.
    pub guests_per_host: usize,
    /// Whether tunnels over UDP or GRE send an outer checksum; with `None` VXLAN and Geneve of weft and the kernel do, and the rest is left to
    /// the contenders.
    pub outer_checksum: Option<bool>,
    /// The uplinks spread received flows over all processors (receive packet steering).
    #[serde(default)]
    pub steering: bool,
    /// Tunnels over UDP send all flows from one source port, where they can be told to.
    #[serde(default)]
    pub one_source_port: bool,
    /// weft has access control lists and a router, as in the demo.
    pub policy: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            profile: Profile::Full,
            uplink_mtu: DEFAULT_UPLINK_MTU,
            guest_mtu: None,
            family: Family::V4,
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
        Err(Error::Traffic(format!("a host has 1 to {MAX_GUESTS} guests")))
    }
}
