//! OXM headers, by which messages identify fields: class, number and length of the value.

use flow::{Field, Match, OxmHeader, Prerequisite, Subfield};

/// The identity of a field in messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OxmField {
    header: OxmHeader,
    is_maskable: bool,
}

impl OxmField {
    /// The OXM field for `field` in frames of this IP protocol; `None` if there is none.
    fn of(field: Field, protocol: Option<u8>) -> Option<Self> {
        let spec = field.spec();
        let named = || spec.ofctl.iter().filter(|name| name.oxm.is_some());
        let is_met = |prerequisite: Option<Prerequisite>| {
            let requirement = prerequisite.unwrap_or(spec.prerequisite).requirement();
            let mut kinds = requirement.frame_kinds.iter();
            protocol.is_some_and(|protocol| kinds.any(|kind| kind.ip_protos.contains(&protocol)))
        };
        let name = if named().count() == 1 {
            named().next()
        } else {
            // A name with its own prerequisite takes precedence over the general name.
            let met = named().filter(|name| is_met(name.prerequisite));
            met.max_by_key(|name| name.prerequisite.is_some())
        }?;
        Some(Self { header: name.oxm?, is_maskable: name.maskable })
    }

    /// The header in a message.
    fn bytes(self, has_mask: bool) -> [u8; 4] {
        let [high, low] = self.header.class.to_be_bytes();
        let len = if has_mask { self.header.len * 2 } else { self.header.len };
        [high, low, self.header.number << 1 | u8::from(has_mask), len]
    }

    fn value(self, value: u128) -> Vec<u8> {
        let bytes = value.to_be_bytes();
        bytes[bytes.len() - usize::from(self.header.len)..].to_vec()
    }

    /// Appends the header and a value.
    pub fn emit(self, bytes: &mut Vec<u8>, value: u128) {
        bytes.extend(self.bytes(false));
        bytes.extend(self.value(value));
    }
}

/// A range of bits of a field, as used in actions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OxmBits {
    pub header: [u8; 4],
    pub field: OxmField,
    pub first: u8,
    pub width: u8,
}

impl OxmBits {
    /// `None` if OpenFlow has no name for the field.
    pub fn new(bits: Subfield, protocol: Option<u8>) -> Option<Self> {
        let field = OxmField::of(bits.field(), protocol)?;
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

/// Appends the fields of a match that also requires this logical datapath. Returns false if
/// OpenFlow cannot express it. The caller must then discard `bytes`.
pub(crate) fn emit_fields(bytes: &mut Vec<u8>, datapath: u64, condition: &Match) -> bool {
    let Some(metadata) = OxmField::of(Field::Metadata, None) else { return false };
    metadata.emit(bytes, datapath.into());
    let protocol = protocol(condition);
    for &field in Field::ALL {
        let mask = condition.mask().get(field);
        if mask == 0 || field == Field::Metadata {
            continue;
        }
        let Some(header) = OxmField::of(field, protocol) else { return false };
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
