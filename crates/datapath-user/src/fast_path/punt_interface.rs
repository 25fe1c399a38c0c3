//! What the eBPF programs and this crate agree on about punted frames.
//!
//! The build script of the kernel datapath reads this file and generates constants of C. So it
//! names nothing outside itself.

/// EtherType of the punt header: local experimental EtherType 1 (IEEE 802, clause 9.2.4).
pub(super) const PUNT_ETHERTYPE: u16 = 0x88b5;

/// The time up to which punted frames have been read, while none waits.
pub(super) const ALL_READ: u64 = u64::MAX;
