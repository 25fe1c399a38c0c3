//! Tunnel headers, between the outer UDP, IP or TCP-like header and the inner Ethernet frame.
//!
//! Before a decapsulator parses these headers, it checks the outer address, protocol and port, and
//! that the sender is a known end point. It treats a tunnel header inside a tunnel as payload.

pub mod geneve;
pub mod gre;
pub mod stt;
pub mod vxlan;

pub use geneve::{GeneveOption, GeneveOptions, GenevePacket, GeneveRepr, LogicalPorts};
pub use gre::{GrePacket, GreRepr, NvgreRepr};
pub use stt::{
    SttChecksum, SttContext, SttPacket, SttRepr, SttSegmentPacket, SttSegmentRepr, SttVlan,
};
pub use vxlan::{VxlanPacket, VxlanRepr};
