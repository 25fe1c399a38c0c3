//! Port security: which addresses a logical port may send from and receive for (OVN's `port_security` column and
//! `check_in_port_sec`, `check_out_port_sec`).

use crate::op::Direction;
use crate::recorder::Recorder;

/// The addresses that a logical port may use; by default all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortSecurity {}

impl PortSecurity {
    /// True when the port must not send (ingress) or receive (egress) the packet.
    pub fn forbids(&self, _direction: Direction, _key: &mut impl Recorder) -> bool {
        false
    }
}
