//! Protocol headers: zero-copy views of bytes, and plain values.
//!
//! Every header has two types:
//!
//! - `XPacket<T: AsRef<[u8]>>` is a view over bytes. `new_checked` verifies that the header is
//!   whole and its lengths are consistent. After that no accessor can fail or panic.
//! - `XRepr` is the compact form, which is always valid. `XRepr::parse(&packet)` rejects what the
//!   standard forbids, and `repr.emit(&mut packet)` writes every byte of the header.
//!
//! The datapaths read Ethernet, ARP, IP, TCP, UDP and GRE by their views, and only write them by
//! `emit`. `parse` of these reprs serves tests: it proves in round trips that `emit` writes every
//! field, and the peers of end-to-end tests, the fuzz targets and the tests of other crates read
//! packets with it.
//!
//! Views convert byte order; reprs hold host order. This crate has no I/O, no clock and no
//! `unsafe`, and does not panic on any input bytes.
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
pub mod snap;
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
