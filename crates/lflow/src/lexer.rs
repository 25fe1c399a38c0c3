//! [`Lexer`]: splits a text into tokens. It gives parsers the current token, a lookahead, and
//! errors at the token.
//!
//! It runs in linear time and never fails. Invalid bytes become a [`TokenKind::Error`], which no
//! grammar rule accepts, so that the parser reports it.

use super::error::SyntaxError;
use super::token::{Constant, Format, Token, TokenKind};
use std::borrow::Cow;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

/// The longest part of the text that an error message quotes, in bytes.
const MAX_QUOTED_BYTES: usize = 100;

/// A text and its current token.
#[derive(Clone, Debug)]
pub struct Lexer<'a> {
    text: &'a str,
    token: Token<'a>,
}

impl<'a> Lexer<'a> {
    /// Starts at the first token of `text`.
    pub fn new(text: &'a str) -> Self {
        Self { text, token: token_at(text, 0) }
    }

    /// The current token.
    pub const fn token(&self) -> &Token<'a> {
        &self.token
    }

    /// The kind and value of the current token.
    pub const fn kind(&self) -> &TokenKind<'a> {
        &self.token.kind
    }

    /// The bytes of the current token.
    pub fn span(&self) -> Range<usize> {
        self.token.span.clone()
    }

    /// The text of a byte range.
    pub fn text(&self, span: Range<usize>) -> &'a str {
        self.text.get(span).unwrap_or_default()
    }

    /// Moves to the next token and returns the one before. At the end of the text, it stays there.
    pub fn advance(&mut self) -> Token<'a> {
        let next = token_at(self.text, self.token.span.end);
        std::mem::replace(&mut self.token, next)
    }

    /// The token after the current one.
    pub fn lookahead(&self) -> Token<'a> {
        token_at(self.text, self.token.span.end)
    }

    /// Advances if the current token is `kind`. Returns whether it was.
    pub fn accept(&mut self, kind: &TokenKind<'_>) -> bool {
        let accepted = self.token.kind == *kind;
        if accepted {
            self.advance();
        }
        accepted
    }

    /// Advances if the current token is this identifier. Returns whether it was.
    pub fn accept_identifier(&mut self, name: &str) -> bool {
        self.accept(&TokenKind::Identifier(name))
    }

    /// Advances if the current token is `kind`.
    ///
    /// # Errors
    ///
    /// "Syntax error at ... expecting `kind'."
    pub fn expect(&mut self, kind: &TokenKind<'_>) -> Result<(), SyntaxError> {
        match kind {
            _ if self.accept(kind) => Ok(()),
            TokenKind::End => Err(self.expecting("end of input")),
            _ => Err(self.expecting(&format!("`{kind}'"))),
        }
    }

    /// Returns the current token if it is a decimal number of at most 31 bits, and advances.
    ///
    /// # Errors
    ///
    /// "Syntax error at ... expecting small integer."
    pub fn expect_small_integer(&mut self) -> Result<u32, SyntaxError> {
        match self.token.kind {
            TokenKind::Integer(Constant { value, mask: None, format: Format::Decimal })
                if value <= i32::MAX as u128 =>
            {
                self.advance();
                Ok(value as u32)
            }
            _ => Err(self.expecting("small integer")),
        }
    }

    /// An error: something else was expected at the current token.
    pub fn expecting(&self, what: &str) -> SyntaxError {
        if self.token.kind == TokenKind::End {
            return self.error(format!("Syntax error at end of input expecting {what}."));
        }
        let found = self.text(self.span());
        let shown = &found[..found.floor_char_boundary(MAX_QUOTED_BYTES)];
        let more = if shown.len() < found.len() { "..." } else { "" };
        self.error(format!("Syntax error at `{shown}{more}' expecting {what}."))
    }

    /// An error at the current token. An invalid token has its own message, which takes precedence.
    pub fn error(&self, message: impl Into<String>) -> SyntaxError {
        match &self.token.kind {
            TokenKind::Error(lexical) => SyntaxError::new(self.span(), lexical.clone()),
            _ => SyntaxError::new(self.span(), message),
        }
    }
}

/// The first token at or after byte `from`.
fn token_at(text: &str, from: usize) -> Token<'_> {
    let mut start = from;
    loop {
        let rest = text.get(start..).unwrap_or_default();
        start += rest.len() - rest.trim_start_matches(is_space).len();
        match comment(text.get(start..).unwrap_or_default()) {
            Comment::None => break,
            Comment::Ends(length) => start += length,
            Comment::Open(length) => {
                let kind = error("`/*' without matching `*/'.");
                return Token { kind, span: start..start + length };
            }
        }
    }
    let (kind, length) = scan(text.get(start..).unwrap_or_default());
    Token { kind, span: start..start + length }
}

const fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}

const fn error<'a>(message: &'static str) -> TokenKind<'a> {
    TokenKind::Error(Cow::Borrowed(message))
}

/// A comment at the beginning of a text, with its length in bytes.
enum Comment {
    None,
    Ends(usize),
    Open(usize),
}

fn comment(text: &str) -> Comment {
    let block = match text.as_bytes() {
        [b'/', b'/', ..] => false,
        [b'/', b'*', ..] => true,
        _ => return Comment::None,
    };
    let line = text.find('\n').unwrap_or(text.len());
    if !block {
        return Comment::Ends(line);
    }
    match text.get(2..line).and_then(|inside| inside.find("*/")) {
        Some(end) => Comment::Ends(2 + end + 2),
        None => Comment::Open(line),
    }
}

const fn is_name_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte == b'.'
}

const fn is_name(byte: u8) -> bool {
    is_name_start(byte) || byte.is_ascii_digit()
}

/// The number of bytes at the beginning of `bytes` that satisfy `is_part`.
fn run(bytes: &[u8], is_part: impl Fn(u8) -> bool) -> usize {
    bytes.iter().position(|&byte| !is_part(byte)).unwrap_or(bytes.len())
}

/// The token at the beginning of `text`, and its length in bytes.
fn scan(text: &str) -> (TokenKind<'_>, usize) {
    let bytes = text.as_bytes();
    let second = bytes.get(1).copied();
    let Some(&first) = bytes.first() else { return (TokenKind::End, 0) };
    match first {
        b'0'..=b'9' => integer(text),
        b':' if second == Some(b':') => integer(text),
        // Hexadecimal digits and a colon begin an address; no identifier contains a colon.
        b'a'..=b'f' | b'A'..=b'F'
            if bytes.get(run(bytes, |byte| byte.is_ascii_hexdigit())) == Some(&b':') =>
        {
            integer(text)
        }
        b'"' => string(text),
        b'.' => match second {
            Some(b'.') => (TokenKind::Ellipsis, 2),
            _ => (error("`.' is only valid as part of `..' or a number."), 1),
        },
        _ if is_name_start(first) => {
            let length = run(bytes, is_name);
            (TokenKind::Identifier(&text[..length]), length)
        }
        b'$' => named(text, TokenKind::AddressSet, "`$' must be followed by a valid identifier."),
        b'@' => named(text, TokenKind::PortGroup, "`@' must be followed by a valid identifier."),
        b'^' => named(text, TokenKind::Template, "`^' must be followed by a valid identifier."),
        _ => punctuation(text),
    }
}

/// An identifier after a sigil: `$`, `@` or `^`.
fn named<'a>(
    text: &'a str,
    kind: impl Fn(&'a str) -> TokenKind<'a>,
    message: &'static str,
) -> (TokenKind<'a>, usize) {
    let name = &text[1..];
    match name.as_bytes().first() {
        Some(&first) if is_name_start(first) => {
            let length = run(name.as_bytes(), is_name);
            (kind(&name[..length]), 1 + length)
        }
        _ => (error(message), 1),
    }
}

fn punctuation(text: &str) -> (TokenKind<'_>, usize) {
    let kind = match text.as_bytes() {
        [b'<', b'-', b'>', ..] => return (TokenKind::Exchange, 3),
        [b'=', b'=', ..] => return (TokenKind::Equal, 2),
        [b'!', b'=', ..] => return (TokenKind::NotEqual, 2),
        [b'<', b'=', ..] => return (TokenKind::LessOrEqual, 2),
        [b'>', b'=', ..] => return (TokenKind::GreaterOrEqual, 2),
        [b'&', b'&', ..] => return (TokenKind::And, 2),
        [b'|', b'|', ..] => return (TokenKind::Or, 2),
        [b'-', b'-', ..] => return (TokenKind::Decrement, 2),
        [b'(', ..] => TokenKind::LeftParen,
        [b')', ..] => TokenKind::RightParen,
        [b'{', ..] => TokenKind::LeftCurly,
        [b'}', ..] => TokenKind::RightCurly,
        [b'[', ..] => TokenKind::LeftSquare,
        [b']', ..] => TokenKind::RightSquare,
        [b'=', ..] => TokenKind::Assign,
        [b'!', ..] => TokenKind::Not,
        [b'<', ..] => TokenKind::Less,
        [b'>', ..] => TokenKind::Greater,
        [b',', ..] => TokenKind::Comma,
        [b';', ..] => TokenKind::Semicolon,
        [b'-', ..] => TokenKind::Hyphen,
        [b':', ..] => TokenKind::Colon,
        [b'&', ..] => error("`&' is only valid as part of `&&'."),
        [b'|', ..] => error("`|' is only valid as part of `||'."),
        [b'/', ..] => error("`/' is only valid as part of `//' or `/*'."),
        _ => return unknown(text),
    };
    (kind, 1)
}

fn unknown(text: &str) -> (TokenKind<'_>, usize) {
    let c = text.chars().next().unwrap_or_default();
    let message = if c.is_control() {
        format!("Invalid byte {:#04x} in input.", u32::from(c))
    } else {
        format!("Invalid character `{c}' in input.")
    };
    (TokenKind::Error(message.into()), c.len_utf8())
}

/// A quoted string.
fn string(text: &str) -> (TokenKind<'_>, usize) {
    let bytes = text.as_bytes();
    let mut at = 1;
    let mut escapes = false;
    loop {
        at += run(bytes.get(at..).unwrap_or_default(), |byte| byte != b'"' && byte != b'\\');
        match bytes.get(at) {
            Some(b'"') => break,
            Some(_) => {
                escapes = true;
                at += 2;
            }
            None => return (error("Input ends inside quoted string."), bytes.len()),
        }
    }
    let inside = text.get(1..at).unwrap_or_default();
    let kind = if inside.contains('\0') {
        error("Null character in quoted string.")
    } else if escapes {
        match unescape(inside) {
            Ok(text) => TokenKind::Text(text.into()),
            Err(message) => TokenKind::Error(message),
        }
    } else {
        TokenKind::Text(inside.into())
    };
    (kind, at + 1)
}

/// Decodes the escapes of a string (RFC 8259 section 7). U+0000 is an error because names cannot
/// contain it.
fn unescape(text: &str) -> Result<String, Cow<'static, str>> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, escape)) = rest.split_once('\\') {
        plain.push_str(before);
        let mut chars = escape.chars();
        let c = match chars.next() {
            Some(c @ ('"' | '\\' | '/')) => c,
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('u') => {
                let (c, length) = unicode(chars.as_str())?;
                chars = chars.as_str().get(length..).unwrap_or_default().chars();
                c
            }
            Some(c) => return Err(format!("Bad escape `\\{c}' in quoted string.").into()),
            None => return Err("Quoted string may not end with backslash.".into()),
        };
        plain.push(c);
        rest = chars.as_str();
    }
    plain.push_str(rest);
    Ok(plain)
}

/// Decodes the escape that follows `\u`. Returns the character and the length in bytes.
fn unicode(text: &str) -> Result<(char, usize), &'static str> {
    const MALFORMED: &str = "Malformed `\\u' escape in quoted string.";
    let unit = |at: usize| {
        let digits = text.get(at..at + 4)?;
        let all = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        all.then(|| u16::from_str_radix(digits, 16).ok())?
    };
    let first = unit(0).ok_or(MALFORMED)?;
    let paired = matches!(first, 0xd800..0xdc00) && text.get(4..6) == Some("\\u");
    let units = [first, if paired { unit(6).ok_or(MALFORMED)? } else { 0 }];
    match char::decode_utf16(units).next() {
        Some(Ok('\0')) => Err("Null character in quoted string."),
        Some(Ok(c)) => Ok((c, if paired { 10 } else { 4 })),
        _ => Err("Unpaired surrogate in quoted string."),
    }
}

/// A number with an optional mask.
fn integer(text: &str) -> (TokenKind<'_>, usize) {
    let (number, length) = unmasked(text);
    let value = match number {
        Ok(value) => value,
        Err(message) => return (TokenKind::Error(message.into()), length),
    };
    let Some(behind) = text.get(length..).and_then(|rest| rest.strip_prefix('/')) else {
        return (TokenKind::Integer(value), length);
    };
    let (mask, mask_length) = unmasked(behind);
    let kind = match mask.and_then(|mask| masked(value, mask)) {
        Ok(constant) => TokenKind::Integer(constant),
        Err(message) => TokenKind::Error(message.into()),
    };
    (kind, length + 1 + mask_length)
}

fn masked(value: Constant, mask: Constant) -> Result<Constant, &'static str> {
    let (format, mask) = match (value.format, mask.format) {
        (format, same) if format == same => (format, mask.value),
        (Format::Ipv4, Format::Decimal) if mask.value <= 32 => {
            (Format::Ipv4, u128::from(!u32::MAX.checked_shr(mask.value as u32).unwrap_or(0)))
        }
        (Format::Ipv6, Format::Decimal) if mask.value <= 128 => {
            (Format::Ipv6, !u128::MAX.checked_shr(mask.value as u32).unwrap_or(0))
        }
        (Format::Decimal, Format::Hexadecimal) if value.value == 0 => {
            (Format::Hexadecimal, mask.value)
        }
        _ => return Err("Value and mask have incompatible formats."),
    };
    Ok(Constant { value: value.value & mask, mask: Some(mask), format })
}

/// A number without mask, and its length in bytes.
///
/// Letters, digits, colons and dots belong to the number, with two exceptions. Two dots in a row
/// are an ellipsis. A colon after a dot ends an IPv4 address (`10.0.0.1:80`), because an IPv6
/// address has dots only at its end.
fn unmasked(text: &str) -> (Result<Constant, &'static str>, usize) {
    let bytes = text.as_bytes();
    let mut dot = false;
    let mut length = 0;
    while let Some(&byte) = bytes.get(length) {
        match byte {
            b'.' if bytes.get(length + 1) == Some(&b'.') => break,
            b'.' => dot = true,
            b':' if !dot => {}
            _ if byte.is_ascii_alphanumeric() => {}
            _ => break,
        }
        length += 1;
    }
    (number(&text[..length]), length)
}

fn number(text: &str) -> Result<Constant, &'static str> {
    let bytes = text.as_bytes();
    if bytes.is_empty() {
        return Err("Integer constant expected.");
    }
    if bytes.iter().all(u8::is_ascii_digit) {
        if bytes.len() > 1 && bytes[0] == b'0' {
            return Err("Decimal constants must not have leading zeros.");
        }
        let value = text.parse::<u64>();
        let value = value.map_err(|_| "Decimal constants must be less than 2**64.")?;
        return Ok(Constant::new(value.into(), Format::Decimal));
    }
    if let [b'0', b'x' | b'X', digits @ ..] = bytes {
        let missing = if bytes[1] == b'x' {
            "Hex digits expected following 0x."
        } else {
            "Hex digits expected following 0X."
        };
        return hexadecimal(digits, missing);
    }
    if let Some(value) = ethernet(bytes) {
        return Ok(Constant::new(value, Format::Ethernet));
    }
    if let Ok(address) = text.parse::<Ipv4Addr>() {
        return Ok(Constant::new(address.to_bits().into(), Format::Ipv4));
    }
    let address = text.parse::<Ipv6Addr>().map_err(|_| "Invalid numeric constant.")?;
    Ok(Constant::new(address.to_bits(), Format::Ipv6))
}

fn hexadecimal(digits: &[u8], missing: &'static str) -> Result<Constant, &'static str> {
    if digits.is_empty() {
        return Err(missing);
    }
    let mut value = 0u128;
    for &byte in digits {
        let digit = (byte as char).to_digit(16);
        let digit = digit.ok_or("Invalid syntax in hexadecimal constant.")?;
        if value >> 124 != 0 {
            return Err("Hexadecimal constant requires more than 128 bits.");
        }
        value = value << 4 | u128::from(digit);
    }
    Ok(Constant::new(value, Format::Hexadecimal))
}

/// Six pairs of hexadecimal digits, separated by colons.
fn ethernet(bytes: &[u8]) -> Option<u128> {
    if bytes.len() != 17 {
        return None;
    }
    bytes.iter().enumerate().try_fold(0, |value, (at, &byte)| match (at % 3, byte) {
        (2, b':') => Some(value),
        (2, _) => None,
        (_, byte) => Some(value << 4 | u128::from((byte as char).to_digit(16)?)),
    })
}

#[cfg(test)]
mod tests;
