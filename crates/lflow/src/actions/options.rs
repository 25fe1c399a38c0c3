//! Options of actions that OVN leaves to ovn-controller: DHCP, DHCPv6, router advertisements,
//! events.

use super::ast::OptionProtocol;
use super::option_table::{DHCP4, DHCP6, EMPTY_LB_BACKENDS, KnownOption, ND_RA, ValueKind};
use super::parse::Parser;
use crate::error::SyntaxError;
use crate::token::{Constant, Format, Quoted, TokenKind};
use std::fmt;

/// `NAME = VALUE`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ActionOption {
    /// The option, one of those that the action accepts.
    pub known: &'static KnownOption,
    /// The value. Only whether it is a string or a number has been checked against the option.
    pub value: OptionValue,
}

/// The value of an option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OptionValue {
    /// A number or address.
    Number(Constant),
    /// A string.
    Text(Box<str>),
    /// One or more numbers or addresses, in braces.
    Numbers(Box<[Constant]>),
    /// One or more strings, in braces.
    Texts(Box<[Box<str>]>),
}

/// The only event that `trigger_event` accepts.
pub(super) const EVENT: &str = "empty_lb_backends";

impl OptionProtocol {
    /// The options of the protocol.
    pub const fn table(self) -> &'static [KnownOption] {
        match self {
            Self::Dhcp4 => DHCP4,
            Self::Dhcp6 => DHCP6,
            Self::NdRa => ND_RA,
        }
    }

    /// The name of the protocol in errors.
    const fn title(self) -> &'static str {
        match self {
            Self::Dhcp4 => "DHCPv4",
            Self::Dhcp6 => "DHCPv6",
            Self::NdRa => "IPv6 ND RA",
        }
    }
}

impl Parser<'_> {
    /// Parses `OPTION = VALUE, ...)`.
    pub(super) fn put_options(
        &mut self,
        protocol: OptionProtocol,
    ) -> Result<Box<[ActionOption]>, SyntaxError> {
        let options = self.options(protocol.table(), protocol.title())?;
        let has = |name| options.iter().any(|option| option.name() == name);
        match protocol {
            OptionProtocol::Dhcp4 if !has("offerip") => {
                Err(self.error_whole("put_dhcp_opts requires offerip to be specified."))
            }
            OptionProtocol::NdRa => self.check_nd_ra(&options).map(|()| options),
            OptionProtocol::Dhcp4 | OptionProtocol::Dhcp6 => Ok(options),
        }
    }

    fn check_nd_ra(&self, options: &[ActionOption]) -> Result<(), SyntaxError> {
        for option in options {
            if !is_valid_in_ra(option) {
                let message = format!("Invalid value for \"{}\" option", option.name());
                return Err(self.error_whole(message));
            }
        }
        let has = |name| options.iter().any(|option| option.name() == name);
        let stateful = options
            .iter()
            .any(|option| option.name() == "addr_mode" && option.text() == Some("dhcpv6_stateful"));
        if !has("slla") {
            Err(self.error_whole("slla option not present"))
        } else if !stateful && !has("prefix") {
            Err(self.error_whole(
                "prefix option needs to be set when address mode is slaac/dhcpv6_stateless.",
            ))
        } else {
            Ok(())
        }
    }

    /// Parses `OPTION = VALUE, ...)` of the event.
    pub(super) fn event_options(&mut self) -> Result<Box<[ActionOption]>, SyntaxError> {
        let options = self.options(EMPTY_LB_BACKENDS, EVENT)?;
        for option in &options {
            let Some(text) = option.text() else {
                let message = format!("Invalid value for \"{}\" option", option.name());
                return Err(self.error_whole(message));
            };
            let message = match option.name() {
                "vip" if super::balance::backend(text).is_none() => {
                    format!("Invalid load balancer VIP '{text}'")
                }
                "protocol" if super::ast::Transport::from_name(text).is_none() => {
                    format!("Load balancer protocol '{text}' is not 'tcp', 'udp', or 'sctp'")
                }
                "load_balancer" if !is_uuid(text) => {
                    format!("Load balancer '{text}' is not a UUID")
                }
                _ => continue,
            };
            return Err(self.error_whole(message));
        }
        Ok(options)
    }

    fn options(
        &mut self,
        table: &'static [KnownOption],
        title: &str,
    ) -> Result<Box<[ActionOption]>, SyntaxError> {
        let mut options = Vec::new();
        while !self.accept(&TokenKind::RightParen) {
            options.push(self.option(table, title)?);
            self.accept(&TokenKind::Comma);
        }
        Ok(options.into())
    }

    fn option(
        &mut self,
        table: &'static [KnownOption],
        title: &str,
    ) -> Result<ActionOption, SyntaxError> {
        let known = match self.kind() {
            TokenKind::Identifier(name) => table.iter().find(|known| known.name == *name),
            _ => None,
        };
        let Some(known) = known else {
            return Err(self.expecting(&format!("{title} option name")));
        };
        self.advance();
        self.expect(&TokenKind::Assign)?;
        let start = self.span().start;
        let value = self.option_value()?;
        let is_text = matches!(value, OptionValue::Text(_) | OptionValue::Texts(_));
        let required = match known.kind {
            ValueKind::HostId => return Ok(ActionOption { known, value }),
            ValueKind::Str | ValueKind::Domains | ValueKind::Domain if !is_text => "string",
            ValueKind::Str | ValueKind::Domains | ValueKind::Domain => {
                return Ok(ActionOption { known, value });
            }
            _ if is_text => "numeric",
            _ => return Ok(ActionOption { known, value }),
        };
        let name = known.name;
        Err(self.error_from(start, format!("{title} option {name} requires {required} value.")))
    }

    fn option_value(&mut self) -> Result<OptionValue, SyntaxError> {
        if !self.accept(&TokenKind::LeftCurly) {
            return match self.text() {
                Some(text) => Ok(OptionValue::Text(text)),
                None => Ok(OptionValue::Number(self.number()?)),
            };
        }
        let (mut numbers, mut texts) = (Vec::new(), Vec::new());
        loop {
            match self.kind() {
                TokenKind::Text(_) if !numbers.is_empty() => return Err(self.expecting("integer")),
                TokenKind::Integer(_) if !texts.is_empty() => return Err(self.expecting("string")),
                _ => match self.text() {
                    Some(text) => texts.push(text),
                    None => numbers.push(self.number()?),
                },
            }
            self.accept(&TokenKind::Comma);
            if self.accept(&TokenKind::RightCurly) {
                break;
            }
        }
        Ok(if texts.is_empty() {
            OptionValue::Numbers(numbers.into())
        } else {
            OptionValue::Texts(texts.into())
        })
    }
}

impl ActionOption {
    /// The name of the option.
    pub const fn name(&self) -> &'static str {
        self.known.name
    }

    /// The numbers of the value; none if it is a string.
    pub(super) fn numbers(&self) -> &[Constant] {
        match &self.value {
            OptionValue::Number(number) => std::slice::from_ref(number),
            OptionValue::Numbers(numbers) => numbers,
            OptionValue::Text(_) | OptionValue::Texts(_) => &[],
        }
    }

    /// The first string of the value.
    pub(super) fn first_text(&self) -> Option<&str> {
        match &self.value {
            OptionValue::Text(text) => Some(text),
            OptionValue::Texts(texts) => texts.first().map(|text| &**text),
            OptionValue::Number(_) | OptionValue::Numbers(_) => None,
        }
    }

    /// The string, if the value is a single string.
    fn text(&self) -> Option<&str> {
        match &self.value {
            OptionValue::Text(text) => Some(text),
            OptionValue::Texts(texts) if texts.len() == 1 => texts.first().map(|text| &**text),
            _ => None,
        }
    }

    /// The number, if the value is a single number.
    fn number(&self) -> Option<&Constant> {
        match &self.value {
            OptionValue::Number(number) => Some(number),
            OptionValue::Numbers(numbers) if numbers.len() == 1 => numbers.first(),
            _ => None,
        }
    }
}

/// True when the value can be sent in a router advertisement.
fn is_valid_in_ra(option: &ActionOption) -> bool {
    let text = option.text();
    let has_format = |format| option.number().is_some_and(|number| number.format == format);
    match option.name() {
        "addr_mode" => matches!(text, Some("slaac" | "dhcpv6_stateful" | "dhcpv6_stateless")),
        "router_preference" => matches!(text, Some("MEDIUM" | "HIGH" | "LOW")),
        "slla" => has_format(Format::Ethernet),
        "prefix" => {
            has_format(Format::Ipv6) && option.number().is_some_and(|number| number.mask.is_some())
        }
        "mtu" => has_format(Format::Decimal),
        "rdnss" => has_format(Format::Ipv6),
        _ => text.is_some(),
    }
}

/// 8-4-4-4-12 hexadecimal digits.
fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

impl fmt::Display for ActionOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = ", self.name())?;
        match &self.value {
            OptionValue::Number(number) => number.fmt(f),
            OptionValue::Text(text) => Quoted(text).fmt(f),
            OptionValue::Numbers(numbers) => braces(f, numbers.iter()),
            OptionValue::Texts(texts) => braces(f, texts.iter().map(|text| Quoted(text))),
        }
    }
}

fn braces(
    f: &mut fmt::Formatter<'_>,
    values: impl Iterator<Item = impl fmt::Display>,
) -> fmt::Result {
    f.write_str("{")?;
    for (at, value) in values.enumerate() {
        write!(f, "{}{value}", if at == 0 { "" } else { ", " })?;
    }
    f.write_str("}")
}
