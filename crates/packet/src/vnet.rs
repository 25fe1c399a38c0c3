//! Converts the virtio-net header to and from [`Offload`]. The header precedes every frame of a TAP
//! (`IFF_VNET_HDR`) or packet socket (`PACKET_VNET_HDR`).
//!
//! ```text
//!  0       1          2         4          6            8             10
//!  | flags | gso_type | hdr_len | gso_size | csum_start | csum_offset | (num_buffers) |
//! ```
//!
//! Virtual I/O Device (VIRTIO) 1.2 section 5.1.6. The legacy interface that Linux uses here has the
//! byte order of the host; weft runs on little-endian hosts only. The last field exists only in the
//! 12-byte form. It has no meaning outside a virtqueue, so it is written as zero and not read.

use crate::buf::{Checksum, Gso, GsoKind, Offload, PacketBuf};
use crate::checksum::{SCTP_CHECKSUM_OFFSET, complete_crc32c};

/// Bytes of the header without `num_buffers`: the form of packet sockets, and the default of TAPs.
pub const VNET_LEN: usize = 10;
/// Bytes of the header with `num_buffers` (`TUNSETVNETHDRSZ` 12), the form in the corpora of the
/// fuzz targets.
pub const VNET_MRG_LEN: usize = 12;

const FLAG_NEEDS_CSUM: u8 = 1;
const FLAG_DATA_VALID: u8 = 2;

const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

const TCP_CSUM_OFFSET: u16 = 16;
const UDP_CSUM_OFFSET: u16 = 6;

/// Why a virtio-net header does not fit its frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VnetError {
    /// Fewer bytes than a header.
    #[error("virtio-net header: {VNET_LEN} bytes needed, {0} there")]
    Truncated(usize),
    /// An unsupported segmentation type: UFO (3), tunnel GSO, or an unknown type.
    #[error("virtio-net header: segmentation type {0:#04x} is not supported")]
    UnsupportedGso(u8),
    /// A super-packet whose segment size is zero.
    #[error("virtio-net header: segmentation without a segment size")]
    ZeroGsoSize,
    /// A super-packet without a partial checksum, which segmentation completes per segment.
    #[error("virtio-net header: segmentation without a partial checksum")]
    GsoWithoutChecksum,
    /// A checksum offset that does not match the transport protocol of the segmentation type.
    #[error("virtio-net header: checksum offset {0} does not belong to the segmentation type")]
    GsoChecksumOffset(u16),
    /// The checksum field, or the transport header of a super-packet, reaches past the end of the
    /// frame.
    #[error("virtio-net header: {needed} bytes of frame needed, {have} there")]
    OutsideFrame {
        /// Bytes that the header refers to, from the start of the frame.
        needed: usize,
        /// Bytes of the frame (of its linear part, on encode).
        have: usize,
    },
}

/// Parses the virtio-net header `hdr` of a frame of `frame_len` bytes.
///
/// # Errors
/// [`VnetError`] when the header is short, asks for something unsupported, or points outside the
/// frame. Guests control the devices that write these headers, so no field is trusted.
pub fn decode(hdr: &[u8], frame_len: usize) -> Result<Offload, VnetError> {
    let hdr: &[u8; VNET_LEN] = hdr.first_chunk().ok_or(VnetError::Truncated(hdr.len()))?;
    let [flags, gso_type, _, _, size0, size1, start0, start1, offset0, offset1] = *hdr;
    let size = u16::from_le_bytes([size0, size1]);
    let start = u16::from_le_bytes([start0, start1]);
    let offset = u16::from_le_bytes([offset0, offset1]);

    let checksum = if flags & FLAG_NEEDS_CSUM != 0 {
        let needed = usize::from(start) + usize::from(offset) + 2;
        if needed > frame_len {
            return Err(VnetError::OutsideFrame { needed, have: frame_len });
        }
        Checksum::Partial { start, offset }
    } else if flags & FLAG_DATA_VALID != 0 {
        Checksum::Verified
    } else {
        Checksum::Unverified
    };

    let kind = match gso_type & !GSO_ECN {
        GSO_NONE => return Ok(Offload { checksum, gso: None }),
        GSO_TCPV4 => GsoKind::TcpV4,
        GSO_TCPV6 => GsoKind::TcpV6,
        GSO_UDP_L4 => GsoKind::UdpL4,
        _ => return Err(VnetError::UnsupportedGso(gso_type)),
    };
    let ecn = gso_type & GSO_ECN != 0;
    if ecn && kind == GsoKind::UdpL4 {
        return Err(VnetError::UnsupportedGso(gso_type));
    }
    if size == 0 {
        return Err(VnetError::ZeroGsoSize);
    }
    let Checksum::Partial { .. } = checksum else { return Err(VnetError::GsoWithoutChecksum) };
    let (field, header_len) = transport(kind);
    if offset != field {
        return Err(VnetError::GsoChecksumOffset(offset));
    }
    let needed = usize::from(start) + header_len;
    if needed > frame_len {
        return Err(VnetError::OutsideFrame { needed, have: frame_len });
    }
    Ok(Offload { checksum, gso: Some(Gso { kind, size, ecn }) })
}

/// Makes the first `len` bytes of the spare room of `packet` its frame. A device has read them
/// after the virtio-net header `hdr`. A partial checksum of SCTP is completed; see
/// [`complete_crc32c`]. For frames from guests, call
/// [`complete_misplaced_checksum`](crate::complete_misplaced_checksum) too.
///
/// # Errors
/// Like [`decode`]; the packet is unchanged.
#[inline]
pub fn receive(packet: &mut PacketBuf, hdr: &[u8], len: usize) -> Result<(), VnetError> {
    packet.offload = decode(hdr, len)?;
    packet.set_len(len);
    if let Checksum::Partial { offset: SCTP_CHECKSUM_OFFSET, .. } = packet.offload.checksum {
        complete_crc32c(packet);
    }
    Ok(())
}

/// Writes the virtio-net header of `packet` to `out` (10 or 12 bytes; bytes after the first 10 are
/// zeroed).
///
/// `hdr_len` is the length of all headers of a super-packet. The kernel keeps that part linear.
///
/// # Errors
/// [`VnetError`] when `out` is short, or the offload state does not fit the bytes of the packet;
/// `out` is unspecified.
pub fn encode(packet: &PacketBuf, out: &mut [u8]) -> Result<(), VnetError> {
    if out.len() < VNET_LEN {
        return Err(VnetError::Truncated(out.len()));
    }
    out.fill(0);
    let head = packet.head();
    let mut partial = None;
    match packet.offload.checksum {
        Checksum::Unverified => {}
        Checksum::Verified => out[0] = FLAG_DATA_VALID,
        Checksum::Partial { start, offset } => {
            let needed = usize::from(start) + usize::from(offset) + 2;
            if needed > head.len() {
                return Err(VnetError::OutsideFrame { needed, have: head.len() });
            }
            partial = Some((start, offset));
            out[0] = FLAG_NEEDS_CSUM;
            out[2..4].copy_from_slice(&(needed.min(0xffff) as u16).to_le_bytes());
            out[6..8].copy_from_slice(&start.to_le_bytes());
            out[8..10].copy_from_slice(&offset.to_le_bytes());
        }
    }
    let Some(gso) = packet.offload.gso else { return Ok(()) };
    let (start, offset) = partial.ok_or(VnetError::GsoWithoutChecksum)?;
    if gso.size == 0 {
        return Err(VnetError::ZeroGsoSize);
    }
    let (field, _) = transport(gso.kind);
    if offset != field {
        return Err(VnetError::GsoChecksumOffset(offset));
    }
    out[1] = gso_type(gso);
    out[2..4].copy_from_slice(&header_len(head, start, gso.kind)?.to_le_bytes());
    out[4..6].copy_from_slice(&gso.size.to_le_bytes());
    Ok(())
}

/// The offset of the checksum field, and the minimum length, of the transport header of `kind`.
fn transport(kind: GsoKind) -> (u16, usize) {
    match kind {
        GsoKind::TcpV4 | GsoKind::TcpV6 => (TCP_CSUM_OFFSET, 20),
        GsoKind::UdpL4 => (UDP_CSUM_OFFSET, 8),
    }
}

fn gso_type(gso: Gso) -> u8 {
    let kind = match gso.kind {
        GsoKind::TcpV4 => GSO_TCPV4,
        GsoKind::TcpV6 => GSO_TCPV6,
        GsoKind::UdpL4 => return GSO_UDP_L4,
    };
    if gso.ecn { kind | GSO_ECN } else { kind }
}

/// Bytes of all headers of a super-packet whose transport header is at `start`.
fn header_len(head: &[u8], start: u16, kind: GsoKind) -> Result<u16, VnetError> {
    let start = usize::from(start);
    let len = match kind {
        GsoKind::UdpL4 => start + 8,
        GsoKind::TcpV4 | GsoKind::TcpV6 => {
            let words = head.get(start + 12).map_or(5, |byte| usize::from(byte >> 4)).max(5);
            start + words * 4
        }
    };
    if len > head.len() {
        return Err(VnetError::OutsideFrame { needed: len, have: head.len() });
    }
    u16::try_from(len)
        .map_err(|_| VnetError::OutsideFrame { needed: len, have: usize::from(u16::MAX) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(len: usize, offload: Offload) -> PacketBuf {
        let mut packet = PacketBuf::from_bytes(&vec![0; len]);
        packet.offload = offload;
        packet
    }

    fn tcp4(size: u16, ecn: bool) -> Offload {
        Offload {
            checksum: Checksum::Partial { start: 34, offset: 16 },
            gso: Some(Gso { kind: GsoKind::TcpV4, size, ecn }),
        }
    }

    #[test]
    fn encode_writes_the_bytes_linux_expects_when_tcp_super_packet() {
        let mut p = packet(4000, tcp4(1448, true));
        p.head_mut()[34 + 12] = 0x80;
        let mut hdr = [0xa5; 12];
        encode(&p, &mut hdr).unwrap();
        assert_eq!(hdr, [1, 0x81, 66, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0]);
        assert_eq!(decode(&hdr, 4000), Ok(p.offload));
    }

    #[test]
    fn encode_round_trips_when_checksum_only() {
        for checksum in
            [Checksum::Unverified, Checksum::Verified, Checksum::Partial { start: 34, offset: 6 }]
        {
            let offload = Offload { checksum, gso: None };
            let mut hdr = [0xa5; VNET_LEN];
            encode(&packet(60, offload), &mut hdr).unwrap();
            assert_eq!(decode(&hdr, 60), Ok(offload));
        }
    }

    #[test]
    fn decode_fails_when_short() {
        for len in 0..VNET_LEN {
            assert_eq!(decode(&[0; VNET_LEN][..len], 60), Err(VnetError::Truncated(len)));
        }
    }

    #[test]
    fn decode_fails_when_legacy_ufo_or_unknown() {
        for kind in [3, 2, 6, 0x20, 0x41, 0x85] {
            let hdr = [1, kind, 0, 0, 1, 0, 34, 0, 6, 0];
            assert_eq!(decode(&hdr, 2000), Err(VnetError::UnsupportedGso(kind)), "{kind}");
        }
    }

    #[test]
    fn decode_fails_when_gso_is_inconsistent() {
        assert_eq!(decode(&[1, 1, 0, 0, 0, 0, 34, 0, 16, 0], 99), Err(VnetError::ZeroGsoSize));
        assert_eq!(
            decode(&[0, 1, 0, 0, 1, 0, 34, 0, 16, 0], 99),
            Err(VnetError::GsoWithoutChecksum)
        );
        assert_eq!(
            decode(&[1, 1, 0, 0, 1, 0, 34, 0, 6, 0], 99),
            Err(VnetError::GsoChecksumOffset(6))
        );
        assert_eq!(
            decode(&[1, 1, 0, 0, 1, 0, 34, 0, 16, 0], 53),
            Err(VnetError::OutsideFrame { needed: 54, have: 53 })
        );
    }

    #[test]
    fn decode_fails_when_checksum_field_is_outside() {
        let hdr = [1, 0, 0, 0, 0, 0, 50, 0, 16, 0];
        assert_eq!(decode(&hdr, 67), Err(VnetError::OutsideFrame { needed: 68, have: 67 }));
        assert!(decode(&hdr, 68).is_ok());
        let far = [1, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(decode(&far, 9), Err(VnetError::OutsideFrame { needed: 131_072, have: 9 }));
    }

    #[test]
    fn encode_fails_when_offload_does_not_fit_the_frame() {
        let mut hdr = [0; VNET_LEN];
        assert_eq!(
            encode(&packet(40, tcp4(100, false)), &mut hdr),
            Err(VnetError::OutsideFrame { needed: 52, have: 40 })
        );
        let mut offload = tcp4(100, false);
        offload.checksum = Checksum::Verified;
        assert_eq!(encode(&packet(400, offload), &mut hdr), Err(VnetError::GsoWithoutChecksum));
        assert_eq!(
            encode(&packet(60, Offload::default()), &mut [0; 9]),
            Err(VnetError::Truncated(9))
        );
    }

    proptest! {
        #[test]
        fn decode_then_encode_is_identity_when_accepted(
            hdr in any::<[u8; 10]>(),
            len in 0usize..3000,
        ) {
            if let Ok(offload) = decode(&hdr, len) {
                let p = packet(len, offload);
                let mut out = [0; VNET_MRG_LEN];
                encode(&p, &mut out).unwrap();
                prop_assert_eq!(decode(&out, len), Ok(offload));
            }
        }

        #[test]
        fn decode_then_encode_is_identity_when_header_is_likely(
            flags in 0u8..4,
            kind in prop::sample::select(vec![0u8, 1, 3, 4, 5, 0x81, 0x84]),
            size in 0u16..3,
            start in 0u16..100, offset in prop::sample::select(vec![6u16, 16]), len in 0usize..200,
        ) {
            let mut hdr = [flags, kind, 0, 0, 0, 0, 0, 0, 0, 0];
            hdr[4..6].copy_from_slice(&size.to_le_bytes());
            hdr[6..8].copy_from_slice(&start.to_le_bytes());
            hdr[8..10].copy_from_slice(&offset.to_le_bytes());
            if let Ok(offload) = decode(&hdr, len) {
                let mut out = [0; VNET_MRG_LEN];
                encode(&packet(len, offload), &mut out).unwrap();
                prop_assert_eq!(decode(&out, len), Ok(offload));
            }
        }
    }
}
