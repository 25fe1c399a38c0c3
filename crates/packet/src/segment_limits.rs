//! Limits on the segments of a super-packet.
//!
//! The eBPF programs have the same limits: the build script of the kernel datapath reads this file
//! and generates constants of C. So it names nothing outside itself.

/// Only super-packets of few segments may have smaller ones, in bytes of payload.
///
/// Linux sends at least 48 bytes per TCP segment (`TCP_MIN_SND_MSS`), less 12 bytes of timestamps.
/// Only a sender that reports losses of the other direction at the same time sends less. Other
/// systems send more. A whole super-packet of such segments has 1,820 of them.
pub const LEAST_SEGMENT_LEN: u16 = 36;

/// About this many segments may be shorter than [`LEAST_SEGMENT_LEN`].
///
/// An application may send datagrams of any size in a UDP super-packet, but Linux allows at most
/// 128 of them (`UDP_MAX_SEGMENTS`). A guest that routes may merge short TCP segments that it has
/// received. One poll of its device yields 64.
pub const SHORT_SEGMENTS: usize = 128;

/// Shorter segments of super-packets have a limit per second, in bytes of payload. Linux believes
/// no path MTU below 552 bytes (`min_pmtu`), of which headers and timestamps leave this much.
pub const SHORT_SEGMENT_LEN: u16 = 500;
