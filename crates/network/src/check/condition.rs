//! The check of a match: its syntax, and that the names in it exist.

use crate::errors::ProblemCollector;
use crate::read::SetsDraft;
use crate::section::Located;
use crate::{AclDirection, Prefix, suggest};
use lflow::lexer::Lexer;
use lflow::{Constant, PortGroupMembers, Scope, SyntaxError, TokenKind, expr};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The names that a match can use.
pub(super) struct MatchNames<'d> {
    /// The ports of all switches, including those that lead to routers.
    ports: BTreeSet<String>,
    address_sets: BTreeMap<&'d str, Vec<Constant>>,
    port_groups: BTreeMap<&'d str, Vec<String>>,
}

impl<'d> MatchNames<'d> {
    pub(super) fn new(ports: BTreeSet<String>, sets: &'d SetsDraft) -> Self {
        let constants =
            |prefixes: &Vec<Prefix>| prefixes.iter().map(|&prefix| prefix.into()).collect();
        let names = |members: &Vec<Located<String>>| {
            members.iter().map(|member| member.value.clone()).collect()
        };
        let (addresses, groups) = (sets.address_sets.iter(), sets.port_groups.iter());
        Self {
            ports,
            address_sets: addresses.map(|(name, set)| (name.as_str(), constants(set))).collect(),
            port_groups: groups.map(|(name, group)| (name.as_str(), names(group))).collect(),
        }
    }

    /// Reports the errors of a match. `carries_inport` is false when the receiving host may not
    /// know the ingress port of a packet.
    pub(super) fn check(
        &self,
        report: &mut ProblemCollector<'_>,
        condition: &Located<String>,
        direction: Option<AclDirection>,
        carries_inport: bool,
    ) {
        let text = condition.value.as_str();
        let mut add_error = |span: Range<usize>, message: String| {
            let at = report.inside_string(condition.at, span.start);
            report.error(at, message);
        };
        let parsed = match expr::parse(text) {
            Ok(parsed) => parsed,
            Err(SyntaxError { span, message }) => return add_error(span, clause(&message)),
        };
        let mut is_clean = true;
        let mut lexer = Lexer::new(text);
        while *lexer.kind() != TokenKind::End {
            let token = lexer.advance();
            if let Some(problem) = self.problem(&token.kind, direction, carries_inport) {
                is_clean = false;
                add_error(token.span, problem);
            }
        }
        if is_clean && let Err(error) = parsed.lower(self) {
            add_error(0..0, clause(&error.to_string()));
        }
    }

    fn problem(
        &self,
        token: &TokenKind<'_>,
        direction: Option<AclDirection>,
        carries_inport: bool,
    ) -> Option<String> {
        match token {
            TokenKind::Text(name) if !self.ports.contains(&**name) => {
                let hint = suggest::hint(name, self.ports.iter().map(String::as_str), "ports");
                Some(format!("unknown port {name:?}{hint}"))
            }
            TokenKind::AddressSet(name) if !self.address_sets.contains_key(name) => {
                let hint = suggest::hint(name, self.address_sets.keys().copied(), "address sets");
                Some(format!("unknown address set `${name}`{hint}"))
            }
            TokenKind::PortGroup(name) if !self.port_groups.contains_key(name) => {
                let hint = suggest::hint(name, self.port_groups.keys().copied(), "port groups");
                Some(format!("unknown port group `@{name}`{hint}"))
            }
            TokenKind::Identifier("outport") if direction == Some(AclDirection::FromPort) => Some(
                "`outport` is not known yet when a packet comes from a port; write direction = \
                 \"to-port\""
                    .to_owned(),
            ),
            TokenKind::Identifier("inport")
                if direction == Some(AclDirection::ToPort) && !carries_inport =>
            {
                Some(
                    "`inport` is not known on the receiver's host, because the tunnel carries no \
                     logical ports; \
                     use geneve or stt, or write direction = \"from-port\""
                        .to_owned(),
                )
            }
            TokenKind::Identifier(name) if name.starts_with("ct") => Some(format!(
                "`{name}` is connection state, but access control lists are stateless; match \
                 addresses, \
                 ports and flags"
            )),
            _ => None,
        }
    }
}

/// Resolves names while a match is parsed; the values of port keys do not matter.
impl Scope for MatchNames<'_> {
    fn port(&self, name: &str) -> Option<u16> {
        self.ports.contains(name).then_some(1)
    }

    fn address_set(&self, name: &str) -> Option<&[Constant]> {
        self.address_sets.get(name).map(Vec::as_slice)
    }

    fn port_group(&self, name: &str) -> Option<PortGroupMembers> {
        let names = self.port_groups.get(name)?;
        let keys = names.iter().filter_map(|name| self.port(name)).take(1).collect();
        Some(PortGroupMembers { is_empty: names.is_empty(), keys })
    }

    fn is_chassis_resident(&self, _: &str) -> bool {
        true
    }
}

/// The sentence without its full stop, like all messages about a file.
fn clause(sentence: &str) -> String {
    sentence.trim_end_matches('.').to_owned()
}
