//! Netlink attributes as bytes, for families that no `netlink-packet-*` dependency decodes:
//! [`Attributes`] reads them, [`AttributeBuf`] writes them.

/// Masks the two flag bits of a type (NLA_F_NESTED, NLA_F_NET_BYTEORDER).
const TYPE_MASK: u16 = 0x3fff;
const NESTED: u16 = 0x8000;
const HEADER_BYTES: usize = 4;

/// A sequence of attributes. Reading ends at the first one that is longer than the remaining bytes.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The types and values, in order.
    pub(crate) fn iter(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let length = usize::from(u16::from_ne_bytes(rest.get(..2)?.try_into().ok()?));
            let kind = u16::from_ne_bytes(rest.get(2..4)?.try_into().ok()?);
            let value = rest.get(HEADER_BYTES..length)?;
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            Some((kind & TYPE_MASK, value))
        })
    }

    /// The value of the first attribute of a type.
    pub(crate) fn get(self, kind: u16) -> Option<&'a [u8]> {
        self.iter().find_map(|(found, value)| (found == kind).then_some(value))
    }

    /// The attributes nested in the first one of a type.
    pub(crate) fn nested(self, kind: u16) -> Option<Self> {
        self.get(kind).map(Self)
    }

    /// All attributes of a type, each as a sequence of nested attributes.
    pub(crate) fn all(self, kind: u16) -> impl Iterator<Item = Self> {
        self.iter().filter(move |(found, _)| *found == kind).map(|(_, value)| Self(value))
    }

    /// A host-order number of 1, 2, 4 or 8 bytes.
    pub(crate) fn number(self, kind: u16) -> Option<u64> {
        Some(match *self.get(kind)? {
            [a] => a.into(),
            [a, b] => u16::from_ne_bytes([a, b]).into(),
            [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
            [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            _ => return None,
        })
    }

    /// [`Attributes::number`], when it fits 32 bits.
    pub(crate) fn u32(self, kind: u16) -> Option<u32> {
        self.number(kind)?.try_into().ok()
    }

    /// A big-endian number of 4 bytes, as netfilter uses.
    pub(crate) fn be32(self, kind: u16) -> Option<u32> {
        Some(u32::from_be_bytes(self.get(kind)?.try_into().ok()?))
    }

    /// Text up to the terminating zero.
    pub(crate) fn text(self, kind: u16) -> Option<String> {
        let value = self.get(kind)?;
        let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
        Some(String::from_utf8_lossy(text).into_owned())
    }
}

/// Attributes to send.
#[derive(Clone, Default, Debug)]
pub(crate) struct AttributeBuf(Vec<u8>);

impl AttributeBuf {
    /// Appends an attribute. One longer than 65,531 bytes is left out.
    pub(crate) fn push(mut self, kind: u16, value: &[u8]) -> Self {
        if let Ok(length) = u16::try_from(HEADER_BYTES + value.len()) {
            self.0.extend(length.to_ne_bytes());
            self.0.extend(kind.to_ne_bytes());
            self.0.extend(value);
            self.0.resize(self.0.len().next_multiple_of(4), 0);
        }
        self
    }

    /// Appends text with a terminating zero.
    pub(crate) fn text(self, kind: u16, text: &str) -> Self {
        self.push(kind, &[text.as_bytes(), &[0]].concat())
    }

    /// Appends nested attributes.
    pub(crate) fn nest(self, kind: u16, inner: &Self) -> Self {
        self.push(kind | NESTED, &inner.0)
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_are_written() {
        let inner = AttributeBuf::default().push(1, &7u32.to_ne_bytes()).text(2, "eth0");
        let bytes = AttributeBuf::default().nest(5, &inner).push(6, &[9]).into_bytes();
        let read = Attributes::new(&bytes);
        let nested = read.nested(5).unwrap();
        assert_eq!((nested.u32(1), nested.text(2)), (Some(7), Some("eth0".to_owned())));
        assert_eq!((read.number(6), read.number(5), read.get(7)), (Some(9), None, None));
        assert_eq!(Attributes::new(&7u32.to_be_bytes()).iter().count(), 0, "a length of 0");
    }

    #[test]
    fn reading_ends_when_an_attribute_does_not_fit() {
        let whole = AttributeBuf::default().push(1, &[1; 8]).push(2, &[2; 5]).into_bytes();
        for length in 0..whole.len() {
            let kinds = Attributes::new(&whole[..length]).iter().count();
            assert_eq!(
                kinds,
                if length < 12 {
                    0
                } else if length < 21 {
                    1
                } else {
                    2
                },
                "{length}"
            );
        }
    }
}
