//! CRC32c by its definition, bit by bit: slow, but simple enough to be an oracle.

/// The CRC32c of a message (RFC 9260 appendix A). Headers store it in little-endian order.
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
