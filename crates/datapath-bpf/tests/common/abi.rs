//! The constants that the programs share with userspace.
#![allow(dead_code, missing_docs, reason = "generated, and not all are for tests")]

include!(concat!(env!("OUT_DIR"), "/constants.rs"));
