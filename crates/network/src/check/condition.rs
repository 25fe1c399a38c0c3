//! The check of a match: it is an expression of the logical language, and the names in it are those of things in the file.

use crate::errors::Report;
use crate::read::SetsDraft;
use crate::section::Sited;
use crate::{AclDirection, Prefix, suggest};
use lflow::lexer::Lexer;
use lflow::{Constant, Scope, SyntaxError, TokenKind, expr};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What the names in matches can mean.
pub(super) struct Names<'d> {
    /// The ports of all switches, those that lead to routers among them.
    ports: BTreeSet<String>,
    address_sets: BTreeMap<&'d str, Vec<Constant>>,
    port_groups: BTreeMap<&'d str, Vec<String>>,
}

impl<'d> Names<'d> {
    pub(super) fn new(ports: BTreeSet<String>, sets: &'d SetsDraft) -> Self {
        let constants =
            |prefixes: &Vec<Prefix>| prefixes.iter().map(|&prefix| prefix.into()).collect();
        let names = |members: &Vec<Sited<String>>| {
            members.iter().map(|member| member.value.clone()).collect()
        };
        let (addresses, groups) = (sets.address_sets.iter(), sets.port_groups.iter());
        Self {
            ports,
            address_sets: addresses.map(|(name, set)| (name.as_str(), constants(set))).collect(),
            port_groups: groups.map(|(name, group)| (name.as_str(), names(group))).collect(),
        }
    }

    /// Reports what is wrong with a match. `carries_inport` is false when the receiver's host may not know by which port a
    /// packet came in.
    pub(super) fn check(
        &self,
        report: &mut Report<'_>,
        condition: &Sited<String>,
        direction: Option<AclDirection>,
        carries_inport: bool,
    ) {
        let text = condition.value.as_str();
        let mut complain = |span: Range<usize>, message: String| {
            let at = report.inside_string(condition.at, span.start);
            report.error(at, message);
        };
        let parsed = match expr::parse(text) {
            Ok(parsed) => parsed,
            Err(SyntaxError { span, message }) => return complain(span, clause(&message)),
        };
        let mut is_clean = true;
        let mut lexer = Lexer::new(text);
        while *lexer.kind() != TokenKind::End {
            let token = lexer.advance();
            if let Some(problem) = self.problem(&token.kind, direction, carries_inport) {
                is_clean = false;
                complain(token.span, problem);
            }
        }
        if is_clean && let Err(error) = parsed.lower(self) {
            complain(0..0, clause(&error.to_string()));
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
                "`outport` is not known yet when a packet comes from a port; write direction = \"to-port\""
                    .to_owned(),
            ),
            TokenKind::Identifier("inport")
                if direction == Some(AclDirection::ToPort) && !carries_inport =>
            {
                Some(
                    "`inport` is not known on the receiver's host, for the tunnel carries no logical ports; use \
                     geneve or stt, or write direction = \"from-port\""
                        .to_owned(),
                )
            }
            TokenKind::Identifier(name) if name.starts_with("ct") => Some(format!(
                "`{name}` is the state of a connection, and an access control list keeps none; match addresses, \
                 ports and flags"
            )),
            _ => None,
        }
    }
}

/// Every name means something; which port has which key plays no part.
impl Scope for Names<'_> {
    fn port(&self, name: &str) -> Option<u16> {
        self.ports.contains(name).then_some(1)
    }

    fn address_set(&self, name: &str) -> Option<&[Constant]> {
        self.address_sets.get(name).map(Vec::as_slice)
    }

    fn port_group(&self, name: &str) -> Option<&[String]> {
        self.port_groups.get(name).map(Vec::as_slice)
    }

    fn is_chassis_resident(&self, _: &str) -> bool {
        true
    }
}

/// The sentence without its full stop, as all complaints about a file are.
fn clause(sentence: &str) -> String {
    sentence.trim_end_matches('.').to_owned()
}
