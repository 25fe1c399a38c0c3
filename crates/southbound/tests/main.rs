//! Compiles southbound databases into programs, and compares these with OVN's own tools.

mod ovn_trace;
