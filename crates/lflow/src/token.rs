//! The tokens of the language, and their canonical form.

use std::borrow::Cow;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

/// A token and its position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Token<'a> {
    /// The kind and value.
    pub kind: TokenKind<'a>,
    /// The bytes of the token in the text; empty for the end.
    pub span: Range<usize>,
}

/// The kind and value of a token. `Display` writes it in canonical form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TokenKind<'a> {
    /// The end of the text.
    End,
    /// `name`; dots count as letters, so `ip4.src` is one token.
    Identifier(&'a str),
    /// `"text"`, without its quotes and escapes.
    Text(Cow<'a, str>),
    /// `12`, `0x12`, `10.0.0.1`, `fe80::1`, `00:00:00:00:00:01`, or one of these with `/` and a
    /// mask.
    Integer(Constant),
    /// `$name`.
    AddressSet(&'a str),
    /// `@name`.
    PortGroup(&'a str),
    /// `^name`.
    Template(&'a str),
    /// Invalid bytes, with the error message.
    Error(Cow<'static, str>),
    /// `(`
    LeftParen,
    /// `)`
    RightParen,
    /// `{`
    LeftCurly,
    /// `}`
    RightCurly,
    /// `[`
    LeftSquare,
    /// `]`
    RightSquare,
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `!`
    Not,
    /// `&&`
    And,
    /// `||`
    Or,
    /// `..`
    Ellipsis,
    /// `,`
    Comma,
    /// `;`
    Semicolon,
    /// `=`
    Assign,
    /// `<->`
    Exchange,
    /// `--`
    Decrement,
    /// `:`
    Colon,
    /// `-`
    Hyphen,
}

impl fmt::Display for TokenKind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::End => "end of input",
            Self::Identifier(name) => name,
            Self::Text(text) => return write!(f, "{}", Quoted(text)),
            Self::Integer(constant) => return write!(f, "{constant}"),
            Self::AddressSet(name) => return write!(f, "${name}"),
            Self::PortGroup(name) => return write!(f, "@{name}"),
            Self::Template(name) => return write!(f, "^{name}"),
            Self::Error(message) => return write!(f, "error({})", Quoted(message)),
            Self::LeftParen => "(",
            Self::RightParen => ")",
            Self::LeftCurly => "{",
            Self::RightCurly => "}",
            Self::LeftSquare => "[",
            Self::RightSquare => "]",
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::Not => "!",
            Self::And => "&&",
            Self::Or => "||",
            Self::Ellipsis => "..",
            Self::Comma => ",",
            Self::Semicolon => ";",
            Self::Assign => "=",
            Self::Exchange => "<->",
            Self::Decrement => "--",
            Self::Colon => ":",
            Self::Hyphen => "-",
        })
    }
}

/// The notation of a number. It is kept when the number is printed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// `12`; at most 64 bits.
    Decimal,
    /// `0x12`; at most 128 bits.
    Hexadecimal,
    /// `10.0.0.1`
    Ipv4,
    /// `fe80::1`
    Ipv6,
    /// `00:00:00:00:00:01`
    Ethernet,
}

impl Format {
    /// The largest number of bits that the notation can express.
    const fn max_width(self) -> u8 {
        match self {
            Self::Decimal => 64,
            Self::Hexadecimal | Self::Ipv6 => 128,
            Self::Ipv4 => 32,
            Self::Ethernet => 48,
        }
    }
}

/// A number with an optional mask.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Constant {
    /// The value; 0 in bits outside the mask.
    pub value: u128,
    /// The mask; `None` means all bits.
    pub mask: Option<u128>,
    /// The notation.
    pub format: Format,
}

/// The number of bits that a value needs; 0 for 0.
pub(crate) const fn bit_length(value: u128) -> u8 {
    (128 - value.leading_zeros()) as u8
}

impl Constant {
    /// A number without mask.
    pub const fn new(value: u128, format: Format) -> Self {
        Self { value, mask: None, format }
    }

    /// The width that a field needs to be compared with the constant. For addresses this is the
    /// width of the address, for other numbers the width of the mask if there is one, else of the
    /// value.
    pub const fn width(&self) -> u8 {
        match (self.mask, self.format) {
            (Some(mask), _) => bit_length(mask),
            (None, Format::Decimal | Format::Hexadecimal) => bit_length(self.value),
            (None, format) => format.max_width(),
        }
    }
}

impl fmt::Display for Constant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = bit_length(self.value | self.mask.unwrap_or(0));
        let fits = bits <= self.format.max_width();
        let format = if fits { self.format } else { Format::Hexadecimal };
        write_value(f, self.value, format)?;
        let Some(mask) = self.mask else { return Ok(()) };
        f.write_str("/")?;
        let prefix = match format {
            Format::Ipv4 => prefix_length(mask << 96, 32),
            Format::Ipv6 => prefix_length(mask, 128),
            Format::Decimal | Format::Hexadecimal | Format::Ethernet => None,
        };
        match prefix {
            Some(length) => write!(f, "{length}"),
            None => write_value(f, mask, format),
        }
    }
}

/// The prefix length of a mask, if its ones are all at the top and there are at most `width`.
fn prefix_length(mask: u128, width: u32) -> Option<u32> {
    let ones = mask.leading_ones();
    (ones <= width && mask.checked_shl(ones).unwrap_or(0) == 0).then_some(ones)
}

fn write_value(f: &mut fmt::Formatter<'_>, value: u128, format: Format) -> fmt::Result {
    match format {
        Format::Decimal => write!(f, "{value}"),
        Format::Hexadecimal => write!(f, "{}", Hex(value)),
        Format::Ipv4 => write!(f, "{}", Ipv4Addr::from_bits(value as u32)),
        // inet_ntop(3) writes the last 32 bits of such addresses in IPv4 notation.
        Format::Ipv6 if value >> 32 == 0 && value >> 16 != 0 => {
            write!(f, "::{}", Ipv4Addr::from_bits(value as u32))
        }
        Format::Ipv6 => write!(f, "{}", Ipv6Addr::from_bits(value)),
        Format::Ethernet => {
            let [_, _, bytes @ ..] = (value as u64).to_be_bytes();
            for (at, byte) in bytes.iter().enumerate() {
                write!(f, "{}{byte:02x}", if at == 0 { "" } else { ":" })?;
            }
            Ok(())
        }
    }
}

/// Writes a number as `0x12`, and 0 as `0`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hex(pub(crate) u128);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { f.write_str("0") } else { write!(f, "{:#x}", self.0) }
    }
}

/// Writes a string in quotes, with JSON's escapes.
#[derive(Clone, Copy, Debug)]
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        let mut rest = self.0;
        while let Some(at) = rest.find(|c: char| c < ' ' || c == '"' || c == '\\') {
            let (plain, special) = rest.split_at(at);
            f.write_str(plain)?;
            match special.as_bytes()[0] {
                b'"' => f.write_str("\\\"")?,
                b'\\' => f.write_str("\\\\")?,
                b'\n' => f.write_str("\\n")?,
                b'\r' => f.write_str("\\r")?,
                b'\t' => f.write_str("\\t")?,
                8 => f.write_str("\\b")?,
                12 => f.write_str("\\f")?,
                other => write!(f, "\\u{other:04x}")?,
            }
            rest = &special[1..];
        }
        write!(f, "{rest}\"")
    }
}
