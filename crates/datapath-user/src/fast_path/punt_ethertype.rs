//! The EtherType of the punt header.
//!
//! The eBPF programs write it: the build script of the kernel datapath reads this file and
//! generates a constant of C. So it names nothing outside itself.

/// Local experimental EtherType 1 (IEEE 802, clause 9.2.4).
pub(super) const PUNT_ETHERTYPE: u16 = 0x88b5;
