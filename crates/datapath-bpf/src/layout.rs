//! Word positions in the programs' key, and the hash that identifies their map layouts.

use crate::abi::weft_key;
use flow::Field;
use std::mem::{offset_of, size_of};

/// 64-bit words in a key.
pub(crate) const WORDS: usize = size_of::<weft_key>() / 8;

/// The index of a key's word at a byte offset.
const fn word(offset: usize) -> usize {
    assert!(offset.is_multiple_of(8));
    offset / 8
}

/// Ingress port and shape.
pub(crate) const PORT: usize = word(offset_of!(weft_key, port));
pub(crate) const ETH_DST: usize = word(offset_of!(weft_key, eth_dst));
pub(crate) const ETH_SRC: usize = word(offset_of!(weft_key, eth_src));
pub(crate) const VLAN: usize = word(offset_of!(weft_key, vlan));
pub(crate) const IP: usize = word(offset_of!(weft_key, ip));
pub(crate) const TRANSPORT: usize = word(offset_of!(weft_key, transport));
/// Four words of addresses.
pub(crate) const L3: usize = word(offset_of!(weft_key, l3));
/// Three words of neighbour discovery.
pub(crate) const ND: usize = word(offset_of!(weft_key, nd));
pub(crate) const TUN_ID: usize = word(offset_of!(weft_key, tun_id));
pub(crate) const TUN_FLAGS: usize = word(offset_of!(weft_key, tun_flags));
pub(crate) const TUN_METADATA: usize = word(offset_of!(weft_key, tun_metadata));
/// Four words of addresses.
pub(crate) const TUN_ADDR: usize = word(offset_of!(weft_key, tun_addr));

// All members of the C structure are listed above, so adding one there alone does not compile.
const _: () = assert!(WORDS == 20 && TUN_ADDR == WORDS - 4);

/// Identifies the layout of the pinned maps, so that a daemon of another version does not read
/// them. It covers `bpf/intf.h` and the position of each field in a key.
pub(crate) const LAYOUT: u64 = {
    let Ok(mut hash) = u64::from_str_radix(env!("WEFT_LAYOUT"), 16) else { panic!() };
    let mut at = 0;
    while at < Field::ALL.len() {
        let field = Field::ALL[at];
        let place =
            (field.word() << 16 | (field.shift() as usize) << 8 | field.width() as usize) as u64;
        // FNV-1a, one field at a time.
        hash = (hash ^ place).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
};
