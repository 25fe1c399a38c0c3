//! The transport segments that this crate can do something with, on top of [`wire::transport_offset`].

use wire::checksum::Sum;
use wire::{EtherType, Fragment, Located, Protocol, ipv6, transport_offset};

/// Where the headers of an unfragmented IP packet are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Location {
    /// The IP header, from the start of the frame.
    pub l3: usize,
    /// The transport header, from the start of the frame.
    pub l4: usize,
    /// The end of the IP packet by its own length, from the start of the frame.
    pub end: usize,
    /// What is at `l4`.
    pub protocol: Protocol,
    /// IPv6, else IPv4.
    pub is_v6: bool,
}

/// The transport header of `frame`; `None` when it is malformed, fragmented, or not IP.
pub(crate) fn locate(frame: &[u8]) -> Option<Location> {
    whole(&transport_offset(frame).ok()?)
}

/// `None` for fragments and what is not IP.
pub(crate) fn whole(located: &Located) -> Option<Location> {
    if !located.is_ip() || located.fragment != Fragment::Whole {
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
    /// The sum of the pseudo header of the packet in `frame` for `l4_len` bytes of transport.
    pub(crate) fn pseudo_header(&self, frame: &[u8], l4_len: u16) -> Sum {
        let addresses =
            if self.is_v6 { self.l3 + 8..self.l3 + 40 } else { self.l3 + 12..self.l3 + 20 };
        Sum::of(&frame[addresses]).u16(u16::from(self.protocol.0)).u16(l4_len)
    }

    /// True when nothing but options stands between the IP header and the transport. A routing header hides the address
    /// that the checksum covers, an authentication header covers lengths, a fragment header numbers the packet.
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
