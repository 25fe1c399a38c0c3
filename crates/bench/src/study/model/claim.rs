//! The claims of the published studies, and the data types of verdicts on them.

use serde::Serialize;

use super::study::Study;

/// The verdict on a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimVerdict {
    /// All measurements agree with it.
    Holds,
    /// Some measurements agree with it, and others contradict it.
    HoldsInPart,
    /// All measurements contradict it.
    DoesNotHold,
    /// Some measurements agree with it and none contradicts it; the others did not converge.
    HoldsSoFar,
    /// Some measurements contradict it and none agrees with it; the others did not converge.
    DoesNotHoldSoFar,
    /// The claim is a question, and the measurements answer it.
    Answered,
    /// Within the noise of the machine, the measurements lie on either side of the claim's limit.
    /// More runs or a quieter machine may decide.
    NotConverged,
    /// This machine or this run lacks something that the claim needs.
    NotTestable,
}

impl ClaimVerdict {
    /// All of them, the most conclusive first.
    pub const ALL: [Self; 8] = [
        Self::Holds,
        Self::HoldsInPart,
        Self::DoesNotHold,
        Self::HoldsSoFar,
        Self::DoesNotHoldSoFar,
        Self::Answered,
        Self::NotConverged,
        Self::NotTestable,
    ];

    /// The verdict in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::HoldsInPart => "holds in part",
            Self::DoesNotHold => "does not hold",
            Self::HoldsSoFar => "holds so far",
            Self::DoesNotHoldSoFar => "does not hold so far",
            Self::Answered => "answered",
            Self::NotConverged => "not converged here",
            Self::NotTestable => "not testable here",
        }
    }
}

/// A claim of a published study.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Claim {
    /// C1 to C17.
    pub id: &'static str,
    /// The study that makes it.
    pub study: Study,
    /// The claim in a sentence.
    pub text: &'static str,
}

/// The number of measurements for and against a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Tally {
    /// Measurements that agree with it.
    pub agree: usize,
    /// Measurements that contradict it.
    pub disagree: usize,
    /// Measurements that did not converge.
    pub open: usize,
}

impl Tally {
    /// The number of all measurements.
    pub const fn all(self) -> usize {
        self.agree + self.disagree + self.open
    }

    /// The verdict. Inconclusive measurements do not matter when others agree and others
    /// contradict.
    pub(crate) const fn verdict(self) -> ClaimVerdict {
        match (self.agree, self.disagree, self.open) {
            (0, 0, 0) => ClaimVerdict::NotTestable,
            (1.., 1.., _) => ClaimVerdict::HoldsInPart,
            (1.., 0, 0) => ClaimVerdict::Holds,
            (0, 1.., 0) => ClaimVerdict::DoesNotHold,
            (1.., 0, 1..) => ClaimVerdict::HoldsSoFar,
            (0, 1.., 1..) => ClaimVerdict::DoesNotHoldSoFar,
            (0, 0, 1..) => ClaimVerdict::NotConverged,
        }
    }
}

/// A claim with its verdict.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// The claim.
    #[serde(flatten)]
    pub claim: Claim,
    /// The verdict.
    pub verdict: ClaimVerdict,
    /// The measurements behind it; none when the claim is not testable.
    pub measurements: Tally,
    /// The criterion, or why the claim is not testable.
    pub why: String,
    /// The measurements, a line for each.
    pub evidence: Vec<String>,
}

impl Finding {
    /// The verdict in words, with the number of conclusive measurements if some did not converge.
    pub fn words(&self) -> String {
        let words = self.verdict.words();
        let judged = self.measurements.agree + self.measurements.disagree;
        match self.verdict {
            ClaimVerdict::HoldsSoFar | ClaimVerdict::DoesNotHoldSoFar => {
                format!("{words} ({judged} of {})", self.measurements.all())
            }
            _ => words.to_owned(),
        }
    }
}

pub(crate) const CLAIMS: [Claim; 17] = [
    claim(
        "C1",
        Study::SoftwareTunnelling,
        "A tunnel with the right protocol (STT) is as fast as no tunnel, and can cost less \
         processor time.",
    ),
    claim(
        "C2",
        Study::SoftwareTunnelling,
        "A tunnel that the card cannot segment (GRE) loses most of the throughput.",
    ),
    claim(
        "C3",
        Study::Endpoints,
        "A software edge supports hundreds of thousands of tunnel end points.",
    ),
    claim(
        "C4",
        Study::SmallPackets,
        "How many small packets a second does a tunnel carry, and what does one cost? (asked by \
         readers, never answered)",
    ),
    claim(
        "C5",
        Study::JumboFrames,
        "At MTU 1500 without offload VXLAN reaches about 60 % of VLAN; at 8900 it is as fast.",
    ),
    claim(
        "C6",
        Study::JumboFrames,
        "A card's VXLAN offload is worth 10 to 25 % at MTU 1500; large frames without it are worth \
         more.",
    ),
    claim(
        "C7",
        Study::JumboFrames,
        "More parallel streams do not help where the processor that encapsulates is the limit.",
    ),
    claim(
        "C8",
        Study::JumboFrames,
        "VXLAN over IPv4 takes 50 bytes, so a 9000-byte underlay carries at most 8950; the MTU must \
         be right in five places.",
    ),
    claim(
        "C9",
        Study::GeneveVsVxlan,
        "Geneve and VXLAN both reach line rate, and Geneve uses less processor time.",
    ),
    claim("C10", Study::GeneveVsVxlan, "Geneve serves more requests a second than VXLAN."),
    claim("C11", Study::OuterChecksum, "The outer UDP checksum makes receiving cheaper."),
    claim(
        "C12",
        Study::Entropy,
        "No tool reports whether a card spreads tunnelled flows over its queues; RPS is the \
         substitute in software.",
    ),
    claim(
        "C13",
        Study::GeneveVsVxlan,
        "Logical ports in the tunnel let features be written once, whatever host a packet is on.",
    ),
    claim(
        "C14",
        Study::Qinq,
        "QinQ reaches almost twice the throughput of VXLAN and Geneve in software.",
    ),
    claim(
        "C15",
        Study::Qinq,
        "QinQ uses less than half the processor time of VXLAN and Geneve in software.",
    ),
    claim(
        "C16",
        Study::Qinq,
        "VXLAN and Geneve in software scatter from run to run, QinQ hardly does.",
    ),
    claim(
        "C17",
        Study::Qinq,
        "Whether a card or software inserts the tags of QinQ hardly matters.",
    ),
];

const fn claim(id: &'static str, study: Study, text: &'static str) -> Claim {
    Claim { id, study, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_numbered_without_gaps() {
        for (number, claim) in (1..).zip(CLAIMS) {
            assert_eq!(claim.id, format!("C{number}"));
        }
    }
}
