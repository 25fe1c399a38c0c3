//! The constants that programs and userspace share.
#![allow(dead_code, missing_docs, reason = "generated, and not all are for tests")]

include!(concat!(env!("OUT_DIR"), "/constants.rs"));
