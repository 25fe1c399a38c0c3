//! The actions of logical flows: parsed, printed, compiled.
//!
//! ```text
//! text --(Stage)--> Actions --(Scope)--> Op, Op, ...
//! ```
//!
//! Every action of OVN 23.03 is parsed and printed. What the switch cannot do (connection tracking, dialogues of a
//! controller) is compiled to [`Op::Unsupported`](crate::Op::Unsupported): a packet that comes there is dropped.

mod assign;
mod ast;
mod balance;
mod compile;
mod effects;
mod options;
mod parse;
mod prerequisite;
mod print;
#[cfg(test)]
mod tests;

pub use ast::{
    Action, Backend, Check, CtLb, Dialogue, Family, LbAffinity, LbFlag, Log, LogVerdict, MAX_QUEUE,
    Nat, NatTarget, Nest, ObservationPoint, Sample, Severity, Stage, Transport,
};
pub use compile::compile;
pub use options::{DialogueOption, OptionValue};
pub use parse::MAX_NESTING;

use super::error::SyntaxError;
use super::token::TokenKind;
use std::fmt;

/// The actions of a flow. `Display` writes them in OVN's canonical form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Actions {
    /// Where the flow is.
    pub stage: Stage,
    /// In order; empty for `drop;`.
    pub list: Box<[Action]>,
}

/// Parses the actions of a flow in `stage`.
///
/// # Errors
///
/// [`SyntaxError`] for a text that is not in the language, for fields that do not fit their place, and for a `next` that
/// leads nowhere.
pub fn parse(text: &str, stage: Stage) -> Result<Actions, SyntaxError> {
    let list = parse::Parser::new(text, stage).list(&TokenKind::End)?;
    Ok(Actions { stage, list })
}

impl Actions {
    /// The predicates, each once, that a packet must meet besides the match of the flow: `tcp.dst = 80;` needs `tcp`.
    pub fn prerequisites(&self) -> Vec<&'static str> {
        let mut found = Vec::new();
        prerequisite::collect(&self.list, &mut found);
        found
    }

    /// The names of ports and multicast groups whose keys [`compile()`] asks for, as often as it does. Actions without any are
    /// the same in every datapath.
    pub fn names(&self) -> Vec<&str> {
        let mut found = Vec::new();
        compile::names(&self.list, &mut found);
        found
    }
}

impl fmt::Display for Actions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print::List { stage: self.stage, actions: &self.list }.fmt(f)
    }
}
