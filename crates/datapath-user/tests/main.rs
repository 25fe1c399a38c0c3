//! All integration tests of the user datapath, as one test binary.

mod conformance;
mod fast_path;
mod path_mtu;
