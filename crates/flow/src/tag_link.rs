//! VLAN and QinQ as tunnel types: hosts on a trunk tell logical switches apart by one or two VLAN
//! tags.
//!
//! The underlay's tags are removed before any other processing, like other tunnel headers. The
//! ingress port and [`TunnelInfo::id`](crate::TunnelInfo::id) then represent them. Tags after them
//! belong to the guest, and their number is limited as in frames from any other tunnel.

use crate::{DatapathKey, DropReason, PortNo, TunnelType};
use ahash::HashMap;
use packet::PacketBuf;
use wire::vlan::{ETHERTYPE_OFFSET, TAG_LEN, Tag, Tags};
use wire::{EtherType, VlanId};

/// A logical link of the uplink: its tags identify the frames of one logical switch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum TagLink {
    /// One tag (IEEE 802.1Q), of TPID 0x8100.
    Vlan(VlanId),
    /// Two tags (IEEE 802.1ad).
    QinQ {
        /// The TPID of the outer tag: 0x88a8, or the values of older equipment, 0x8100 and 0x9100.
        service_tpid: EtherType,
        /// The service VLAN, in the outer tag.
        outer: VlanId,
        /// The customer VLAN, in the inner tag, of TPID 0x8100.
        inner: VlanId,
    },
}

impl TagLink {
    /// The tunnel type.
    pub const fn tunnel(self) -> TunnelType {
        match self {
            Self::Vlan(_) => TunnelType::Vlan,
            Self::QinQ { .. } => TunnelType::QinQ,
        }
    }

    /// The tunnel key that represents the tags: the VLAN, or outer VLAN * 4096 + inner VLAN. It is
    /// unique among links of one type and outer TPID.
    pub const fn key(self) -> DatapathKey {
        DatapathKey(match self {
            Self::Vlan(vlan) => vlan.value() as u32,
            Self::QinQ { outer, inner, .. } => (outer.value() as u32) << 12 | inner.value() as u32,
        })
    }

    /// The outer tag, and the inner tag if there is one. Both have priority 0.
    pub const fn tags(self) -> (Tag, Option<Tag>) {
        match self {
            Self::Vlan(vlan) => (Tag::new(EtherType::VLAN, vlan), None),
            Self::QinQ { service_tpid, outer, inner } => {
                (Tag::new(service_tpid, outer), Some(Tag::new(EtherType::VLAN, inner)))
            }
        }
    }

    const fn len(self) -> usize {
        match self {
            Self::Vlan(_) => TAG_LEN,
            Self::QinQ { .. } => 2 * TAG_LEN,
        }
    }
}

/// The links of an uplink, each with the ingress port of its frames.
#[derive(Clone, Debug, Default)]
pub struct TagLinks(HashMap<TagLink, PortNo>);

impl FromIterator<(TagLink, PortNo)> for TagLinks {
    fn from_iter<T: IntoIterator<Item = (TagLink, PortNo)>>(links: T) -> Self {
        Self(links.into_iter().collect())
    }
}

impl TagLinks {
    /// Finds the link of a frame, and its ingress port.
    ///
    /// A QinQ link that matches the first two tags takes precedence over a VLAN link that matches
    /// the first. Priorities are ignored. If an uplink had links (7) and (7, 8) of one outer TPID,
    /// a guest on the first could reach the second with its own tag 8. The `network` crate rejects
    /// such files.
    ///
    /// # Errors
    /// [`DropReason::UnknownDatapath`] for tags that belong to no link, [`DropReason::Malformed`]
    /// for a truncated frame.
    #[inline]
    pub fn find(&self, frame: &[u8]) -> Result<(TagLink, PortNo), DropReason> {
        let tags = Tags::parse(frame).map_err(|_| DropReason::Malformed)?;
        let is_plain = |tag: &Tag| tag.tpid == EtherType::VLAN;
        let pair = |(outer, inner): (Tag, Tag)| {
            let (service_tpid, outer, inner) = (outer.tpid, outer.vlan()?, inner.vlan()?);
            Some(TagLink::QinQ { service_tpid, outer, inner })
        };
        let both = tags.outer().zip(tags.inner().filter(is_plain)).and_then(pair);
        let single = tags.outer().filter(is_plain).and_then(Tag::vlan).map(TagLink::Vlan);
        let known = |link: TagLink| Some((link, *self.0.get(&link)?));
        both.and_then(known).or_else(|| single.and_then(known)).ok_or(DropReason::UnknownDatapath)
    }

    /// Removes the tags of a link from a frame, and returns the link and its ingress port.
    ///
    /// # Errors
    /// The same as [`TagLinks::find`]; the frame is unchanged then.
    #[inline]
    pub fn decap(&self, packet: &mut PacketBuf) -> Result<(TagLink, PortNo), DropReason> {
        let (link, port) = self.find(packet.head())?;
        packet.head_mut().copy_within(..ETHERTYPE_OFFSET, link.len());
        packet.pull_front(link.len());
        Ok((link, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TPIDS: [u16; 3] = [0x8100, 0x88a8, 0x9100];

    fn vlan(value: u16) -> VlanId {
        VlanId::new(value).unwrap()
    }

    fn qinq(service_tpid: u16, outer: u16, inner: u16) -> TagLink {
        TagLink::QinQ {
            service_tpid: EtherType(service_tpid),
            outer: vlan(outer),
            inner: vlan(inner),
        }
    }

    fn frame(tags: &[(u16, u16)]) -> Vec<u8> {
        let tags = tags.iter().flat_map(|&(tpid, tci)| [tpid, tci]).flat_map(u16::to_be_bytes);
        (1..=12).chain(tags).chain([0x88, 0xb5, 0xa5]).collect()
    }

    #[test]
    fn link_is_told_by_its_tags_alone() {
        let links = [TagLink::Vlan(vlan(7)), qinq(0x88a8, 7, 8), qinq(0x9100, 1, 2)];
        let port = |link: TagLink| PortNo(link.key().0);
        let known: TagLinks = links.into_iter().map(|link| (link, port(link))).collect();
        let unknown = Err(DropReason::UnknownDatapath);
        type Row<'a> = (&'a [(u16, u16)], Result<(TagLink, usize), DropReason>);
        let table: [Row<'_>; 17] = [
            (&[(0x8100, 7)], Ok((links[0], 0))),
            (&[(0x8100, 0xf007)], Ok((links[0], 0))),
            // Any other tags belong to the guest.
            (&[(0x8100, 7), (0x8100, 8)], Ok((links[0], 1))),
            (&[(0x8100, 7), (0x9100, 0), (0x88a8, 7)], Ok((links[0], 2))),
            (&[(0x88a8, 7), (0x8100, 8)], Ok((links[1], 0))),
            (&[(0x88a8, 0x2007), (0x8100, 0x1008), (0x8100, 7)], Ok((links[1], 1))),
            (&[(0x9100, 1), (0x8100, 2), (0x9100, 1), (0x8100, 2)], Ok((links[2], 2))),
            (&[], unknown),
            (&[(0x8100, 8)], unknown),
            (&[(0x8100, 0)], unknown),
            (&[(0x8100, 4095)], unknown),
            (&[(0x88a8, 7)], unknown),
            (&[(0x88a8, 7), (0x8100, 9)], unknown),
            (&[(0x88a8, 7), (0x88a8, 8)], unknown),
            (&[(0x88a8, 1), (0x8100, 2)], unknown),
            (&[(0x8100, 8), (0x8100, 7)], unknown),
            (&[(0x9100, 7), (0x8100, 8)], unknown),
        ];
        for (tags, expected) in table {
            let mut packet = PacketBuf::from_bytes(&frame(tags));
            let found = known.decap(&mut packet);
            assert_eq!(found, expected.map(|(link, _)| (link, port(link))), "{tags:x?}");
            let own = expected.map_or(tags, |(_, own)| &tags[tags.len() - own..]);
            assert_eq!(packet.to_vec(), frame(own), "{tags:x?}");
        }
    }

    #[test]
    fn pair_wins_when_its_outer_tag_is_a_link_too() {
        let (single, pair) = (TagLink::Vlan(vlan(7)), qinq(0x8100, 7, 8));
        let known: TagLinks = [(single, PortNo(1)), (pair, PortNo(2))].into_iter().collect();
        let find = |tags: &[(u16, u16)]| known.find(&frame(tags));
        assert_eq!(find(&[(0x8100, 7), (0x8100, 8)]), Ok((pair, PortNo(2))));
        assert_eq!(find(&[(0x8100, 7), (0x8100, 9)]), Ok((single, PortNo(1))));
    }

    #[test]
    fn frame_is_malformed_when_a_tag_is_cut() {
        let known: TagLinks = [(TagLink::Vlan(vlan(7)), PortNo(1))].into_iter().collect();
        let whole = frame(&[(0x8100, 7), (0x8100, 8)]);
        for len in 0..=whole.len() {
            let found = known.find(&whole[..len]).map(|_| ());
            let expected = if len < 22 { Err(DropReason::Malformed) } else { Ok(()) };
            assert_eq!(found, expected, "{len}");
        }
    }

    #[test]
    fn tags_put_on_are_those_taken_off() {
        for tpid in TPIDS {
            for link in [TagLink::Vlan(vlan(4094)), qinq(tpid, 1, 4094)] {
                let known: TagLinks = [(link, PortNo(1))].into_iter().collect();
                let mut packet =
                    PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME);
                packet.append(&frame(&[(tpid, 5)]));
                let (outer, inner) = link.tags();
                for tag in inner.into_iter().chain([outer]) {
                    crate::push_vlan(&mut packet, tag).unwrap();
                }
                assert_eq!(known.decap(&mut packet), Ok((link, PortNo(1))));
                assert_eq!(packet.to_vec(), frame(&[(tpid, 5)]), "{link:?}");
            }
        }
    }
}
