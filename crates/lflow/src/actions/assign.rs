//! Parses statements that begin with a field: `FIELD = ...;` and `FIELD <-> FIELD;`.

use super::ast::{Action, Check, CtValue, IpVersion, OptionProtocol};
use super::parse::{FieldRequirement, Parser};
use crate::error::SyntaxError;
use crate::symbol::{FieldRef, SymbolMeaning};
use crate::token::{Constant, TokenKind};
use std::ops::Range;

/// The field on the left side, and its position.
type AssignedField = (FieldRef, Range<usize>);

impl Parser<'_> {
    pub(super) fn assignment(&mut self) -> Result<Action, SyntaxError> {
        let start = self.span().start;
        let field = self.any_field()?;
        let left = (field, self.since(start));
        if field.symbol().meaning == SymbolMeaning::IcmpMtu {
            return self.load_frag_mtu(left);
        }
        if self.accept(&TokenKind::Exchange) {
            return self.move_or_exchange(left, true);
        }
        if !self.accept(&TokenKind::Assign) {
            return Err(self.expecting("`=' or `<->'"));
        }
        match *self.kind() {
            TokenKind::Identifier(name) if self.is_followed_by(&TokenKind::LeftParen) => {
                self.call(name, left)
            }
            TokenKind::Identifier(_) => self.move_or_exchange(left, false),
            _ => self.load(left),
        }
    }

    fn load(&mut self, (to, span): AssignedField) -> Result<Action, SyntaxError> {
        self.check_writable(to, &span)?;
        let constant = self.span().start;
        let name = to.name();
        if let Some(text) = self.text() {
            if !to.is_text() {
                let message =
                    format!("Integer field {name} is not compatible with string constant.");
                return Err(self.error_from(constant, message));
            }
            return Ok(Action::LoadName { to, name: text });
        }
        let value = self.number()?;
        if to.is_text() {
            let message = format!("String field {name} is not compatible with integer constant.");
            return Err(self.error_from(constant, message));
        }
        self.check_width(to, value, constant)?;
        Ok(Action::Load { to, value })
    }

    /// Rejects a constant (at byte `start`) that is wider than the field's symbol.
    fn check_width(&self, to: FieldRef, value: Constant, start: usize) -> Result<(), SyntaxError> {
        let (width, limit, name) = (value.width(), to.symbol_width(), to.name());
        if width <= limit {
            return Ok(());
        }
        let message =
            format!("{width}-bit constant is not compatible with {limit}-bit field {name}.");
        Err(self.error_from(start, message))
    }

    fn load_frag_mtu(&mut self, (to, span): AssignedField) -> Result<Action, SyntaxError> {
        self.expect(&TokenKind::Assign)?;
        self.check_writable(to, &span)?;
        let constant = self.span().start;
        let value = self.number()?;
        if value.mask.is_some() {
            return Err(self.error_from(constant, "An MTU has no mask."));
        }
        self.check_width(to, value, constant)?;
        let family = if to.width() == 16 { IpVersion::V4 } else { IpVersion::V6 };
        // The cast is lossless: `check_width` has compared the value with the field.
        Ok(Action::LoadFragMtu { family, mtu: value.value as u32 })
    }

    fn move_or_exchange(
        &mut self,
        (left, span): AssignedField,
        exchange: bool,
    ) -> Result<Action, SyntaxError> {
        let right_start = self.span().start;
        let right = self.field()?;
        let (l, r) = (left.name(), right.name());
        if left.is_text() != right.is_text() {
            let kind = |field: FieldRef| if field.is_text() { "string" } else { "integer" };
            let (lk, rk) = (kind(left), kind(right));
            let message = if exchange {
                format!("Can't exchange {lk} field ({l}) with {rk} field ({r}).")
            } else {
                format!("Can't assign {rk} field ({r}) to {lk} field ({l}).")
            };
            return Err(self.error_from(span.start, message));
        }
        let (lw, rw) = (left.width(), right.width());
        if lw != rw {
            let message = if exchange {
                format!("Can't exchange {lw}-bit field with {rw}-bit field.")
            } else {
                format!("Can't assign {rw}-bit value to {lw}-bit destination.")
            };
            return Err(self.error_from(span.start, message));
        }
        self.check_writable(left, &span)?;
        if !exchange {
            return Ok(Action::Move { to: left, from: right });
        }
        self.check_writable(right, &self.since(right_start))?;
        Ok(Action::Exchange(left, right))
    }

    /// Parses `FIELD = NAME(...)`; the current token is the name.
    fn call(&mut self, name: &str, left: AssignedField) -> Result<Action, SyntaxError> {
        let (to, span) = (left.0, &left.1);
        if let Some(check) = Check::from_name(name) {
            return self.check(check, left);
        }
        if let Some(value) = CtValue::from_name(name) {
            self.skip_call();
            if *self.kind() != TokenKind::RightParen {
                return Err(self.error(format!("{name} doesn't take any parameters")));
            }
            self.check_kind(to, FieldRequirement::Bits(value.width()), span)?;
            self.check_writable(to, span)?;
            self.advance();
            return Ok(Action::CtRead { to, value });
        }
        if let Some(protocol) = OptionProtocol::from_name(name) {
            self.skip_call();
            self.check_result_bit(to, span)?;
            let options = self.put_options(protocol)?;
            return Ok(Action::PutOptions { to, protocol, options });
        }
        match name {
            "select" => self.select(left),
            "check_pkt_larger" => {
                self.check_result_bit(to, span)?;
                self.skip_call();
                let bytes = self.uint16("packet length")?;
                self.expect(&TokenKind::RightParen)?;
                Ok(Action::CheckLength { to, bytes })
            }
            "lookup_arp" => self.lookup_binding(left, IpVersion::V4, true),
            "lookup_nd" => self.lookup_binding(left, IpVersion::V6, true),
            "lookup_arp_ip" => self.lookup_binding(left, IpVersion::V4, false),
            "lookup_nd_ip" => self.lookup_binding(left, IpVersion::V6, false),
            "get_fdb" => {
                if !to.is_text() {
                    self.check_kind(to, FieldRequirement::Bits(32), span)?;
                }
                self.check_writable(to, span)?;
                self.skip_call();
                let mac = self.field_of_kind(FieldRequirement::Bits(48))?;
                self.expect(&TokenKind::RightParen)?;
                Ok(Action::GetFdb { to, mac })
            }
            "lookup_fdb" => {
                self.check_result_bit(to, span)?;
                self.skip_call();
                let port = self.field_of_kind(FieldRequirement::Port)?;
                self.expect(&TokenKind::Comma)?;
                let mac = self.field_of_kind(FieldRequirement::Bits(48))?;
                self.expect(&TokenKind::RightParen)?;
                Ok(Action::LookupFdb { to, port, mac })
            }
            _ => self.move_or_exchange(left, false),
        }
    }

    /// Skips `NAME(`.
    fn skip_call(&mut self) {
        self.advance();
        self.advance();
    }

    fn check(&mut self, check: Check, (to, span): AssignedField) -> Result<Action, SyntaxError> {
        self.skip_call();
        if *self.kind() != TokenKind::RightParen {
            let message = format!("{} doesn't take any parameters", check.name());
            return Err(self.error(message));
        }
        self.check_result_bit(to, &span)?;
        self.advance();
        Ok(Action::Check { to, check })
    }

    fn select(&mut self, (to, span): AssignedField) -> Result<Action, SyntaxError> {
        self.check_writable(to, &span)?;
        if to.is_text() {
            self.check_kind(to, FieldRequirement::Bits(16), &span)?;
        }
        if to.width() < 16 {
            let (width, name) = (to.width(), to.name());
            let (first, last) = (to.first(), to.first() + width - 1);
            let message = format!(
                "cannot use {width}-bit field {name}[{first}..{last}] for \"select\", which \
                 requires at least 16 bits."
            );
            return Err(SyntaxError::new(span, message));
        }
        if self.stage.next().is_none() {
            return Err(self.error("\"select\" action not allowed in last table."));
        }
        self.skip_call();
        let mut choices = Vec::new();
        while !self.accept(&TokenKind::RightParen) {
            let value = self.uint16("id")?;
            let weight_at = self.span();
            let weight = if self.accept(&TokenKind::Assign) { self.uint16("weight")? } else { 100 };
            if weight == 0 {
                return Err(self.error_from(weight_at.end, "weight can't be 0."));
            }
            self.accept(&TokenKind::Comma);
            choices.push((value, weight));
        }
        if choices.len() < 2 {
            return Err(self.expecting("at least 2 group members"));
        }
        Ok(Action::Select { to, choices: choices.into() })
    }

    fn lookup_binding(
        &mut self,
        (to, span): AssignedField,
        family: IpVersion,
        with_mac: bool,
    ) -> Result<Action, SyntaxError> {
        self.check_result_bit(to, &span)?;
        self.skip_call();
        let port = self.field_of_kind(FieldRequirement::Port)?;
        self.expect(&TokenKind::Comma)?;
        let ip = self.field_of_kind(FieldRequirement::Bits(family.address_width()))?;
        let mac = if with_mac {
            self.expect(&TokenKind::Comma)?;
            Some(self.field_of_kind(FieldRequirement::Bits(48))?)
        } else {
            None
        };
        self.expect(&TokenKind::RightParen)?;
        Ok(Action::LookupMacBinding { to, family, port, ip, mac })
    }
}
