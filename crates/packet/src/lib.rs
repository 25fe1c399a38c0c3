//! A frame with headroom and offload state, and the offloads in software: segmentation,
//! fragmentation, checksums, coalescing of segments into super-packets, and reassembly of IP
//! datagrams and of STT frames.
//!
//! No I/O and no clock.
#![forbid(unsafe_code)]

mod buf;
pub mod checksum;
pub mod coalesce;
pub mod fit;
pub mod fragment;
mod headers;
mod locate;
mod merge;
pub mod reassembly;
pub mod segment;
mod segment_count;
mod segment_limits;
pub mod stt;
pub mod vnet;

pub use buf::{Checksum, Gso, GsoKind, HeadroomError, Offload, PacketBuf};
pub use checksum::{
    ChecksumError, ChecksumStatus, SegmentSizeLost, complete_checksum, complete_crc32c,
    complete_misplaced_checksum, infer_offload, infer_partial, limit_segments, verify_checksum,
};
pub use coalesce::{Coalescer, coalesce_ranges};
pub use fit::{Fit, Resize, fit, wire_len};
pub use fragment::{FragmentError, Fragmenter};
pub use reassembly::{IpReassembler, Refragment, longest_frame, refragment};
pub use segment::{
    SegmentChecksum, SegmentError, SegmentHead, Segmenter, Segments, SplitLimits, first_segment,
    split,
};
pub use segment_count::{has_tiny_segments, segment_count, total_wire_len};
pub use segment_limits::{LEAST_SEGMENT_LEN, SHORT_SEGMENT_LEN, SHORT_SEGMENTS};
