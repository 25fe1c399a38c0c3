//! Target: executes the offloads that a guest's virtio-net header requests: partial checksums and
//! segmentation.

use packet::vnet::{self, VNET_LEN};
use packet::{
    Checksum, ChecksumStatus, PacketBuf, SegmentChecksum, Segmenter, SplitLimits,
    complete_checksum, complete_misplaced_checksum, split, verify_checksum,
};
use wire::checksum::pseudo_v6;
use wire::{Ipv4Packet, Ipv6Packet};

use crate::{encapsulation, path};

/// The offsets of two unused bytes of the header: one selects the tunnel, the other the maximum
/// frame length.
const TUNNEL: usize = 11;
const MAX_FRAME_LEN: usize = 10;

/// Segments a frame with a virtio-net header, and also sends it into a tunnel. Returns the number
/// of segments if it can be segmented.
pub fn frame(bytes: &[u8]) -> Option<usize> {
    let (header, frame) = bytes.split_at_checked(vnet::VNET_MRG_LEN)?;
    let mut packet = PacketBuf::with_capacity(PacketBuf::HEADROOM, frame.len());
    packet.spare_mut().copy_from_slice(frame);
    vnet::receive(&mut packet, header, frame.len()).ok()?;
    complete_misplaced_checksum(&mut packet).ok()?;

    let mut again = [0xa5; VNET_LEN];
    if vnet::encode(&packet, &mut again).is_ok() {
        assert_eq!(vnet::decode(&again, frame.len()), Ok(packet.offload));
    }
    let choice = header[TUNNEL];
    path::enter(&packet, 1500 - usize::from(header[MAX_FRAME_LEN]) * 5);
    if packet.offload.gso.is_none() {
        encapsulation::round_trip(choice, &packet);
        complete_checksum(&mut packet).ok()?;
        assert!(packet.len() == frame.len());
        return Some(1);
    }
    make_checksum_partial(&mut packet)?;
    check_split(&packet);
    encapsulation::round_trip(choice, &packet);
    segments(&packet).map(|segments| segments.len())
}

/// Stores the pseudo-header checksum that a partial checksum field must contain at first. Mutated
/// frames never have the correct one, so completing them would give wrong checksums.
pub fn make_checksum_partial(packet: &mut PacketBuf) -> Option<()> {
    let Checksum::Partial { start, offset } = packet.offload.checksum else { return None };
    let frame = packet.head();
    let located = wire::transport_offset(frame).ok()?;
    let l4 = located.l4.filter(|l4| *l4 == usize::from(start))?;
    let ip = &frame[located.l3..];
    let len = located.l3_end - l4;
    let sum = match Ipv6Packet::new_checked(ip) {
        Ok(ip) => pseudo_v6(ip.src(), ip.dst(), located.protocol, len as u32),
        Err(_) => Ipv4Packet::new_checked(ip).ok()?.pseudo_header(),
    };
    let field = l4 + usize::from(offset);
    packet.head_mut().get_mut(field..field + 2)?.copy_from_slice(&sum.fold().to_be_bytes());
    Some(())
}

/// Checks that the segments of a packet have correct checksums and together contain its payload.
pub fn segments(packet: &PacketBuf) -> Option<Vec<Vec<u8>>> {
    let segments = cut(packet)?;
    if packet.offload.gso.is_some() {
        for segment in &segments {
            let verdict = verify_checksum(&PacketBuf::from_bytes(segment));
            assert_ne!(verdict, ChecksumStatus::Invalid, "{segment:02x?}");
        }
    }
    Some(segments)
}

/// Checks that the segments of a packet together contain its payload.
pub fn cut(packet: &PacketBuf) -> Option<Vec<Vec<u8>>> {
    let mut segmenter = Segmenter::new();
    let cut = segmenter.segment(packet, 0, SegmentChecksum::Complete, |_| {}).ok()?;
    let payload: Vec<_> = cut.flat_map(|(_, part)| part.iter().copied()).collect();
    assert!(packet.head()[cut.header_len()..].starts_with(&payload), "payload is lost");
    Some(cut.map(|(header, part)| [header, part].concat()).collect())
}

/// Checks that splitting a super-packet into smaller super-packets gives the same segments.
fn check_split(packet: &PacketBuf) {
    let mut first = packet.clone();
    let limits = SplitLimits { max_segments: 3, max_bytes: 4000 };
    let Ok(rest) = split(&mut first, limits) else { return };
    let Some(whole) = segments(packet) else { return };
    let parts: Vec<_> =
        std::iter::once(&first).chain(&rest).filter_map(segments).flatten().collect();
    assert_eq!(parts, whole);
}
