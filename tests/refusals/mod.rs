//! Packets that must not reach a guest. The tests build invalid packets byte by byte and send them
//! to a running daemon. The daemon must drop each and count it under the correct reason. The guest
//! receives none of them, and valid packets still arrive afterwards.

mod authenticate;
pub mod checksums;
mod control;
mod geneve;
mod gre;
mod guards;
mod guests;
mod hidden;
mod loops;
mod secured;
mod strangers;
mod stt;
mod tags;
mod target;
mod types;
mod vxlan;
