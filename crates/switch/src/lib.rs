//! The switch: joins a datapath with the program.
#![forbid(unsafe_code)]
