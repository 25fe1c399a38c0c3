//! What guests may do: port security and access control lists.

use super::{Line, SwitchIndex};
use crate::Prefix;
use std::fmt;
use wire::MacAddr;

/// The addresses from which a port may send and for which it may receive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortSecurity {
    /// The MAC address.
    pub mac: MacAddr,
    /// The IP addresses; any when there are none. A family of which there are none is forbidden if there are some of the other.
    pub addresses: Vec<Prefix>,
}

/// As in OVN's column `port_security`: the MAC address and the IP addresses, with blanks between them.
impl fmt::Display for PortSecurity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.mac)?;
        self.addresses.iter().try_for_each(|address| write!(f, " {address}"))
    }
}

/// An entry of an access control list. It keeps no state of connections.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl {
    /// Where it applies.
    pub scope: AclScope,
    /// Which way.
    pub direction: AclDirection,
    /// Of the entries that match, that with the highest decides; 0 to 32,767.
    pub priority: u16,
    /// Which packets, in OVN's language of expressions.
    pub condition: String,
    /// What becomes of them.
    pub action: AclAction,
    /// The name under which they are logged; `None` when they are not.
    pub log: Option<String>,
    /// Where it is in the file.
    pub line: Line,
}

/// Where an entry of an access control list applies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AclScope {
    /// To all ports of guests of a logical switch.
    Switch(SwitchIndex),
    /// To the ports of a group.
    PortGroup(String),
}

/// Which packets of a port an entry of an access control list applies to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AclDirection {
    /// What comes from it (OVN's `from-lport`).
    FromPort,
    /// What goes to it (OVN's `to-lport`).
    ToPort,
}

impl AclDirection {
    /// Both.
    pub const ALL: [Self; 2] = [Self::FromPort, Self::ToPort];

    /// The word in the file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FromPort => "from-port",
            Self::ToPort => "to-port",
        }
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AclAction {
    /// It goes on.
    Allow,
    /// It is dropped.
    Drop,
    /// It is dropped, and the sender told: a reset for TCP, "unreachable" for other IP.
    Reject,
}

impl AclAction {
    /// All three.
    pub const ALL: [Self; 3] = [Self::Allow, Self::Drop, Self::Reject];

    /// The word in the file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Drop => "drop",
            Self::Reject => "reject",
        }
    }
}
