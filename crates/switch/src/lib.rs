//! The switch: joins a datapath with the program.
//!
//! ```text
//!             upcalls                  translate, learn
//! datapath ------------->  handler  <------------------>  program, learned state
//!    ^  ^   <-------------    |                                      |
//!    |  |      answers        v                                      v
//!    |  |                  records  <-------------------------  revalidator
//!    |  +---- usages, new actions, deletions ------------------------+
//! ```
//!
//! - `carry`: keeps megaflows that a new program does not affect.
//! - `handler`: translates the packets of upcalls in batches, and answers each with a megaflow for
//!   later packets, within the limits (`records`).
//! - `learn_journal`: learn events of packets, for a control plane that passes them to other hosts.
//! - `origin`: the flows of the program behind a megaflow, and the learned state that they read.
//! - [`probe`]: packets between hosts that measure the MTU of the path between them.
//! - `revalidator`: adds counters to flows, deletes idle megaflows, and translates those again
//!   whose program or learned state has changed.
//!
//! [`Engine`] is all of this without threads and clock; [`Switch`] is the engine with its threads.
#![forbid(unsafe_code)]

mod adopt;
mod carry;
mod config;
mod enforce;
mod engine;
mod fusions;
mod handler;
mod held;
mod learn_journal;
mod origin;
pub mod probe;
mod records;
mod revalidate_signal;
mod revalidator;
mod self_check;
mod stats;
mod switch;

pub use config::{Config, Limits};
pub use engine::{ControllerCopy, Engine, FlowRow};
pub use stats::SwitchStats;
pub use switch::Switch;
