//! The positions of fields in `weft_key`, the flow key of the eBPF programs, and a hash that
//! identifies the layout of the programs' maps.

use crate::abi::weft_key;
use flow::Field;
use std::mem::{offset_of, size_of};

/// The number of 64-bit words in a key.
pub(crate) const WORDS: usize = size_of::<weft_key>() / 8;

/// The index of the key word at a byte offset.
const fn word(offset: usize) -> usize {
    assert!(offset.is_multiple_of(8));
    offset / 8
}

/// The ingress port, and the shape: which optional words of the key are in use.
pub(crate) const PORT: usize = word(offset_of!(weft_key, port));
pub(crate) const ETH_DST: usize = word(offset_of!(weft_key, eth_dst));
pub(crate) const ETH_SRC: usize = word(offset_of!(weft_key, eth_src));
pub(crate) const VLAN: usize = word(offset_of!(weft_key, vlan));
pub(crate) const IP: usize = word(offset_of!(weft_key, ip));
pub(crate) const TRANSPORT: usize = word(offset_of!(weft_key, transport));
/// The first of four words: IPv4 or IPv6 addresses, or the addresses of ARP.
pub(crate) const L3: usize = word(offset_of!(weft_key, l3));
/// The first of three words: the target of neighbour discovery, and its link-layer address.
pub(crate) const ND: usize = word(offset_of!(weft_key, nd));
pub(crate) const TUN_ID: usize = word(offset_of!(weft_key, tun_id));
pub(crate) const TUN_FLAGS: usize = word(offset_of!(weft_key, tun_flags));
pub(crate) const TUN_METADATA: usize = word(offset_of!(weft_key, tun_metadata));
/// The first of four words: the outer IPv4 or IPv6 addresses.
pub(crate) const TUN_ADDR: usize = word(offset_of!(weft_key, tun_addr));

// The constants above name all members of the C structure. This fails to compile when a member is
// added there only.
const _: () = assert!(WORDS == 20 && TUN_ADDR == WORDS - 4);

/// Identifies the layout of the pinned maps, so that a daemon of another version does not read
/// them. It covers `bpf/intf.h`, whose hash the build script computes, and the position of each
/// field in a key.
pub(crate) const LAYOUT: u64 = {
    let Ok(mut hash) = u64::from_str_radix(env!("WEFT_LAYOUT"), 16) else { panic!() };
    let mut at = 0;
    while at < Field::ALL.len() {
        let field = Field::ALL[at];
        let position =
            (field.word() << 16 | (field.shift() as usize) << 8 | field.width() as usize) as u64;
        // FNV-1a, one field at a time.
        hash = (hash ^ position).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
};
