//! Identifiers. Each is its own type so that a port number never stands where a port key belongs.

use std::fmt;

/// A port of one host's datapath: a VIF or the uplink. Local to the host; never on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PortNo(pub u32);

/// A row of the [`EndpointTable`](crate::EndpointTable): one remote tunnel end point of one type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct EndpointId(pub u32);

/// The number of a logical switch, the same on every host: 24 bits in VXLAN, Geneve, NVGRE and STT (OVN's tunnel key of a
/// logical datapath), up to 32 in a plain GRE key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DatapathKey(pub u32);

/// The number of a logical port inside its logical switch: 1 to 32,767 for a port, from 32,768 for a multicast group
/// (OVN's tunnel key of a port binding).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PortKey(u16);

impl PortKey {
    /// The largest key of a single port.
    pub const MAX_PORT: u16 = 0x7fff;
    /// The multicast group "every port of the switch" (OVN's `_MC_flood`).
    pub const FLOOD: Self = Self(0x8000);
    /// The multicast group "every port behind which there may be unknown MAC addresses" (OVN's `_MC_unknown`).
    pub const UNKNOWN: Self = Self(0x8001);

    /// `None` for 0, which names no port.
    pub const fn new(value: u16) -> Option<Self> {
        if value == 0 { None } else { Some(Self(value)) }
    }

    /// The number, 1 to 65,535.
    pub const fn value(self) -> u16 {
        self.0
    }

    /// True for a multicast group rather than a single port.
    pub const fn is_group(self) -> bool {
        self.0 > Self::MAX_PORT
    }
}

macro_rules! display_number {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
display_number!(PortNo, EndpointId, DatapathKey, PortKey);
