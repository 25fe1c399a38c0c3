//! The stages of the logical pipelines: each is a table. They are OVN's, as far as this network needs them, under OVN's names.

use pipeline::Direction;

/// One list for each pipeline, in the order of the packet's path, gives each stage its name, its table and its meaning.
macro_rules! stages {
    ($($pipeline:literal $direction:ident { $($(#[doc = $doc:literal])+ $stage:ident $name:literal,)+ })+) => {
        /// A stage of a logical pipeline.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub enum Stage {
            $($($(#[doc = $doc])+ $stage,)+)+
        }

        impl Stage {
            /// Every stage; pipeline by pipeline, in order.
            pub const ALL: &[Self] = &[$($(Self::$stage,)+)+];

            /// OVN's name, such as `ls_in_acl`.
            pub const fn name(self) -> &'static str {
                match self { $($(Self::$stage => concat!($pipeline, $name),)+)+ }
            }

            /// Which pipeline it belongs to.
            pub const fn direction(self) -> Direction {
                match self { $($(Self::$stage => Direction::$direction,)+)+ }
            }

            /// The number of its table in the pipeline, from 0.
            pub fn table(self) -> u8 {
                let pipelines: &[&[Self]] = &[$(&[$(Self::$stage,)+],)+];
                let place = |stages: &&[Self]| stages.iter().position(|&stage| stage == self);
                // No pipeline has more than a dozen.
                pipelines.iter().find_map(place).unwrap_or_default() as u8
            }
        }
    };
}

stages! {
    "ls_in_" Ingress {
        /// Which addresses may the port send from? Frames out of tunnels that name no logical port have passed here on the
        /// host that they come from, and skip all but the choice of the receiver.
        LsInCheckPortSec "check_port_sec",
        /// Drops what port security forbids.
        LsInApplyPortSec "apply_port_sec",
        /// Access control lists of what comes from ports.
        LsInAcl "acl",
        /// Answers ARP and neighbour solicitations for known addresses.
        LsInArpRsp "arp_rsp",
        /// Learns which port a MAC address is behind that the file does not have.
        LsInPutFdb "put_fdb",
        /// Chooses the receiver by its MAC address.
        LsInL2Lkup "l2_lkup",
        /// What has no receiver: it goes to ports that learn, or nowhere.
        LsInL2Unknown "l2_unknown",
    }
    "ls_out_" Egress {
        /// Access control lists of what goes to ports.
        LsOutAcl "acl",
        /// Learns, on the receiver's host, which port of another host a MAC address is behind.
        LsOutPutFdb "put_fdb",
        /// Which addresses may the port receive for?
        LsOutCheckPortSec "check_port_sec",
        /// Drops what port security forbids, and sends the rest.
        LsOutApplyPortSec "apply_port_sec",
    }
    "lr_in_" Ingress {
        /// Takes frames for the router's MAC addresses and for groups.
        LrInAdmission "admission",
        /// Does an ARP packet or a neighbour advertisement say something new?
        LrInLookupNeighbor "lookup_neighbor",
        /// Learns it.
        LrInLearnNeighbor "learn_neighbor",
        /// Packets for the router itself, and those that no router forwards.
        LrInIpInput "ip_input",
        /// Chooses next hop and port by the longest prefix.
        LrInIpRouting "ip_routing",
        /// Finds the MAC address of the next hop.
        LrInArpResolve "arp_resolve",
        /// Is the packet too long for where it goes?
        LrInChkPktLen "chk_pkt_len",
        /// Tells the sender how long a packet may be.
        LrInLargerPkts "larger_pkts",
        /// Asks for MAC addresses that are not known.
        LrInArpRequest "arp_request",
    }
    "lr_out_" Egress {
        /// Sends.
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
            ("ls_in_l2_unknown", 6),
            ("ls_out_acl", 0),
            ("lr_in_arp_request", 8),
        ] {
            assert!(tables.contains(&(name, table)), "{name} {table}: {tables:?}");
        }
        assert_eq!(Stage::LrOutDelivery.direction(), Direction::Egress);
    }
}
