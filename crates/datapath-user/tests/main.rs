//! The tests of the user datapath as one program.

mod conformance;
mod fast_path;
mod path_mtu;
