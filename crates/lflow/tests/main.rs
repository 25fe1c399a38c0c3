//! Logical flows, compiled into a program and executed on packets.

mod actions;
mod bounds;
