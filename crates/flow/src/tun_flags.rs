//! The bits of [`Field::TunFlags`], and the positions of the fields in the same word of the key.
//!
//! The eBPF programs also write that word: the build script of the kernel datapath reads this file
//! and generates C constants. This file must therefore not use items of other files.
//!
//! [`Field::TunFlags`]: crate::Field::TunFlags

/// A control packet between end points (the O bit of Geneve).
pub const OAM: u16 = 1 << 0;
/// "Don't fragment" in the outer IPv4 header.
pub const DF: u16 = 1 << 1;
/// The tunnel header, or the UDP header before it, has a checksum.
pub const CSUM: u16 = 1 << 2;
/// The tunnel header has a key, which may be 0.
pub const KEY: u16 = 1 << 3;
/// Every flag with its name.
pub const NAMES: [(&str, u16); 4] = [("df", DF), ("csum", CSUM), ("key", KEY), ("oam", OAM)];

/// Bits to the right of `tun_flags` in its word.
pub(crate) const FLAGS_SHIFT: u8 = 48;
/// Bits to the right of `tun_tos`.
pub(crate) const TOS_SHIFT: u8 = 40;
/// Bits to the right of `tun_ttl`.
pub(crate) const TTL_SHIFT: u8 = 32;
/// Bits to the right of `tun_metadata_present`.
pub(crate) const METADATA_PRESENT_SHIFT: u8 = 24;
