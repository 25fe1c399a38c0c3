//! The checks. Each takes facts and returns findings, without any I/O, so that recorded hardware is
//! checked by the same code as a live host.

pub mod firewall;
pub mod host;
pub mod mtu;
pub mod nic;
pub mod path;
pub mod tunnel;
pub mod tunnel_reception;
