//! Headers, as bytes and as values.
//!
//! Every header is two types. `XPacket<T: AsRef<[u8]>>` is a view over bytes: `new_checked` verifies that the
//! header is whole and its lengths consistent, after which no accessor can fail or panic. `XRepr` is the compact,
//! always valid form: `XRepr::parse(&packet)` rejects what the standard forbids, `repr.emit(&mut packet)` writes every
//! byte of the header. Byte order lives in the views; reprs are in host order.
//!
//! No I/O, no clock, no `unsafe`, and no panic on any bytes.
#![forbid(unsafe_code)]

mod addr;
pub mod arp;
pub mod checksum;
pub mod crc32c;
pub mod ecn;
mod error;
pub mod ethernet;
pub mod icmp;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
mod locate;
pub mod tcp;
pub mod tunnel;
pub mod udp;
mod view;
pub mod vlan;

pub use addr::{MacAddr, VlanId, Vni};
pub use arp::{ArpOperation, ArpPacket, ArpRepr};
pub use crc32c::Crc32c;
pub use ecn::Ecn;
pub use error::{Layer, ParseError, ParseErrorKind};
pub use ethernet::{EtherType, EthernetPacket, EthernetRepr};
pub use icmp::{
    Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, NdOption, NdOptions, NdRepr, TooBig,
};
pub use ip::{Fragment, Protocol};
pub use ipv4::{Ipv4Options, Ipv4Packet, Ipv4Repr};
pub use ipv6::{Ipv6Packet, Ipv6Repr};
pub use locate::{Located, transport_offset, transport_offset_in};
pub use tcp::{TcpFlags, TcpOption, TcpOptions, TcpPacket, TcpRepr};
pub use udp::{UdpPacket, UdpRepr};
