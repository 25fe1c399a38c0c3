//! Ethernet II headers (IEEE 802.3 clause 3.2.6).
//!
//! ```text
//!  0       6       12   14
//! +-------+-------+----+---------
//! | dst   | src   |type| payload
//! +-------+-------+----+---------
//! ```

use std::fmt;

use crate::view::{array, put, put_u16, require, u16_at, view};
use crate::{Layer, MacAddr, ParseError};

/// Bytes of an Ethernet header without VLAN tags.
pub const HEADER_LEN: usize = 14;
/// The smallest type; below it the field is a length (IEEE 802.3 clause 3.2.6).
pub const MIN_ETHERTYPE: u16 = 0x0600;

/// The EtherType of a frame's payload, also used as the protocol type of GRE and Geneve.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(0x0800);
    /// ARP.
    pub const ARP: Self = Self(0x0806);
    /// Transparent Ethernet bridging: an Ethernet frame inside GRE or Geneve (RFC 1701).
    pub const TEB: Self = Self(0x6558);
    /// Reverse ARP (RFC 903).
    pub const RARP: Self = Self(0x8035);
    /// IEEE 802.1Q customer tag.
    pub const VLAN: Self = Self(0x8100);
    /// IPv6.
    pub const IPV6: Self = Self(0x86dd);
    /// IEEE 802.1ad service tag.
    pub const QINQ: Self = Self(0x88a8);
    /// Link layer discovery.
    pub const LLDP: Self = Self(0x88cc);
    /// The pre-standard service tag.
    pub const VLAN_9100: Self = Self(0x9100);

    /// True for the three tag protocol identifiers 0x8100, 0x88a8 and 0x9100.
    #[inline]
    pub const fn is_vlan(self) -> bool {
        matches!(self, Self::VLAN | Self::QINQ | Self::VLAN_9100)
    }

    /// True when the field is the length of an IEEE 802.3 frame, not a type.
    pub const fn is_length(self) -> bool {
        self.0 < MIN_ETHERTYPE
    }
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

impl fmt::Debug for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

view! {
    /// A view of an Ethernet frame. VLAN tags are part of its payload: see [`crate::vlan`].
    EthernetPacket
}

impl<T: AsRef<[u8]>> EthernetPacket<T> {
    fn check(&self) -> Result<(), ParseError> {
        require(Layer::Ethernet, HEADER_LEN, self.bytes().len())
    }

    /// Destination address.
    #[inline]
    pub fn dst(&self) -> MacAddr {
        MacAddr(array(self.bytes(), 0))
    }

    /// Source address.
    #[inline]
    pub fn src(&self) -> MacAddr {
        MacAddr(array(self.bytes(), 6))
    }

    /// Type of the payload; a TPID when the frame is tagged.
    #[inline]
    pub fn ethertype(&self) -> EtherType {
        EtherType(u16_at(self.bytes(), 12))
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> EthernetPacket<&'a T> {
    /// The bytes after the header, padding included.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.buffer.as_ref()[HEADER_LEN..]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> EthernetPacket<T> {
    /// Sets the destination address.
    pub fn set_dst(&mut self, dst: MacAddr) {
        put(self.buffer.as_mut(), 0, dst.0);
    }

    /// Sets the source address.
    pub fn set_src(&mut self, src: MacAddr) {
        put(self.buffer.as_mut(), 6, src.0);
    }

    /// Sets the type of the payload.
    pub fn set_ethertype(&mut self, ethertype: EtherType) {
        put_u16(self.buffer.as_mut(), 12, ethertype.0);
    }

    /// The bytes after the header.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.buffer.as_mut()[HEADER_LEN..]
    }
}

/// An Ethernet header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EthernetRepr {
    /// Destination address.
    pub dst: MacAddr,
    /// Source address.
    pub src: MacAddr,
    /// Type of the payload.
    pub ethertype: EtherType,
}

impl EthernetRepr {
    /// Reads a checked view; every header is acceptable.
    pub fn parse<T: AsRef<[u8]>>(packet: &EthernetPacket<T>) -> Self {
        Self { dst: packet.dst(), src: packet.src(), ethertype: packet.ethertype() }
    }

    /// Bytes that [`EthernetRepr::emit`] writes.
    pub const fn header_len(&self) -> usize {
        HEADER_LEN
    }

    /// Writes the header.
    ///
    /// # Panics
    /// When the buffer is shorter than [`EthernetRepr::header_len`].
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut EthernetPacket<T>) {
        packet.set_dst(self.dst);
        packet.set_src(self.src);
        packet.set_ethertype(self.ethertype);
    }
}
