//! The actions of logical flows: parsing, printing, compiling.
//!
//! ```text
//! text --(Stage)--> Actions --(Scope)--> Op, Op, ...
//! ```
//!
//! Every action of OVN 23.03 is parsed and printed. Actions that the switch does not support
//! (some services of a controller, some of load balancers) are compiled to
//! [`Op::Unsupported`](pipeline::Op::Unsupported), which drops the packet.

mod assign;
mod ast;
mod balance;
mod compile;
mod conntrack;
mod effects;
mod option_table;
mod options;
mod parse;
mod prerequisite;
mod print;
mod service;
#[cfg(test)]
mod tests;

pub use ast::{
    Action, Backend, Check, CtLb, CtValue, IpVersion, LbAffinity, LbFlag, Log, LogVerdict,
    MAX_QUEUE, Nat, NatTarget, NatZone, NestedPacket, ObservationPoint, OptionProtocol, Sample,
    Severity, Stage, Transport,
};
pub(crate) use balance::backend;
pub use compile::compile;
pub use option_table::{KnownOption, ValueKind};
pub use options::{ActionOption, OptionValue};
pub use parse::MAX_NESTING;
pub use service::ra_route;

use super::error::SyntaxError;
use super::token::TokenKind;
use std::fmt;

/// The actions of a flow. `Display` writes OVN's canonical form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Actions {
    /// The table of the flow.
    pub stage: Stage,
    /// The actions in order; empty for `drop;`.
    pub list: Box<[Action]>,
}

/// Parses the actions of a flow in `stage`.
///
/// # Errors
///
/// [`SyntaxError`] for a text that is not in the language, a field that is not valid in its
/// position, or a `next` to a table that does not exist.
pub fn parse(text: &str, stage: Stage) -> Result<Actions, SyntaxError> {
    let list = parse::Parser::new(text, stage).list(&TokenKind::End)?;
    Ok(Actions { stage, list })
}

impl Actions {
    /// The predicates that a packet must satisfy in addition to the match of the flow, without
    /// duplicates: `tcp.dst = 80;` needs `tcp`.
    pub fn prerequisites(&self) -> Vec<&'static str> {
        let mut found = Vec::new();
        prerequisite::collect(&self.list, &mut found);
        found
    }

    /// The port and multicast group names that [`compile()`] looks up, with duplicates. Actions
    /// without names compile to the same steps in every datapath.
    pub fn names(&self) -> Vec<&str> {
        let mut found = Vec::new();
        compile::names(&self.list, &mut found);
        found
    }
}

impl fmt::Display for Actions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print::PrintedActions { stage: self.stage, actions: &self.list }.fmt(f)
    }
}
