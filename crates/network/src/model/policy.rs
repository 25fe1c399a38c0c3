//! Port security and access control lists.

use super::{FileLine, SwitchIndex};
use crate::Prefix;
use std::fmt;
use wire::MacAddr;

/// The source addresses that a port may use, and the destination addresses that it receives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortSecurity {
    /// The MAC address.
    pub mac: MacAddr,
    /// The IP addresses; empty for any. With addresses of one family only, the other family is
    /// forbidden.
    pub addresses: Vec<Prefix>,
}

/// As in OVN's column `port_security`: the MAC address and IP addresses, separated by spaces.
impl fmt::Display for PortSecurity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.mac)?;
        self.addresses.iter().try_for_each(|address| write!(f, " {address}"))
    }
}

/// Control messages that a port may send although other guests may not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trust {
    /// Router advertisements and redirects of IPv6 (RFC 4861). RA guard (RFC 6105) drops those of
    /// other ports.
    pub ra: bool,
    /// Messages of DHCP and DHCPv6 servers and relays. DHCP guard drops those of other ports.
    pub dhcp: bool,
}

/// An access control list entry (ACL).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl {
    /// The ports that it applies to.
    pub scope: AclScope,
    /// The direction of the packets.
    pub direction: AclDirection,
    /// Its priority, 0 to 32,767: of the ACLs that match, the highest wins.
    pub priority: u16,
    /// Its match, in OVN's expression language.
    pub condition: String,
    /// Its action for a packet.
    pub action: AclAction,
    /// The name under which matches are logged; `None` for no log.
    pub log: Option<String>,
    /// Its line in the file.
    pub line: FileLine,
}

/// The ports that an ACL applies to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AclScope {
    /// All guest ports of a logical switch.
    Switch(SwitchIndex),
    /// The ports of a port group.
    PortGroup(String),
}

/// The direction of an ACL.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AclDirection {
    /// Packets from the port (OVN's `from-lport`).
    FromPort,
    /// Packets to the port (OVN's `to-lport`).
    ToPort,
}

impl AclDirection {
    /// Both directions.
    pub const ALL: [Self; 2] = [Self::FromPort, Self::ToPort];

    /// The word in the file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FromPort => "from-port",
            Self::ToPort => "to-port",
        }
    }
}

/// The action of an ACL for a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AclAction {
    /// The packet continues.
    Allow,
    /// The packet continues. So do the replies to it, and ICMP errors about its connection, even if
    /// other ACLs drop them.
    AllowRelated,
    /// The packet continues, and its connection is not tracked.
    AllowStateless,
    /// The packet is dropped.
    Drop,
    /// The packet is dropped with a reply to the sender: a reset for TCP, ICMP "unreachable" for
    /// other IP.
    Reject,
}

impl AclAction {
    /// All actions.
    pub const ALL: [Self; 5] =
        [Self::Allow, Self::AllowRelated, Self::AllowStateless, Self::Drop, Self::Reject];

    /// The word in the file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::AllowRelated => "allow-related",
            Self::AllowStateless => "allow-stateless",
            Self::Drop => "drop",
            Self::Reject => "reject",
        }
    }
}
