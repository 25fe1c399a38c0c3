//! The Internet checksum: ones-complement sums, and outer checksums computed without reading the
//! payload.
//!
//! # Arithmetic
//!
//! The sum of a byte string is the sum of its 16-bit big-endian words modulo 65535. A last odd byte
//! is padded with zero (RFC 1071). 0 and 0xffff are the same number modulo 65535. UDP therefore
//! sends 0xffff for a computed 0, and uses 0 for "no checksum" (RFC 768). This module uses three
//! properties:
//!
//! - Sums are additive: sum(a || b) = sum(a) + sum(b) when a has an even length. When it is odd,
//!   the result is sum(a) + swap(sum(b)), where swap exchanges the two bytes.
//! - Replacing a word m by m' changes the sum by m' - m, and -m is ~m (RFC 1624).
//! - A transport segment with a *complete* checksum, summed with its pseudo header, gives 0xffff,
//!   which is zero. So sum(segment) = -sum(pseudo header) = ~sum(pseudo header) for any payload.
//!
//! # Local checksum offload
//!
//! The last property gives the checksum of an outer UDP or GRE header from header bytes alone. The
//! checksum covers three parts:
//!
//! - `before`: from the outer transport header, with a zero checksum field, to the inner transport
//!   header
//! - `segment`: from the inner transport header to the end of the inner packet
//! - `trailer`: padding after the inner packet, usually empty
//!
//! ```text
//! outer = ~( pseudo_outer + sum(before)
//!            + [at its offset] ~pseudo_inner + [at its offset] sum(trailer) )
//! ```
//!
//! A *partial* inner checksum field holds sum(pseudo_inner), not complemented. The NIC that
//! completes the checksum makes the segment sum to ~pseudo_inner, so the formula holds for both
//! states. `pseudo_inner` is read from the field when the checksum is partial, and computed from
//! the inner IP header when it is valid. A segment with a UDP checksum of zero ("none") must be
//! summed byte by byte. For a super-packet the formula holds for each segment after segmentation,
//! not for the whole.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::ip::Protocol;

/// A running ones-complement sum over consecutive pieces of any length.
///
/// The type is `Copy`, so that callers can keep the sum of constant bytes (a pseudo header, a
/// header template) and continue from it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// Sum of 16-bit words in native byte order; `fold` converts the result to host order.
    words: u64,
    /// True after an odd number of bytes: the next byte is the low half of a word.
    odd: bool,
}

impl Sum {
    /// The sum of an empty string.
    pub const fn new() -> Self {
        Self { words: 0, odd: false }
    }

    /// The sum of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self::new().bytes(bytes)
    }

    /// Adds `bytes`, of any length and alignment.
    #[must_use]
    #[inline]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        self.native(fold_native(sum_native(bytes)), bytes.len())
    }

    /// Adds the two bytes of `value` in network order.
    #[must_use]
    #[inline]
    pub const fn u16(self, value: u16) -> Self {
        self.native(value.to_be(), 2)
    }

    /// Adds the four bytes of `value` in network order.
    #[must_use]
    #[inline]
    pub const fn u32(self, value: u32) -> Self {
        self.u16((value >> 16) as u16).u16(value as u16)
    }

    /// Adds a piece of `len` bytes whose folded sum is `sum`.
    #[must_use]
    #[inline]
    pub const fn piece(self, sum: u16, len: usize) -> Self {
        self.native(sum.to_be(), len)
    }

    /// Adds a transport segment of `len` bytes whose checksum is valid or partial.
    ///
    /// `pseudo` is the sum of its pseudo header; for a partial checksum that is the content of the
    /// checksum field. Such a segment sums to the complement of `pseudo` once its checksum is
    /// complete.
    #[must_use]
    #[inline]
    pub const fn valid_segment(self, pseudo: u16, len: usize) -> Self {
        self.piece(!pseudo, len)
    }

    #[inline]
    const fn native(self, sum: u16, len: usize) -> Self {
        let sum = if self.odd { sum.swap_bytes() } else { sum };
        // The addend is below 2^16, so this takes 2^48 pieces to overflow.
        Self { words: self.words + sum as u64, odd: self.odd ^ (len & 1 == 1) }
    }

    /// The 16-bit sum, not complemented. For a pseudo header, this is the content of a partial
    /// checksum field.
    #[inline]
    pub const fn fold(self) -> u16 {
        u16::from_be(fold_native(self.words))
    }

    /// The checksum: the complement of the sum. It is 0 over data that contains a valid checksum.
    #[inline]
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }

    /// The checksum as UDP sends it: 0xffff where it computes to 0 (RFC 768).
    #[inline]
    pub const fn udp_checksum(self) -> u16 {
        match self.checksum() {
            0 => 0xffff,
            checksum => checksum,
        }
    }

    /// True when the sum over the data, checksum field included, is that of a valid checksum.
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.fold() == 0xffff
    }
}

const HALF: u64 = 0xffff_ffff;

/// Sum of the native-endian 16-bit words of `bytes`, not yet folded to 16 bits.
#[inline]
fn sum_native(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<64>();
    let mut total = if blocks.is_empty() { 0 } else { sum_blocks(blocks) };
    let (words, rest) = rest.as_chunks::<8>();
    for word in words {
        total += halves(u64::from_ne_bytes(*word));
    }
    let (words, rest) = rest.as_chunks::<4>();
    for word in words {
        total += u64::from(u32::from_ne_bytes(*word));
    }
    let (words, rest) = rest.as_chunks::<2>();
    for word in words {
        total += u64::from(u16::from_ne_bytes(*word));
    }
    if let [last] = rest {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    total
}

/// Sums whole blocks of 64 bytes, in a form that the compiler vectorises.
///
/// Each 64-bit word is split into halves, which are added in 64-bit lanes: no lane can overflow, so
/// no carry is needed. Four chains of add-with-carry are as fast at 1448 bytes. They are slower at
/// 60,000 bytes of unaligned data, and data after an Ethernet header is never aligned.
fn sum_blocks(blocks: &[[u8; 64]]) -> u64 {
    let (mut low, mut high) = ([0_u64; 8], [0_u64; 8]);
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for lane in 0..8 {
            let word = u64::from_ne_bytes(words[lane]);
            low[lane] += word & HALF;
            high[lane] += word >> 32;
        }
    }
    low.into_iter().chain(high).map(halves).sum()
}

/// The sum of the two 32-bit halves of `word`.
#[inline]
const fn halves(word: u64) -> u64 {
    (word & HALF) + (word >> 32)
}

/// Folds a wide sum to 16 bits with end-around carry. The result is 0 only when the sum is 0.
#[inline]
const fn fold_native(sum: u64) -> u16 {
    let sum = halves(sum);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// The checksum of `bytes`, whose checksum field must be zero.
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::of(bytes).checksum()
}

/// The folded sum of two consecutive byte strings, from their folded sums and the length of the
/// first.
pub const fn combine(first: u16, first_len: usize, second: u16) -> u16 {
    Sum::new().piece(first, first_len).piece(second, 0).fold()
}

/// The sum of the IPv4 pseudo header (RFC 793 section 3.1, RFC 768). `len` is the length of
/// transport header and payload.
pub fn pseudo_v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: Protocol, len: u16) -> Sum {
    Sum::new().u32(src.to_bits()).u32(dst.to_bits()).u16(u16::from(protocol.0)).u16(len)
}

/// The sum of the IPv6 pseudo header (RFC 8200 section 8.1).
///
/// `len` is the length of upper-layer header and payload, `protocol` the upper-layer protocol, and
/// `dst` the final destination.
pub fn pseudo_v6(src: Ipv6Addr, dst: Ipv6Addr, protocol: Protocol, len: u32) -> Sum {
    Sum::of(&src.octets()).bytes(&dst.octets()).u32(len).u32(u32::from(protocol.0))
}

/// Updates a checksum after the 16-bit field `old` at an even offset became `new` (RFC 1624
/// equation 3).
///
/// For UDP use [`update_udp`]: a UDP checksum of 0 means "none" and must not change, and a result
/// of 0 must be sent as 0xffff.
pub const fn update_u16(checksum: u16, old: u16, new: u16) -> u16 {
    Sum::new().u16(!checksum).u16(!old).u16(new).checksum()
}

/// Updates a checksum after the bytes `old` were replaced by `new`, at an even offset.
///
/// Both lengths must be even, and may differ: `(old, &[])` removes a prefix, `(&[], new)` inserts
/// one.
pub fn update_bytes(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    debug_assert!(
        old.len().is_multiple_of(2) && new.len().is_multiple_of(2),
        "what follows would change parity"
    );
    Sum::new().u16(!checksum).u16(!Sum::of(old).fold()).bytes(new).checksum()
}

/// Applies `update` to a UDP checksum: 0 ("none") stays 0, and a computed 0 becomes 0xffff.
pub fn update_udp(checksum: u16, update: impl FnOnce(u16) -> u16) -> u16 {
    match checksum {
        0 => 0,
        present => match update(present) {
            0 => 0xffff,
            updated => updated,
        },
    }
}

/// The inner transport segment, with a valid or partial checksum, that local checksum offload
/// needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InnerSegment {
    /// Folded sum of the inner pseudo header. For a partial checksum, this is the content of its
    /// field.
    pub pseudo: u16,
    /// Bytes from the inner transport header to the end of the inner packet.
    pub len: usize,
}

/// The sum of all bytes that an outer checksum covers, from headers alone (local checksum offload).
///
/// - `pseudo_outer` is [`pseudo_v4`] or [`pseudo_v6`] of the outer packet, or [`Sum::new`] for GRE.
/// - `before` reaches from the outer transport header, with a zero checksum field, to the inner
///   transport header.
/// - `trailer` is the padding after the inner packet inside the outer one.
///
/// For a UDP header, store [`Sum::udp_checksum`] of the result.
pub fn local_offload(pseudo_outer: Sum, before: &[u8], inner: InnerSegment, trailer: &[u8]) -> Sum {
    pseudo_outer.bytes(before).valid_segment(inner.pseudo, inner.len).bytes(trailer)
}
