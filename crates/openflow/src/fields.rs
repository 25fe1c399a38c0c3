//! How fields are named in messages: class, number and length of the value.

use flow::{Field, Match, Subfield};

/// The header of a field in a match, without the bit for a mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OxmHeader {
    class: u16,
    number: u8,
    /// The length of the value, in bytes.
    len: u8,
    is_maskable: bool,
}

const OPENFLOW: u16 = 0x8000;
const NICIRA: u16 = 1;
const NICIRA_BASIC: u16 = 0;

const fn oxm(number: u8, len: u8) -> OxmHeader {
    OxmHeader { class: OPENFLOW, number, len, is_maskable: true }
}

const fn exact(number: u8, len: u8) -> OxmHeader {
    OxmHeader { is_maskable: false, ..oxm(number, len) }
}

const fn nxm(number: u8, len: u8) -> OxmHeader {
    OxmHeader { class: NICIRA, ..oxm(number, len) }
}

const VLAN_TCI: OxmHeader = OxmHeader { class: NICIRA_BASIC, ..oxm(4, 2) };
pub(crate) const METADATA: OxmHeader = oxm(2, 8);

impl OxmHeader {
    /// The name of a field in frames of this IP protocol. `None` if there is none.
    fn of(field: Field, protocol: Option<u8>) -> Option<Self> {
        let register = |first: Field| {
            let number = (field as u8).checked_sub(first as u8)?;
            Some(number)
        };
        Some(match field {
            Field::InPort => exact(0, 4),
            Field::PktMark => nxm(33, 4),
            Field::TunId => oxm(38, 8),
            Field::TunSrc => nxm(31, 4),
            Field::TunDst => nxm(32, 4),
            Field::Metadata => METADATA,
            Field::Reg0
            | Field::Reg1
            | Field::Reg2
            | Field::Reg3
            | Field::Reg4
            | Field::Reg5
            | Field::Reg6
            | Field::Reg7
            | Field::Reg8
            | Field::Reg9
            | Field::Reg10
            | Field::Reg11
            | Field::Reg12
            | Field::Reg13
            | Field::Reg14
            | Field::Reg15 => nxm(register(Field::Reg0)?, 4),
            Field::Xxreg0 | Field::Xxreg1 | Field::Xxreg2 | Field::Xxreg3 => {
                nxm(111 + register(Field::Xxreg0)?, 16)
            }
            Field::Xreg0
            | Field::Xreg1
            | Field::Xreg2
            | Field::Xreg3
            | Field::Xreg4
            | Field::Xreg5
            | Field::Xreg6
            | Field::Xreg7 => OxmHeader { class: 0x8001, ..oxm(register(Field::Xreg0)?, 8) },
            Field::CtState => nxm(105, 4),
            Field::CtZone => OxmHeader { is_maskable: false, ..nxm(106, 2) },
            Field::CtMark => nxm(107, 4),
            Field::CtLabel => nxm(108, 16),
            Field::EthDst => oxm(3, 6),
            Field::EthSrc => oxm(4, 6),
            Field::EthType => exact(5, 2),
            Field::VlanTci => VLAN_TCI,
            Field::IpDscp => exact(8, 1),
            Field::IpEcn => exact(9, 1),
            Field::IpProto => exact(10, 1),
            Field::IpTtl => OxmHeader { is_maskable: false, ..nxm(29, 1) },
            Field::IpFrag => nxm(26, 1),
            Field::Ip4Src => oxm(11, 4),
            Field::Ip4Dst => oxm(12, 4),
            Field::Ip6Src => oxm(26, 16),
            Field::Ip6Dst => oxm(27, 16),
            Field::Ip6Label => oxm(28, 4),
            Field::ArpOp => exact(21, 2),
            Field::ArpSpa => oxm(22, 4),
            Field::ArpTpa => oxm(23, 4),
            Field::ArpSha => oxm(24, 6),
            Field::ArpTha => oxm(25, 6),
            Field::TcpFlags => oxm(42, 2),
            Field::TpSrc | Field::TpDst => {
                let first = match protocol? {
                    6 => 13,
                    17 => 15,
                    132 => 17,
                    _ => return None,
                };
                oxm(first + u8::from(field == Field::TpDst), 2)
            }
            Field::IcmpType | Field::IcmpCode => {
                let first = match protocol? {
                    1 => 19,
                    58 => 29,
                    _ => return None,
                };
                exact(first + u8::from(field == Field::IcmpCode), 1)
            }
            Field::NdTarget => oxm(31, 16),
            Field::NdSll => oxm(32, 6),
            Field::NdTll => oxm(33, 6),
            _ => return None,
        })
    }

    /// The header in a message.
    fn bytes(self, has_mask: bool) -> [u8; 4] {
        let [high, low] = self.class.to_be_bytes();
        let len = if has_mask { self.len * 2 } else { self.len };
        [high, low, self.number << 1 | u8::from(has_mask), len]
    }

    fn value(self, value: u128) -> Vec<u8> {
        let bytes = value.to_be_bytes();
        bytes[bytes.len() - usize::from(self.len)..].to_vec()
    }

    /// Appends the header and a value.
    pub fn emit(self, bytes: &mut Vec<u8>, value: u128) {
        bytes.extend(self.bytes(false));
        bytes.extend(self.value(value));
    }
}

/// Some bits of a field, as in actions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OxmBits {
    pub header: [u8; 4],
    pub field: OxmHeader,
    pub first: u8,
    pub width: u8,
}

impl OxmBits {
    /// `None` if OpenFlow has no name for the field.
    pub fn new(bits: Subfield, protocol: Option<u8>) -> Option<Self> {
        let field = OxmHeader::of(bits.field(), protocol)?;
        Some(Self { header: field.bytes(false), field, first: bits.first(), width: bits.width() })
    }

    /// Offset and width in one number.
    pub fn offset_and_width(self) -> [u8; 2] {
        (u16::from(self.first) << 6 | u16::from(self.width.saturating_sub(1))).to_be_bytes()
    }
}

/// The IP protocol that a match requires.
pub(crate) fn protocol(condition: &Match) -> Option<u8> {
    let is_exact = condition.mask().get(Field::IpProto) == 0xff;
    is_exact.then(|| condition.key().get(Field::IpProto) as u8)
}

/// Appends the fields of a match that also requires this logical datapath. False, and `bytes` are
/// to be dropped, if OpenFlow cannot express it.
pub(crate) fn emit_fields(bytes: &mut Vec<u8>, datapath: u64, condition: &Match) -> bool {
    METADATA.emit(bytes, datapath.into());
    let protocol = protocol(condition);
    for &field in Field::ALL {
        let mask = condition.mask().get(field);
        if mask == 0 || field == Field::Metadata {
            continue;
        }
        let Some(header) = OxmHeader::of(field, protocol) else { return false };
        let value = condition.key().get(field);
        if mask == flow::low_bits(field.width()) {
            header.emit(bytes, value);
        } else if header.is_maskable {
            bytes.extend(header.bytes(true));
            bytes.extend(header.value(value));
            bytes.extend(header.value(mask));
        } else {
            return false;
        }
    }
    true
}
