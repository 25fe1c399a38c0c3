//! ARP for IPv4 over Ethernet (RFC 826).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------------------------------+-------------------------------+
//! |       Hardware Type (1)       |     Protocol Type (0x0800)    |
//! +---------------+---------------+-------------------------------+
//! | Hw. Len. (6)  | Pr. Len. (4)  |           Operation           |
//! +---------------+---------------+-------------------------------+
//! |                Sender Hardware Address, 6 bytes               |
//! |                Sender Protocol Address, 4 bytes               |
//! |                Target Hardware Address, 6 bytes               |
//! |                Target Protocol Address, 4 bytes               |
//! +---------------------------------------------------------------+
//! ```

use std::net::Ipv4Addr;

use crate::ethernet::EtherType;
use crate::view::{array, put, put_u16, require, u16_at, view};
use crate::{Layer, MacAddr, ParseError};

/// Bytes of a packet.
pub const PACKET_LEN: usize = 28;

const HARDWARE_ETHERNET: u16 = 1;
const LENGTHS: [u8; 2] = [6, 4];

view! {
    /// A view of the payload of an Ethernet frame of type 0x0806. Checked views hold IPv4 over
    /// Ethernet.
    ArpPacket
}

impl<T: AsRef<[u8]>> ArpPacket<T> {
    fn check(&self) -> Result<(), ParseError> {
        let bytes = self.bytes();
        require(Layer::Arp, PACKET_LEN, bytes.len())?;
        if u16_at(bytes, 0) != HARDWARE_ETHERNET {
            return Err(ParseError::field(Layer::Arp, "hardware type"));
        }
        if u16_at(bytes, 2) != EtherType::IPV4.0 {
            return Err(ParseError::field(Layer::Arp, "protocol type"));
        }
        if array(bytes, 4) != LENGTHS {
            return Err(ParseError::field(Layer::Arp, "address lengths"));
        }
        Ok(())
    }

    /// The operation field.
    pub fn operation(&self) -> ArpOperation {
        match u16_at(self.bytes(), 6) {
            1 => ArpOperation::Request,
            2 => ArpOperation::Reply,
            other => ArpOperation::Other(other),
        }
    }

    /// MAC address of the sender.
    pub fn sender_mac(&self) -> MacAddr {
        MacAddr(array(self.bytes(), 8))
    }

    /// IPv4 address of the sender; 0.0.0.0 in a probe (RFC 5227).
    pub fn sender_ip(&self) -> Ipv4Addr {
        Ipv4Addr::from(array::<4>(self.bytes(), 14))
    }

    /// MAC address of the target; meaningless in a request.
    pub fn target_mac(&self) -> MacAddr {
        MacAddr(array(self.bytes(), 18))
    }

    /// IPv4 address of the target.
    pub fn target_ip(&self) -> Ipv4Addr {
        Ipv4Addr::from(array::<4>(self.bytes(), 24))
    }
}

/// The operation of an ARP packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ArpOperation {
    /// Who has the target address? (1)
    Request,
    /// The sender has the sender address. (2)
    Reply,
    /// Anything else, such as reverse ARP; neither 1 nor 2.
    Other(u16),
}

impl ArpOperation {
    const fn value(self) -> u16 {
        match self {
            Self::Request => 1,
            Self::Reply => 2,
            Self::Other(value) => value,
        }
    }
}

/// An ARP packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ArpRepr {
    /// The operation field.
    pub operation: ArpOperation,
    /// MAC address of the sender.
    pub sender_mac: MacAddr,
    /// IPv4 address of the sender; 0.0.0.0 in a probe (RFC 5227).
    pub sender_ip: Ipv4Addr,
    /// MAC address of the target; zero in a request.
    pub target_mac: MacAddr,
    /// IPv4 address of the target.
    pub target_ip: Ipv4Addr,
}

impl ArpRepr {
    /// Reads a checked view.
    ///
    /// # Errors
    /// `BadField` for a sender MAC that is a group address: no station owns one, and a neighbour
    /// table must not learn it.
    pub fn parse<T: AsRef<[u8]>>(packet: &ArpPacket<T>) -> Result<Self, ParseError> {
        if packet.sender_mac().is_multicast() {
            return Err(ParseError::field(Layer::Arp, "sender hardware address"));
        }
        Ok(Self {
            operation: packet.operation(),
            sender_mac: packet.sender_mac(),
            sender_ip: packet.sender_ip(),
            target_mac: packet.target_mac(),
            target_ip: packet.target_ip(),
        })
    }

    /// Bytes that [`ArpRepr::emit`] writes.
    pub const fn header_len(&self) -> usize {
        PACKET_LEN
    }

    /// Writes the packet.
    ///
    /// # Panics
    /// When the buffer is shorter than [`ArpRepr::header_len`].
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut ArpPacket<T>) {
        let bytes = packet.buffer.as_mut();
        put_u16(bytes, 0, HARDWARE_ETHERNET);
        put_u16(bytes, 2, EtherType::IPV4.0);
        put(bytes, 4, LENGTHS);
        put_u16(bytes, 6, self.operation.value());
        put(bytes, 8, self.sender_mac.0);
        put(bytes, 14, self.sender_ip.octets());
        put(bytes, 18, self.target_mac.0);
        put(bytes, 24, self.target_ip.octets());
    }
}
