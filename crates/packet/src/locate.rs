//! [`Location`]: where the headers of a whole (unfragmented) IP packet are.

use wire::checksum::Sum;
use wire::{EtherType, Fragment, Located, Protocol, ipv6};

use crate::buf::PacketBuf;

/// Where the headers of an unfragmented IP packet are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Location {
    /// The IP header, from the start of the frame.
    pub l3: usize,
    /// The transport header, from the start of the frame.
    pub l4: usize,
    /// The end of the IP packet by its own length field, from the start of the frame.
    pub end: usize,
    /// The transport protocol.
    pub protocol: Protocol,
    /// True for IPv6, false for IPv4.
    pub is_v6: bool,
}

/// Locates the headers of the frame behind `outer_len` bytes; offsets are counted from there.
/// `None` if the frame is malformed, fragmented, not IP, has a SNAP header, or if its IP packet is
/// not whole in the linear part.
pub(crate) fn locate(packet: &PacketBuf, outer_len: usize) -> Option<Location> {
    let location = whole(&packet.located_behind(outer_len).ok()?)?;
    (outer_len + location.end <= packet.head().len()).then_some(location)
}

/// `None` for fragments, for frames that are not IP, and for those with a SNAP header: offloads
/// know Ethernet II only, and the IEEE 802.3 length of a super-packet would be wrong.
pub(crate) fn whole(located: &Located) -> Option<Location> {
    if !located.is_ip() || located.has_snap() || located.fragment != Fragment::Whole {
        return None;
    }
    Some(Location {
        l3: located.l3,
        l4: located.l4?,
        end: located.l3_end,
        protocol: located.protocol,
        is_v6: located.ethertype == EtherType::IPV6,
    })
}

impl Location {
    /// The sum of the pseudo header for `l4_len` bytes of transport header and payload.
    pub(crate) fn pseudo_header(&self, frame: &[u8], l4_len: u16) -> Sum {
        let addresses =
            if self.is_v6 { self.l3 + 8..self.l3 + 40 } else { self.l3 + 12..self.l3 + 20 };
        Sum::of(&frame[addresses]).u16(u16::from(self.protocol.0)).u16(l4_len)
    }

    /// True if all headers between the IP header and the transport are options. A routing header
    /// hides the address that the checksum covers, an authentication header covers lengths, and a
    /// fragment header numbers the packet.
    pub(crate) fn has_only_options(&self, frame: &[u8]) -> bool {
        if !self.is_v6 {
            return true;
        }
        let (mut next, mut at) = (Protocol(frame[self.l3 + 6]), self.l3 + ipv6::HEADER_LEN);
        while at < self.l4 {
            if !matches!(next, Protocol::HOP_BY_HOP | Protocol::DESTINATION_OPTIONS) {
                return false;
            }
            (next, at) = (Protocol(frame[at]), at + (usize::from(frame[at + 1]) + 1) * 8);
        }
        true
    }
}
