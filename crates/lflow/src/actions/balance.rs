//! Parses statements about connections: tracking, address translation, load balancing.

use super::ast::{
    Action, Backend, CtLb, IpVersion, LbAffinity, LbFlag, Nat, NatTarget, NatZone, Transport,
    address,
};
use super::parse::Parser;
use crate::error::SyntaxError;
use crate::token::{Constant, Format, TokenKind};
use std::net::{IpAddr, SocketAddr};

impl Parser<'_> {
    pub(super) fn ct_commit(&mut self) -> Result<Action, SyntaxError> {
        match self.kind() {
            TokenKind::LeftCurly => Ok(Action::CtCommit(self.braces(true)?)),
            TokenKind::LeftParen => self.ct_commit_v1(),
            _ => Ok(Action::CtCommit(Box::default())),
        }
    }

    fn ct_commit_v1(&mut self) -> Result<Action, SyntaxError> {
        self.advance();
        let (mut mark, mut label) = (None, None);
        while !self.accept(&TokenKind::RightParen) {
            if self.accept_word("ct_mark") {
                let (value, mask) = self.masked_number()?;
                // A mark has 32 bits; higher bits are cut off.
                mark = Some((value as u32, mask as u32));
            } else if self.accept_word("ct_label") {
                label = Some(self.masked_number()?);
            } else {
                return Err(self.expecting("\"ct_mark\" or \"ct_label\""));
            }
            self.accept(&TokenKind::Comma);
        }
        let (mark, label) = (mark.filter(|mark| mark.1 != 0), label.filter(|label| label.1 != 0));
        Ok(match (mark, label) {
            (None, None) => Action::CtCommit(Box::default()),
            (mark, label) => Action::CtCommitV1 { mark, label },
        })
    }

    /// Parses `(ZONE)`, or nothing.
    pub(super) fn optional_zone(&mut self, action: &str) -> Result<Option<NatZone>, SyntaxError> {
        match self.kind() {
            TokenKind::LeftParen => self.nat_zone(action).map(Some),
            _ => Ok(None),
        }
    }

    /// Parses `(dnat)` or `(snat)`.
    pub(super) fn nat_zone(&mut self, action: &str) -> Result<NatZone, SyntaxError> {
        self.expect(&TokenKind::LeftParen)?;
        let zone = match self.kind() {
            TokenKind::Identifier(name) => NatZone::from_name(name),
            _ => None,
        };
        let Some(zone) = zone else {
            let message =
                format!("\"{action}\" action accepts only \"dnat\" or \"snat\" parameter.");
            return Err(self.error(message));
        };
        self.advance();
        self.expect(&TokenKind::RightParen)?;
        Ok(zone)
    }

    /// Parses `= VALUE` or `= VALUE/MASK`; returns value and mask.
    fn masked_number(&mut self) -> Result<(u128, u128), SyntaxError> {
        self.expect(&TokenKind::Assign)?;
        let TokenKind::Integer(Constant { value, mask, .. }) = *self.kind() else {
            return Err(self.expecting("integer"));
        };
        self.advance();
        Ok((value, mask.unwrap_or(u128::MAX)))
    }

    pub(super) fn nat(&mut self, nat: Nat) -> Result<Action, SyntaxError> {
        if !self.accept(&TokenKind::LeftParen) {
            return Ok(Action::CtNat { nat, to: None });
        }
        let ip = self.address("IPv4 or IPv6 address")?;
        let ports = if self.accept(&TokenKind::Comma) { Some(self.port_range()?) } else { None };
        self.expect(&TokenKind::RightParen)?;
        Ok(Action::CtNat { nat, to: Some(NatTarget { ip, ports }) })
    }

    fn port_range(&mut self) -> Result<(u16, Option<u16>), SyntaxError> {
        let start = self.span().start;
        let first = self.uint16("Integer for port range")?;
        if first == 0 {
            return Err(self.error_from(start, "The first port of a range can't be 0."));
        }
        if !self.accept(&TokenKind::Hyphen) {
            return Ok((first, None));
        }
        let start = self.span().start;
        let last = self.uint16("Integer for port range")?;
        if last <= first {
            let message = "The last port of a range should be greater than the first.";
            return Err(self.error_from(start, message));
        }
        Ok((first, Some(last)))
    }

    /// An IP address without mask.
    fn address(&mut self, what: &str) -> Result<IpAddr, SyntaxError> {
        let ip = match *self.kind() {
            TokenKind::Integer(Constant { value, mask: None, format: Format::Ipv4 }) => {
                address(IpVersion::V4, value)
            }
            TokenKind::Integer(Constant { value, mask: None, format: Format::Ipv6 }) => {
                address(IpVersion::V6, value)
            }
            _ => return Err(self.expecting(what)),
        };
        self.advance();
        Ok(ip)
    }

    pub(super) fn ct_lb(&mut self, mark: bool) -> Result<Action, SyntaxError> {
        let mut lb = CtLb { mark, backends: Box::default(), hash_fields: None, flag: None };
        if !self.accept(&TokenKind::LeftParen) || self.accept(&TokenKind::RightParen) {
            return Ok(Action::CtLb(lb));
        }
        if !self.accept_word("backends") {
            return Err(self.expecting("backends"));
        }
        self.expect(&TokenKind::Assign)?;
        let start = self.span().start;
        let mut backends = Vec::new();
        while !matches!(self.kind(), TokenKind::Semicolon | TokenKind::RightParen) {
            backends.push(self.lb_backend()?);
            self.accept(&TokenKind::Comma);
        }
        let more = self.accept(&TokenKind::Semicolon);
        if more && backends.is_empty() {
            return Err(self.error_from(start, "Only backends can have hash_fields or a flag."));
        }
        lb.backends = backends.into();
        if more {
            self.lb_options(&mut lb)?;
        }
        self.expect(&TokenKind::RightParen)?;
        Ok(Action::CtLb(lb))
    }

    /// Parses `hash_fields="FIELDS"; FLAG`, with at least one of the two.
    fn lb_options(&mut self, lb: &mut CtLb) -> Result<(), SyntaxError> {
        if self.accept_word("hash_fields") {
            self.expect(&TokenKind::Assign)?;
            let Some(fields) = self.text() else {
                return Err(self.expecting("hash_fields in quotes"));
            };
            lb.hash_fields = Some(fields);
            if !self.accept(&TokenKind::Semicolon) {
                return Ok(());
            }
        }
        let flag = match self.kind() {
            TokenKind::Identifier(name) => LbFlag::from_name(name),
            _ => None,
        };
        if flag.is_none() {
            let what = if lb.hash_fields.is_some() {
                "skip_snat or force_snat"
            } else {
                "hash_fields, skip_snat or force_snat"
            };
            return Err(self.expecting(what));
        }
        self.advance();
        lb.flag = flag;
        Ok(())
    }

    /// Parses `IP`, `IP4:PORT`, `[IP6]` or `[IP6]:PORT`.
    fn lb_backend(&mut self) -> Result<Backend, SyntaxError> {
        let bracket = self.accept(&TokenKind::LeftSquare);
        let is_v6 = matches!(
            self.kind(),
            TokenKind::Integer(Constant { format: Format::Ipv6, mask: None, .. })
        );
        if bracket && !is_v6 {
            return Err(self.expecting("IPv6 address"));
        }
        let ip = self.address("IP address")?;
        if bracket {
            self.expect(&TokenKind::RightSquare)?;
        } else if is_v6 && *self.kind() == TokenKind::Colon {
            return Err(self.error("An IPv6 address needs square brackets if a port follows."));
        }
        let port = if self.accept(&TokenKind::Colon) { self.uint16("port number")? } else { 0 };
        Ok(Backend { ip, port })
    }

    pub(super) fn commit_ecmp_nh(&mut self) -> Result<Action, SyntaxError> {
        self.expect(&TokenKind::LeftParen)?;
        self.parameter("ipv6")?;
        let ipv6 = self.boolean()?;
        self.expect(&TokenKind::Comma)?;
        self.parameter("proto")?;
        let protocol = self.transport()?;
        self.expect(&TokenKind::RightParen)?;
        Ok(Action::CommitEcmpNh { ipv6, protocol })
    }

    pub(super) fn commit_lb_affinity(&mut self) -> Result<Action, SyntaxError> {
        self.expect(&TokenKind::LeftParen)?;
        self.parameter("vip")?;
        let vip = self.quoted_backend()?;
        self.expect(&TokenKind::Comma)?;
        self.parameter("backend")?;
        let start = self.span().start;
        let backend = self.quoted_backend()?;
        if backend.family() != vip.family() {
            return Err(self.error_from(start, "Addresses of vip and backend are of two families."));
        }
        self.expect(&TokenKind::Comma)?;
        let protocol = if vip.port == 0 {
            None
        } else {
            self.parameter("proto")?;
            let protocol = self.transport()?;
            self.expect(&TokenKind::Comma)?;
            Some(protocol)
        };
        self.parameter("timeout")?;
        let timeout_s = self.uint16("affinity timeout")?;
        self.expect(&TokenKind::RightParen)?;
        Ok(Action::CommitLbAffinity(LbAffinity { vip, backend, protocol, timeout_s }))
    }

    /// Parses `NAME =`.
    fn parameter(&mut self, name: &str) -> Result<(), SyntaxError> {
        if !self.accept_word(name) {
            return Err(self.expecting(name));
        }
        self.expect(&TokenKind::Assign)
    }

    fn transport(&mut self) -> Result<Transport, SyntaxError> {
        let transport = match self.kind() {
            TokenKind::Identifier(name) => Transport::from_name(name),
            _ => None,
        };
        let transport = transport.ok_or_else(|| self.expecting("tcp, udp or sctp"))?;
        self.advance();
        Ok(transport)
    }

    fn quoted_backend(&mut self) -> Result<Backend, SyntaxError> {
        let found = match self.kind() {
            TokenKind::Text(text) => backend(text),
            _ => None,
        };
        let found = found.ok_or_else(|| self.expecting("IP address and port in quotes"))?;
        self.advance();
        Ok(found)
    }
}

/// Parses `IP`, `IP4:PORT`, `[IP6]` or `[IP6]:PORT`; `None` for anything else.
pub(crate) fn backend(text: &str) -> Option<Backend> {
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Some(Backend { ip: socket.ip(), port: socket.port() });
    }
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let ip = match bare {
        Some(bare) => IpAddr::V6(bare.parse().ok()?),
        None => text.parse().ok()?,
    };
    Some(Backend { ip, port: 0 })
}
