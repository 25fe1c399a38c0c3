//! Parses and prints the values and masks of fields.

use super::names::Name;
use super::ports::{Ports, Shortened};
use super::text::{Parsed, TextError, TextSlice};
use flow::{Notation, OfctlSyntax, low_bits};
use pipeline::suggestion;
use std::fmt::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr};
use wire::MacAddr;

/// A value and a mask, in the bit order of ovs-fields(7). The value is 0 outside the mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MaskedValue {
    pub value: u128,
    pub mask: u128,
}

/// Parses a decimal number, or a hexadecimal number that starts with `0x`.
pub(super) fn number(text: TextSlice<'_>) -> Parsed<u128> {
    let parsed = match text.text.strip_prefix("0x").or_else(|| text.text.strip_prefix("0X")) {
        Some(hex) if !hex.starts_with('+') => u128::from_str_radix(hex, 16),
        _ => {
            let digits = text.text;
            if digits.len() > 1 && digits.starts_with('0') {
                // Open vSwitch reads a number with a leading 0 as octal.
                return Err(text.expected("a number without a leading 0"));
            }
            match digits.starts_with('+') {
                true => return Err(text.expected("a number")),
                false => digits.parse(),
            }
        }
    };
    parsed.map_err(|_| text.expected_number())
}

/// Parses a number of at most `width` bits.
pub(super) fn number_of(text: TextSlice<'_>, width: u8) -> Parsed<u128> {
    let value = number(text)?;
    fits(text, value, width)?;
    Ok(value)
}

fn fits(text: TextSlice<'_>, value: u128, width: u8) -> Parsed<()> {
    if value & !low_bits(width) == 0 {
        return Ok(());
    }
    let plural = if width == 1 { "" } else { "s" };
    Err(text.fault(format!("`{}` does not fit into {width} bit{plural}", Shortened(text.text))))
}

impl TextSlice<'_> {
    fn expected_number(self) -> TextError {
        if self.is_empty() {
            self.fault("expected a number")
        } else {
            self.fault(format!("expected a number, found `{}`", Shortened(self.text)))
        }
    }
}

impl Name {
    /// The maximum number of bits of a value in the text.
    pub fn value_width(&self) -> u8 {
        match self.syntax {
            // Includes the bit that marks frames as tagged.
            OfctlSyntax::VlanVid => 13,
            // Allows 0xffff, which means untagged.
            OfctlSyntax::DlVlan => 16,
            _ => self.width,
        }
    }

    /// Parses `value` or `value/mask`; `*` matches any value.
    pub fn parse(&self, text: TextSlice<'_>, ports: &Ports) -> Parsed<MaskedValue> {
        let ones = low_bits(self.value_width());
        if matches!(text.text, "*" | "ANY") {
            return Ok(MaskedValue { value: 0, mask: 0 });
        }
        match self.syntax {
            OfctlSyntax::Fragment => return fragment(text),
            OfctlSyntax::Flags(names) => return flags(self, names, text),
            _ => {}
        }
        let (value_text, mask_text) = match text.split_once("/") {
            Some((value, mask)) => (value, Some(mask)),
            None => (text, None),
        };
        let value = self.parse_value(value_text, ports)?;
        let mask = match mask_text {
            None => ones,
            Some(mask_text) => {
                let mask = self.parse_mask(mask_text)?;
                if !self.maskable && mask != ones && mask != 0 {
                    return Err(mask_text.fault(format!("`{}` takes no mask", self.name)));
                }
                mask
            }
        };
        Ok(MaskedValue { value: value & mask, mask })
    }

    fn parse_value(&self, text: TextSlice<'_>, ports: &Ports) -> Parsed<u128> {
        match self.syntax {
            OfctlSyntax::Number(Notation::Mac) => mac(text),
            OfctlSyntax::Number(Notation::Ipv4) => ipv4(text),
            OfctlSyntax::Number(Notation::Ipv6) => ipv6(text),
            OfctlSyntax::Port => ports.parse(text).map(|port| port.0.into()),
            OfctlSyntax::Tos => {
                let value = number_of(text, self.width)?;
                if value & 3 != 0 {
                    return Err(text.fault(
                        "the lowest 2 bits of `nw_tos` are to be 0: they belong to `nw_ecn`",
                    ));
                }
                Ok(value)
            }
            OfctlSyntax::DlVlan => match number(text)? {
                value @ (0..=0xfff | 0xffff) => Ok(value),
                _ => Err(text.expected("a VLAN from 0 to 4095, or 0xffff for no tag")),
            },
            _ => number_of(text, self.value_width()),
        }
    }

    fn parse_mask(&self, text: TextSlice<'_>) -> Parsed<u128> {
        let prefix = || text.text.parse().ok().filter(|&len: &u8| len <= self.width);
        let of_prefix = |len: u8| low_bits(self.width) ^ low_bits(self.width - len);
        match self.syntax {
            OfctlSyntax::Number(Notation::Mac) => mac(text),
            OfctlSyntax::Number(Notation::Ipv4) if text.text.contains('.') => ipv4(text),
            OfctlSyntax::Number(Notation::Ipv6) if text.text.contains(':') => ipv6(text),
            OfctlSyntax::Number(Notation::Ipv4) | OfctlSyntax::Number(Notation::Ipv6) => {
                prefix().map(of_prefix).ok_or_else(|| {
                    text.expected(format_args!(
                        "a prefix length from 0 to {}, or a mask",
                        self.width
                    ))
                })
            }
            _ => number_of(text, self.value_width()),
        }
    }
}

fn mac(text: TextSlice<'_>) -> Parsed<u128> {
    let address: MacAddr =
        text.text.parse().map_err(|_| text.expected("a MAC address like 02:00:00:00:00:01"))?;
    Ok(address.0.iter().fold(0, |bits, &byte| bits << 8 | u128::from(byte)))
}

fn ipv4(text: TextSlice<'_>) -> Parsed<u128> {
    let address: Ipv4Addr = text.text.parse().map_err(|_| text.expected("an IPv4 address"))?;
    Ok(address.to_bits().into())
}

fn ipv6(text: TextSlice<'_>) -> Parsed<u128> {
    let address: Ipv6Addr = text.text.parse().map_err(|_| text.expected("an IPv6 address"))?;
    Ok(address.to_bits())
}

/// Name, value and mask of `ip_frag`. Bit 0 is set in all fragments, bit 1 in fragments after the
/// first.
const FRAGMENTS: [(&str, u128, u128); 5] =
    [("no", 0, 3), ("yes", 1, 1), ("first", 1, 3), ("later", 3, 3), ("not_later", 0, 2)];

fn fragment(text: TextSlice<'_>) -> Parsed<MaskedValue> {
    let found = FRAGMENTS.iter().find(|(name, ..)| *name == text.text);
    let &(_, value, mask) =
        found.ok_or_else(|| text.expected("`no`, `yes`, `first`, `later` or `not_later`"))?;
    Ok(MaskedValue { value, mask })
}

/// `+a-b`, `a|b`, `value` or `value/mask`.
fn flags(name: &Name, names: &[(&str, u8)], text: TextSlice<'_>) -> Parsed<MaskedValue> {
    let ones = low_bits(name.width);
    if text.text.starts_with(|c: char| c.is_ascii_digit()) {
        let (value_text, mask) = match text.split_once("/") {
            Some((value, mask)) => (value, number_of(mask, name.width)?),
            None => (text, ones),
        };
        let value = number_of(value_text, name.width)?;
        return Ok(MaskedValue { value: value & mask, mask });
    }
    let bit = |flag: TextSlice<'_>| {
        let found = names.iter().find(|(known, _)| *known == flag.text);
        let &(_, bit) = found.ok_or_else(|| {
            let near = suggestion(flag.text, names.iter().map(|(known, _)| *known));
            flag.fault(format!("`{}` has no flag `{}`{near}", name.name, Shortened(flag.text)))
        })?;
        Ok(1u128 << bit)
    };
    let mut masked = MaskedValue { value: 0, mask: 0 };
    if !text.text.starts_with(['+', '-']) {
        let mut rest = Some(text);
        while let Some(part) = rest {
            let (flag, next) = part.split_once("|").map_or((part, None), |(a, b)| (a, Some(b)));
            masked.value |= bit(flag)?;
            rest = next;
        }
        masked.mask = ones;
        return Ok(masked);
    }
    let mut rest = text;
    while let Some(sign) = rest.text.chars().next() {
        let after = rest.slice(1, rest.text.len());
        let len = after.text.find(['+', '-']).unwrap_or(after.text.len());
        let flag = after.slice(0, len);
        let bit = bit(flag)?;
        if masked.mask & bit != 0 {
            return Err(flag.fault(format!("duplicate flag `{}`", flag.text)));
        }
        masked.mask |= bit;
        masked.value |= if sign == '+' { bit } else { 0 };
        rest = after.slice(len, after.text.len());
    }
    Ok(masked)
}

/// Prints a value of a field, with its mask if it has one.
pub(super) struct DisplayValue<'n> {
    pub name: &'n Name,
    pub masked: MaskedValue,
}

impl fmt::Display for DisplayValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MaskedValue { value, mask } = self.masked;
        let ones = low_bits(self.name.value_width());
        let exact = mask == ones;
        match self.name.syntax {
            OfctlSyntax::Fragment => {
                let known = FRAGMENTS.iter().find(|&&(_, v, m)| (v, m) == (value, mask));
                match known {
                    Some((name, ..)) => f.write_str(name),
                    None => write!(f, "{value:#x}/{mask:#x}"),
                }
            }
            OfctlSyntax::Flags(names) => show_flags(f, names, self.masked, ones),
            OfctlSyntax::Number(Notation::Mac) => {
                show_mac(f, value)?;
                if exact {
                    return Ok(());
                }
                f.write_char('/')?;
                show_mac(f, mask)
            }
            OfctlSyntax::Number(Notation::Ipv4) => {
                write!(f, "{}", Ipv4Addr::from_bits(value as u32))?;
                let mask = mask as u32;
                match (mask.leading_ones(), mask.count_ones()) {
                    (32, _) => Ok(()),
                    (prefix, ones) if prefix == ones => write!(f, "/{prefix}"),
                    _ => write!(f, "/{}", Ipv4Addr::from_bits(mask)),
                }
            }
            OfctlSyntax::Number(Notation::Ipv6) => {
                write!(f, "{}", Ipv6Addr::from_bits(value))?;
                match (mask.leading_ones(), mask.count_ones()) {
                    (128, _) => Ok(()),
                    (prefix, ones) if prefix == ones => write!(f, "/{prefix}"),
                    _ => write!(f, "/{}", Ipv6Addr::from_bits(mask)),
                }
            }
            OfctlSyntax::EtherType => write!(f, "{value:#06x}"),
            OfctlSyntax::Number(Notation::Hexadecimal) | OfctlSyntax::TunnelOption(_) if exact => {
                write!(f, "{value:#x}")
            }
            _ if exact => write!(f, "{value}"),
            _ => write!(f, "{value:#x}/{mask:#x}"),
        }
    }
}

fn show_mac(f: &mut fmt::Formatter<'_>, bits: u128) -> fmt::Result {
    let [_, _, bytes @ ..] = (bits as u64).to_be_bytes();
    write!(f, "{}", MacAddr(bytes))
}

/// Prints flags by their names if every bit has a name.
fn show_flags(
    f: &mut fmt::Formatter<'_>,
    names: &[(&str, u8)],
    masked: MaskedValue,
    ones: u128,
) -> fmt::Result {
    let MaskedValue { value, mask } = masked;
    let named = names.iter().fold(0, |bits, &(_, bit)| bits | 1u128 << bit);
    if mask == ones && names.len() > 1 {
        if value == 0 || value & !named != 0 {
            return write!(f, "{value:#x}");
        }
        let set = names.iter().filter(|&&(_, bit)| value >> bit & 1 != 0);
        for (place, (name, _)) in set.enumerate() {
            write!(f, "{}{name}", if place > 0 { "|" } else { "" })?;
        }
        return Ok(());
    }
    if mask & !named != 0 {
        return write!(f, "{value:#x}/{mask:#x}");
    }
    for &(name, bit) in names.iter().filter(|&&(_, bit)| mask >> bit & 1 != 0) {
        write!(f, "{}{name}", if value >> bit & 1 != 0 { '+' } else { '-' })?;
    }
    Ok(())
}
