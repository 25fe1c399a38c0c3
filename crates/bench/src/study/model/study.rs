//! The studies, and the question of each.

use crate::{Error, Result};

/// A study. The first four are published.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Study {
    /// "The Overhead of Software Tunneling", 2012.
    SoftwareTunnelling,
    /// "Jumbo Frames and VXLAN Performance".
    JumboFrames,
    /// Geneve against VXLAN, by the OVN project.
    GeneveVsVxlan,
    /// QinQ against VXLAN and Geneve, with Open vSwitch.
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
            Self::GeneveVsVxlan => "Is Geneve with an option and a checksum dearer than VXLAN?",
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
                "Published with two hosts, virtual machines and 10G cards; here namespaces of one machine, whose processors carry \
                 sender, switches and receiver. The card with plain TCP segmentation of 2012 is profile `full` for the \
                 bridge and STT, and `none` for tunnels over UDP and GRE: in profile `tso` a veth device does no GRO for them, which \
                 makes them slower than behind such a card."
            }
            Self::JumboFrames => {
                "Published with 10G cards, whose line rate was the limit; here there is none. VLAN is the bridge (no tag) and weft's \
                 own tag."
            }
            Self::GeneveVsVxlan => {
                "Published with two hosts of four cores and 40G cards at line rate; here processors are the limit, so \
                 throughput and processor time for a gigabit take the place of percentages at line rate."
            }
            Self::Qinq => {
                "Published with 40G cards, five tunnels, and 20 Gb/s as the fixed rate; here five pairs of guests share one \
                 tunnel, and the fixed rate is 2 Gb/s in all. Guests' frames get two tags here, in Open vSwitch by the \
                 flows of the study with one tag more, which tells the pairs apart. Segments with two tags, and those out of Geneve, are \
                 joined (GRO) only where the kernel knows 802.1Q and Geneve: elsewhere, without segmentation, 640 streams lose \
                 segments in the 256 places of a veth device, and do not hold the rate."
            }
            Self::SmallPackets => {
                "Frames of 64 bytes carry 18 bytes of UDP payload. `packet_rate` is the highest rate at which 99 % arrive; what a \
                 packet costs is compared at 20,000 packets a second, for everybody the same."
            }
            Self::Endpoints => {
                "Other hosts are behind the one that is there; packets go to 30,000 of them in random order at most."
            }
            Self::Flows => {
                "Every flow needs a megaflow of its own; packets take them in turn, the hardest order. Beyond 80,000, weft is run with \
                 `--megaflows` and `--idle` as high as needed: to set up a million takes longer than one may otherwise be idle."
            }
            Self::OuterChecksum => {
                "A veth device computes no checksum of its own: what is saved or spent is the software's."
            }
            Self::Entropy => {
                "A veth device has no hash of its own; the spread is that of the usual hash of cards, with outer source ports that differ from \
                 flow to flow and with one for all."
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
            Error::Traffic(format!("{name:?} is no study; there are {names}, and all"))
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
