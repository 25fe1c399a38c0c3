//! Tests of the language of actions, by tables: `input => canonical form`, `input => error`, `input
//! => steps`.

mod accepted;
mod compiled;
mod generated;
mod refused;

use super::{Actions, Stage, parse};
use crate::error::SyntaxError;
use pipeline::Direction;

/// Ingress table 10 of 24.
fn stage() -> Stage {
    Stage::new(Direction::Ingress, 10, 24).unwrap()
}

fn parse_here(text: &str) -> Result<Actions, SyntaxError> {
    parse(text, stage())
}
