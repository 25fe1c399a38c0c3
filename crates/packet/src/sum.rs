//! Private ones'-complement sum (RFC 1071).

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    words: u64,
    odd: bool,
}

impl Sum {
    pub(crate) const fn new() -> Self {
        Self { words: 0, odd: false }
    }
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self::new().bytes(bytes)
    }
    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        self.native(fold(sum(bytes)), bytes.len())
    }
    pub(crate) const fn u16(self, value: u16) -> Self {
        self.native(value.to_be(), 2)
    }
    pub(crate) const fn u32(self, value: u32) -> Self {
        self.u16((value >> 16) as u16).u16(value as u16)
    }
    pub(crate) const fn piece(self, sum: u16, len: usize) -> Self {
        self.native(sum.to_be(), len)
    }
    const fn native(self, sum: u16, len: usize) -> Self {
        let sum = if self.odd { sum.swap_bytes() } else { sum };
        Self { words: self.words + sum as u64, odd: self.odd ^ (len & 1 == 1) }
    }
    pub(crate) const fn fold(self) -> u16 {
        u16::from_be(fold(self.words))
    }
    pub(crate) const fn checksum(self) -> u16 {
        !self.fold()
    }
    pub(crate) const fn udp_checksum(self) -> u16 {
        match self.checksum() {
            0 => 0xffff,
            checksum => checksum,
        }
    }
    pub(crate) const fn is_valid(self) -> bool {
        self.fold() == 0xffff
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(2);
    let mut total = 0;
    for word in &mut words {
        total += u64::from(u16::from_ne_bytes([word[0], word[1]]));
    }
    if let [last] = words.remainder() {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    total
}

const fn fold(mut sum: u64) -> u16 {
    sum = (sum >> 32) + (sum & 0xffff_ffff);
    sum = (sum >> 16) + (sum & 0xffff);
    sum = (sum >> 16) + (sum & 0xffff);
    sum = (sum >> 16) + (sum & 0xffff);
    sum as u16
}
