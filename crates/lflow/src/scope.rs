//! [`Scope`]: what the names in a text mean.

use super::token::Constant;

/// What names mean in the datapath, and on the host, for which a text is compiled.
pub trait Scope {
    /// The key of a logical port or a multicast group of the datapath; `None` when it has none of that name, and then a
    /// comparison with the name is false.
    fn port(&self, name: &str) -> Option<u16>;

    /// The addresses of an address set (`$name`); `None` when there is none of that name.
    fn address_set(&self, name: &str) -> Option<&[Constant]>;

    /// The names of the ports of a port group (`@name`); `None` when there is none of that name.
    fn port_group(&self, name: &str) -> Option<&[String]>;

    /// True when the logical port is on this host, or its gateway is.
    fn is_chassis_resident(&self, port: &str) -> bool;
}

/// No names at all.
impl Scope for () {
    fn port(&self, _: &str) -> Option<u16> {
        None
    }

    fn address_set(&self, _: &str) -> Option<&[Constant]> {
        None
    }

    fn port_group(&self, _: &str) -> Option<&[String]> {
        None
    }

    fn is_chassis_resident(&self, _: &str) -> bool {
        false
    }
}
