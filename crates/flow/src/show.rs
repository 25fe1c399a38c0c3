//! Text forms of fields, masks, matches and actions.

use crate::{Action, Field, FlowKey, FlowMask, Match, Notation, Reply};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use wire::MacAddr;

/// The value of a field in the notation of that field.
#[derive(Clone, Copy, Debug)]
pub struct ShowValue(pub Field, pub u128);

impl fmt::Display for ShowValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.1;
        match self.0.notation() {
            Notation::Decimal => value.fmt(f),
            Notation::Hexadecimal => write!(f, "{value:#x}"),
            Notation::Mac => {
                let [_, _, mac @ ..] = (value as u64).to_be_bytes();
                MacAddr(mac).fmt(f)
            }
            Notation::Ipv4 => Ipv4Addr::from_bits(value as u32).fmt(f),
            Notation::Ipv6 => Ipv6Addr::from_bits(value).fmt(f),
        }
    }
}

/// A field with a mask: `ip4_dst=10.0.0.0/8`, `tcp_flags=0x2/0x12`.
#[derive(Clone, Copy, Debug)]
pub struct ShowMasked {
    /// The field.
    pub field: Field,
    /// The value; bits outside the mask are not shown.
    pub value: u128,
    /// The bits that are compared or set.
    pub mask: u128,
}

impl fmt::Display for ShowMasked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, value, mask } = *self;
        write!(f, "{field}={}", ShowValue(field, value & mask))?;
        let width = u32::from(field.width());
        let from_top = mask << (128 - width);
        match field.notation() {
            _ if mask == field.all_ones() => Ok(()),
            Notation::Ipv4 | Notation::Ipv6 if from_top.leading_ones() == from_top.count_ones() => {
                write!(f, "/{}", mask.count_ones())
            }
            Notation::Decimal => write!(f, "/{mask:#x}"),
            _ => write!(f, "/{}", ShowValue(field, mask)),
        }
    }
}

fn list(
    f: &mut fmt::Formatter<'_>,
    items: impl Iterator<Item = impl fmt::Display>,
    empty: &str,
) -> fmt::Result {
    let mut first = true;
    for item in items {
        if !std::mem::take(&mut first) {
            f.write_str(",")?;
        }
        item.fmt(f)?;
    }
    if first { f.write_str(empty) } else { Ok(()) }
}

/// Prints the fields that are not 0.
impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = Field::ALL.iter().map(|&field| (field, self.get(field)));
        let set = fields.filter(|&(_, value)| value != 0);
        list(f, set.map(|(field, value)| ShowMasked { field, value, mask: field.all_ones() }), "")
    }
}

/// Prints the fields in the mask, with their bits.
impl fmt::Display for FlowMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.fields().map(|(field, bits)| match bits == field.all_ones() {
            true => field.name().to_owned(),
            false => format!("{field}/{}", ShowValue(field, bits)),
        });
        list(f, shown, "any")
    }
}

/// Prints the fields in the mask with their values, or `any` for an empty mask.
impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = self.mask().fields();
        let shown =
            fields.map(|(field, mask)| ShowMasked { field, value: self.key().get(field), mask });
        list(f, shown, "any")
    }
}

/// A list of actions as text: `set(eth_dst=02:00:00:00:00:02),output(3)`.
#[derive(Clone, Copy, Debug)]
pub struct ShowActions<'a>(pub &'a [Action]);

impl fmt::Display for ShowActions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        list(f, self.0.iter(), "nothing")
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Output(port) => write!(f, "output({port})"),
            Self::Encap { endpoint, key } => {
                write!(f, "encap(endpoint={endpoint},key={}", key.datapath)?;
                if let Some(ports) = key.ports {
                    let ingress = ports.ingress.map_or(0, crate::PortKey::value);
                    write!(f, ",inport={ingress},outport={}", ports.egress)?;
                }
                f.write_str(")")
            }
            Self::PushVlan(tag) => {
                write!(f, "push_vlan(tpid={:#06x},vid={},pcp={})", tag.tpid.0, tag.vid, tag.pcp)
            }
            Self::PopVlan => f.write_str("pop_vlan"),
            Self::Drop(reason) => write!(f, "drop({})", reason.name()),
            Self::Set { field, value, mask } => {
                write!(f, "set({})", ShowMasked { field: *field, value: *value, mask: *mask })
            }
            Self::SetIcmpMtu(mtu) => write!(f, "set(icmp_mtu={mtu})"),
            Self::Clone(actions) => write!(f, "clone({})", ShowActions(actions)),
            Self::Reply { reply, actions } => write!(f, "{reply}({})", ShowActions(actions)),
            Self::CheckLength { bytes, larger, otherwise } => {
                let (larger, otherwise) = (ShowActions(larger), ShowActions(otherwise));
                write!(f, "check_length({bytes},larger({larger}),otherwise({otherwise}))")
            }
            Self::Serve { service, answered, otherwise } => {
                write!(f, "serve({}", service.name())?;
                for list in answered {
                    write!(f, ",answered({})", ShowActions(list))?;
                }
                write!(f, ",otherwise({}))", ShowActions(otherwise))
            }
            Self::Log(record) => write!(f, "log(name={:?})", record.name),
            Self::Controller => f.write_str("controller"),
            Self::Meter { rate_kbps, burst_kb } => {
                write!(f, "meter(rate_kbps={rate_kbps},burst_kb={burst_kb})")
            }
            Self::NamedMeter(meter) => write!(f, "meter(name={:?})", meter.name),
            Self::SetQueue(queue) => write!(f, "queue({queue})"),
            Self::Ct(action) => action.fmt(f),
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Arp => "arp",
            Self::NeighbourAdvert { router: false } => "nd_na",
            Self::NeighbourAdvert { router: true } => "nd_na_router",
            Self::NeighbourSolicit => "nd_ns",
            Self::Icmp4 => "icmp4",
            Self::Icmp6 => "icmp6",
            Self::TcpReset => "tcp_reset",
            Self::SctpAbort => "sctp_abort",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DropReason, PortNo};

    #[test]
    fn mask_is_shown_as_a_prefix_length_when_it_is_one() {
        let shown = |field, value, mask| ShowMasked { field, value, mask }.to_string();
        assert_eq!(shown(Field::Ip4Dst, 0x0a01_0203, 0xff00_0000), "ip4_dst=10.0.0.0/8");
        assert_eq!(shown(Field::Ip4Dst, 0x0a01_0203, 0xff), "ip4_dst=0.0.0.3/0.0.0.255");
        assert_eq!(shown(Field::Ip6Src, 1 << 127, u128::MAX << 64), "ip6_src=8000::/64");
        assert_eq!(shown(Field::TcpFlags, 2, 0x12), "tcp_flags=0x2/0x12");
        assert_eq!(shown(Field::TpDst, 80, 0xffff), "tp_dst=80");
        assert_eq!(shown(Field::TpDst, 80, 0xfff0), "tp_dst=80/0xfff0");
        assert_eq!(
            shown(Field::EthSrc, 0x0200_0000_0001, 0xffff_ffff_ffff),
            "eth_src=02:00:00:00:00:01"
        );
    }

    #[test]
    fn nested_actions_are_shown() {
        let set = Action::Set { field: Field::IpTtl, value: 63, mask: 0xff };
        let actions = [
            Action::Clone([set, Action::Output(PortNo(3))].into()),
            Action::Drop(DropReason::FlowDrop),
        ];
        let shown = ShowActions(&actions).to_string();
        assert_eq!(shown, "clone(set(ip_ttl=63),output(3)),drop(flow_drop)");
        assert_eq!(ShowActions(&[]).to_string(), "nothing");
        assert_eq!(
            (Match::any().to_string(), FlowMask::default().to_string()),
            ("any".into(), "any".into())
        );
    }
}
