//! Limits on the segments of a super-packet.
//!
//! The eBPF programs have the same limits: the build script of the kernel datapath reads this file
//! and generates constants of C. So it names nothing outside itself.

/// The least payload of a segment in bytes, except in super-packets of few segments.
///
/// Linux sends at least 48 bytes per TCP segment (`TCP_MIN_SND_MSS`), less 12 bytes of timestamps.
/// Only a sender that reports losses of the other direction at the same time (SACK) sends less.
/// Other systems send more. A super-packet of 64 KiB has 1,820 such segments.
pub const LEAST_SEGMENT_LEN: u16 = 36;

/// About this many segments of a super-packet may be shorter than [`LEAST_SEGMENT_LEN`].
///
/// An application may send datagrams of any size in a UDP super-packet, but Linux allows at most
/// 128 of them (`UDP_MAX_SEGMENTS`). A guest that routes may merge short TCP segments that it has
/// received. One poll of its device yields 64.
pub const SHORT_SEGMENTS: usize = 128;

/// Super-packets whose segments have less payload than this, in bytes, are rate-limited. Linux
/// accepts no path MTU below 552 bytes (`min_pmtu`), of which headers and timestamps leave this
/// much.
pub const SHORT_SEGMENT_LEN: u16 = 500;
