//! What this host's network cards, MTUs and kernel can do for tunnels, what is wrong with them, and how to mend it.
//!
//! In three steps, each with a module: [`facts`] reads what there is, by netlink, ioctl and `/proc`; [`judge`] says what that means,
//! in functions of facts alone, so that a card that somebody recorded elsewhere is judged by the same code as a live one; and
//! [`report`] shows the [`Finding`]s. [`mend`] applies those that are safe, and knows how to take them back.
#![forbid(unsafe_code)]

pub mod choice;
pub mod cost;
pub mod drivers;
pub mod examine;
pub mod facts;
mod finding;
pub mod host;
pub mod judge;
pub mod mend;
pub mod path;
pub mod report;

pub use finding::{Finding, Level, Mend};
