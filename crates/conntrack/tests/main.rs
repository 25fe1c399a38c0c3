//! Tests of connection tracking: compared with the kernel and with a naive table, limits, and saved
//! connections.

mod behaviour;
mod kernel;
mod naive;
mod saved;
mod support;
mod translation;
