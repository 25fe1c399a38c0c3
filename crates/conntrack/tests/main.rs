//! Tests of connection tracking: beside the kernel, beside a naive table, of its limits, and of
//! saved connections.

mod behaviour;
mod kernel;
mod naive;
mod saved;
mod support;
mod translation;
