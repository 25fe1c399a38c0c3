//! The switch: joins a datapath with the program.
//!
//! ```text
//!             upcalls                  translate, learn
//! datapath ------------->  handler  <------------------>  program, what was learnt
//!    ^  ^   <-------------    |                                      |
//!    |  |      answers        v                                      v
//!    |  |                  records  <-------------------------  revalidator
//!    |  +---- usages, new actions, deletions ------------------------+
//! ```
//!
//! - `handler`: packets that no megaflow matches come up in batches; each is translated, and answered with a megaflow for
//!   those that follow, as long as there are not too many (`records`).
//! - `origin`: of each megaflow, the flows that decided and the questions about learnt state that they asked.
//! - [`probe`]: packets of the hosts themselves, by which they find out what the way between them carries.
//! - `revalidator`: hands counters on to flows, deletes megaflows that are idle, and translates those again whose program or answers
//!   have changed.
//!
//! [`Engine`] is all of this without threads and clock; [`Switch`] is the engine on threads of its own.
#![forbid(unsafe_code)]

mod adopt;
mod alarm;
mod config;
mod engine;
mod handler;
mod origin;
pub mod probe;
mod records;
mod revalidator;
mod stats;
mod switch;

pub use config::{Config, Limits};
pub use engine::{Engine, FlowRow};
pub use stats::SwitchStats;
pub use switch::Switch;
