//! The stages of the logical pipelines, one table each, named as in OVN.

use pipeline::Direction;

/// Defines the stages: a list per pipeline in packet order, with OVN name, variant and meaning.
macro_rules! stages {
    ($($pipeline:literal $direction:ident {
        $($(#[doc = $doc:literal])+ $stage:ident $name:literal,)+
    })+) => {
        /// A stage of a logical pipeline.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub enum Stage {
            $($($(#[doc = $doc])+ $stage,)+)+
        }

        impl Stage {
            /// All stages, pipeline by pipeline, in order.
            pub const ALL: &[Self] = &[$($(Self::$stage,)+)+];

            /// Its OVN name, such as `ls_in_acl`.
            pub const fn name(self) -> &'static str {
                match self { $($(Self::$stage => concat!($pipeline, $name),)+)+ }
            }

            /// The pipeline it belongs to.
            pub const fn direction(self) -> Direction {
                match self { $($(Self::$stage => Direction::$direction,)+)+ }
            }

            /// Its table number in the pipeline, from 0.
            pub fn table(self) -> u8 {
                let pipelines: &[&[Self]] = &[$(&[$(Self::$stage,)+],)+];
                let place = |stages: &&[Self]| stages.iter().position(|&stage| stage == self);
                // A pipeline has fewer than 64 stages.
                pipelines.iter().find_map(place).unwrap_or_default() as u8
            }
        }
    };
}

stages! {
    "ls_in_" Ingress {
        /// Checks the source addresses of a port. Frames from tunnels without logical ports were
        /// checked on the host they come from, and skip all stages up to the destination lookup.
        LsInCheckPortSec "check_port_sec",
        /// Drops what port security forbids, and selects what the guards have to check.
        LsInApplyPortSec "apply_port_sec",
        /// RA guard: drops router advertisements and redirects of ports that are not trusted.
        LsInRaGuard "ra_guard",
        /// DHCP guard: drops messages of DHCP servers from ports that are not trusted.
        LsInDhcpGuard "dhcp_guard",
        /// Decides which packets are tracked, where an ACL allows related packets.
        LsInPreAcl "pre_acl",
        /// Decides which packets are tracked for load balancers.
        LsInPreLb "pre_lb",
        /// Passes the packets to track through the connection tracker.
        LsInPreStateful "pre_stateful",
        /// Sums up the connection's state for the ACLs.
        LsInAclHint "acl_hint",
        /// Access control lists in the direction `from-port`.
        LsInAcl "acl",
        /// Load balancers with affinity: looks up the backend of the client.
        LsInLbAffCheck "lb_aff_check",
        /// Load balancers: chooses the backend of a new connection.
        LsInLb "lb",
        /// Load balancers with affinity: remembers the backend of the client.
        LsInLbAffLearn "lb_aff_learn",
        /// Recognizes packets whose backend is their sender, and the replies to them.
        LsInPreHairpin "pre_hairpin",
        /// Gives hairpin packets, whose backend is their sender, the virtual address as their
        /// source.
        LsInNatHairpin "nat_hairpin",
        /// Sends hairpin packets back to their sender.
        LsInHairpin "hairpin",
        /// Commits new connections that the ACLs allow.
        LsInStateful "stateful",
        /// Answers ARP and neighbour solicitations for known addresses.
        LsInArpRsp "arp_rsp",
        /// Learns the port of a MAC address that the file does not list.
        LsInPutFdb "put_fdb",
        /// Looks up the destination MAC address.
        LsInL2Lkup "l2_lkup",
        /// Unknown unicast: sends it to the ports that learn, or drops it.
        LsInL2Unknown "l2_unknown",
    }
    "ls_out_" Egress {
        /// Decides which packets are tracked, where an ACL allows related packets.
        LsOutPreAcl "pre_acl",
        /// Decides which packets are tracked for load balancers.
        LsOutPreLb "pre_lb",
        /// Passes the packets to track through the connection tracker.
        LsOutPreStateful "pre_stateful",
        /// Sums up the connection's state for the ACLs.
        LsOutAclHint "acl_hint",
        /// Access control lists in the direction `to-port`.
        LsOutAcl "acl",
        /// Commits new connections that the ACLs allow.
        LsOutStateful "stateful",
        /// Learns, on the receiver's host, which port of another host a MAC address is behind.
        LsOutPutFdb "put_fdb",
        /// Checks the destination addresses of a port.
        LsOutCheckPortSec "check_port_sec",
        /// Drops what port security forbids, and sends the rest.
        LsOutApplyPortSec "apply_port_sec",
    }
    "lr_in_" Ingress {
        /// Accepts frames to the router's MAC addresses and to multicast groups.
        LrInAdmission "admission",
        /// Checks whether an ARP packet or neighbour advertisement has a new binding.
        LrInLookupNeighbor "lookup_neighbor",
        /// Learns the binding of IP and MAC address.
        LrInLearnNeighbor "learn_neighbor",
        /// Handles packets for the router itself, and drops packets that routers do not forward.
        LrInIpInput "ip_input",
        /// NAT: reverses SNAT for replies.
        LrInUnsnat "unsnat",
        /// Load balancers: passes packets for virtual addresses through the connection tracker.
        LrInDefrag "defrag",
        /// Load balancers with affinity: looks up the backend of the client.
        LrInLbAffCheck "lb_aff_check",
        /// NAT: applies DNAT to inbound connections. Load balancers: chooses the backend of a new
        /// connection.
        LrInDnat "dnat",
        /// Load balancers with affinity: remembers the backend of the client.
        LrInLbAffLearn "lb_aff_learn",
        /// Selects next hop and port by longest-prefix match.
        LrInIpRouting "ip_routing",
        /// Resolves the MAC address of the next hop.
        LrInArpResolve "arp_resolve",
        /// Checks whether the packet exceeds the MTU of the egress port.
        LrInChkPktLen "chk_pkt_len",
        /// Sends an ICMP "too big" to the sender.
        LrInLargerPkts "larger_pkts",
        /// Sends ARP requests and neighbour solicitations.
        LrInArpRequest "arp_request",
    }
    "lr_out_" Egress {
        /// NAT: reverses DNAT for replies.
        LrOutUndnat "undnat",
        /// NAT: commits new connections.
        LrOutPostUndnat "post_undnat",
        /// NAT: applies SNAT to outbound connections.
        LrOutSnat "snat",
        /// Sends the packet.
        LrOutDelivery "delivery",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_count_from_zero_in_each_pipeline() {
        let tables: Vec<_> = Stage::ALL.iter().map(|stage| (stage.name(), stage.table())).collect();
        for (name, table) in [
            ("ls_in_check_port_sec", 0),
            ("ls_in_l2_unknown", 19),
            ("ls_out_acl", 4),
            ("lr_in_arp_request", 13),
        ] {
            assert!(tables.contains(&(name, table)), "{name} {table}: {tables:?}");
        }
        assert_eq!(Stage::LrOutDelivery.direction(), Direction::Egress);
    }
}
