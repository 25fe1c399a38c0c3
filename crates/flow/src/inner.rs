//! What an outer header takes from the inner frame: the entropy of its flow, its traffic class and its TTL.

use packet::PacketBuf;
use std::hash::{BuildHasher, Hasher};
use wire::{EtherType, Fragment, Protocol};

/// What encapsulation needs to know of the frame, read once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InnerFlow {
    /// The same for all frames of one flow, different between flows: over addresses, protocol and ports; over addresses
    /// and protocol alone for IP fragments, so that all fragments of a packet agree; over MAC addresses and EtherType
    /// of frames that are not IP.
    pub hash: u32,
    /// DSCP and ECN; `None` when the frame is not IP.
    pub traffic_class: Option<u8>,
    /// TTL or hop limit; `None` when the frame is not IP.
    pub ttl: Option<u8>,
}

impl InnerFlow {
    /// Reads the headers of `packet`. `seed` keeps the choice of paths from being predicted by those who choose inner
    /// addresses.
    pub fn read(packet: &PacketBuf, seed: &ahash::RandomState) -> Self {
        let frame = packet.head();
        let mut hasher = seed.build_hasher();
        let (traffic_class, ttl) = match wire::transport_offset_in(frame, packet.len()) {
            Ok(located) if located.is_ip() => {
                let ip = frame.get(located.l3..).unwrap_or_default();
                let (addresses, traffic_class, ttl) = match (located.ethertype, ip) {
                    (EtherType::IPV4, [_, tos, _, _, _, _, _, _, ttl, ..]) => {
                        (12..20, Some(*tos), Some(*ttl))
                    }
                    (_, [first, second, _, _, _, _, _, hop_limit, ..]) => {
                        (8..40, Some(first << 4 | second >> 4), Some(*hop_limit))
                    }
                    _ => (0..0, None, None),
                };
                hasher.write(ip.get(addresses).unwrap_or_default());
                hasher.write_u8(located.protocol.0);
                let has_ports =
                    matches!(located.protocol, Protocol::TCP | Protocol::UDP | Protocol::SCTP);
                if let (true, Fragment::Whole, Some(l4)) = (has_ports, located.fragment, located.l4)
                    && let Some(ports) = frame.get(l4..l4 + 4)
                {
                    hasher.write(ports);
                }
                (traffic_class, ttl)
            }
            _ => {
                hasher.write(frame.get(..14).unwrap_or(frame));
                (None, None)
            }
        };
        let hash = hasher.finish();
        Self { hash: (hash >> 32) as u32 ^ hash as u32, traffic_class, ttl }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_is_the_same_when_the_payload_is_in_pieces() {
        let ip = [0x45, 0xb9, 0, 60, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let frame = [&[2; 12][..], &[8, 0], &ip, &[0x50; 40]].concat();
        let seed = ahash::RandomState::with_seeds(1, 2, 3, 4);
        let mut packet = PacketBuf::from_bytes(&frame);
        let whole = InnerFlow::read(&packet, &seed);
        assert_eq!((whole.traffic_class, whole.ttl), (Some(0xb9), Some(64)));
        packet.set_ranges(0..54, [54..60, 60..frame.len()]);
        assert_eq!(InnerFlow::read(&packet, &seed), whole);
    }
}
