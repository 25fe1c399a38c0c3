//! `select`: chooses one of several values, the same one for all packets of a connection.

use super::translator::{Packet, Translator};
use crate::observer::Observer;
use crate::state::LearnedState;
use flow::{Field, Subfield};

impl<'p, S: LearnedState, O: Observer> Translator<'p, '_, S, O> {
    pub fn select(&mut self, packet: &mut Packet<'p>, to: Subfield, choices: &[(u16, u16)]) {
        let forced = self.observer.select(choices).and_then(|index| choices.get(index));
        let value = match forced {
            Some((value, _)) => *value,
            None => {
                let hash = self.connection_hash(packet);
                choose(choices, hash)
            }
        };
        self.assign(packet, to, value.into());
    }

    /// The hash by which a load balancer chooses a backend: over the given fields, or over the
    /// connection.
    pub fn balance_hash(&mut self, packet: &mut Packet<'p>, fields: &[Field]) -> u64 {
        if fields.is_empty() {
            return self.connection_hash(packet);
        }
        fields.iter().fold(0, |hash, &field| mix(hash, self.read_field(packet, field)))
    }

    /// A hash over addresses, protocol and ports. It has no seed, so that all hosts make the same
    /// choice. It is not a key of any table, so collisions do no harm.
    fn connection_hash(&mut self, packet: &mut Packet<'p>) -> u64 {
        const PORTS: [u128; 3] = [6, 17, 132];
        let ethertype = self.read_field(packet, Field::EthType);
        let (source, destination) = match ethertype {
            0x0800 => (Field::Ip4Src, Field::Ip4Dst),
            0x86dd => (Field::Ip6Src, Field::Ip6Dst),
            _ => (Field::EthSrc, Field::EthDst),
        };
        let mut hash = mix(0, ethertype);
        hash = mix(hash, self.read_field(packet, source));
        hash = mix(hash, self.read_field(packet, destination));
        if matches!(ethertype, 0x0800 | 0x86dd) {
            let protocol = self.read_field(packet, Field::IpProto);
            hash = mix(hash, protocol);
            // Fragments are hashed without ports, which only the first fragment carries.
            if PORTS.contains(&protocol) && self.read_field(packet, Field::IpFrag) == 0 {
                hash = mix(hash, self.read_field(packet, Field::TpSrc));
                hash = mix(hash, self.read_field(packet, Field::TpDst));
            }
        }
        hash
    }
}

/// Mixes one more value into a hash, with the finalizer of SplitMix64.
fn mix(hash: u64, value: u128) -> u64 {
    let mut x =
        hash.wrapping_add(value as u64 ^ (value >> 64) as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Chooses a value by hash, in proportion to the weights.
fn choose(choices: &[(u16, u16)], hash: u64) -> u16 {
    let total: u64 = choices.iter().map(|&(_, weight)| u64::from(weight)).sum();
    let mut offset = hash.checked_rem(total).unwrap_or_default();
    for &(value, weight) in choices {
        match offset.checked_sub(weight.into()) {
            None => return value,
            Some(rest) => offset = rest,
        }
    }
    choices.first().map_or(0, |&(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_chosen_in_proportion_to_their_weights() {
        let choices = [(1, 10), (2, 0), (3, 30)];
        let taken: Vec<u16> = (0..4000).map(|n| choose(&choices, mix(0, n))).collect();
        let ones = taken.iter().filter(|&&value| value == 1).count();
        assert!(taken.iter().all(|value| [1, 3].contains(value)));
        assert!((800..1200).contains(&ones), "{ones}");
    }
}
