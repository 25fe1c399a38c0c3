//! [`FlowReferences`]: the ports and tunnel end points that flows refer to. `weft trace` uses them
//! to trace flows for which no bridge exists.

use super::bridge::Bridge;
use super::ports::Ports;
use flow::{Field, PortNo, Subfield};
use pipeline::Op;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Ports and tunnel end points that flows refer to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FlowReferences {
    /// Ports that flows match, output to, or use as ingress port of a `resubmit`.
    pub ports: BTreeSet<PortNo>,
    /// Addresses that flows write to `tun_dst` or `tun_ipv6_dst`.
    pub remotes: BTreeSet<IpAddr>,
}

impl FlowReferences {
    /// Collects the references from the flows of a bridge.
    pub fn of(bridge: &Bridge) -> Self {
        let mut found = Self::default();
        for (spec, _) in bridge.flows() {
            if spec.condition.mask().get(Field::InPort) == Field::InPort.all_ones() {
                // The cast is lossless: the field is 32 bits wide.
                found.add_port(PortNo(spec.condition.key().get(Field::InPort) as u32));
            }
            let mut lists: Vec<&[Op]> = vec![&spec.ops];
            while let Some(list) = lists.pop() {
                for op in list {
                    match op {
                        Op::OutputPort(port) | Op::Resubmit { in_port: port, .. } => {
                            found.add_port(*port);
                        }
                        Op::Load { to, value } => found.add_load(*to, *value),
                        Op::Clone(inner) => lists.push(inner),
                        _ => {}
                    }
                }
            }
        }
        found
    }

    fn add_port(&mut self, port: PortNo) {
        if (1..=Ports::MAX).contains(&port.0) {
            self.ports.insert(port);
        }
    }

    fn add_load(&mut self, to: Subfield, value: u128) {
        if to == Subfield::whole(Field::TunDst) {
            // The cast is lossless: the field is 32 bits wide.
            self.remotes.insert(Ipv4Addr::from_bits(value as u32).into());
        } else if to == Subfield::whole(Field::TunIpv6Dst) {
            self.remotes.insert(Ipv6Addr::from_bits(value).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_end_points_are_found_wherever_they_are() {
        let flows = "in_port=1 actions=clone(set_field:192.0.2.1->tun_dst,output:2),resubmit(3,1)\n\
                     table=1,tun_dst=192.0.2.9 actions=set_field:2001:db8::1->tun_ipv6_dst,in_port\n\
                     table=2,in_port=9 actions=drop\n\
                     delete table=2\n";
        let mut bridge = Bridge::new("br", []).unwrap();
        bridge.apply(flows, "flows", 0).unwrap();
        let found = FlowReferences::of(&bridge);
        assert_eq!(found.ports, [1, 2, 3].map(PortNo).into());
        let remotes: [IpAddr; 2] =
            [Ipv4Addr::new(192, 0, 2, 1).into(), "2001:db8::1".parse().unwrap()];
        assert_eq!(found.remotes, remotes.into());
    }
}
