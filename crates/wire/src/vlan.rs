//! VLAN tags: IEEE 802.1Q customer tags and 802.1ad service tags, one or two of them.
//!
//! ```text
//!  0       6       12     14    16     18    20     22
//! +-------+-------+------+-----+------+-----+------+---------
//! | dst   | src   | TPID | TCI | TPID | TCI | type | payload
//! +-------+-------+------+-----+------+-----+------+---------
//!
//!  TCI:  PCP (3 bits) | DEI (1) | VID (12)
//! ```
//!
//! Any of the TPIDs 0x8100, 0x88a8 and 0x9100 identifies a tag. VID 0 carries a priority and no
//! VLAN; VID 4095 is reserved. The kernel may have moved the outer tag of a received frame to
//! socket metadata (PACKET_AUXDATA).

use crate::ethernet::EtherType;
use crate::view::{require, u16_at};
use crate::{Layer, ParseError, VlanId};

/// Bytes of one tag.
pub const TAG_LEN: usize = 4;
/// Offset of the first TPID, or of the EtherType of an untagged frame.
pub const ETHERTYPE_OFFSET: usize = 12;
/// Number of tags that are parsed; bytes after the second tag are payload.
pub const MAX_TAGS: usize = 2;

/// One VLAN tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tag {
    /// Tag protocol identifier; one for which [`EtherType::is_vlan`] holds.
    pub tpid: EtherType,
    /// Priority code point, 0 to 7.
    pub pcp: u8,
    /// Drop eligible indicator.
    pub dei: bool,
    /// VLAN identifier, 0 to 4095: 0 is priority-only, 4095 reserved.
    pub vid: u16,
}

impl Tag {
    /// A tag of `vlan` with priority 0.
    pub const fn new(tpid: EtherType, vlan: VlanId) -> Self {
        Self { tpid, pcp: 0, dei: false, vid: vlan.value() }
    }

    /// Decodes a tag from its TPID and tag control information.
    pub const fn from_tci(tpid: EtherType, tci: u16) -> Self {
        Self { tpid, pcp: (tci >> 13) as u8, dei: tci & 0x1000 != 0, vid: tci & 0x0fff }
    }

    /// The tag control information. Bits of `pcp` and `vid` beyond their ranges are cut off.
    pub const fn tci(self) -> u16 {
        ((self.pcp as u16 & 7) << 13) | ((self.dei as u16) << 12) | (self.vid & 0x0fff)
    }

    /// The four bytes in a frame, TPID first.
    pub const fn to_bytes(self) -> [u8; TAG_LEN] {
        let [a, b] = self.tpid.0.to_be_bytes();
        let [c, d] = self.tci().to_be_bytes();
        [a, b, c, d]
    }

    /// The VLAN; `None` for a priority-only tag and for the reserved identifier.
    pub const fn vlan(self) -> Option<VlanId> {
        VlanId::new(self.vid)
    }
}

/// The tags of a frame, and the EtherType and offset of its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tags {
    tags: [Option<Tag>; MAX_TAGS],
    ethertype: EtherType,
}

impl Tags {
    /// Reads up to two tags of an Ethernet frame.
    ///
    /// # Errors
    /// `Truncated` when the Ethernet header, or a tag and the EtherType after it, is incomplete.
    pub fn parse(frame: &[u8]) -> Result<Self, ParseError> {
        require(Layer::Ethernet, ETHERTYPE_OFFSET + 2, frame.len())?;
        let mut tags = [None; MAX_TAGS];
        let mut at = ETHERTYPE_OFFSET;
        let mut ethertype = EtherType(u16_at(frame, at));
        for slot in &mut tags {
            if !ethertype.is_vlan() {
                break;
            }
            require(Layer::Vlan, TAG_LEN + 2, frame.len() - at)?;
            *slot = Some(Tag::from_tci(ethertype, u16_at(frame, at + 2)));
            at += TAG_LEN;
            ethertype = EtherType(u16_at(frame, at));
        }
        Ok(Self { tags, ethertype })
    }

    /// The outer tag.
    pub const fn outer(&self) -> Option<Tag> {
        self.tags[0]
    }

    /// The inner tag; `Some` only when there is an outer one.
    pub const fn inner(&self) -> Option<Tag> {
        self.tags[1]
    }

    /// Number of tags, 0 to 2.
    pub const fn count(&self) -> usize {
        self.tags[0].is_some() as usize + self.tags[1].is_some() as usize
    }

    /// EtherType after the tags; another TPID when the frame has more than two tags.
    pub const fn ethertype(&self) -> EtherType {
        self.ethertype
    }

    /// Offset of the payload in the frame.
    pub const fn payload_offset(&self) -> usize {
        ETHERTYPE_OFFSET + self.count() * TAG_LEN + 2
    }
}
