//! The hash of the inner flow, from which the outer source port is taken.

use packet::PacketBuf;
use std::hash::{BuildHasher, Hasher};
use wire::{EtherType, Fragment, Protocol};

/// A hash that is the same for all frames of one inner flow and differs between flows: over addresses, protocol and
/// ports; over addresses and protocol alone for IP fragments, so that all fragments of a packet agree; over the
/// MAC addresses and EtherType of frames that are not IP.
///
/// `seed` keeps the choice of paths from being predicted by those who choose inner addresses.
pub fn flow_hash(packet: &PacketBuf, seed: &ahash::RandomState) -> u32 {
    let frame = packet.head();
    let mut hasher = seed.build_hasher();
    match wire::transport_offset(frame) {
        Ok(located) if located.is_ip() => {
            let addresses = match located.ethertype {
                EtherType::IPV4 => located.l3 + 12..located.l3 + 20,
                _ => located.l3 + 8..located.l3 + 40,
            };
            hasher.write(frame.get(addresses).unwrap_or_default());
            hasher.write_u8(located.protocol.0);
            let has_ports =
                matches!(located.protocol, Protocol::TCP | Protocol::UDP | Protocol::SCTP);
            if let (true, Fragment::Whole, Some(l4)) = (has_ports, located.fragment, located.l4)
                && let Some(ports) = frame.get(l4..l4 + 4)
            {
                hasher.write(ports);
            }
        }
        _ => hasher.write(frame.get(..14).unwrap_or(frame)),
    }
    let hash = hasher.finish();
    (hash >> 32) as u32 ^ hash as u32
}
