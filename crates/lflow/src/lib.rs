//! OVN's logical language: conditions and actions on packets in terms of logical ports, as the match and the actions of a
//! logical flow are written (`Logical_Flow` in ovn-sb(5)).
//!
//! ```text
//! text --> lexer --> expr::parse --> Expr --(Scope)--> rows for a classifier + a residual predicate
//! ```
//!
//! A text is parsed without knowing where it will be used; what its names mean in a datapath is said by a
//! [`Scope`] when it is compiled.
#![forbid(unsafe_code)]

pub mod actions;
mod error;
pub mod expr;
pub mod lexer;
mod listing;
mod load;
mod logical_flow;
mod packet;
mod scope;
pub mod symbol;
mod token;

pub use actions::Stage;
pub use error::{Position, SyntaxError};
pub use listing::{FlowList, ListedFlow};
pub use load::Loader;
pub use logical_flow::{FlowError, FlowPart, LogicalFlow};
pub use packet::parse_packet;
pub use scope::Scope;
pub use token::{Constant, Format, Quoted, Token, TokenKind};
