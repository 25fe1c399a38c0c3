//! Frames that ask how long packets may be on the way to another host, and the answers to them.
//!
//! They travel in the tunnels like frames of guests, with the key 0, which no logical switch has: no guest can send one, and none gets
//! one. Whoever looks after them is told of each ([`Engine::give_probes_to`](crate::Engine::give_probes_to)); they are never
//! translated, and no megaflow comes of them.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                     "weft", behind the EtherType              |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  version 1    | 1 ask, 2 reply|   length of the answer        |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                  whose question it is (64 bits)               |
//! |                                                               |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                     number of the question                    |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  reply: MTU that a router said |  reply: MTU of that uplink    |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  that router's address, 128 bits, IPv4 mapped (RFC 4291)      |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  reserved   |G|
//! +-+-+-+-+-+-+-+-+
//! ```
//!
//! An MTU is 0 where there is none to tell. G is 1 in a reply from a host where an interface of a guest has an MTU that does not fit.

use datapath::upcall::{Upcall, UpcallReason};
use flow::{Field, PortNo, tun_flags};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::MacAddr;

/// The destination of probes: an address of nobody's, locally administered.
const MAC: MacAddr = MacAddr([0x02, b'w', b'e', b'f', b't', 0x01]);
/// For local experiments (IEEE 802, clause 9).
const ETHERTYPE: u16 = 0x88b5;
const MAGIC: [u8; 4] = *b"weft";
const VERSION: u8 = 1;
const ASK: u8 = 1;
const REPLY: u8 = 2;
const ETHERNET: usize = 14;

/// A question, or the answer to one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe {
    /// An answer.
    pub is_reply: bool,
    /// The length of the answer, from its Ethernet header on.
    pub reply_len: u16,
    /// Whose question it is.
    pub token: u64,
    /// Which of the asker's.
    pub number: u32,
    /// In an answer: what a router has said about the way back, and which.
    pub told: Option<(u16, IpAddr)>,
    /// In an answer: the MTU of the uplink of the host that answers, in bytes; 0 when that is not known.
    pub uplink_mtu: u16,
    /// In an answer: some interface of a guest of that host has an MTU that does not fit.
    pub has_misfit: bool,
}

impl Probe {
    /// The shortest frame of a probe.
    pub const MIN_FRAME: usize = 60;

    /// A question, whose answer is to have `reply_len` bytes.
    pub const fn question(token: u64, number: u32, reply_len: u16) -> Self {
        Self {
            is_reply: false,
            reply_len,
            token,
            number,
            told: None,
            uplink_mtu: 0,
            has_misfit: false,
        }
    }

    /// A frame of `len` bytes, but at least [`Probe::MIN_FRAME`].
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
        let (mtu, router) = self.told.unwrap_or((0, Ipv6Addr::UNSPECIFIED.into()));
        frame.extend(mtu.to_be_bytes());
        frame.extend(self.uplink_mtu.to_be_bytes());
        let router = match router {
            IpAddr::V4(router) => router.to_ipv6_mapped(),
            IpAddr::V6(router) => router,
        };
        frame.extend(router.octets());
        frame.push(u8::from(self.has_misfit));
        frame.resize(len.max(Self::MIN_FRAME), 0);
        frame
    }

    /// Reads the start of a frame; `None` when it is no probe.
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
            told: (mtu != 0).then_some((mtu, router)),
            uplink_mtu: u16::from_be_bytes(*uplink_mtu),
            has_misfit: flags.first().is_some_and(|flags| flags & 1 != 0),
        })
    }
}

/// A probe that came in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrived {
    /// The port of the tunnel that it came by.
    pub port: PortNo,
    /// The host that it came from.
    pub source: IpAddr,
    /// What it says.
    pub probe: Probe,
}

/// The probe that a packet is; `None` for packets of guests.
pub(crate) fn arrived(upcall: &Upcall) -> Option<Arrived> {
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
    Some(Arrived { port: upcall.port, source, probe: Probe::parse(upcall.packet.head())? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe() -> Probe {
        Probe { is_reply: true, ..Probe::question(7, 9, 1400) }
    }

    #[test]
    fn probes_are_read_as_they_are_written() {
        let told = |router: &str| Some((1400, router.parse().unwrap()));
        for told in [None, told("192.0.2.1"), told("2001:db8::1")] {
            for is_reply in [false, true] {
                let has_misfit = is_reply && told.is_none();
                let probe = Probe { told, is_reply, uplink_mtu: 9000, has_misfit, ..probe() };
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
            let mut strange = frame.clone();
            strange[at] = byte;
            assert_eq!(Probe::parse(&strange), None, "{at}");
        }
    }
}
