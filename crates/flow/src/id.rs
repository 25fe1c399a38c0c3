//! Identifiers. Each has its own type, so that the compiler rejects a port number in place of a
//! port key.

use std::fmt;

/// A port of one host's datapath: a VIF or the uplink. The number is local to the host and is never
/// sent on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PortNo(pub u32);

/// Index of a row in the [`EndpointTable`](crate::EndpointTable): one remote tunnel end point of
/// one type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct EndpointId(pub u32);

/// The number of a logical switch, equal on every host (OVN's tunnel key of a logical datapath).
///
/// It has 24 bits in VXLAN, Geneve, NVGRE and STT, and up to 32 bits in a plain GRE key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DatapathKey(pub u32);

impl DatapathKey {
    /// On a host of an OVN deployment, the first key of datapaths that exist only on that host:
    /// provider bridges. It has more than 24 bits, so no OVN tunnel carries it.
    pub const FIRST_LOCAL: Self = Self(1 << 24);
}

/// The number of a logical port in its logical switch (OVN's tunnel key of a port binding).
///
/// 1 to 32,767 for a port, from 32,768 for a multicast group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PortKey(u16);

impl PortKey {
    /// The largest key of a single port.
    pub const MAX_PORT: u16 = 0x7fff;
    /// The multicast group of all ports of the switch (OVN's `_MC_flood`).
    pub const FLOOD: Self = Self(0x8000);
    /// The multicast group of ports that receive unknown unicast (OVN's `_MC_unknown`).
    pub const UNKNOWN: Self = Self(0x8001);

    /// `None` for 0, which is not a valid key.
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
