//! Parses statements, one after another, to [`Actions`](super::Actions).

use super::ast::{Action, IpVersion, MAX_QUEUE, Nat, NestedPacket, Stage};
use crate::error::SyntaxError;
use crate::lexer::Lexer;
use crate::symbol::{FieldRef, SymbolMeaning};
use crate::token::{Constant, Format, TokenKind};
use pipeline::{Direction, TableId};
use std::ops::Range;

/// The limit on nested braces.
pub const MAX_NESTING: usize = 31;

/// The state of the parser.
pub(super) struct Parser<'a> {
    lexer: Lexer<'a>,
    pub(super) stage: Stage,
    /// The number of braces around the current token.
    depth: usize,
    /// True inside `ct_commit { ... }`: only fields of the connection may be written there.
    pub(super) in_commit: bool,
    /// The byte at which the current statement begins.
    statement: usize,
}

/// The kind of field that an action expects.
#[derive(Clone, Copy)]
pub(super) enum FieldRequirement {
    /// A port.
    Port,
    /// A number of this many bits.
    Bits(u8),
}

impl<'a> Parser<'a> {
    pub(super) fn new(text: &'a str, stage: Stage) -> Self {
        Self { lexer: Lexer::new(text), stage, depth: 0, in_commit: false, statement: 0 }
    }

    /// The actions up to `end`, which is `}` or the end of the text.
    pub(super) fn list(&mut self, end: &TokenKind<'_>) -> Result<Box<[Action]>, SyntaxError> {
        // `drop;` is an empty list. It cannot be combined with other actions.
        let drop = *self.kind() == TokenKind::Identifier("drop");
        if drop && self.lexer.lookahead().kind == TokenKind::Semicolon {
            self.advance();
            self.advance();
            self.expect(end)?;
            return Ok(Box::default());
        }
        let mut actions = Vec::new();
        while self.kind() != end {
            actions.push(self.statement()?);
        }
        self.advance();
        Ok(actions.into())
    }

    fn statement(&mut self) -> Result<Action, SyntaxError> {
        self.statement = self.span().start;
        let name = match *self.kind() {
            TokenKind::Identifier(name) => name,
            TokenKind::Template(_) => return Err(self.error("Unexpanded template.")),
            _ => return Err(self.expecting("action")),
        };
        let action = match self.lexer.lookahead().kind {
            TokenKind::Assign | TokenKind::Exchange | TokenKind::LeftSquare => self.assignment()?,
            _ => self.command(name)?,
        };
        self.expect(&TokenKind::Semicolon)?;
        Ok(action)
    }

    /// A statement that begins with a word.
    fn command(&mut self, name: &str) -> Result<Action, SyntaxError> {
        if let Some(nest) = NestedPacket::from_name(name) {
            self.advance();
            return self.nested(nest);
        }
        if let Some(nat) = Nat::from_name(name) {
            self.advance();
            return self.nat(nat);
        }
        let parse: fn(&mut Self) -> Result<Action, SyntaxError> = match name {
            "next" => Self::next,
            "output" => |_| Ok(Action::Output),
            "push" => |parser| Ok(Action::Push(parser.stack_field(false)?)),
            "pop" => |parser| Ok(Action::Pop(parser.stack_field(true)?)),
            "ip.ttl" => |parser| parser.expect(&TokenKind::Decrement).map(|()| Action::DecTtl),
            "get_arp" => |parser| parser.get_binding(IpVersion::V4),
            "get_nd" => |parser| parser.get_binding(IpVersion::V6),
            "put_arp" => |parser| parser.put_binding(IpVersion::V4),
            "put_nd" => |parser| parser.put_binding(IpVersion::V6),
            "put_fdb" => Self::put_fdb,
            "log" => Self::log,
            "set_meter" => Self::set_meter,
            "set_queue" => Self::set_queue,
            "fwd_group" => Self::forward_group,
            "ct_clear" => |_| Ok(Action::CtClear),
            "ct_next" => |parser| Ok(Action::CtNext(parser.optional_zone("ct_next")?)),
            "ct_commit" => Self::ct_commit,
            "ct_commit_nat" => {
                |parser| Ok(Action::CtCommitNat(parser.optional_zone("ct_commit_nat")?))
            }
            "ct_commit_to_zone" => {
                |parser| Ok(Action::CtCommitToZone(parser.nat_zone("ct_commit_to_zone")?))
            }
            "mac_cache_use" => |_| Ok(Action::MacCacheUse),
            "ct_snat_to_vip" => |_| Ok(Action::CtSnatToVip),
            "ct_lb" => |parser| parser.ct_lb(false),
            "ct_lb_mark" => |parser| parser.ct_lb(true),
            "commit_ecmp_nh" => Self::commit_ecmp_nh,
            "commit_lb_aff" => Self::commit_lb_affinity,
            "trigger_event" => Self::trigger_event,
            "bind_vport" => Self::bind_vport,
            "handle_svc_check" => Self::handle_svc_check,
            "handle_dhcpv6_reply" => |_| Ok(Action::HandleDhcp6Reply),
            "handle_bfd_msg" => Self::handle_bfd_msg,
            "igmp" => |_| Ok(Action::Igmp),
            "sample" => Self::sample,
            _ => return Err(self.expecting("action")),
        };
        self.advance();
        parse(self)
    }

    fn nested(&mut self, nest: NestedPacket) -> Result<Action, SyntaxError> {
        // Inside `ct_commit`, `clone` may use all fields. Other nested actions keep the restriction
        // to fields of the connection.
        let in_commit = self.in_commit && nest != NestedPacket::Clone;
        Ok(Action::Nested(nest, self.braces(in_commit)?))
    }

    /// Parses `{ ACTIONS }`.
    pub(super) fn braces(&mut self, in_commit: bool) -> Result<Box<[Action]>, SyntaxError> {
        let open = self.span();
        self.expect(&TokenKind::LeftCurly)?;
        if self.depth == MAX_NESTING {
            return Err(SyntaxError::new(open, "maximum depth of nested actions reached"));
        }
        let outside = std::mem::replace(&mut self.in_commit, in_commit);
        self.depth += 1;
        let actions = self.list(&TokenKind::RightCurly)?;
        self.depth -= 1;
        self.in_commit = outside;
        Ok(actions)
    }

    fn next(&mut self) -> Result<Action, SyntaxError> {
        let start = self.statement;
        let mut direction = self.stage.direction();
        let mut table = u32::from(self.stage.table()) + 1;
        if self.accept(&TokenKind::LeftParen) {
            if self.is_small_integer() {
                table = self.small_integer()?;
            } else {
                loop {
                    if self.accept_word("pipeline") {
                        self.expect(&TokenKind::Assign)?;
                        direction = self.direction()?;
                    } else if self.accept_word("table") {
                        self.expect(&TokenKind::Assign)?;
                        table = self.small_integer()?;
                    } else {
                        return Err(self.expecting("\"pipeline\" or \"table\""));
                    }
                    if !self.accept(&TokenKind::Comma) {
                        break;
                    }
                }
            }
            self.expect(&TokenKind::RightParen)?;
        }
        let tables = self.stage.tables();
        let table = u8::try_from(table).ok().filter(|&table| table < tables);
        match table.and_then(|table| TableId::logical(direction, table)) {
            Some(table) => Ok(Action::Next(table)),
            None => {
                let last = tables - 1;
                let message = format!("\"next\" action cannot advance beyond table {last}.");
                Err(self.error_from(start, message))
            }
        }
    }

    fn direction(&mut self) -> Result<Direction, SyntaxError> {
        if self.accept_word("ingress") {
            Ok(Direction::Ingress)
        } else if self.accept_word("egress") {
            Ok(Direction::Egress)
        } else {
            Err(self.expecting("\"ingress\" or \"egress\""))
        }
    }

    fn stack_field(&mut self, write: bool) -> Result<FieldRef, SyntaxError> {
        self.expect(&TokenKind::LeftParen)?;
        let start = self.span().start;
        let field = self.field()?;
        if write {
            self.check_writable(field, &self.since(start))?;
        }
        self.expect(&TokenKind::RightParen)?;
        Ok(field)
    }

    fn get_binding(&mut self, family: IpVersion) -> Result<Action, SyntaxError> {
        self.expect(&TokenKind::LeftParen)?;
        let port = self.field_of_kind(FieldRequirement::Port)?;
        self.expect(&TokenKind::Comma)?;
        let ip = self.field_of_kind(FieldRequirement::Bits(family.address_width()))?;
        self.expect(&TokenKind::RightParen)?;
        Ok(Action::GetMacBinding { family, port, ip })
    }

    fn put_binding(&mut self, family: IpVersion) -> Result<Action, SyntaxError> {
        self.expect(&TokenKind::LeftParen)?;
        let port = self.field_of_kind(FieldRequirement::Port)?;
        self.expect(&TokenKind::Comma)?;
        let ip = self.field_of_kind(FieldRequirement::Bits(family.address_width()))?;
        self.expect(&TokenKind::Comma)?;
        let mac = self.field_of_kind(FieldRequirement::Bits(48))?;
        self.expect(&TokenKind::RightParen)?;
        Ok(Action::PutMacBinding { family, port, ip, mac })
    }

    fn put_fdb(&mut self) -> Result<Action, SyntaxError> {
        self.expect(&TokenKind::LeftParen)?;
        let port = self.field_of_kind(FieldRequirement::Port)?;
        self.expect(&TokenKind::Comma)?;
        let mac = self.field_of_kind(FieldRequirement::Bits(48))?;
        self.expect(&TokenKind::RightParen)?;
        Ok(Action::PutFdb { port, mac })
    }

    fn set_queue(&mut self) -> Result<Action, SyntaxError> {
        self.expect(&TokenKind::LeftParen)?;
        let start = self.span().start;
        let queue = self.small_integer()?;
        let Some(queue) = u16::try_from(queue).ok().filter(|&queue| queue <= MAX_QUEUE) else {
            let message =
                format!("Queue ID {queue} for set_queue is not in valid range 0 to {MAX_QUEUE}.");
            return Err(self.error_from(start, message));
        };
        self.expect(&TokenKind::RightParen)?;
        Ok(Action::SetQueue(queue))
    }
}

/// Helpers for all statements.
impl<'a> Parser<'a> {
    pub(super) const fn kind(&self) -> &TokenKind<'a> {
        self.lexer.kind()
    }

    pub(super) fn span(&self) -> Range<usize> {
        self.lexer.span()
    }

    pub(super) fn advance(&mut self) {
        self.lexer.advance();
    }

    pub(super) fn is_followed_by(&self, kind: &TokenKind<'_>) -> bool {
        self.lexer.lookahead().kind == *kind
    }

    pub(super) fn accept(&mut self, kind: &TokenKind<'_>) -> bool {
        self.lexer.accept(kind)
    }

    pub(super) fn accept_word(&mut self, word: &str) -> bool {
        self.lexer.accept_identifier(word)
    }

    pub(super) fn expect(&mut self, kind: &TokenKind<'_>) -> Result<(), SyntaxError> {
        self.lexer.expect(kind)
    }

    pub(super) fn expecting(&self, what: &str) -> SyntaxError {
        self.lexer.expecting(what)
    }

    pub(super) fn error(&self, message: impl Into<String>) -> SyntaxError {
        self.lexer.error(message)
    }

    /// The bytes from `start` to the current token.
    pub(super) fn since(&self, start: usize) -> Range<usize> {
        start..start + self.lexer.text(start..self.span().start).trim_end().len()
    }

    /// An error about the bytes from `start` to the current token.
    pub(super) fn error_from(&self, start: usize, message: impl Into<String>) -> SyntaxError {
        SyntaxError::new(self.since(start), message)
    }

    /// An error about the statement so far.
    pub(super) fn error_whole(&self, message: impl Into<String>) -> SyntaxError {
        self.error_from(self.statement, message)
    }

    /// A quoted string, if that is the current token.
    pub(super) fn text(&mut self) -> Option<Box<str>> {
        let TokenKind::Text(text) = self.kind() else { return None };
        let text = Box::from(&**text);
        self.advance();
        Some(text)
    }

    /// A number or address.
    pub(super) fn number(&mut self) -> Result<Constant, SyntaxError> {
        match *self.kind() {
            TokenKind::Integer(number) => {
                self.advance();
                Ok(number)
            }
            TokenKind::Template(_) => Err(self.error("Unexpanded template.")),
            _ => Err(self.expecting("constant")),
        }
    }

    /// The current token if it is a decimal number. Does not advance.
    pub(super) const fn decimal(&self) -> Option<u64> {
        match *self.kind() {
            // The cast is lossless: a decimal number has at most 64 bits.
            TokenKind::Integer(Constant { value, mask: None, format: Format::Decimal }) => {
                Some(value as u64)
            }
            _ => None,
        }
    }

    pub(super) fn is_small_integer(&self) -> bool {
        self.decimal().is_some_and(|value| value <= i32::MAX as u64)
    }

    pub(super) fn small_integer(&mut self) -> Result<u32, SyntaxError> {
        self.lexer.expect_small_integer()
    }

    /// A decimal number of at most 16 bits.
    pub(super) fn uint16(&mut self, what: &str) -> Result<u16, SyntaxError> {
        match self.decimal().and_then(|value| u16::try_from(value).ok()) {
            Some(value) => {
                self.advance();
                Ok(value)
            }
            None => Err(self.expecting(what)),
        }
    }

    /// `true`, `false`, or one of them in quotes.
    pub(super) fn boolean(&mut self) -> Result<bool, SyntaxError> {
        let value = match self.kind() {
            TokenKind::Identifier(word) => word.parse(),
            TokenKind::Text(text) => text.parse(),
            _ => return Err(self.expecting("true or false")),
        };
        let value = value.map_err(|_| self.expecting("true or false"))?;
        self.advance();
        Ok(value)
    }

    /// A field of the flow key, or some bits of it.
    pub(super) fn field(&mut self) -> Result<FieldRef, SyntaxError> {
        let start = self.span().start;
        let field = self.any_field()?;
        if field.symbol().meaning == SymbolMeaning::IcmpMtu {
            let message = format!("Field {field} can only be assigned a number.");
            return Err(self.error_from(start, message));
        }
        Ok(field)
    }

    /// A field or some bits of it, including fields that can only be written.
    pub(super) fn any_field(&mut self) -> Result<FieldRef, SyntaxError> {
        FieldRef::parse(&mut self.lexer)
    }

    /// A field of the expected kind.
    pub(super) fn field_of_kind(
        &mut self,
        requirement: FieldRequirement,
    ) -> Result<FieldRef, SyntaxError> {
        let start = self.span().start;
        let field = self.field()?;
        self.check_kind(field, requirement, &self.since(start))?;
        Ok(field)
    }

    /// Rejects a field that is not of the expected kind.
    pub(super) fn check_kind(
        &self,
        field: FieldRef,
        requirement: FieldRequirement,
        span: &Range<usize>,
    ) -> Result<(), SyntaxError> {
        let name = field.name();
        let message = match (requirement, field.is_text()) {
            (FieldRequirement::Port, true) => return Ok(()),
            (FieldRequirement::Bits(width), false) if width == field.width() => return Ok(()),
            (FieldRequirement::Bits(width), false) => {
                let (first, last) = (field.first(), field.first() + field.width() - 1);
                format!(
                    "Cannot use {}-bit field {name}[{first}..{last}] where {width}-bit field is \
                     required.",
                    field.width(),
                )
            }
            (FieldRequirement::Bits(_), true) => {
                format!("Cannot use string field {name} where numeric field is required.")
            }
            (FieldRequirement::Port, false) => {
                format!("Cannot use numeric field {name} where string field is required.")
            }
        };
        Err(SyntaxError::new(span.clone(), message))
    }

    /// Rejects a field that cannot be written here.
    pub(super) fn check_writable(
        &self,
        field: FieldRef,
        span: &Range<usize>,
    ) -> Result<(), SyntaxError> {
        if field.is_writable(self.in_commit) {
            return Ok(());
        }
        let message = format!("Field {} is not modifiable.", field.name());
        Err(SyntaxError::new(span.clone(), message))
    }

    /// Rejects a field that is not a single bit that can be written here.
    pub(super) fn check_result_bit(
        &self,
        field: FieldRef,
        span: &Range<usize>,
    ) -> Result<(), SyntaxError> {
        self.check_kind(field, FieldRequirement::Bits(1), span)?;
        self.check_writable(field, span)
    }
}
