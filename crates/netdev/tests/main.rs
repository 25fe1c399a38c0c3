//! Integration tests against the running kernel, in namespaces of their own, linked as one binary.

mod control;
mod packet_io;
mod terminal;
