//! The tests of crate `packet` as one program.

mod checksum;
mod coalesce;
mod fit;
mod fragment;
mod located;
mod segment;
mod stt;
mod support;
