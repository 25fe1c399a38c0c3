//! The program of the switch.
#![forbid(unsafe_code)]
