//! CRC32c as its definition has it: slow, and hard to get wrong.

/// The CRC32c of a message (RFC 9260 appendix A), computed bit by bit. In a header it stands lowest byte first.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}
