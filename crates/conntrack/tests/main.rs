//! Tests of connection tracking: beside the kernel, beside a naive table, and of its limits.

mod behaviour;
mod kernel;
mod naive;
mod support;
mod translation;
