//! OVN's logical flows (`Logical_Flow` in ovn-sb(5)): the language of their matches and actions,
//! and the loader that compiles them into a [`Program`](pipeline::Program).
//!
//! ```text
//! text -> lexer -> expr::parse    -> Expr    --(Scope)--> classifier rows + residual predicate
//!               -> actions::parse -> Actions --(Scope)--> Op, Op, ...
//! ```
//!
//! Text is parsed without knowing the datapath it is for. A [`Scope`] gives its names (ports,
//! address sets, port groups) their meaning when it is compiled.
#![forbid(unsafe_code)]

pub mod actions;
mod error;
pub mod expr;
pub mod lexer;
mod listing;
mod load;
mod load_balancer;
mod logical_flow;
mod packet;
mod scope;
pub mod symbol;
mod template;
mod token;

pub use actions::{Stage, ra_route};
pub use error::{Position, SyntaxError};
pub use listing::{FlowList, ListedFlow};
pub use load::Loader;
pub use load_balancer::LoadBalancer;
pub use logical_flow::{FlowError, FlowPart, LogicalFlow};
pub use packet::parse_packet;
pub use scope::{PortGroupMembers, Scope};
pub use template::expand_templates;
pub use token::{Constant, Format, Quoted, Token, TokenKind};
