//! Segments a super-packet before sending it, where the kernel cannot: it does not recognize VLAN
//! tags with TPID 0x9100, so it finds no transport header behind them.

use flow::DropReason;
use netdev::af_packet::has_unknown_tag;
use netdev::io_error::IoResult;
use packet::{PacketBuf, SegmentChecksum, Segmenter};

/// True for super-packets that the kernel cannot segment.
#[inline]
pub(super) fn needs_segmentation(packet: &PacketBuf) -> bool {
    packet.offload.gso.is_some() && has_unknown_tag(packet.head())
}

/// Sends super-packets segment by segment.
#[derive(Debug)]
pub(super) struct SegmentedSender {
    segmenter: Segmenter,
    /// The segment that is being sent.
    segment: PacketBuf,
}

impl Default for SegmentedSender {
    fn default() -> Self {
        let segment = PacketBuf::with_capacity(PacketBuf::HEADROOM, 0);
        Self { segmenter: Segmenter::new(), segment }
    }
}

impl SegmentedSender {
    /// Sends the segments of a super-packet up to the first that cannot be sent. The inner result
    /// is that of sending; after an error in it the packet counts as dropped, although segments
    /// were sent. The packet is unchanged.
    ///
    /// # Errors
    /// [`DropReason::Segmentation`] if the packet cannot be segmented; nothing was sent.
    pub(super) fn send(
        &mut self,
        packet: &mut PacketBuf,
        mut send: impl FnMut(&PacketBuf) -> IoResult<()>,
    ) -> Result<IoResult<()>, DropReason> {
        packet.linearize();
        let Self { segmenter, segment } = self;
        let cut = segmenter.segment(packet, 0, SegmentChecksum::Partial, |_| {});
        let segments = cut.map_err(|_| DropReason::Segmentation)?;
        for (header, payload) in segments {
            segment.reset(PacketBuf::HEADROOM);
            segment.append(header);
            segment.append(payload);
            segment.offload = segments.offload();
            if let Err(error) = send(segment) {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::{Checksum, Gso, GsoKind};
    use wire::vlan::TAG_LEN;

    /// More than any real network uses.
    const MOST_TAGS: usize = 12;
    const PAYLOAD: usize = 3000;
    const MSS: u16 = 1400;

    /// A super-packet of TCP over IPv4 behind `tags` tags.
    fn super_packet(tags: usize) -> PacketBuf {
        let tpids = [0x88a8_u16, 0x8100, 0x9100];
        let mut frame: Vec<u8> = (1..=12).collect();
        for number in 0..tags {
            frame.extend(tpids[number % 3].to_be_bytes());
            frame.extend((number as u16 + 1).to_be_bytes());
        }
        frame.extend([8, 0]);
        let len = ((20 + 20 + PAYLOAD) as u16).to_be_bytes();
        frame.extend([0x45, 0, len[0], len[1], 0, 0, 0x40, 0, 64, 6, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        let start = frame.len();
        frame.extend([0, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
        frame.resize(frame.len() + PAYLOAD, 0xa5);
        let mut packet = PacketBuf::from_bytes(&frame);
        packet.offload.checksum = Checksum::Partial { start: start as u16, offset: 16 };
        packet.offload.gso = Some(Gso { kind: GsoKind::TcpV4, size: MSS, ecn: false });
        packet
    }

    #[test]
    fn segments_have_all_tags_and_the_packet_is_unchanged() {
        for tags in 0..=MOST_TAGS {
            let mut packet = super_packet(tags);
            let before = (packet.to_vec(), packet.offload);
            let front = before.0[..14 + tags * TAG_LEN].to_vec();
            let mut lens = Vec::new();
            let sent = SegmentedSender::default().send(&mut packet, |segment| {
                assert_eq!(segment.head()[..front.len()], front, "{tags} tags");
                let l4 = front.len() + 20;
                let checksum = Checksum::Partial { start: l4 as u16, offset: 16 };
                assert_eq!((segment.offload.checksum, segment.offload.gso), (checksum, None));
                lens.push(segment.len() - l4 - 20);
                Ok(())
            });
            assert!(matches!(sent, Ok(Ok(()))), "{tags} tags: {sent:?}");
            assert_eq!(lens, [1400, 1400, 200], "{tags} tags");
            assert_eq!((packet.to_vec(), packet.offload), before, "{tags} tags");
        }
    }

    #[test]
    fn packet_needs_segmentation_when_the_kernel_does_not_know_a_tpid() {
        for tags in 0..=MOST_TAGS {
            let mut packet = super_packet(tags);
            // The third tag is the first of TPID 0x9100.
            assert_eq!(needs_segmentation(&packet), tags >= 3, "{tags}");
            packet.offload.gso = None;
            assert!(!needs_segmentation(&packet), "{tags}");
        }
    }
}
