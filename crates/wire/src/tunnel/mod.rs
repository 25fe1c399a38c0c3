//! The headers of the tunnels: what stands between the outer UDP, IP or TCP-shaped header and the inner Ethernet frame.
//!
//! A decapsulator accepts only packets for its own address, protocol and port from a remote end point that it knows; that
//! is checked before anything here is parsed, and a tunnel header inside a tunnel is payload.

pub mod geneve;
pub mod gre;
pub mod stt;
pub mod vxlan;

pub use geneve::{GeneveOption, GeneveOptions, GenevePacket, GeneveRepr, LogicalPorts};
pub use gre::{GrePacket, GreRepr, NvgreRepr};
pub use stt::{SttChecksum, SttPacket, SttRepr, SttSegmentPacket, SttSegmentRepr, SttVlan};
pub use vxlan::{VxlanPacket, VxlanRepr};
