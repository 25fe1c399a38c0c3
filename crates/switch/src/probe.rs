//! Probes between hosts that measure the MTU of the path to another host.
//!
//! Probes travel in the tunnels like frames of guests, with tunnel key 0, which no logical switch
//! has. So no guest can send or receive one. A receiver is set with
//! [`Engine::set_probe_receiver`](crate::Engine::set_probe_receiver). Probes are never translated
//! and cause no megaflow.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                     "weft", after the EtherType               |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  version 1    | 1 ask, 2 reply|   length of the reply         |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                  token of the sender (64 bits)                |
//! |                                                               |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                     sequence number                           |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  reply: MTU from ICMP error   |  reply: MTU of the uplink     |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  reply: the router, 128 bits, IPv4-mapped (RFC 4291)          |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  reserved   |G|
//! +-+-+-+-+-+-+-+-+
//! ```
//!
//! An unknown MTU is 0. G is 1 in a reply from a host on which a guest's interface has a wrong MTU.
//! In a request, G asks for a reply without MTUs, which costs the replying host less.

use datapath::upcall::{Upcall, UpcallReason};
use flow::{Field, PortNo, tun_flags};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::MacAddr;

/// The source and destination of probes: a locally administered address that no device has.
const MAC: MacAddr = MacAddr([0x02, b'w', b'e', b'f', b't', 0x01]);
/// Local experimental EtherType 1 (IEEE 802, clause 9.2.4).
const ETHERTYPE: u16 = 0x88b5;
const MAGIC: [u8; 4] = *b"weft";
const VERSION: u8 = 1;
const ASK: u8 = 1;
const REPLY: u8 = 2;
const ETHERNET: usize = 14;

/// A request or a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe {
    /// True for a reply.
    pub is_reply: bool,
    /// The length of the reply in bytes, Ethernet header included.
    pub reply_len: u16,
    /// Identifies the sender of the request.
    pub token: u64,
    /// The sequence number of the request.
    pub number: u32,
    /// In a reply: the path MTU in bytes from an ICMP error about the reverse path, and the router
    /// that sent it.
    pub too_big: Option<(u16, IpAddr)>,
    /// In a reply: the MTU of the replying host's uplink in bytes; 0 if unknown.
    pub uplink_mtu: u16,
    /// In a reply: a guest's interface on that host has a wrong MTU. In a request: the reply need
    /// not say anything about MTUs.
    pub has_wrong_guest_mtu: bool,
}

impl Probe {
    /// The length in bytes of the shortest frame.
    pub const MIN_FRAME: usize = 60;

    /// Makes a request for a reply of `reply_len` bytes.
    pub const fn question(token: u64, number: u32, reply_len: u16) -> Self {
        Self {
            is_reply: false,
            reply_len,
            token,
            number,
            too_big: None,
            uplink_mtu: 0,
            has_wrong_guest_mtu: false,
        }
    }

    /// Emits a frame of `len` bytes, at least [`Probe::MIN_FRAME`].
    pub fn emit(&self, len: usize) -> Vec<u8> {
        let mut frame = Vec::with_capacity(len.max(Self::MIN_FRAME));
        frame.extend(MAC.0);
        frame.extend(MAC.0);
        frame.extend(ETHERTYPE.to_be_bytes());
        frame.extend(MAGIC);
        frame.extend([VERSION, if self.is_reply { REPLY } else { ASK }]);
        frame.extend(self.reply_len.to_be_bytes());
        frame.extend(self.token.to_be_bytes());
        frame.extend(self.number.to_be_bytes());
        let (mtu, router) = self.too_big.unwrap_or((0, Ipv6Addr::UNSPECIFIED.into()));
        frame.extend(mtu.to_be_bytes());
        frame.extend(self.uplink_mtu.to_be_bytes());
        let router = match router {
            IpAddr::V4(router) => router.to_ipv6_mapped(),
            IpAddr::V6(router) => router,
        };
        frame.extend(router.octets());
        frame.push(u8::from(self.has_wrong_guest_mtu));
        frame.resize(len.max(Self::MIN_FRAME), 0);
        frame
    }

    /// Parses the start of a frame; `None` if it is no probe.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let rest = frame.get(ETHERNET..)?.strip_prefix(&MAGIC)?;
        let bytes = rest.first_chunk::<37>()?;
        let [version, kind, len_high, len_low, rest @ ..] = bytes;
        let is_reply = match (version, kind) {
            (&VERSION, &ASK) => false,
            (&VERSION, &REPLY) => true,
            _ => return None,
        };
        let (token, rest) = rest.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (mtu, rest) = rest.split_first_chunk()?;
        let (uplink_mtu, rest) = rest.split_first_chunk()?;
        let (router, flags) = rest.split_first_chunk::<16>()?;
        let router = Ipv6Addr::from(*router);
        let mtu = u16::from_be_bytes(*mtu);
        let router = router.to_ipv4_mapped().map_or(IpAddr::V6(router), IpAddr::V4);
        Some(Self {
            is_reply,
            reply_len: u16::from_be_bytes([*len_high, *len_low]),
            token: u64::from_be_bytes(*token),
            number: u32::from_be_bytes(*number),
            too_big: (mtu != 0).then_some((mtu, router)),
            uplink_mtu: u16::from_be_bytes(*uplink_mtu),
            has_wrong_guest_mtu: flags.first().is_some_and(|flags| flags & 1 != 0),
        })
    }
}

/// A received probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceivedProbe {
    /// The port of the tunnel by which it arrived.
    pub port: PortNo,
    /// The outer source address.
    pub source: IpAddr,
    /// Its contents.
    pub probe: Probe,
}

/// Parses the probe in an upcall's packet; `None` for packets of guests.
pub(crate) fn arrived(upcall: &Upcall) -> Option<ReceivedProbe> {
    let key = &upcall.key;
    let is_ours = key.get(Field::EthType) == u128::from(ETHERTYPE)
        && key.get(Field::TunId) == 0
        && key.get(Field::TunFlags) & u128::from(tun_flags::KEY) != 0
        && upcall.reason == UpcallReason::Miss;
    if !is_ours || !upcall.packet.head().starts_with(&MAC.0) {
        return None;
    }
    let source = match (key.get(Field::TunSrc), key.get(Field::TunIpv6Src)) {
        (0, 0) => return None,
        (0, v6) => IpAddr::from(Ipv6Addr::from(v6)),
        (v4, _) => IpAddr::from(Ipv4Addr::from(u32::try_from(v4).ok()?)),
    };
    Some(ReceivedProbe { port: upcall.port, source, probe: Probe::parse(upcall.packet.head())? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe() -> Probe {
        Probe { is_reply: true, ..Probe::question(7, 9, 1400) }
    }

    #[test]
    fn probes_are_read_as_they_are_written() {
        let too_big = |router: &str| Some((1400, router.parse().unwrap()));
        for too_big in [None, too_big("192.0.2.1"), too_big("2001:db8::1")] {
            for is_reply in [false, true] {
                let has_wrong_guest_mtu = is_reply && too_big.is_none();
                let probe =
                    Probe { too_big, is_reply, uplink_mtu: 9000, has_wrong_guest_mtu, ..probe() };
                for len in [0, 60, 1500] {
                    let frame = probe.emit(len);
                    assert_eq!((frame.len(), Probe::parse(&frame)), (len.max(60), Some(probe)));
                }
            }
        }
    }

    #[test]
    fn frame_is_no_probe_when_cut_or_strange() {
        let frame = probe().emit(60);
        for len in 0..ETHERNET + 41 {
            assert_eq!(Probe::parse(&frame[..len]), None, "{len}");
        }
        for (at, byte) in [(14, b'W'), (18, 2), (19, 3)] {
            let mut invalid = frame.clone();
            invalid[at] = byte;
            assert_eq!(Probe::parse(&invalid), None, "{at}");
        }
    }
}
