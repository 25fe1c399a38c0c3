//! Integration tests of `network`, linked as one binary.

mod accepted;
mod forwarder;
mod learning;
mod logical;
mod refused;
mod support;
