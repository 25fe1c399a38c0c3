//! STT (draft-davie-stt), in the wire format of Open vSwitch, the last open implementation.
//!
//! A *frame* is the STT header and one Ethernet frame, at most 65,535 bytes. It is sent in
//! *segments*. Each segment has a header with the layout of TCP, so that a NIC with TCP
//! segmentation offload can produce the segments. There is no handshake and no retransmission.
//!
//! ```text
//! segment header:
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------------------------------+-------------------------------+
//! |     Source Port (entropy)     |   Destination Port (7471)     |
//! +-------------------------------+-------------------------------+
//! |     Frame Length, in bytes    |  Segment Offset, in bytes     |  <- sequence number
//! +-------------------------------+-------------------------------+
//! |              Packet ID, the same in all segments              |  <- acknowledgement number
//! +-------+-------+-+-+-+-+-+-+-+-+-------------------------------+
//! |   5   |   0   |0|0|0|A|P|0|0|0|            0xffff             |
//! +-------+-------+-+-+-+-+-+-+-+-+-------------------------------+
//! |           Checksum            |               0               |
//! +-------------------------------+-------------------------------+
//!
//! frame header, in the segment at offset 0:
//! +---------------+---------------+---------------+---------------+
//! |   Version 0   |     Flags     |   L4 Offset   |   Reserved    |
//! +---------------+---------------+-----+-+-------+---------------+
//! |    Max. Segment Size          | PCP |V|     VLAN ID           |
//! +-------------------------------+-----+-+-----------------------+
//! |                     Context ID, 8 bytes                       |
//! +-------------------------------+-------------------------------+
//! |            Padding            |    Ethernet frame ...
//! +-------------------------------+
//! ```
//!
//! The frame length includes the frame header. Segmentation offload adds the number of bytes sent
//! to the sequence number, so its low half is the segment offset.

use super::geneve::LogicalPorts;
use crate::checksum::Sum;
use crate::tcp::{self, TcpFlags, TcpPacket};
use crate::view::{put, put_u16, put_u32, require, u16_at, u32_at, view};
use crate::{Layer, ParseError, ParseErrorKind, ethernet, ipv4, ipv6, udp};

/// Bytes of each segment's header.
pub const SEGMENT_HEADER_LEN: usize = tcp::MIN_HEADER_LEN;
/// Bytes of the frame header, with its two bytes of padding.
pub const FRAME_HEADER_LEN: usize = 18;
/// The destination port.
pub const PORT: u16 = 7471;

const CHECKSUM_VERIFIED: u8 = 1;
const CHECKSUM_PARTIAL: u8 = 2;
const IS_IPV4: u8 = 4;
const IS_TCP: u8 = 8;
const VLAN_PRESENT: u16 = 0x1000;

const fn bad_length(len: usize) -> ParseError {
    ParseError { layer: Layer::Stt, kind: ParseErrorKind::BadLength(len) }
}

view! {
    /// A view of a segment: the payload of an IP packet with protocol 6 to port 7471, cut to the IP
    /// length.
    SttSegmentPacket
}

impl<T: AsRef<[u8]>> SttSegmentPacket<T> {
    #[inline]
    fn check(&self) -> Result<(), ParseError> {
        require(Layer::Stt, SEGMENT_HEADER_LEN, self.bytes().len())?;
        match usize::from(self.bytes()[12] >> 4) * 4 {
            SEGMENT_HEADER_LEN => Ok(()),
            len => Err(bad_length(len)),
        }
    }

    /// Source port: a hash of the inner flow.
    #[inline]
    pub fn src_port(&self) -> u16 {
        u16_at(self.bytes(), 0)
    }

    /// Destination port.
    #[inline]
    pub fn dst_port(&self) -> u16 {
        u16_at(self.bytes(), 2)
    }

    /// Bytes of the whole frame, including its header.
    #[inline]
    pub fn frame_len(&self) -> u16 {
        u16_at(self.bytes(), 4)
    }

    /// Offset of this segment's payload in the frame, in bytes.
    #[inline]
    pub fn offset(&self) -> u16 {
        u16_at(self.bytes(), 6)
    }

    /// The packet ID, the same in all segments of a frame.
    #[inline]
    pub fn packet_id(&self) -> u32 {
        u32_at(self.bytes(), 8)
    }

    /// The flags of the TCP-like header.
    pub fn flags(&self) -> TcpFlags {
        TcpFlags(self.bytes()[tcp::FLAGS_OFFSET])
    }

    /// The checksum field.
    pub fn checksum(&self) -> u16 {
        u16_at(self.bytes(), tcp::CHECKSUM_OFFSET)
    }

    /// Bytes of this segment's payload.
    #[inline]
    pub fn payload_len(&self) -> usize {
        self.bytes().len() - SEGMENT_HEADER_LEN
    }

    /// True when the checksum over the whole buffer, which must be exactly the segment, is correct.
    pub fn verify_checksum(&self, pseudo: Sum) -> bool {
        pseudo.bytes(self.bytes()).is_valid()
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> SttSegmentPacket<&'a T> {
    /// This segment's part of the frame.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.buffer.as_ref()[SEGMENT_HEADER_LEN..]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> SttSegmentPacket<T> {
    /// Sets the source port.
    pub fn set_src_port(&mut self, port: u16) {
        put_u16(self.buffer.as_mut(), 0, port);
    }

    /// Sets the length of the frame and the offset of this segment.
    pub fn set_position(&mut self, frame_len: u16, offset: u16) {
        put_u16(self.buffer.as_mut(), 4, frame_len);
        put_u16(self.buffer.as_mut(), 6, offset);
    }

    /// Sets the packet ID.
    pub fn set_packet_id(&mut self, id: u32) {
        put_u32(self.buffer.as_mut(), 8, id);
    }

    /// Sets the checksum field. For a frame that the NIC segments, this is the folded sum of the
    /// pseudo header.
    pub fn set_checksum(&mut self, checksum: u16) {
        put_u16(self.buffer.as_mut(), tcp::CHECKSUM_OFFSET, checksum);
    }

    /// Computes the checksum over the whole buffer, which must be exactly the segment, and stores
    /// it.
    pub fn fill_checksum(&mut self, pseudo: Sum) {
        TcpPacket::new_unchecked(self.buffer.as_mut()).fill_checksum(pseudo);
    }
}

/// The header of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SttSegmentRepr {
    /// Source port: a hash of the inner flow.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes of the whole frame, including its header.
    pub frame_len: u16,
    /// Offset of this segment's payload in the frame, in bytes.
    pub offset: u16,
    /// The packet ID: the same in all segments of a frame, new for every frame.
    pub packet_id: u32,
}

impl SttSegmentRepr {
    /// Reads a checked view. The checksum is not verified, because the NIC or the kernel may have
    /// done so.
    ///
    /// # Errors
    /// `BadField` for SYN, FIN or RST, which a real TCP segment to this port would have.
    /// `BadLength` for an empty segment, a frame shorter than its header, and a segment that
    /// reaches beyond its frame.
    pub fn parse<T: AsRef<[u8]>>(packet: &SttSegmentPacket<T>) -> Result<Self, ParseError> {
        if packet.flags().intersects(TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST) {
            return Err(ParseError::field(Layer::Stt, "flags"));
        }
        let frame_len = usize::from(packet.frame_len());
        if frame_len < FRAME_HEADER_LEN {
            return Err(bad_length(frame_len));
        }
        let end = usize::from(packet.offset()) + packet.payload_len();
        if packet.payload_len() == 0 || end > frame_len {
            return Err(bad_length(end));
        }
        Ok(Self {
            src_port: packet.src_port(),
            dst_port: packet.dst_port(),
            frame_len: packet.frame_len(),
            offset: packet.offset(),
            packet_id: packet.packet_id(),
        })
    }

    /// Bytes that [`SttSegmentRepr::emit`] writes.
    pub const fn header_len(&self) -> usize {
        SEGMENT_HEADER_LEN
    }

    /// Writes the header with a zero checksum.
    ///
    /// # Panics
    /// When the buffer is shorter than [`SttSegmentRepr::header_len`].
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut SttSegmentPacket<T>) {
        packet.set_src_port(self.src_port);
        put_u16(packet.buffer.as_mut(), 2, self.dst_port);
        packet.set_position(self.frame_len, self.offset);
        packet.set_packet_id(self.packet_id);
        let flags = TcpFlags::ACK | TcpFlags::PSH;
        put(packet.buffer.as_mut(), 12, [5 << 4, flags.0, 0xff, 0xff, 0, 0, 0, 0]);
    }
}

view! {
    /// A view of a frame, or of its beginning.
    SttPacket
}

impl<T: AsRef<[u8]>> SttPacket<T> {
    #[inline]
    fn check(&self) -> Result<(), ParseError> {
        require(Layer::Stt, FRAME_HEADER_LEN, self.bytes().len())
    }

    /// Version; 0.
    pub fn version(&self) -> u8 {
        self.bytes()[0]
    }

    /// Flags: 1 checksum verified, 2 checksum partial, 4 IPv4, 8 TCP.
    pub fn flags(&self) -> u8 {
        self.bytes()[1]
    }

    /// Offset of the transport header in the Ethernet frame, in bytes.
    pub fn l4_offset(&self) -> u8 {
        self.bytes()[2]
    }

    /// Transport payload bytes per segment of an inner super-packet; 0 for any other frame.
    pub fn mss(&self) -> u16 {
        u16_at(self.bytes(), 4)
    }

    /// The tag control information; bit 12 is set when there is a tag.
    pub fn vlan_tci(&self) -> u16 {
        u16_at(self.bytes(), 6)
    }

    /// The context ID.
    pub fn context_id(&self) -> u64 {
        u64::from(u32_at(self.bytes(), 8)) << 32 | u64::from(u32_at(self.bytes(), 12))
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> SttPacket<&'a T> {
    /// The Ethernet frame, or the part of it in this buffer.
    pub fn payload(&self) -> &'a [u8] {
        &self.buffer.as_ref()[FRAME_HEADER_LEN..]
    }
}

/// The context ID as OVN uses it.
///
/// ```text
/// bits 63-55   54-40          39-24         23-0
///      0       ingress port   egress port   datapath
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SttContext {
    /// Key of the logical datapath, 24 bits; higher bits are cut off.
    pub datapath: u32,
    /// The logical ports. `None` is sent as egress port 0.
    pub ports: Option<LogicalPorts>,
}

impl SttContext {
    /// Bits that have a meaning.
    pub const BITS: u32 = 55;
    const DATAPATH: u32 = 0xff_ffff;
    const DATAPATH_BITS: u32 = 24;

    /// Encodes the context ID.
    #[inline]
    pub const fn value(self) -> u64 {
        let ports = match self.ports {
            Some(ports) => (ports.value() as u64) << Self::DATAPATH_BITS,
            None => 0,
        };
        ports | (self.datapath & Self::DATAPATH) as u64
    }

    /// Decodes a context ID; reserved bits are ignored.
    #[inline]
    pub const fn from_value(value: u64) -> Self {
        let ports = LogicalPorts::from_value((value >> Self::DATAPATH_BITS) as u32);
        let datapath = value as u32 & Self::DATAPATH;
        Self { datapath, ports: if ports.egress == 0 { None } else { Some(ports) } }
    }
}

/// State of the inner transport checksum, and inner segmentation, as the STT header carries them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum SttChecksum {
    /// The checksum field is complete and not verified.
    #[default]
    Unverified,
    /// The sender has verified the checksum.
    Verified,
    /// The checksum field holds only the pseudo-header sum (partial checksum).
    Partial {
        /// Offset of the transport header in the Ethernet frame, in bytes.
        l4_offset: u8,
        /// True for IPv4, false for IPv6.
        ipv4: bool,
        /// True for TCP, false for UDP.
        tcp: bool,
        /// Transport payload bytes per segment; 0 when the frame is not a super-packet.
        mss: u16,
    },
}

/// The VLAN tag that the sender moved from the frame to the STT header; its TPID is 0x8100.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SttVlan {
    /// Priority code point, 0 to 7.
    pub pcp: u8,
    /// VLAN identifier, 0 to 4095; 0 is priority-only.
    pub vid: u16,
}

/// The header of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SttRepr {
    /// State of the inner checksum and segmentation.
    pub checksum: SttChecksum,
    /// The VLAN tag of the inner frame, when it was moved out of the frame's bytes.
    pub vlan: Option<SttVlan>,
    /// The context ID: the tunnel key.
    pub context_id: u64,
}

impl SttRepr {
    /// Reads a checked view of a frame whose Ethernet part is `ethernet_len` bytes long. That is
    /// more than the view holds when the frame is in several buffers. Offset and segment size have
    /// a meaning only for a partial checksum, and are otherwise ignored.
    ///
    /// # Errors
    /// `BadVersion` for a version other than 0. `BadLength` for a frame too short for an Ethernet
    /// header, and for a transport header inside the Ethernet and IP headers or beyond the end of
    /// the frame.
    pub fn parse<T: AsRef<[u8]>>(
        packet: &SttPacket<T>,
        ethernet_len: usize,
    ) -> Result<Self, ParseError> {
        if packet.version() != 0 {
            let kind = ParseErrorKind::BadVersion(packet.version());
            return Err(ParseError { layer: Layer::Stt, kind });
        }
        if ethernet_len < ethernet::HEADER_LEN {
            return Err(bad_length(ethernet_len));
        }
        let tci = packet.vlan_tci();
        let vlan = (tci & VLAN_PRESENT != 0)
            .then_some(SttVlan { pcp: (tci >> 13) as u8, vid: tci & 0x0fff });
        let checksum = parse_checksum(packet, ethernet_len)?;
        Ok(Self { checksum, vlan, context_id: packet.context_id() })
    }

    /// Bytes that [`SttRepr::emit`] writes, padding included.
    pub const fn header_len(&self) -> usize {
        FRAME_HEADER_LEN
    }

    /// Writes the header and its padding.
    ///
    /// # Panics
    /// When the buffer is shorter than [`SttRepr::header_len`].
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut SttPacket<T>) {
        let (flags, l4_offset, mss) = match self.checksum {
            SttChecksum::Unverified => (0, 0, 0),
            SttChecksum::Verified => (CHECKSUM_VERIFIED, 0, 0),
            SttChecksum::Partial { l4_offset, ipv4, tcp, mss } => {
                let ip = if ipv4 { IS_IPV4 } else { 0 };
                let transport = if tcp { IS_TCP } else { 0 };
                (CHECKSUM_PARTIAL | ip | transport, l4_offset, mss)
            }
        };
        let tci = self
            .vlan
            .map_or(0, |vlan| u16::from(vlan.pcp & 7) << 13 | VLAN_PRESENT | (vlan.vid & 0x0fff));
        let bytes = packet.buffer.as_mut();
        put(bytes, 0, [0, flags, l4_offset, 0]);
        put_u16(bytes, 4, mss);
        put_u16(bytes, 6, tci);
        put(bytes, 8, self.context_id.to_be_bytes());
        put_u16(bytes, 16, 0);
    }
}

fn parse_checksum<T: AsRef<[u8]>>(
    packet: &SttPacket<T>,
    ethernet_len: usize,
) -> Result<SttChecksum, ParseError> {
    let flags = packet.flags();
    if flags & CHECKSUM_PARTIAL == 0 {
        let verified = flags & CHECKSUM_VERIFIED != 0;
        return Ok(if verified { SttChecksum::Verified } else { SttChecksum::Unverified });
    }
    let (ipv4, tcp) = (flags & IS_IPV4 != 0, flags & IS_TCP != 0);
    let l3_len = if ipv4 { ipv4::MIN_HEADER_LEN } else { ipv6::HEADER_LEN };
    let l4_len = if tcp { tcp::MIN_HEADER_LEN } else { udp::HEADER_LEN };
    let offset = usize::from(packet.l4_offset());
    if offset < ethernet::HEADER_LEN + l3_len || offset + l4_len > ethernet_len {
        return Err(bad_length(offset));
    }
    Ok(SttChecksum::Partial { l4_offset: packet.l4_offset(), ipv4, tcp, mss: packet.mss() })
}
