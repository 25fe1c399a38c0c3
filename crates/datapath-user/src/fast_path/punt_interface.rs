//! Constants of punted frames that the eBPF programs and this crate share.
//!
//! The build script of the kernel datapath reads this file and generates constants of C. So it
//! names nothing outside itself.

/// EtherType of the punt header: local experimental EtherType 1 (IEEE 802, clause 9.2.4).
pub(super) const PUNT_ETHERTYPE: u16 = 0x88b5;

/// Offset in the punt header of the ingress port: 4 bytes in network order.
pub(super) const PUNT_PORT_AT: usize = 0;
/// Offset of the time when the frame was punted (bpf_ktime_get_ns): 8 bytes in the byte order of
/// the host, or 0.
pub(super) const PUNT_TIME_AT: usize = 4;
/// Offset of [`PUNT_ETHERTYPE`], where an Ethernet header has its EtherType.
pub(super) const PUNT_ETHERTYPE_AT: usize = 12;

/// Stands for the time up to which punted frames have been read, if no frame waits.
pub(super) const ALL_READ: u64 = u64::MAX;
