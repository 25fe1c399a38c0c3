//! GRE (RFC 2784) with key and sequence number (RFC 2890), and NVGRE (RFC 7637).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+---------------+-----+-------------------------------+
//! |C|R|K|S|s|   Reserved    | Ver |         Protocol Type         |
//! +-+-+-+-+-+---------------+-----+-------------------------------+
//! |      Checksum (if C)          |       Reserved1 (if C)        |
//! +-------------------------------+-------------------------------+
//! |                         Key (if K)                            |
//! +---------------------------------------------------------------+
//! |                    Sequence Number (if S)                     |
//! +---------------------------------------------------------------+
//! ```
//!
//! Checksum, key and sequence number add 4 bytes each, in that order. The routing bits R and s and
//! the first of the reserved bits belong to RFC 1701, which is not supported: packets with any of
//! them are rejected. The other reserved bits and Reserved1 are zero when sent and ignored when
//! received (RFC 2784 section 2.3).
//!
//! NVGRE has the same protocol type as Ethernet over GRE, 0x6558. Its key holds a virtual subnet of
//! 24 bits and a flow identifier of 8 bits, and it forbids checksum and sequence number. A receiver
//! cannot tell the two apart from the header: its configuration decides.

use crate::checksum::Sum;
use crate::ethernet::EtherType;
use crate::view::{put_u16, put_u32, require, u16_at, u32_at, view};
use crate::{Layer, ParseError, ParseErrorKind, Vni};

/// Bytes of the header without optional fields.
pub const MIN_HEADER_LEN: usize = 4;
/// Bytes of each optional field: checksum with Reserved1, key, sequence number.
pub const FIELD_LEN: usize = 4;
/// Offset of the checksum, if the header has one.
pub const CHECKSUM_OFFSET: usize = 4;

const CHECKSUM: u16 = 0x8000;
const KEY: u16 = 0x2000;
const SEQUENCE: u16 = 0x1000;
/// Routing, strict source route, and the recursion-control bit, which RFC 2784 also forbids.
const FORBIDDEN: u16 = 0x4000 | 0x0800 | 0x0400;

view! {
    /// A view of the payload of an IP packet with protocol 47, cut to the IP length.
    GrePacket
}

impl<T: AsRef<[u8]>> GrePacket<T> {
    fn check(&self) -> Result<(), ParseError> {
        let have = self.bytes().len();
        require(Layer::Gre, MIN_HEADER_LEN, have)?;
        let flags = self.flags();
        let version = (flags & 7) as u8;
        if version != 0 {
            return Err(ParseError {
                layer: Layer::Gre,
                kind: ParseErrorKind::BadVersion(version),
            });
        }
        if flags & FORBIDDEN != 0 {
            return Err(ParseError::field(Layer::Gre, "routing or reserved bits"));
        }
        require(Layer::Gre, self.header_len(), have)
    }

    #[inline]
    fn flags(&self) -> u16 {
        u16_at(self.bytes(), 0)
    }

    #[inline]
    fn field(&self, flag: u16) -> bool {
        self.flags() & flag != 0
    }

    /// Offset of the optional field after those named by the flags in `before`.
    #[inline]
    fn offset_after(&self, before: &[u16]) -> usize {
        let fields = before.iter().filter(|flag| self.field(**flag)).count();
        MIN_HEADER_LEN + fields * FIELD_LEN
    }

    /// Bytes of the header, 4 to 16.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.offset_after(&[CHECKSUM, KEY, SEQUENCE])
    }

    /// EtherType of the payload; [`EtherType::TEB`] for Ethernet.
    #[inline]
    pub fn protocol(&self) -> EtherType {
        EtherType(u16_at(self.bytes(), 2))
    }

    /// The checksum, if the packet has one.
    #[inline]
    pub fn checksum(&self) -> Option<u16> {
        self.field(CHECKSUM).then(|| u16_at(self.bytes(), CHECKSUM_OFFSET))
    }

    /// The key, if the packet has one.
    #[inline]
    pub fn key(&self) -> Option<u32> {
        self.field(KEY).then(|| u32_at(self.bytes(), self.offset_after(&[CHECKSUM])))
    }

    /// The sequence number, if the packet has one.
    pub fn sequence(&self) -> Option<u32> {
        self.field(SEQUENCE).then(|| u32_at(self.bytes(), self.offset_after(&[CHECKSUM, KEY])))
    }

    /// True when the checksum over header and payload (the whole buffer) is correct or absent.
    pub fn verify_checksum(&self) -> bool {
        !self.field(CHECKSUM) || Sum::of(self.bytes()).is_valid()
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> GrePacket<&'a T> {
    /// The bytes after the header.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.buffer.as_ref()[self.header_len()..]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> GrePacket<T> {
    /// Sets key and sequence number, each only when the header's flags say that it is present.
    #[inline]
    pub fn set_key_and_sequence(&mut self, key: u32, sequence: u32) {
        let flags = self.flags();
        let mut at = MIN_HEADER_LEN + if flags & CHECKSUM != 0 { FIELD_LEN } else { 0 };
        let bytes = self.buffer.as_mut();
        if flags & KEY != 0 {
            put_u32(bytes, at, key);
            at += FIELD_LEN;
        }
        if flags & SEQUENCE != 0 {
            put_u32(bytes, at, sequence);
        }
    }

    /// Completes the header of segment `index` of a super-packet, given a copy of the first
    /// segment's header.
    ///
    /// The sequence number grows by `index`, and the checksum covers the buffer and then `payload`.
    /// Fields that the header does not have are skipped.
    pub fn finish_segment(&mut self, payload: &[u8], index: u32) {
        if let Some(first) = self.sequence().filter(|_| index != 0) {
            let at = self.offset_after(&[CHECKSUM, KEY]);
            put_u32(self.buffer.as_mut(), at, first.wrapping_add(index));
        }
        if self.field(CHECKSUM) {
            put_u32(self.buffer.as_mut(), CHECKSUM_OFFSET, 0);
            self.set_checksum(Sum::of(self.bytes()).bytes(payload).checksum());
        }
    }

    /// Stores a checksum, such as one from [`crate::checksum::local_offload`]. Without the C flag
    /// it does nothing.
    pub fn set_checksum(&mut self, checksum: u16) {
        if self.field(CHECKSUM) {
            put_u16(self.buffer.as_mut(), CHECKSUM_OFFSET, checksum);
        }
    }

    /// Computes the checksum over header and payload (the whole buffer) and stores it. Without the
    /// C flag it does nothing.
    pub fn fill_checksum(&mut self) {
        self.set_checksum(0);
        let checksum = Sum::of(self.bytes()).checksum();
        self.set_checksum(checksum);
    }
}

/// A GRE header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GreRepr {
    /// EtherType of the payload; [`EtherType::TEB`] for Ethernet.
    pub protocol: EtherType,
    /// Whether there is a checksum over header and payload.
    pub checksum: bool,
    /// The key.
    pub key: Option<u32>,
    /// The sequence number.
    pub sequence: Option<u32>,
}

impl GreRepr {
    /// Reads a checked view and verifies its checksum, if it has one, over the whole buffer.
    ///
    /// # Errors
    /// `BadChecksum` when the checksum is wrong.
    pub fn parse<T: AsRef<[u8]>>(packet: &GrePacket<T>) -> Result<Self, ParseError> {
        if !packet.verify_checksum() {
            return Err(ParseError { layer: Layer::Gre, kind: ParseErrorKind::BadChecksum });
        }
        Ok(Self {
            protocol: packet.protocol(),
            checksum: packet.checksum().is_some(),
            key: packet.key(),
            sequence: packet.sequence(),
        })
    }

    /// Bytes that [`GreRepr::emit`] writes, 4 to 16.
    pub const fn header_len(&self) -> usize {
        let fields =
            self.checksum as usize + self.key.is_some() as usize + self.sequence.is_some() as usize;
        MIN_HEADER_LEN + fields * FIELD_LEN
    }

    /// Writes the header, with a zero checksum if it has one. [`GrePacket::fill_checksum`]
    /// completes it.
    ///
    /// # Panics
    /// When the buffer is shorter than [`GreRepr::header_len`].
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut GrePacket<T>) {
        let bytes = packet.buffer.as_mut();
        let (mut flags, mut at) = (0, MIN_HEADER_LEN);
        let fields =
            [(CHECKSUM, self.checksum.then_some(0)), (KEY, self.key), (SEQUENCE, self.sequence)];
        for (flag, value) in fields {
            if let Some(value) = value {
                flags |= flag;
                put_u32(bytes, at, value);
                at += FIELD_LEN;
            }
        }
        put_u16(bytes, 0, flags);
        put_u16(bytes, 2, self.protocol.0);
    }
}

/// An NVGRE header (RFC 7637 section 3.2): GRE over Ethernet with a key, no checksum and no
/// sequence number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NvgreRepr {
    /// Virtual subnet identifier. RFC 7637 reserves 0 to 0xfff and 0xffffff; the configuration
    /// enforces that.
    pub vsid: Vni,
    /// Flow identifier: a hash of the inner flow, or 0 when unused.
    pub flow_id: u8,
}

impl NvgreRepr {
    /// Reads a checked view.
    ///
    /// # Errors
    /// `BadField` for a checksum, a sequence number, a missing key, or a protocol type other than
    /// 0x6558.
    pub fn parse<T: AsRef<[u8]>>(packet: &GrePacket<T>) -> Result<Self, ParseError> {
        if packet.field(CHECKSUM) || packet.field(SEQUENCE) {
            return Err(ParseError::field(Layer::Gre, "NVGRE checksum or sequence flag"));
        }
        if packet.protocol() != EtherType::TEB {
            return Err(ParseError::field(Layer::Gre, "NVGRE protocol type"));
        }
        let key = packet.key().ok_or(ParseError::field(Layer::Gre, "NVGRE key flag"))?;
        let [a, b, c, flow_id] = key.to_be_bytes();
        Ok(Self { vsid: Vni::from_be_bytes([a, b, c]), flow_id })
    }

    /// Bytes that [`NvgreRepr::emit`] writes.
    pub const fn header_len(&self) -> usize {
        MIN_HEADER_LEN + FIELD_LEN
    }

    /// Writes the header.
    ///
    /// # Panics
    /// When the buffer is shorter than [`NvgreRepr::header_len`].
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut GrePacket<T>) {
        let key = self.vsid.value() << 8 | u32::from(self.flow_id);
        GreRepr { protocol: EtherType::TEB, checksum: false, key: Some(key), sequence: None }
            .emit(packet);
    }
}
