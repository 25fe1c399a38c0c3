//! What the switch learns while it runs, and what a translation has consulted of it.

use flow::{DatapathKey, PortKey};
use std::fmt;
use std::net::IpAddr;
use wire::MacAddr;

/// A number that grows whenever the answer to a question may have changed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Generation(pub u64);

/// Where a learnt IP address is: behind a logical port (OVN's MAC_Binding).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BindingKey {
    /// The logical datapath.
    pub datapath: DatapathKey,
    /// The logical port.
    pub port: PortKey,
    /// The address.
    pub ip: IpAddr,
}

/// Whose place is learnt: a MAC address in a layer 2 network (OVN's FDB, the MAC table of a learning switch).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StationKey {
    /// The logical datapath; 0 for a bridge programmed in the syntax of ovs-ofctl.
    pub datapath: DatapathKey,
    /// The VLAN, 0 without.
    pub vlan: u16,
    /// The address.
    pub mac: MacAddr,
}

/// Where a station is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum StationPlace {
    /// Behind a logical port.
    Logical(PortKey),
    /// Behind a port of the datapath.
    Port(flow::PortNo),
}

/// The port that a lesson came in by: there it counts. A logical port of the logical datapath that the packet entered, if that is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LearntAt {
    /// The logical datapath; 0 for a bridge programmed in the syntax of ovs-ofctl.
    pub datapath: DatapathKey,
    /// The port.
    pub port: StationPlace,
}

/// What was learnt, as a translation asks for it.
pub trait State {
    /// The MAC address bound to an IP address, and the generation of the answer; there is one when the answer is "none", too.
    fn binding(&self, key: &BindingKey) -> (Option<MacAddr>, Generation);

    /// Where a MAC address was seen last.
    fn station(&self, key: &StationKey) -> (Option<StationPlace>, Generation);
}

/// Nothing was learnt and nothing will be.
impl State for () {
    fn binding(&self, _: &BindingKey) -> (Option<MacAddr>, Generation) {
        (None, Generation(0))
    }

    fn station(&self, _: &StationKey) -> (Option<StationPlace>, Generation) {
        (None, Generation(0))
    }
}

/// A question that a translation asked, with the generation of the answer. While the generation stays the same, so does the
/// translation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Dependency {
    /// What was asked.
    pub question: Question,
    /// The generation of the answer.
    pub generation: Generation,
}

/// What a translation asked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Question {
    /// Which MAC address an IP address is bound to.
    Binding(BindingKey),
    /// Where a MAC address is.
    Station(StationKey),
}

/// Something to be learnt from a packet. It is no part of the cached decision: when it is learnt the generation of the
/// question changes, and with it what depends on the answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Lesson {
    /// An IP address has this MAC address.
    Binding(BindingKey, MacAddr),
    /// A MAC address was seen here.
    Station(StationKey, StationPlace),
}

impl Lesson {
    /// What it answers.
    pub const fn question(&self) -> Question {
        match self {
            Self::Binding(key, _) => Question::Binding(*key),
            Self::Station(key, _) => Question::Station(*key),
        }
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Binding(BindingKey { datapath, port, ip }) => {
                write!(f, "the MAC address of {ip} behind port {port} of datapath {datapath}")
            }
            Self::Station(StationKey { datapath, vlan, mac }) => {
                write!(f, "the port of {mac} in VLAN {vlan} of datapath {datapath}")
            }
        }
    }
}

impl fmt::Display for Lesson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Binding(key, mac) => write!(f, "{} is {mac}", Question::Binding(*key)),
            Self::Station(key, StationPlace::Logical(port)) => {
                write!(f, "{} is logical port {port}", Question::Station(*key))
            }
            Self::Station(key, StationPlace::Port(port)) => {
                write!(f, "{} is port {port}", Question::Station(*key))
            }
        }
    }
}
