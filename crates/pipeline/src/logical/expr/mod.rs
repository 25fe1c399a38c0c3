//! Expressions of the logical language: parsed, printed, compiled.

mod field;

pub use field::{FieldRef, parse_field};
