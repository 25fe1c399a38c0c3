//! The registers of nftables, with known and unknown bits.

use netdev::nftables::{Comparison, Register};

/// A byte, with a mask of its known bits.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Byte {
    value: u8,
    known: u8,
}

impl Byte {
    /// No bit is known.
    pub(super) const UNKNOWN: Self = Self { value: 0, known: 0 };

    pub(super) const fn known(value: u8) -> Self {
        Self { value, known: u8::MAX }
    }

    /// A byte in which these bits are known to be zero. All others are unknown.
    pub(super) const fn without(bits: u8) -> Self {
        Self { value: 0, known: bits }
    }

    const fn may_be(self, value: u8) -> bool {
        (self.value ^ value) & self.known == 0
    }
}

/// Converts bytes of which all bits are known.
pub(super) fn known(bytes: &[u8]) -> Vec<Byte> {
    bytes.iter().copied().map(Byte::known).collect()
}

/// The values, when every bit is known.
pub(super) fn values(bytes: &[Byte]) -> Option<Vec<u8>> {
    bytes.iter().map(|byte| (byte.known == u8::MAX).then_some(byte.value)).collect()
}

/// Whether the known bits agree with these values.
pub(super) fn may_be(bytes: &[Byte], values: &[u8]) -> bool {
    bytes.iter().zip(values).all(|(byte, value)| byte.may_be(*value))
}

/// The registers of one rule.
pub(super) struct Registers([Byte; 64]);

impl Registers {
    /// All registers unknown.
    pub(super) const fn new() -> Self {
        Self([Byte::UNKNOWN; 64])
    }

    /// Writes `bytes` to a register, padded with zeros to a multiple of four.
    pub(super) fn load(&mut self, to: Register, mut bytes: Vec<Byte>) {
        bytes.resize(bytes.len().next_multiple_of(4), Byte::known(0));
        for (slot, byte) in self.0.iter_mut().skip(to.0).zip(bytes) {
            *slot = byte;
        }
    }

    /// The `len` bytes that start at a register; `None` if they exceed the last register.
    pub(super) fn bytes(&self, from: Register, len: usize) -> Option<&[Byte]> {
        self.0.get(from.0..from.0.checked_add(len)?)
    }

    /// Stores `(from & mask) ^ xor` in `to`, as the nftables expression `bitwise`.
    pub(super) fn combine(&mut self, from: Register, to: Register, mask: &[u8], xor: &[u8]) {
        let bytes = self.bytes(from, mask.len()).unwrap_or_default().iter();
        let combined = bytes.zip(mask.iter().zip(xor)).map(|(byte, (mask, xor))| Byte {
            value: byte.value & mask ^ xor,
            known: byte.known | !mask,
        });
        let combined: Vec<_> = combined.collect();
        self.load(to, combined);
    }
}

/// Compares a register with a value; `None` when the result depends on unknown bits.
pub(super) fn compare(bytes: Option<&[Byte]>, how: Comparison, value: &[u8]) -> Option<bool> {
    let bytes = bytes?;
    let differs = !may_be(bytes, value);
    match (how, values(bytes)) {
        (Comparison::Equal, None) => differs.then_some(false),
        (Comparison::NotEqual, None) => differs.then_some(true),
        (_, None) => None,
        (how, Some(bytes)) => Some(match (how, bytes.as_slice().cmp(value)) {
            (Comparison::Equal, order) => order.is_eq(),
            (Comparison::NotEqual, order) => order.is_ne(),
            (Comparison::Less, order) => order.is_lt(),
            (Comparison::LessOrEqual, order) => order.is_le(),
            (Comparison::Greater, order) => order.is_gt(),
            (Comparison::GreaterOrEqual, order) => order.is_ge(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_outside_a_mask_need_not_be_known() {
        let mut registers = Registers::new();
        registers.load(Register(0), vec![Byte::without(0x20), Byte::known(7), Byte::UNKNOWN]);
        registers.combine(Register(0), Register(0), &[0x20, 1, 0], &[0; 3]);
        assert_eq!(values(registers.bytes(Register(0), 4).unwrap()), Some(vec![0, 1, 0, 0]));
        registers.load(Register(0), vec![Byte::without(0x20)]);
        registers.combine(Register(0), Register(0), &[0x30], &[0]);
        let byte = registers.bytes(Register(0), 1);
        assert_eq!(compare(byte, Comparison::Equal, &[0x20]), Some(false));
        assert_eq!(compare(byte, Comparison::NotEqual, &[0x10]), None);
        assert_eq!(compare(registers.bytes(Register(60), 8), Comparison::Equal, &[0]), None);
    }
}
