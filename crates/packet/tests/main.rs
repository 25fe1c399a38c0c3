//! All integration tests of crate `packet`, as one test binary.

mod checksum;
mod coalesce;
mod fit;
mod fragment;
mod located;
mod reassembly;
mod segment;
mod stt;
mod support;
