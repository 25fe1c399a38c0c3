//! The compared ways to connect guests: weft with each tunnel, and other switches.

use std::fmt;
use std::str::FromStr;

use network::TunnelType;

use super::host::Guest;
use super::shape::IpVersion;
use crate::{Error, Result};

/// The VNI or key of every tunnel type that has one, and the outer VLAN of QinQ.
pub(super) const LAB_VNI: u32 = 100;
/// The inner VLAN of QinQ.
pub(super) const LAB_INNER_VLAN: u16 = 200;

/// A tunnel device of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names of protocols")]
pub enum KernelTunnel {
    Vxlan,
    Geneve,
    Gre,
    QinQ,
}

/// The encapsulation of Open vSwitch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names of protocols")]
pub enum OvsTunnel {
    /// No tunnel: the uplink is a port of the guests' bridge.
    Bridge,
    Vxlan,
    Geneve,
    Gre,
    /// Two tags, pushed and popped by OpenFlow flows.
    QinQ,
}

/// Where a switch forwards packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Datapath {
    /// In userspace.
    User,
    /// In the kernel: weft's eBPF programs, or the module of Open vSwitch.
    Kernel,
}

/// A way to connect the guests of a [`Lab`](super::Lab).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Contender {
    /// One veth pair from each guest to its counterpart, without hosts. This measures the traffic
    /// alone.
    Direct,
    /// A Linux bridge on each host with the guests and the uplink as its ports: no tunnel.
    LinuxBridge,
    /// A Linux bridge on each host with the guests and a tunnel device of the kernel as its ports.
    Kernel(KernelTunnel),
    /// Open vSwitch.
    Ovs(Datapath, OvsTunnel),
    /// weft on both hosts, with this tunnel between them.
    Weft(Datapath, TunnelType),
    /// weft on both hosts, each with a bridge whose flows push and pop two tags, in the syntax of
    /// ovs-ofctl: the flows of [`OvsTunnel::QinQ`].
    WeftBridge(Datapath),
    /// weft's kernel datapath with this tunnel, and guests whose veth pairs exist before it starts,
    /// as container platforms make them. Only exact counts measure these.
    WeftVeth(TunnelType),
    /// A switch that tracks the connections of all guests. Only exact counts measure these.
    Stateful(StatefulSwitch, StatefulRules),
}

/// A switch that tracks connections, with its kernel datapath.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StatefulSwitch {
    /// A Linux bridge without a tunnel, with one rule of nftables.
    Bridge,
    /// The kernel's module of Open vSwitch.
    Ovs(OvsTunnel),
    /// weft's eBPF programs.
    Weft(TunnelType),
}

/// How a stateful switch handles connections.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StatefulRules {
    /// It allows and tracks them in both directions, on both hosts.
    Acls,
    /// It also translates the destination and the source address, on the first host.
    Nat,
}

impl KernelTunnel {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Vxlan, Self::Geneve, Self::Gre, Self::QinQ];

    const fn name(self) -> &'static str {
        match self {
            Self::Vxlan => "vxlan",
            Self::Geneve => "geneve",
            Self::Gre => "gre",
            Self::QinQ => "qinq",
        }
    }

    /// Bytes by which the tunnel reduces the guests' MTU.
    pub(super) const fn overhead(self, family: IpVersion) -> u16 {
        match self {
            Self::Vxlan | Self::Geneve => 30 + family.header_bytes(),
            Self::Gre => 22 + family.header_bytes(),
            Self::QinQ => 8,
        }
    }
}

impl OvsTunnel {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Bridge, Self::Vxlan, Self::Geneve, Self::Gre, Self::QinQ];

    /// The name of the encapsulation, which is also the OVS interface type if it has one.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Bridge => "bridge",
            Self::Vxlan => "vxlan",
            Self::Geneve => "geneve",
            Self::Gre => "gre",
            Self::QinQ => "qinq",
        }
    }

    /// True when the encapsulation has a tunnel interface and uses the underlay's IP addresses.
    pub(super) const fn is_routed(self) -> bool {
        matches!(self, Self::Vxlan | Self::Geneve | Self::Gre)
    }

    pub(super) const fn overhead(self, family: IpVersion) -> u16 {
        match self {
            Self::Bridge => 0,
            Self::QinQ => 8,
            Self::Vxlan | Self::Geneve => 30 + family.header_bytes(),
            Self::Gre => 22 + family.header_bytes(),
        }
    }
}

impl Datapath {
    /// Both.
    pub const ALL: [Self; 2] = [Self::User, Self::Kernel];

    /// Its name on command lines.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Kernel => "kernel",
        }
    }
}

impl StatefulRules {
    /// Its name on command lines.
    const fn name(self) -> &'static str {
        match self {
            Self::Acls => "stateful",
            Self::Nat => "nat",
        }
    }
}

impl Contender {
    /// The kernel's own VXLAN.
    pub const KERNEL_VXLAN: Self = Self::Kernel(KernelTunnel::Vxlan);
    /// Open vSwitch with its userspace datapath and VXLAN.
    pub const OVS_VXLAN: Self = Self::Ovs(Datapath::User, OvsTunnel::Vxlan);

    /// weft's user datapath with this tunnel.
    pub const fn weft(tunnel: TunnelType) -> Self {
        Self::Weft(Datapath::User, tunnel)
    }

    /// All of them, in the order of reports.
    pub fn all() -> Vec<Self> {
        let kernel = KernelTunnel::ALL.map(Self::Kernel);
        let ovs = Datapath::ALL.map(|datapath| OvsTunnel::ALL.map(|t| Self::Ovs(datapath, t)));
        let weft = Datapath::ALL.map(|datapath| TunnelType::ALL.map(|t| Self::Weft(datapath, t)));
        let mut all = vec![Self::Direct, Self::LinuxBridge];
        all.extend(kernel);
        all.extend(ovs.concat());
        all.extend(weft.concat());
        all.extend(Datapath::ALL.map(Self::WeftBridge));
        all.extend(Self::VETH);
        all.extend(Self::STATEFUL);
        all
    }

    /// Contenders with guests whose veth pairs exist before weft starts.
    pub const VETH: [Self; 5] = [
        Self::WeftVeth(TunnelType::Vxlan),
        Self::WeftVeth(TunnelType::Geneve),
        Self::WeftVeth(TunnelType::Gre),
        Self::WeftVeth(TunnelType::Vlan),
        Self::WeftVeth(TunnelType::QinQ),
    ];

    /// Contenders of weft that the regression gate does not count. The kernel datapath does not
    /// carry STT. A bridge differs only in the source of its megaflows, and pushes its tags as
    /// actions. The attachment of existing interfaces is counted with VXLAN only.
    const NOT_GATED: [Self; 7] = [
        Self::Weft(Datapath::Kernel, TunnelType::Stt),
        Self::WeftBridge(Datapath::User),
        Self::WeftBridge(Datapath::Kernel),
        Self::WeftVeth(TunnelType::Geneve),
        Self::WeftVeth(TunnelType::Gre),
        Self::WeftVeth(TunnelType::Vlan),
        Self::WeftVeth(TunnelType::QinQ),
    ];

    /// True for contenders of weft that the regression gate counts.
    pub fn is_gated(self) -> bool {
        self.is_weft() && !Self::NOT_GATED.contains(&self)
    }

    /// The contenders that track connections. Only exact counts measure them.
    pub const STATEFUL: [Self; 6] = {
        use StatefulRules::{Acls, Nat};
        use StatefulSwitch::{Bridge, Ovs, Weft};
        [
            Self::Stateful(Bridge, Acls),
            Self::Stateful(Ovs(OvsTunnel::Vxlan), Acls),
            Self::Stateful(Ovs(OvsTunnel::Vxlan), Nat),
            Self::Stateful(Weft(TunnelType::Vxlan), Acls),
            Self::Stateful(Weft(TunnelType::Vxlan), Nat),
            Self::Stateful(Weft(TunnelType::Geneve), Acls),
        ]
    };

    /// The datapath of weft, or `None` for other switches.
    pub fn weft_datapath(self) -> Option<Datapath> {
        match self {
            Self::Weft(datapath, _) | Self::WeftBridge(datapath) => Some(datapath),
            Self::WeftVeth(_) | Self::Stateful(StatefulSwitch::Weft(_), _) => {
                Some(Datapath::Kernel)
            }
            _ => None,
        }
    }

    /// True for weft, false for the switches that it is compared with.
    pub fn is_weft(self) -> bool {
        self.weft_datapath().is_some()
    }

    /// True for both datapaths of Open vSwitch.
    pub fn is_ovs(self) -> bool {
        matches!(self, Self::Ovs(..) | Self::Stateful(StatefulSwitch::Ovs(_), _))
    }

    /// The rules by which the contender tracks connections, or `None` if it does not.
    pub fn stateful_rules(self) -> Option<StatefulRules> {
        match self {
            Self::Stateful(_, rules) => Some(rules),
            _ => None,
        }
    }

    /// The contender's name on command lines and in results.
    pub fn id(self) -> String {
        match self {
            Self::Direct => "direct".to_owned(),
            Self::LinuxBridge => "bridge".to_owned(),
            Self::Kernel(tunnel) => format!("kernel-{}", tunnel.name()),
            Self::Ovs(datapath, tunnel) => format!("ovs-{}-{}", datapath.name(), tunnel.name()),
            Self::Weft(datapath, tunnel) => format!("weft-{}-{tunnel}", datapath.name()),
            Self::WeftBridge(datapath) => format!("weft-{}-bridge-qinq", datapath.name()),
            Self::WeftVeth(tunnel) => format!("weft-kernel-{tunnel}-veth"),
            Self::Stateful(switch, rules) => match switch {
                StatefulSwitch::Bridge => format!("bridge-{}", rules.name()),
                StatefulSwitch::Ovs(tunnel) => format!("ovs-{}-{}", rules.name(), tunnel.name()),
                StatefulSwitch::Weft(tunnel) => format!("weft-{}-{tunnel}", rules.name()),
            },
        }
    }

    /// True when the contender is meant to carry frames between the two guests.
    pub fn joins(self, a: &Guest, b: &Guest) -> bool {
        match self {
            // Each pair of guests has its own tags, as in the published study.
            Self::Direct | Self::Ovs(_, OvsTunnel::QinQ) | Self::WeftBridge(_) => {
                a.host() != b.host() && a.number() == b.number()
            }
            _ => true,
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weft(datapath, tunnel) => write!(f, "weft {} {tunnel}", datapath.name()),
            Self::WeftBridge(datapath) => write!(f, "weft {} bridge qinq", datapath.name()),
            Self::WeftVeth(tunnel) => write!(f, "weft kernel {tunnel} veth"),
            Self::Stateful(switch, rules) => match switch {
                StatefulSwitch::Bridge => write!(f, "Linux bridge {}", rules.name()),
                StatefulSwitch::Ovs(tunnel) => write!(f, "OVS {} {}", rules.name(), tunnel.name()),
                StatefulSwitch::Weft(tunnel) => write!(f, "weft {} {tunnel}", rules.name()),
            },
            Self::LinuxBridge => f.write_str("Linux bridge"),
            Self::Kernel(tunnel) => write!(f, "kernel {}", tunnel.name()),
            Self::Ovs(datapath, tunnel) => write!(f, "OVS {} {}", datapath.name(), tunnel.name()),
            Self::Direct => f.write_str("one veth"),
        }
    }
}

impl FromStr for Contender {
    type Err = Error;

    fn from_str(id: &str) -> Result<Self> {
        let all = Self::all();
        all.iter().copied().find(|contender| contender.id() == id).ok_or_else(|| {
            let names: Vec<_> = all.into_iter().map(Self::id).collect();
            Error::Other(format!("unknown contender {id:?}; expected one of {}", names.join(", ")))
        })
    }
}

impl serde::Serialize for Contender {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.id())
    }
}

impl<'de> serde::Deserialize<'de> for Contender {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let id = String::deserialize(deserializer)?;
        id.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_round_trip_through_their_names() {
        let all = Contender::all();
        for &contender in &all {
            assert_eq!(contender.id().parse::<Contender>().unwrap(), contender);
        }
        let error = "ovs".parse::<Contender>().unwrap_err().to_string();
        assert!(error.contains("kernel-qinq") && error.contains("weft-user-stt"), "{error}");
    }
}
