//! The datapath: where frames come in, what they are looked up in, and where they go.
//!
//! [`user`] forwards in userspace over TAP, AF_PACKET and UDP sockets, with super-packets whole.
#![forbid(unsafe_code)]

pub mod stats;
pub mod user;
