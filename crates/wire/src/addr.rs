//! Identifiers in headers: MAC addresses, VXLAN and Geneve network identifiers, VLAN identifiers.

use std::fmt;
use std::str::FromStr;

/// A 48-bit IEEE 802 MAC address, in transmission order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// 00:00:00:00:00:00.
    pub const ZERO: Self = Self([0; 6]);

    /// True for group addresses (multicast and broadcast): the I/G bit is set.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// True for an address that one station can own: neither a group address nor all zero.
    pub fn is_unicast(self) -> bool {
        !self.is_multicast() && self != Self::ZERO
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error for a string that is not a MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a MAC address: expected six hexadecimal bytes separated by colons, \
     such as 02:00:00:00:00:01"
)]
pub struct MacAddrError;

impl FromStr for MacAddr {
    type Err = MacAddrError;

    fn from_str(text: &str) -> Result<Self, MacAddrError> {
        let mut octets = [0; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().ok_or(MacAddrError)?;
            if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(MacAddrError);
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| MacAddrError)?;
        }
        if parts.next().is_some() { Err(MacAddrError) } else { Ok(Self(octets)) }
    }
}

/// A 24-bit virtual network identifier (VXLAN RFC 7348 section 5, Geneve RFC 8926 section 3.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Vni(u32);

impl Vni {
    /// The largest VNI, 2^24 - 1.
    pub const MAX: u32 = 0xff_ffff;

    /// `None` when `value` does not fit in 24 bits.
    pub const fn new(value: u32) -> Option<Self> {
        if value <= Self::MAX { Some(Self(value)) } else { None }
    }

    /// The lowest 24 bits of `value`.
    #[inline]
    pub const fn low_bits(value: u32) -> Self {
        Self(value & Self::MAX)
    }

    /// Decodes the three bytes in a header.
    pub const fn from_be_bytes(bytes: [u8; 3]) -> Self {
        Self(u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]))
    }

    /// The three bytes in a header.
    pub const fn to_be_bytes(self) -> [u8; 3] {
        let [_, a, b, c] = self.0.to_be_bytes();
        [a, b, c]
    }

    /// The number, 0 to 2^24 - 1.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A 12-bit VLAN identifier, 1 to 4094. IEEE 802.1Q section 9.6 reserves 4095 and uses 0 for
/// priority tags.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct VlanId(u16);

impl VlanId {
    /// `None` unless `value` is 1 to 4094.
    pub const fn new(value: u16) -> Option<Self> {
        if value >= 1 && value <= 4094 { Some(Self(value)) } else { None }
    }

    /// The number, 1 to 4094.
    pub const fn value(self) -> u16 {
        self.0
    }
}

impl fmt::Display for VlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_round_trips_through_text() {
        let mac: MacAddr = "02:00:5e:Ff:00:01".parse().unwrap();
        assert_eq!(mac.to_string(), "02:00:5e:ff:00:01");
    }

    #[test]
    fn mac_is_refused_when_malformed() {
        for text in [
            "",
            "02:00",
            "02:00:00:00:00:00:00",
            "2:0:0:0:0:0",
            "+2:00:00:00:00:00",
            "02-00-00-00-00-01",
        ] {
            assert_eq!(text.parse::<MacAddr>(), Err(MacAddrError), "{text:?}");
        }
    }

    #[test]
    fn identifiers_are_refused_when_out_of_range() {
        assert_eq!(Vni::new(1 << 24), None);
        assert_eq!(Vni::new(Vni::MAX).map(Vni::to_be_bytes), Some([0xff; 3]));
        assert_eq!((VlanId::new(0), VlanId::new(4095)), (None, None));
    }
}
