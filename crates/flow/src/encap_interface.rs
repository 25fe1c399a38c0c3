//! What the eBPF programs and this crate agree on about outer headers.
//!
//! The build script of the kernel datapath reads this file and generates constants of C. So it
//! names nothing outside itself.

/// The outer TTL, unless it is configured or inherited from an inner IP header.
pub(crate) const TTL_UNLESS_GIVEN: u8 = 64;

/// Number of factors in the formula for the entropy of a flow.
pub(crate) const ENTROPY_FACTORS: usize = 6;
/// Index of the factor for the word of protocol and ports.
pub(crate) const ENTROPY_LAST_WORD: usize = 4;
/// Index of the factor for the second multiplication.
pub(crate) const ENTROPY_FINISH: usize = 5;
