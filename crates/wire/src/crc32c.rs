//! CRC32c, the checksum of SCTP (RFC 9260 section 6.8 and appendix A).
//!
//! SCTP stores it in little-endian byte order, unlike other header fields. A CRC is linear, so a
//! checksum can be updated without the whole message: see [`Crc32c::of_difference`].

/// A running CRC32c over consecutive pieces of any length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crc32c(u32);

impl Crc32c {
    /// The initial CRC. The message that is added must have a zero checksum field.
    pub const fn new() -> Self {
        Self(!0)
    }

    /// Adds `bytes`.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        bytes.iter().copied().fold(self, Self::byte)
    }

    /// The four checksum bytes in header order.
    pub const fn checksum(self) -> [u8; 4] {
        (!self.0).to_le_bytes()
    }

    /// The bytes to exclusive-or into a checksum field after part of the message changed.
    ///
    /// `difference` is the exclusive or of old and new bytes, to the end of the message. It may
    /// start at any byte before the change, because leading zeros do not change this CRC.
    pub fn of_difference(difference: impl IntoIterator<Item = u8>) -> [u8; 4] {
        difference.into_iter().fold(Self(0), Self::byte).0.to_le_bytes()
    }

    const fn byte(self, byte: u8) -> Self {
        Self(self.0 >> 8 ^ TABLE[((self.0 ^ byte as u32) & 0xff) as usize])
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

/// The CRC of each byte value for the CRC32c polynomial (RFC 3385), least significant bit first.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_standard() {
        // RFC 3720 appendix B.4 lists these test vectors in wire order.
        let increasing: Vec<u8> = (0..32).collect();
        for (message, expected) in [
            (&[0; 32][..], [0xaa, 0x36, 0x91, 0x8a]),
            (&[0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
            (&increasing, [0x4e, 0x79, 0xdd, 0x46]),
        ] {
            assert_eq!(Crc32c::new().bytes(message).checksum(), expected);
            let (first, rest) = message.split_at(7);
            assert_eq!(Crc32c::new().bytes(first).bytes(rest).checksum(), expected, "in pieces");
        }
    }

    #[test]
    fn difference_changes_a_checksum_as_the_message_changes() {
        let (old, mut new) = ([7_u8; 40], [7_u8; 40]);
        new[13..16].copy_from_slice(&[1, 2, 3]);
        let difference = old.iter().zip(&new).skip(10).map(|(old, new)| old ^ new);
        let change = Crc32c::of_difference(difference);
        let mut checksum = Crc32c::new().bytes(&old).checksum();
        checksum.iter_mut().zip(change).for_each(|(byte, change)| *byte ^= change);
        assert_eq!(checksum, Crc32c::new().bytes(&new).checksum());
    }
}
