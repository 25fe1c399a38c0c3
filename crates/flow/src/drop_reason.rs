//! Why a packet was not delivered.

/// One table gives every reason its number, its name and its meaning: the number is stable and never reused.
macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $number:literal $variant:ident $name:literal,)+) => {
        /// Why a packet was not delivered. The numbers are stable and never reused, so that counters of different versions
        /// can be compared.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $variant = $number,)+
        }

        impl DropReason {
            /// Every reason, by number.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The name in counters and output: lower case, words joined by `_`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// What it means, in a sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc,)+).trim_ascii(),)+ }
            }
        }
    };
}

drop_reasons! {
    /// The frame is shorter than its own headers say.
    0 Malformed "malformed",
    /// The tunnel header is truncated, of an unknown version, or has an impossible length.
    1 MalformedTunnel "malformed_tunnel",
    /// The VXLAN header lacks the I flag.
    2 VxlanNoVni "vxlan_no_vni",
    /// The Geneve packet carries a critical option that is not known here.
    3 GeneveCriticalOption "geneve_critical_option",
    /// The Geneve packet is a control message (O bit), which never reaches guests.
    4 GeneveControl "geneve_control",
    /// The tunnel carries something other than Ethernet frames.
    5 TunnelProtocol "tunnel_protocol",
    /// The GRE checksum does not verify.
    6 GreChecksum "gre_checksum",
    /// The GRE packet lacks the key that says which logical switch it belongs to.
    7 GreNoKey "gre_no_key",
    /// The STT frame is inconsistent with its segments.
    8 SttFrame "stt_frame",
    /// The STT segment overlaps another one of its frame.
    9 SttOverlap "stt_overlap",
    /// The STT frame was not complete in time.
    10 SttExpired "stt_expired",
    /// The STT reassembly memory was needed for newer frames.
    11 SttMemory "stt_memory",
    /// The outer source address belongs to no known remote end point.
    12 UnknownEndpoint "unknown_endpoint",
    /// No logical switch has this VNI, key or VLAN pair.
    13 UnknownDatapath "unknown_datapath",
    /// No local logical port has the key that the tunnel header names.
    14 UnknownLogicalPort "unknown_logical_port",
    /// The destination MAC address belongs to no port of the logical switch.
    15 UnknownMac "unknown_mac",
    /// The frame would leave by the port it came from.
    16 Hairpin "hairpin",
    /// The outer header says congestion was experienced, the inner packet cannot say so (RFC 6040).
    17 EcnNotCapable "ecn_not_capable",
    /// The end point's route or neighbour is not known yet.
    18 EndpointUnresolved "endpoint_unresolved",
    /// The underlay has no route to the end point.
    19 UnderlayUnreachable "underlay_unreachable",
    /// The encapsulated packet is larger than the underlay's path MTU.
    20 UnderlayTooBig "underlay_too_big",
    /// The uplink is down.
    21 UplinkDown "uplink_down",
    /// The device or socket had no room for the packet.
    22 QueueFull "queue_full",
    /// The port's device is gone or not yet there.
    23 PortDown "port_down",
    /// The port named by an action does not exist.
    24 NoSuchPort "no_such_port",
    /// There was not enough headroom for the outer headers.
    25 Headroom "headroom",
    /// The super-packet cannot be segmented.
    26 Segmentation "segmentation",
    /// The device refused the packet.
    27 DeviceError "device_error",
    /// The kernel dropped packets before they could be read, because the receive queue was full.
    28 ReceiveOverrun "receive_overrun",
    /// The outer packet is an IP fragment where only whole packets are accepted.
    29 OuterFragment "outer_fragment",
    /// The port's source address is a group address.
    30 BadSourceMac "bad_source_mac",
    /// The frame is larger than the MTU of the port that it would leave by.
    31 PortTooBig "port_too_big",
    /// The checksum of the outer packet does not verify.
    32 OuterChecksum "outer_checksum",
    /// A broadcast or multicast frame in a logical switch that has no other port.
    33 NoReceiver "no_receiver",
    /// No flow of the table matches.
    34 NoFlow "no_flow",
    /// A flow of the pipeline says so: its actions send the packet nowhere.
    35 FlowDrop "flow_drop",
    /// A flow that matched has an action that is not executed here (connection tracking, DHCP, DNS, ...).
    36 UnsupportedAction "unsupported_action",
    /// The translation took more steps than allowed.
    37 TranslationSteps "translation_steps",
    /// The translation was nested deeper than allowed.
    38 TranslationDepth "translation_depth",
    /// A tag was pushed onto two, or one of three was popped: the key knows two.
    39 VlanDepth "vlan_depth",
    /// The rate of a meter was exceeded.
    40 Meter "meter",
    /// The packet's TTL or hop limit ran out.
    41 TtlExpired "ttl_expired",
    /// An action does not fit the packet: an ICMP reply to a frame that is not IP, and the like.
    42 NotApplicable "not_applicable",
    /// Too many packets of the port wait to be translated.
    43 UpcallQueueFull "upcall_queue_full",
    /// The router has just asked for the neighbour that the packet is to go to, and waits for an answer.
    44 NeighbourAsked "neighbour_asked",
    /// The port's packets have made routers ask for as many neighbours as they may in a second.
    45 SolicitLimit "solicit_limit",
    /// No cached decision was for the packet, and the daemon was not running.
    46 NoDaemon "no_daemon",
}

/// A counter for every reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DropCounters([u64; DropReason::ALL.len()]);

impl Default for DropCounters {
    fn default() -> Self {
        Self([0; DropReason::ALL.len()])
    }
}

impl DropCounters {
    /// Counts `packets` under `reason`.
    pub fn add(&mut self, reason: DropReason, packets: u64) {
        self.0[reason as usize] += packets;
    }

    /// The packets counted under `reason`.
    pub fn count(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// The reasons that have counted anything.
    pub fn nonzero(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.iter().map(|&r| (r, self.count(r))).filter(|&(_, n)| n != 0)
    }

    /// All packets, whatever the reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_numbered_by_their_place() {
        for (place, &reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason as usize, place, "{}", reason.name());
        }
    }

    #[test]
    fn names_are_distinct_and_meanings_are_sentences() {
        let mut names: Vec<_> = DropReason::ALL.iter().map(|r| r.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DropReason::ALL.len());
        assert!(DropReason::ALL.iter().all(|r| r.meaning().ends_with('.')));
    }
}
