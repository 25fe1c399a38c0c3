//! Fields of the inner frame that determine the outer header: flow entropy, traffic class and TTL.
//!
//! # The entropy
//! A hash of the inner flow selects the outer source port. The user datapath's workers and the BPF
//! programs must compute the same port, because a flow that changes its source port may be
//! reordered. The hash is therefore a fixed formula over words of the kernel's flow key
//! (docs/adr/0010). It needs few enough instructions for a BPF program (bpf/encap.h):
//!
//! ```text
//!            IPv4                IPv6                              other
//!   words    ip4_src, ip4_dst    ip6_src (2 words), ip6_dst (2)    eth_dst << 16, eth_src << 16
//!   last     proto << 32 | tp_src << 16 | tp_dst                   0
//!
//!   sum     = words[0] * factors[0] + words[1] * factors[1] + .. + last * factors[4]
//!   entropy = (sum ^ sum >> 32) * factors[5] >> 32
//! ```
//!
//! All arithmetic is modulo 2^64. Ports are those of TCP, UDP and SCTP; fragments and other
//! protocols have port 0. The input is the frame after the rewrites of its megaflow. The factors
//! are odd, so different words never have the same product. The second multiplication spreads
//! consecutive addresses and ports over all 32 bits, without a visible pattern.

use crate::encap_interface::{ENTROPY_FACTORS, ENTROPY_FINISH, ENTROPY_LAST_WORD};
use packet::PacketBuf;
use std::hash::{BuildHasher, RandomState};
use wire::{EtherType, Fragment, Protocol};

/// The factors of the formula. They are secret, so that a guest cannot predict the path of a flow
/// from the inner addresses that it chooses. All datapaths of a host use the same factors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntropySeed([u64; ENTROPY_FACTORS]);

impl EntropySeed {
    /// Uses these factors, after setting their lowest bits to make them odd.
    pub const fn new(mut factors: [u64; ENTROPY_FACTORS]) -> Self {
        let mut at = 0;
        while at < ENTROPY_FACTORS {
            factors[at] |= 1;
            at += 1;
        }
        Self(factors)
    }

    /// Uses random factors.
    pub fn random() -> Self {
        let random = RandomState::new();
        Self::new(std::array::from_fn(|at| random.hash_one(at)))
    }

    /// The factors, for the configuration of a BPF program.
    pub const fn factors(&self) -> &[u64; ENTROPY_FACTORS] {
        &self.0
    }

    #[inline]
    fn hash(&self, words: &[u64], last: u64) -> u32 {
        let products = words.iter().zip(&self.0).map(|(word, factor)| word.wrapping_mul(*factor));
        let sum = products.fold(last.wrapping_mul(self.0[ENTROPY_LAST_WORD]), u64::wrapping_add);
        ((sum ^ (sum >> 32)).wrapping_mul(self.0[ENTROPY_FINISH]) >> 32) as u32
    }
}

impl Default for EntropySeed {
    fn default() -> Self {
        Self::random()
    }
}

/// Inner-frame fields that encapsulation needs, read once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InnerFlow {
    /// The hash of the inner flow.
    ///
    /// It covers addresses, protocol and ports. For IP fragments it covers only addresses and
    /// protocol, so that all fragments of a packet have the same hash. For frames that are not IP
    /// it covers the MAC addresses.
    pub hash: u32,
    /// DSCP and ECN; `None` when the frame is not IP.
    pub traffic_class: Option<u8>,
    /// TTL or hop limit; `None` when the frame is not IP.
    pub ttl: Option<u8>,
}

impl InnerFlow {
    /// Reads the headers of `packet`.
    pub fn read(packet: &PacketBuf, seed: &EntropySeed) -> Self {
        let frame = packet.head();
        let Ok(located) = packet.located() else {
            return Self::of_ethernet(frame, seed);
        };
        let ip = frame.get(located.l3..).unwrap_or_default();
        let mut last = u64::from(located.protocol.0) << 32;
        let has_ports = matches!(located.protocol, Protocol::TCP | Protocol::UDP | Protocol::SCTP);
        if let (true, Fragment::Whole, Some(l4)) = (has_ports, located.fragment, located.l4)
            && let Some(&[a, b, c, d]) = frame.get(l4..).and_then(<[u8]>::first_chunk)
        {
            last |= u64::from(u32::from_be_bytes([a, b, c, d]));
        }
        match (located.ethertype, ip) {
            (EtherType::IPV4, [_, tos, _, _, _, _, _, _, ttl, ..]) => {
                let hash = seed.hash(&words::<1>(ip.get(12..)), last);
                Self { hash, traffic_class: Some(*tos), ttl: Some(*ttl) }
            }
            (EtherType::IPV6, [first, second, _, _, _, _, _, hop_limit, ..]) => {
                let hash = seed.hash(&words::<4>(ip.get(8..)), last);
                let traffic_class = Some(first << 4 | second >> 4);
                Self { hash, traffic_class, ttl: Some(*hop_limit) }
            }
            _ => Self::of_ethernet(frame, seed),
        }
    }

    fn of_ethernet(frame: &[u8], seed: &EntropySeed) -> Self {
        let mac = |bytes: Option<&[u8]>| words::<1>(bytes)[0] & !0xffff;
        let words = [mac(frame.get(..)), mac(frame.get(6..))];
        Self { hash: seed.hash(&words, 0), traffic_class: None, ttl: None }
    }
}

/// Reads `COUNT` 8-byte words in network order; all 0 when `bytes` is missing or too short.
#[inline]
fn words<const COUNT: usize>(bytes: Option<&[u8]>) -> [u64; COUNT] {
    let (words, _) = bytes.unwrap_or_default().as_chunks::<8>();
    match words.first_chunk::<COUNT>() {
        Some(words) => words.map(u64::from_be_bytes),
        None => [0; COUNT],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: EntropySeed = EntropySeed::new([
        0x9e37_79b9_7f4a_7c15,
        0xbf58_476d_1ce4_e5b9,
        0x94d0_49bb_1331_11eb,
        0xd6e8_feb8_6659_fd93,
        0xff51_afd7_ed55_8ccd,
        0xc4ce_b9fe_1a85_ec53,
    ]);

    fn hash(frame: &[u8]) -> u32 {
        InnerFlow::read(&PacketBuf::from_bytes(frame), &SEED).hash
    }

    fn ip4(fragment: u16, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let [flags, offset] = fragment.to_be_bytes();
        let len = 20 + payload.len() as u8;
        let ip = [0x45, 0xb9, 0, len, 0, 0, flags, offset, 64, protocol, 0, 0];
        [&[2; 12][..], &[8, 0], &ip, &[10, 0, 0, 1, 10, 0, 0, 2], payload].concat()
    }

    fn ip6(next: u8, payload: &[u8]) -> Vec<u8> {
        let ip = [0x6b, 0x90, 0, 0, 0, payload.len() as u8, next, 33];
        let addresses: Vec<u8> = (1..=32).collect();
        [&[2; 12][..], &[0x86, 0xdd], &ip, &addresses, payload].concat()
    }

    #[test]
    fn flow_is_the_same_when_the_payload_is_in_pieces() {
        let frame = ip4(0, 6, &[0x50; 40]);
        let mut packet = PacketBuf::from_bytes(&frame);
        let whole = InnerFlow::read(&packet, &SEED);
        assert_eq!((whole.traffic_class, whole.ttl), (Some(0xb9), Some(64)));
        packet.set_ranges(0..54, [54..60, 60..frame.len()]);
        assert_eq!(InnerFlow::read(&packet, &SEED), whole);
    }

    /// An independent implementation of the formula, as a BPF program computes it.
    fn formula(words: [u64; 4], last: u64) -> u32 {
        let [a, b, c, d, e, finish] = SEED.0.map(u128::from);
        let [w, x, y, z] = words.map(u128::from);
        let sum = (w * a % (1 << 64) + x * b % (1 << 64) + y * c % (1 << 64)) % (1 << 64);
        let sum = ((sum + z * d % (1 << 64) + u128::from(last) * e % (1 << 64)) % (1 << 64)) as u64;
        ((u128::from(sum ^ (sum >> 32)) * finish % (1 << 64)) >> 32) as u32
    }

    #[test]
    fn entropy_is_that_of_the_formula() {
        let v4 = [0x0a00_0001_0a00_0002, 0, 0, 0];
        let v6 = [
            0x0102_0304_0506_0708,
            0x090a_0b0c_0d0e_0f10,
            0x1112_1314_1516_1718,
            0x191a_1b1c_1d1e_1f20,
        ];
        let other = [0x0202_0202_0202_0000, 0x0202_0202_0202_0000, 0, 0];
        let l4 = [0x30, 0x39, 0, 80, 0, 20, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 0];
        let tagged = |frame: Vec<u8>, tags: &[u8]| [&frame[..12], tags, &frame[12..]].concat();
        let arp = [&[2; 12][..], &[8, 6], &[0xa5; 46]].concat();
        let table = [
            ("TCP", ip4(0x4000, 6, &l4), v4, 0x6_3039_0050),
            ("UDP", ip4(0, 17, &l4), v4, 0x11_3039_0050),
            ("SCTP", ip4(0, 132, &l4), v4, 0x84_3039_0050),
            ("ICMP", ip4(0, 1, &l4), v4, 0x1_0000_0000),
            ("first fragment", ip4(0x2000, 17, &l4), v4, 0x11_0000_0000),
            ("later fragment", ip4(0x00b9, 17, &l4), v4, 0x11_0000_0000),
            (
                "behind tags",
                tagged(ip4(0, 6, &l4), &[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2]),
                v4,
                0x6_3039_0050,
            ),
            ("IPv6", ip6(6, &l4), v6, 0x6_3039_0050),
            (
                "IPv6 fragment",
                ip6(44, &[&[17, 0, 0, 1, 0, 0, 0, 9], &l4[..]].concat()),
                v6,
                0x11_0000_0000,
            ),
            (
                "IPv6 options",
                ip6(0, &[&[17, 0, 1, 4, 0, 0, 0, 0], &l4[..]].concat()),
                v6,
                0x11_3039_0050,
            ),
            ("ARP", arp.clone(), other, 0),
            ("tagged ARP", tagged(arp, &[0x81, 0, 0, 1]), other, 0),
        ];
        for (name, frame, words, last) in table {
            assert_eq!(hash(&frame), formula(words, last), "{name}");
        }
        // A numeric reference value for other implementations.
        assert_eq!(formula(v4, 0x6_3039_0050), 1_731_311_858);
    }

    #[test]
    fn flows_in_a_row_are_spread_evenly_over_any_bits_of_the_hash() {
        const FLOWS: u32 = 64 * 256;
        type Flow = fn(u32) -> (u64, u64);
        let rows: [(&str, Flow); 4] = [
            ("source port", |i| (0x0a00_0001_0a00_0002, 0x6_0000_0050 | u64::from(i) << 16)),
            ("destination port", |i| (0x0a00_0001_0a00_0002, 0x11_3039_0000 | u64::from(i))),
            ("source address", |i| (0x0a00_0001_0a00_0002 + (u64::from(i) << 32), 0x6_3039_0050)),
            ("network of the source", |i| (0x0a00_0002 | u64::from(i) << 50, 0x6_3039_0050)),
        ];
        for (name, flow) in rows {
            for shift in [0, 10, 26] {
                let mut counts = [0_u32; 64];
                for i in 0..FLOWS {
                    let (word, last) = flow(i);
                    counts[(SEED.hash(&[word], last) >> shift) as usize % 64] += 1;
                }
                // The expected count is 256. By chance alone, a count deviates by 5 standard
                // deviations once in 10^6.
                let far = counts.iter().filter(|count| count.abs_diff(256) > 90).count();
                assert_eq!(far, 0, "{name}, bits from {shift} on: {counts:?}");
            }
        }
    }

    #[test]
    fn factors_are_odd_and_never_the_same_twice_when_random() {
        let (one, other) = (EntropySeed::random(), EntropySeed::random());
        assert_ne!(one, other);
        assert!(one.factors().iter().all(|factor| factor % 2 == 1));
        assert_eq!(EntropySeed::new([4; ENTROPY_FACTORS]).factors(), &[5; ENTROPY_FACTORS]);
    }

    #[test]
    fn nothing_panics_when_the_frame_is_cut_anywhere() {
        for frame in [ip4(0, 6, &[0x50; 20]), ip6(17, &[0; 8])] {
            for len in 0..frame.len() {
                hash(&frame[..len]);
            }
        }
    }
}
