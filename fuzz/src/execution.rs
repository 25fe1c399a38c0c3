//! Target: rewrites fields of a guest's frame, and builds replies to it.

use flow::{Action, ActionOutput, EndpointTable, Field, FlowKey, PortNo, Reply, execute, extract};
use packet::vnet;
use packet::{ChecksumStatus, PacketBuf, verify_checksum};

use crate::offload;

/// The length of a rewrite: the number of a field, the number of upper bits that are kept, and the
/// value.
const SET_LEN: usize = 18;
const MAX_SETS: usize = 8;

/// Encodes a rewrite for an input.
pub fn set_bytes(field: Field, value: u128) -> Vec<u8> {
    let number = Field::ALL.iter().position(|&f| f == field).unwrap_or_default() as u8;
    [&[number, 0][..], &value.to_be_bytes()].concat()
}

/// Executes an input: a virtio-net header, one byte with the number of rewrites, the rewrites, and
/// the frame. Returns how many rewrites changed the key, and how many replies were built.
pub fn frame(bytes: &[u8]) -> Option<(usize, usize)> {
    let (header, rest) = bytes.split_at_checked(vnet::VNET_MRG_LEN)?;
    let (count, rest) = rest.split_first()?;
    let (sets, frame) = rest.split_at_checked(usize::from(*count) % MAX_SETS * SET_LEN)?;
    let mut packet = PacketBuf::from_bytes(frame);
    packet.offload = vnet::decode(header, frame.len()).ok()?;
    let is_partial = offload::make_checksum_partial(&mut packet).is_some();
    let changed = sets.chunks_exact(SET_LEN).filter(|set| rewrite(set, &mut packet)).count();
    if is_partial && packet.offload.gso.is_some() {
        offload::segments(&packet);
    }
    let made = Reply::ALL.into_iter().filter(|&reply| answer(reply, &packet)).count();
    Some((changed, made))
}

fn key(packet: &PacketBuf) -> Option<FlowKey> {
    extract(packet, PortNo(1), None).ok()
}

/// Executes one rewrite. No other field may change, and no checksum may become wrong. Returns
/// whether the key changed.
fn rewrite(set: &[u8], packet: &mut PacketBuf) -> bool {
    let Some((&[number, kept], value)) = set.split_first_chunk() else { return false };
    let field = Field::ALL[usize::from(number) % Field::ALL.len()];
    let value = value.try_into().map_or(0, u128::from_be_bytes);
    let mask = field.all_ones() >> (kept % field.width());
    let (before, verdict) = (key(packet), verify_checksum(packet));
    let action = Action::Set { field, value: value & mask, mask };
    execute(&[action], packet, &mut EndpointTable::new(49_152, 1), &mut Nowhere);
    let Some(before) = before else { return false };
    let after = key(packet);
    assert!(
        verdict != ChecksumStatus::Valid || verify_checksum(packet) == ChecksumStatus::Valid,
        "{field}"
    );
    if matches!(field, Field::IcmpType | Field::IcmpCode) {
        // The packet may have become neighbour discovery, which has more fields and can be
        // malformed.
        return after.as_ref() != Some(&before);
    }
    let after = after.expect("no set field makes a frame malformed");
    let mut expected = before.clone();
    let tag = matches!(field, Field::VlanTci | Field::VlanInnerTci);
    let mask = if tag { mask & 0xefff } else { mask };
    expected.set(field, before.get(field) & !mask | value & mask);
    assert!(after == before || after == expected, "{field}: {before:?}, {after:?}");
    after != before
}

/// Builds a reply and checks its key and checksum. Returns whether the packet has such a reply.
fn answer(reply: Reply, packet: &PacketBuf) -> bool {
    let Ok(built) = reply.build(packet) else { return false };
    let of_built = key(&built).expect("a reply is well-formed");
    assert_ne!(verify_checksum(&built), ChecksumStatus::Invalid, "{reply:?}");
    if let Some(mut expected) = key(packet) {
        let unspecified_src = expected.get(Field::Ip6Src) == 0;
        reply.key_edits(unspecified_src).iter().for_each(|edit| edit.apply(&mut expected));
        assert_eq!(of_built, expected, "{reply:?}");
    }
    true
}

struct Nowhere;

impl ActionOutput for Nowhere {
    fn port(&mut self, _: PortNo, _: &mut PacketBuf) -> Result<(), flow::DropReason> {
        Ok(())
    }

    fn underlay(
        &mut self,
        _: &flow::Encapsulated,
        _: &mut PacketBuf,
    ) -> Result<(), flow::DropReason> {
        Ok(())
    }

    fn dropped(&mut self, _: flow::DropReason, _: &PacketBuf) {}
}
