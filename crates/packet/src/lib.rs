//! One frame with headroom and its offload state, and what can be done to it without a device: software
//! segmentation, checksum completion, coalescing of segments into super-packets, reassembly of STT frames.
//!
//! No I/O and no clock.
#![forbid(unsafe_code)]

mod buf;

pub use buf::{Checksum, Gso, GsoKind, HeadroomError, Offload, PacketBuf};
