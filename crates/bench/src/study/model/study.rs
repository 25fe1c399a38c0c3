//! The studies, and the question of each.

use crate::{Error, Result};

/// A study. The first four repeat published ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Study {
    /// "The Overhead of Software Tunneling", 2012.
    SoftwareTunnelling,
    /// "Jumbo Frames and VXLAN Performance".
    JumboFrames,
    /// Geneve compared to VXLAN, by the OVN project.
    GeneveVsVxlan,
    /// QinQ compared to VXLAN and Geneve, with Open vSwitch.
    Qinq,
    /// The rates of small packets and of connections, which readers of the studies asked for.
    SmallPackets,
    /// The cost per packet of 1 to 1,000,000 end points.
    Endpoints,
    /// The cost per packet of 1 to 1,000,000 flows.
    Flows,
    /// The cost of the outer UDP checksum.
    OuterChecksum,
    /// How tunnelled flows spread over the queues of a receiver.
    Entropy,
}

impl Study {
    /// All of them, in the order of reports.
    pub const ALL: [Self; 9] = [
        Self::SoftwareTunnelling,
        Self::JumboFrames,
        Self::GeneveVsVxlan,
        Self::Qinq,
        Self::SmallPackets,
        Self::Endpoints,
        Self::Flows,
        Self::OuterChecksum,
        Self::Entropy,
    ];

    /// Its name on command lines and in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SoftwareTunnelling => "software-tunnelling",
            Self::JumboFrames => "jumbo-frames",
            Self::GeneveVsVxlan => "geneve-vs-vxlan",
            Self::Qinq => "qinq",
            Self::SmallPackets => "small-packets",
            Self::Endpoints => "endpoints",
            Self::Flows => "flows",
            Self::OuterChecksum => "outer-checksum",
            Self::Entropy => "entropy",
        }
    }

    /// Its question, in a sentence.
    pub const fn question(self) -> &'static str {
        match self {
            Self::SoftwareTunnelling => {
                "Does a tunnel cost throughput or processor time, beside a bridge without one?"
            }
            Self::JumboFrames => "Do large frames or a card's tunnel offload make up for VXLAN?",
            Self::GeneveVsVxlan => {
                "Does Geneve with an option and a checksum cost more than VXLAN?"
            }
            Self::Qinq => "How much cheaper are two VLAN tags than a tunnel over UDP?",
            Self::SmallPackets => "How many small packets, round trips and connections a second?",
            Self::Endpoints => "Does it cost anything per packet to know very many end points?",
            Self::Flows => "Does it cost anything per packet to have very many flows?",
            Self::OuterChecksum => "Does an outer UDP checksum cost, or does it save?",
            Self::Entropy => {
                "Do tunnelled flows spread over the queues and processors of a receiver?"
            }
        }
    }

    /// Its differences from the published study, and its conditions.
    pub const fn differences(self) -> &'static str {
        match self {
            Self::SoftwareTunnelling => {
                "Published with two hosts, virtual machines and 10G cards. Here all hosts are \
                 namespaces of one machine, whose processors carry sender, switches and receiver. \
                 The card of 2012 had plain TCP segmentation. Profile `full` stands for it with \
                 the bridge and STT, and `none` with tunnels over UDP and GRE. In profile `tso` a \
                 veth device does no GRO for these tunnels, so they are slower than with that card."
            }
            Self::JumboFrames => {
                "Published with 10G cards, whose line rate was the limit; here there is no line \
                 rate. VLAN is the bridge (no tag) and weft's VLAN."
            }
            Self::GeneveVsVxlan => {
                "Published with two hosts of four cores and 40G cards at line rate. Here the \
                 processors are the limit, so throughput and processor time per gigabit replace \
                 percentages at line rate."
            }
            Self::Qinq => {
                "Published with 40G cards, five tunnels, and 20 Gb/s as the fixed rate. Here five \
                 pairs of guests share one tunnel, and the fixed rate is 2 Gb/s in total. Guests' \
                 frames get two tags; in Open vSwitch the flows of the study push one more tag, \
                 which separates the pairs. GRO joins segments with two tags, or out of Geneve, \
                 only where the kernel has 802.1Q and Geneve. Elsewhere 640 streams without \
                 segmentation overflow the 256 entries of a veth ring, and miss the rate."
            }
            Self::SmallPackets => {
                "Frames of 64 bytes carry 18 bytes of UDP payload. `packet_rate` is the highest \
                 rate at which 99 % arrive. The cost of a packet is compared at 20,000 packets a \
                 second for every contender."
            }
            Self::Endpoints => {
                "The other hosts are behind the second host of the lab. Packets go to at most \
                 30,000 of them, in random order."
            }
            Self::Flows => {
                "Every flow needs a megaflow of its own, and packets take the flows in turn, the \
                 hardest order. Beyond 80,000 flows, weft runs with higher `--megaflows` and \
                 `--idle`: setting up a million takes longer than the idle timeout."
            }
            Self::OuterChecksum => {
                "A veth device computes no checksums: all costs and savings are those of software."
            }
            Self::Entropy => {
                "A veth device has no RSS hash. The spread is that of the usual hash of cards, \
                 with a source port for each flow and with one source port for all flows."
            }
        }
    }
}

impl std::fmt::Display for Study {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl serde::Serialize for Study {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl std::str::FromStr for Study {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|study| study.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::Other(format!("unknown study {name:?}; expected all or one of {names}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_study_names_the_valid_ones() {
        let error = "foo".parse::<Study>().unwrap_err().to_string();
        assert!(error.contains("software-tunnelling, jumbo-frames"), "{error}");
    }
}
