//! The headers of a TCP or UDP super-packet, and those of its segments.

use wire::checksum::Sum;
use wire::vlan::{ETHERTYPE_OFFSET, MAX_TAGS, TAG_LEN};
use wire::{EtherType, Protocol, TcpFlags, tcp, udp};

use crate::buf::{Checksum, Gso, GsoKind, PacketBuf};
use crate::locate::locate;
use crate::segment::{MAX_HEADER_LEN, SegmentError};

/// A range of a super-packet's payload that becomes a packet with its own headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentRange {
    /// The number of segments before it.
    pub index: usize,
    /// The number of payload bytes before it.
    pub offset: usize,
    /// Its length in bytes.
    pub len: usize,
    /// True if the super-packet's payload ends with it.
    pub is_last: bool,
}

/// The location of a super-packet's headers, and the partial sums that are equal for all segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SuperHeaders {
    pub gso: Gso,
    /// The IP header, from the start of the frame.
    pub l3: usize,
    /// The transport header, from the start of the frame.
    pub l4: usize,
    /// The first byte of payload, from the start of the frame.
    pub payload: usize,
    /// The end of the payload by the IP length field, from the start of the frame.
    pub end: usize,
    is_v6: bool,
    ip_id: u16,
    /// The IPv4 header without total length, identification and checksum.
    ip_sum: Sum,
    tcp_seq: u32,
    tcp_flags: u8,
    /// The sum of the pseudo header without its length.
    pseudo_sum: Sum,
    /// `pseudo_sum` plus the bytes of the transport header that are equal in all segments.
    l4_sum: Sum,
}

/// The offset of the checksum in the transport header of segments of `kind`.
pub(crate) fn checksum_offset(kind: GsoKind) -> u16 {
    match kind {
        GsoKind::TcpV4 | GsoKind::TcpV6 => tcp::CHECKSUM_OFFSET as u16,
        GsoKind::UdpL4 => udp::CHECKSUM_OFFSET as u16,
    }
}

/// The length in bytes of the outermost tags beyond [`MAX_TAGS`]: the header walk starts behind
/// them.
pub(crate) fn excess_tags_len(frame: &[u8]) -> usize {
    let (tags, _) = frame.get(ETHERTYPE_OFFSET..).unwrap_or_default().as_chunks::<TAG_LEN>();
    let is_tag = |tag: &&[u8; TAG_LEN]| EtherType(u16::from_be_bytes([tag[0], tag[1]])).is_vlan();
    TAG_LEN * tags.iter().take_while(is_tag).count().saturating_sub(MAX_TAGS)
}

impl SuperHeaders {
    /// Parses the headers of a packet with `outer_len` bytes before its Ethernet header.
    pub(crate) fn parse(
        packet: &PacketBuf,
        gso: Gso,
        outer_len: usize,
    ) -> Result<Self, SegmentError> {
        let head = packet.head();
        let frame = head.get(outer_len..).ok_or(SegmentError::OuterLength)?;
        // Excess tags are treated like outer headers: they are copied to every segment.
        let outer_len = outer_len + excess_tags_len(frame);
        let at = locate(packet, outer_len).ok_or(SegmentError::NotTransport)?;
        let (protocol, least, fits_version) = match gso.kind {
            GsoKind::TcpV4 => (Protocol::TCP, tcp::MIN_HEADER_LEN, !at.is_v6),
            GsoKind::TcpV6 => (Protocol::TCP, tcp::MIN_HEADER_LEN, at.is_v6),
            GsoKind::UdpL4 => (Protocol::UDP, udp::HEADER_LEN, true),
        };
        if at.protocol != protocol || !fits_version {
            return Err(SegmentError::KindMismatch);
        }
        if gso.size == 0 {
            return Err(SegmentError::ZeroSize);
        }
        let (l3, l4, end) = (outer_len + at.l3, outer_len + at.l4, outer_len + at.end);
        let field = checksum_offset(gso.kind);
        match packet.offload.checksum {
            Checksum::Partial { start, offset } if usize::from(start) == l4 && offset == field => {}
            _ => return Err(SegmentError::ChecksumMisplaced),
        }
        if end < l4 + least {
            return Err(SegmentError::Truncated);
        }
        let header_len = match gso.kind {
            GsoKind::UdpL4 => udp::HEADER_LEN,
            GsoKind::TcpV4 | GsoKind::TcpV6 => usize::from(head[l4 + 12] >> 4) * 4,
        };
        let payload = l4 + header_len;
        if header_len < least || payload > end {
            return Err(SegmentError::Truncated);
        }
        if payload > MAX_HEADER_LEN {
            return Err(SegmentError::HeadersTooLong(payload));
        }
        let mut this = Self {
            gso,
            l3,
            l4,
            payload,
            end,
            is_v6: at.is_v6,
            ip_id: 0,
            ip_sum: Sum::new(),
            tcp_seq: 0,
            tcp_flags: 0,
            pseudo_sum: Sum::new(),
            l4_sum: Sum::new(),
        };
        this.compute_sums(&head[..payload]);
        Ok(this)
    }

    /// Computes the sums that the segments' headers are derived from.
    fn compute_sums(&mut self, headers: &[u8]) {
        let word = |at: usize| u16::from_be_bytes([headers[at], headers[at + 1]]);
        if !self.is_v6 {
            let ip = &headers[self.l3..self.l4];
            self.ip_id = word(self.l3 + 4);
            self.ip_sum = Sum::of(&ip[..2]).bytes(&ip[6..10]).bytes(&ip[12..]);
        }
        let l4 = &headers[self.l4..];
        let total_len = (self.end - self.l4) as u16;
        let field = self.l4 + usize::from(self.checksum_offset());
        // The partial checksum is the sum of the pseudo header: subtract its length. Using the
        // guest's sum instead of the addresses is necessary if a routing header hides the final
        // address.
        self.pseudo_sum = Sum::new().u16(word(field)).u16(!total_len);
        self.l4_sum = self.pseudo_sum.bytes(&l4[..4]);
        if self.gso.kind != GsoKind::UdpL4 {
            self.tcp_seq = u32::from_be_bytes([l4[4], l4[5], l4[6], l4[7]]);
            self.tcp_flags = l4[13];
            self.l4_sum = self
                .l4_sum
                .bytes(&l4[8..12])
                .bytes(&[l4[12], 0])
                .bytes(&l4[14..16])
                .bytes(&l4[18..]);
        }
    }

    /// The length of the payload in bytes.
    pub(crate) fn payload_len(&self) -> usize {
        self.end - self.payload
    }

    /// The number of segments, at least one.
    pub(crate) fn count(&self) -> usize {
        self.payload_len().div_ceil(usize::from(self.gso.size)).max(1)
    }

    /// The offset of the checksum in the transport header.
    pub(crate) fn checksum_offset(&self) -> u16 {
        checksum_offset(self.gso.kind)
    }

    /// Turns a copy of the super-packet's headers into those of `piece`, and returns the sum of its
    /// pseudo header. With `payload_sum` the transport checksum is complete; otherwise it is the
    /// returned sum.
    pub(crate) fn patch(
        &self,
        header: &mut [u8],
        piece: SegmentRange,
        payload_sum: Option<u16>,
    ) -> u16 {
        self.patch_ip(&mut header[self.l3..self.l4], piece);
        let l4 = &mut header[self.l4..self.payload];
        let l4_len = (l4.len() + piece.len) as u16;
        let mut sum = self.l4_sum.u16(l4_len);
        if self.gso.kind == GsoKind::UdpL4 {
            l4[4..6].copy_from_slice(&l4_len.to_be_bytes());
            sum = sum.u16(l4_len);
        } else {
            let seq = self.tcp_seq.wrapping_add(piece.offset as u32);
            let mut flags = self.tcp_flags;
            if !piece.is_last {
                flags &= !(TcpFlags::FIN.0 | TcpFlags::PSH.0);
            }
            if piece.index != 0 {
                flags &= !TcpFlags::CWR.0;
            }
            l4[4..8].copy_from_slice(&seq.to_be_bytes());
            l4[13] = flags;
            sum = sum.u32(seq).u16(u16::from(flags));
        }
        let pseudo = self.pseudo_sum.u16(l4_len).fold();
        let checksum = match payload_sum {
            None => pseudo,
            Some(payload) if self.gso.kind == GsoKind::UdpL4 => sum.u16(payload).udp_checksum(),
            Some(payload) => sum.u16(payload).checksum(),
        };
        let field = usize::from(self.checksum_offset());
        l4[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
        pseudo
    }

    fn patch_ip(&self, ip: &mut [u8], piece: SegmentRange) {
        let l3_len = self.payload - self.l3 + piece.len;
        if self.is_v6 {
            ip[4..6].copy_from_slice(&((l3_len - 40) as u16).to_be_bytes());
            return;
        }
        let id = self.ip_id.wrapping_add(piece.index as u16);
        let checksum = self.ip_sum.u16(l3_len as u16).u16(id).checksum();
        ip[2..4].copy_from_slice(&(l3_len as u16).to_be_bytes());
        ip[4..6].copy_from_slice(&id.to_be_bytes());
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
}
