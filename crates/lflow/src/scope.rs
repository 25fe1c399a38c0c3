//! [`Scope`]: the meaning of the names in a text.

use super::token::Constant;

/// The meaning of names in the datapath, and on the host, for which a text is compiled.
pub trait Scope {
    /// The key of a logical port or multicast group of the datapath. `None` for an unknown name; a
    /// comparison with it is then false.
    fn port(&self, name: &str) -> Option<u16>;

    /// The addresses of an address set (`$name`); `None` for an unknown name.
    fn address_set(&self, name: &str) -> Option<&[Constant]>;

    /// The ports of a port group (`@name`); `None` for an unknown name.
    fn port_group(&self, name: &str) -> Option<PortGroupMembers>;

    /// True when the logical port or its gateway is on this host.
    fn is_chassis_resident(&self, port: &str) -> bool;
}

/// The ports of a port group, as seen from a datapath.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortGroupMembers {
    /// True if the group has no ports, in this datapath or elsewhere.
    pub is_empty: bool,
    /// The keys of its ports in this datapath, in ascending order.
    pub keys: Vec<u16>,
}

/// A scope without names.
impl Scope for () {
    fn port(&self, _: &str) -> Option<u16> {
        None
    }

    fn address_set(&self, _: &str) -> Option<&[Constant]> {
        None
    }

    fn port_group(&self, _: &str) -> Option<PortGroupMembers> {
        None
    }

    fn is_chassis_resident(&self, _: &str) -> bool {
        false
    }
}
